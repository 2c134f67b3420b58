"""A job on logged work, judged on tasks that it does not train on, against its policy's true value."""

import json
from pathlib import Path
from typing import Any

import pytest
from arms_environment import Arms
from job_world import Events, MakeJob
from logged_world import distributions, write_drawn

from onward.envs.environment import World
from onward.envs.tasks import TaskRef
from onward.lm.policy import Policy
from onward.training import checkpoints
from onward.training.data import dataset
from onward.training.job import evaluation, holdout, worker
from onward.training.role.results import evaluation_results
from onward.training.spec.environment_plan import EnvironmentPlan

EVEN = slice(0, None, 2)


def _held_out(events: Events) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == "held_out"]


def _true_value(base: Path, checkpoint: Path | None, lines: list[dict[str, Any]]) -> float:
    """Returns the exact mean reward at the tasks of ``lines``: the probability of an even token."""
    policy = Policy.load(base)
    if checkpoint is not None:
        policy.add_adapter("made", checkpoint)
    tasks = [int(line["group_key"][1:]) for line in lines]
    chances = distributions(policy, tasks, None if checkpoint is None else "made")
    return float(chances[:, EVEN].sum(1).mean())


@pytest.fixture
def job(make_job: MakeJob, arms_base: Path) -> Path:
    folder = make_job(holdout=0.5, epochs=2, batch_rows=40, learning_rate=4e-3, start_counts=False)
    write_drawn(folder, arms_base, 300)
    return folder


def test_the_estimate_is_of_the_policy_in_training_and_its_interval_has_the_true_value(
    job: Path, arms_base: Path, events: Events
) -> None:
    assert worker.main(job) == 0, events[-1]
    looks = _held_out(events)
    assert looks[0]["when"] == "before" and looks[-1]["when"] == "after" and len(looks) >= 4
    lines = holdout.split(dataset.read(job / dataset.FILE), 0.5, 0).held_out
    assert looks[0]["reward"] == pytest.approx(sum(line["outcome"] for line in lines) / len(lines), abs=1e-4)
    assert looks[0]["effective"] == pytest.approx(len(lines), rel=1e-3), "the start sampled them: all weigh 1"
    metrics = checkpoints.verify(job / "checkpoint").metrics
    after = metrics["held_out"]["after"]
    truth = _true_value(arms_base, job / "checkpoint", lines)
    before = _true_value(arms_base, None, lines)
    assert truth > before + 0.1, "it learned"
    assert after["low"] <= truth <= after["high"]
    assert abs(after["reward"] - truth) < abs(after["reward"] - looks[0]["reward"])
    assert after["method"] == "importance_sampling" and after["tasks"] == len(lines)
    assert after["doubly_robust_low"] <= truth <= after["doubly_robust_high"]
    assert after["doubly_robust"] != after["reward"], "an estimate of its own"


def test_no_held_out_task_is_trained_on(job: Path, events: Events) -> None:
    assert worker.main(job) == 0
    (train,) = [event for event in events if event.get("name") == "train"]
    split = holdout.split(dataset.read(job / dataset.FILE), 0.5, 0)
    assert (train["trajectories"], train["held_out"]) == (len(split.train), len(split.held_out))
    mean = sum(line["outcome"] for line in split.train) / len(split.train)
    assert checkpoints.verify(job / "checkpoint").metrics["reward_mean"] == pytest.approx(mean)


def test_the_best_by_the_estimate_is_handed_out_and_the_status_says_how_good_it_is(
    job: Path, events: Events
) -> None:
    assert worker.main(job) == 0
    metrics = events[-1]["metrics"]
    looks = {event["step"]: event["reward"] for event in _held_out(events) if event["step"]}
    best = max(looks.values())
    assert metrics["handed_out"]["by"] == "held-out return, estimated off policy"
    assert metrics["handed_out"]["figure"] == best == looks[metrics["handed_out"]["step"]]
    told = evaluation_results(metrics)
    assert told["holdout_reward"] == best
    assert told["improvement_over_baseline"] == pytest.approx(best - _held_out(events)[0]["reward"])
    assert told["holdout"]["low"] < best < told["holdout"]["high"] and told["holdout"]["attempts"] > 100


def test_a_start_that_was_not_beaten_is_handed_out_again(
    make_job: MakeJob, arms_base: Path, events: Events
) -> None:
    """Rewards are turned round for the tasks that are trained on, so that every step makes it worse."""
    folder = make_job(holdout=0.5, epochs=1, batch_rows=40, learning_rate=4e-3)
    lines = write_drawn(folder, arms_base, 300)
    held_out = {line["trajectory_id"] for line in holdout.split(lines, 0.5, 0).held_out}
    for line in lines:
        if line["trajectory_id"] not in held_out:
            line["outcome"] = 1.0 - line["outcome"]
    (folder / dataset.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert worker.main(folder) == 0
    assert events[-1]["metrics"]["handed_out"]["step"] == 0
    assert (folder / "last").is_dir()


def test_a_policy_that_cannot_be_judged_has_a_reason_and_never_takes_the_place_of_the_start(
    make_job: MakeJob, arms_base: Path, events: Events
) -> None:
    """Even tokens, half of the draws, end with twice their weight and the others with none."""
    folder = make_job(holdout=0.3, epochs=8, batch_rows=20, learning_rate=1e-2)
    write_drawn(folder, arms_base, 48)
    assert worker.main(folder) == 0, events[-1]
    last = _held_out(events)[-1]
    assert "reward" not in last and "too far from the one that sampled" in last["reason"]
    metrics = events[-1]["metrics"]
    assert metrics["handed_out"]["step"] < metrics["handed_out"]["of"]
    assert "reward" not in metrics["last"]["held_out"]


def test_too_few_tasks_give_a_reason_in_place_of_a_number(
    make_job: MakeJob, arms_base: Path, events: Events
) -> None:
    folder = make_job(holdout=0.3, start_counts=False)
    write_drawn(folder, arms_base, 15, attempts=4)
    assert worker.main(folder) == 0
    metrics = events[-1]["metrics"]
    told = evaluation_results(metrics)
    assert "tasks were held out and an estimate needs 10" in told["holdout"]["reason"]
    assert "holdout_reward" not in told and "handed_out" not in metrics
    assert "doubly_robust" not in told["holdout"]


def test_a_strict_job_that_can_hold_nothing_out_fails_and_another_says_why(
    make_job: MakeJob, arms_base: Path, events: Events
) -> None:
    for strict in (False, True):
        folder = make_job(holdout=0.01, strict=strict, start_counts=False)
        write_drawn(folder, arms_base, 8)
        assert worker.main(folder) == int(strict)
    assert (
        events[-1]["code"] == "DATA" and "Nothing is held out: the data has 8 tasks" in events[-1]["message"]
    )
    (done,) = [event for event in events if event["event"] == "done"]
    assert evaluation_results(done["metrics"])["holdout"]["reason"].startswith("the data has 8 tasks")


def test_an_attempt_with_a_probability_that_is_not_known_is_counted_and_not_weighed(
    make_job: MakeJob, arms_base: Path, events: Events
) -> None:
    folder = make_job(holdout=0.5, start_counts=False)
    lines = write_drawn(folder, arms_base, 60)
    chosen = [line["trajectory_id"] for line in holdout.split(lines, 0.5, 0).held_out]
    for line in lines:
        if line["trajectory_id"] == chosen[0]:
            line["calls"][0]["trains"] = False  # a grammar drew it
    (folder / dataset.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert worker.main(folder) == 0
    look = _held_out(events)[0]
    assert look["attempts"] == len(chosen) - 1 and look["excluded"] == {"not_weighable": 1}


def test_a_run_that_was_killed_ends_with_the_same_figures_and_weights(
    make_job: MakeJob, arms_base: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []
    real = worker._Run._save

    def save(run: worker._Run, method: Any, facts: Any, *, always: bool = False) -> bool:
        saved = real(run, method, facts, always=always)
        if facts["step"] == 2:
            raise worker.StopError
        return saved

    for killed in (False, True):
        folder = make_job(holdout=0.5, epochs=2, batch_rows=40, save_steps=1, start_counts=False)
        write_drawn(folder, arms_base, 120)
        if killed:
            with monkeypatch.context() as patch:
                patch.setattr(worker._Run, "_save", save)
                assert worker.main(folder) == worker.STOPPED
        assert worker.main(folder) == 0, events[-1]
        ended.append(checkpoints.verify(folder / "checkpoint"))
    assert ended[0].adapter_digest == ended[1].adapter_digest
    assert ended[0].metrics == ended[1].metrics


def test_every_step_says_how_far_it_is_and_how_it_goes(job: Path, events: Events) -> None:
    assert worker.main(job) == 0
    told = [event for event in events if event["event"] == "progress"]
    total = told[-1]["total_steps"]
    assert [one["progress"]["current_step"] for one in told] == list(range(1, total + 1))
    assert told[0]["progress"]["current_epoch"] == 1 and told[-1]["progress"]["current_epoch"] == 2
    assert told[-1]["progress"]["percent_complete"] == 100.0 and told[-1]["progress"]["eta_seconds"] == 0.0
    assert told[0]["progress"]["eta_seconds"] > 0
    names = {"loss", "reward_mean", "reward_std", "policy_entropy", "kl_divergence", "learning_rate", "ess",
             "clip_fraction", "tokens_per_second", "memory_gb"}  # fmt: skip
    assert all(names <= one["metrics"].keys() for one in told)


def test_held_out_tasks_of_an_environment_are_played_again_and_the_old_rewards_play_no_part(
    make_job: MakeJob, arms_base: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rewards of the logged work say that everything succeeded; the environment says otherwise."""
    plan = EnvironmentPlan(place="arms_environment:ARMS", max_tokens=3)
    folder = make_job(holdout=0.5, replay=plan, epochs=1, batch_rows=40, eval_every=1, start_counts=False)
    lines = write_drawn(folder, arms_base, 60)
    for number, line in enumerate(lines):
        line |= {"task_id": f"arms-test-0-{number}", "outcome": 1.0 - 1e-3 * (number % 2)}
    (folder / dataset.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    held_out = {line["task_id"] for line in holdout.split(lines, 0.5, 0).held_out}
    played: set[str] = set()
    real = Arms.world

    def world(self: Arms, task: int) -> World:
        played.add(f"arms-test-0-{task}")
        return real(self, task)

    monkeypatch.setattr(Arms, "world", world)
    assert worker.main(folder) == 0, events[-1]
    assert played == held_out
    looks = _held_out(events)
    assert all(look["method"] == "replay" and look["episodes"] == len(held_out) for look in looks)
    assert 0.2 < looks[0]["reward"] < 0.8, "half of the choices are right"
    assert looks[0]["low"] < looks[0]["reward"] < looks[0]["high"]
    handed_out = events[-1]["metrics"]["handed_out"]
    assert handed_out["by"] == "held-out success"
    assert handed_out["figure"] == max(look["success"] for look in looks if look["step"])


def test_work_on_other_tasks_than_the_environments_is_judged_by_what_it_holds_out_itself() -> None:
    lines = [{"task_id": name} for name in ("maze-train-0-3", "maze-train-0-3", "my-maze-train-0-4", "x")]
    lines += [{"task_id": None}, {}, {"task_id": "maze-test-2-7"}]
    assert evaluation.tasks_of(lines, "maze") == [TaskRef("maze", "train", 3), TaskRef("maze", "test", 7, 2)]
