"""Learning from an environment: success rises, failures are unscored, a stop changes nothing."""

import dataclasses
import gc
import shutil
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from arms_environment import Arms
from environment_served import served_environment
from job_world import Events, MakeJob

from onward.lm import paths, probe
from onward.lm.learner import Learner
from onward.lm.sampler import Sampler
from onward.training import checkpoints
from onward.training.job import actor, onpolicy, worker
from onward.training.spec.environment_plan import EnvironmentPlan
from onward.training.spec.request import JobSpec

pytestmark = pytest.mark.slow

PLACE = "arms_environment:ARMS"


def plan(**changes: Any) -> EnvironmentPlan:
    values = {
        "place": PLACE,
        "steps": 3,
        "episodes": 16,
        "group_size": 4,
        "max_tokens": 3,
        "held_out": 8,
        **changes,
    }
    return EnvironmentPlan(**values)


@pytest.fixture(autouse=True)
def _whole_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arms, "breaks", 0)
    monkeypatch.setattr(Arms, "opened", 0)


@pytest.mark.parametrize("algorithm", ["rloo", "ppo"])
def test_held_out_success_rises_in_an_environment(make_job: MakeJob, events: Events, algorithm: str) -> None:
    """The first of two choices decides, so the reward must reach past an observation and an answer."""
    folder = make_job(
        algorithm=algorithm, environment=plan(steps=14, episodes=64, group_size=8, held_out=64),
        epochs=2, batch_rows=32,
    )  # fmt: skip
    assert worker.main(folder) == 0, events[-1]
    told = checkpoints.verify(folder / "checkpoint").metrics
    assert 0.2 < told["held_out"]["before"]["success"] < 0.8
    assert told["held_out"]["after"]["success"] > 0.85
    assert told["panel_hash"] == Arms().panel_hash()
    assert told["episodes"] == 14 * 64 and told["unscored_episodes"] == {}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_plays_and_learns(make_job: MakeJob, events: Events, dtype: str) -> None:
    """The ratios of the first step show that recorded and learned log-probs are those of one policy."""
    folder = make_job(algorithm="rloo", environment=plan(steps=2), dtype=dtype, batch_rows=16)
    assert worker.main(folder) == 0, events[-1]
    (first, *_) = (event for event in events if event["event"] == "progress")
    assert first["metrics"]["ratio_max"] < 1.1 and first["metrics"]["kl_divergence"] < 1e-3


def test_a_run_that_was_stopped_goes_on_exactly(
    make_job: MakeJob, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped = (make_job(environment=plan(), batch_rows=8, algorithm="reinforce") for _ in range(2))
    assert worker.main(whole) == 0, events[-1]
    asked: list[worker.Stop] = []
    monkeypatch.setattr(worker.Stop, "listen", lambda self: asked.append(self))

    def say(event: str, **facts: Any) -> None:
        events.append({"event": event, **facts})
        if event == "progress" and facts["step"] == 1:
            asked[-1].asked = True

    with monkeypatch.context() as patch:
        patch.setattr(worker, "emit", say)
        assert worker.main(stopped) == worker.STOPPED
    first = len(events)
    assert worker.main(stopped) == 0, events[-1]
    assert [e["step"] for e in events[first:] if e["event"] == "progress"] == [2, 3]
    one, other = (checkpoints.verify(folder / "checkpoint") for folder in (whole, stopped))
    assert one.adapter_digest == other.adapter_digest
    assert one.metrics["held_out"] == other.metrics["held_out"]
    assert one.metrics["baseline"] == other.metrics["baseline"]


def test_a_stop_while_it_plays_loses_no_step(
    make_job: MakeJob, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_job(environment=plan(), save_seconds=1e9)
    asked: list[worker.Stop] = []
    monkeypatch.setattr(worker.Stop, "listen", lambda self: asked.append(self))
    described = Arms.world

    def world(self: Arms, task: int) -> Any:
        asked[-1].asked = Arms.opened > 8 + 16 + 4  # the held-out tasks, step 1, some of step 2
        return described(self, task)

    with monkeypatch.context() as patch:
        patch.setattr(Arms, "world", world)
        assert worker.main(folder) == worker.STOPPED
    first = len(events)
    assert worker.main(folder) == 0
    assert [e["step"] for e in events[first:] if e["event"] == "progress"] == [2, 3]


def test_broken_episodes_are_unscored_counted_and_never_a_zero(
    make_job: MakeJob, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Arms, "breaks", 9)
    folder = make_job(environment=plan(held_out=0))
    assert worker.main(folder) == 0, events[-1]
    told = checkpoints.verify(folder / "checkpoint").metrics
    assert told["unscored_episodes"] == {"env_error": 3 * 16 // 9}
    for event in events:
        if event["event"] == "progress":
            scored = 16 - event["metrics"]["unscored"]
            wins = event["metrics"]["success_rate"] * scored
            assert wins == pytest.approx(round(wins))  # a share of the scored ones alone


def test_too_many_broken_episodes_fail_the_job_with_their_cause(
    make_job: MakeJob, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Arms, "breaks", 2)
    assert worker.main(make_job(environment=plan(held_out=0))) == 1
    failed = events[-1]
    assert (failed["event"], failed["code"]) == ("failed", "DATA")
    assert "8 of 16 episodes are unscored (8 env_error)" in failed["message"]


def test_held_out_episodes_have_the_last_turn_limit_of_the_schedule(
    make_job: MakeJob, events: Events
) -> None:
    """A task takes two turns, so with a limit of one nobody can finish it, before or after."""

    def held_out(horizon: str) -> list[float]:
        events.clear()
        worker.main(make_job(environment=plan(steps=1, horizon=horizon)))
        return [event["success"] for event in events if event["event"] == "held_out"]

    assert held_out("1")[0] == 0.0
    assert held_out("1,2/1")[0] > 0.0


def test_the_horizon_rises_by_stage(make_job: MakeJob, events: Events) -> None:
    """With one turn nobody can win; from step 2 on two are allowed."""
    assert worker.main(make_job(environment=plan(horizon="1,2/1", held_out=0))) == 0, events[-1]
    steps = [event["metrics"] for event in events if event["event"] == "progress"]
    assert [step["horizon"] for step in steps] == [1, 2, 2]
    assert steps[0]["turns"] == 1.0 and steps[0]["success_rate"] == 0.0
    assert steps[1]["turns"] == 2.0 and steps[1]["success_rate"] > 0


def test_a_policy_that_never_succeeds_is_told_to_warm_up(make_job: MakeJob, events: Events) -> None:
    assert worker.main(make_job(environment=plan(horizon="1", steps=20, held_out=0))) == 1
    assert "warm the policy up first" in events[-1]["message"]
    assert len([event for event in events if event["event"] == "progress"]) < 10


@pytest.fixture
def served() -> Iterator[str]:
    """The address of the arms, served over HTTP from another thread."""
    with served_environment(Arms()) as url:
        yield url


def test_a_server_is_learned_from_as_an_environment_in_this_process_is(
    make_job: MakeJob, events: Events, served: str
) -> None:
    """The same tasks, seeds and draws: the same episodes, whoever plays first."""
    here, there = (
        make_job(environment=plan(held_out=8, steps=2, place=place), algorithm="rloo")
        for place in (PLACE, served)
    )
    assert worker.main(here) == worker.main(there) == 0, events[-1]
    one, other = (checkpoints.verify(folder / "checkpoint").metrics for folder in (here, there))
    assert one["held_out"]["before"] == other["held_out"]["before"]
    assert one["panel_hash"] == other["panel_hash"]


def test_a_run_goes_on_from_the_adapter_of_another(make_job: MakeJob, events: Events) -> None:
    """With a rate of almost nothing, what it starts from is what it ends with."""
    first = make_job(
        environment=plan(steps=6, episodes=32, group_size=8), algorithm="rloo", epochs=2, eval_every=6
    )
    assert worker.main(first) == 0, events[-1]
    second = make_job(environment=plan(steps=1), algorithm="rloo", learning_rate=1e-12)
    shutil.copytree(first / "checkpoint", second / "adapter")
    assert worker.main(second) == 0, events[-1]
    one, other = (checkpoints.verify(folder / "checkpoint").metrics for folder in (first, second))
    assert other["held_out"]["before"] == one["held_out"]["after"]


def test_a_run_does_not_go_on_where_the_held_out_tasks_changed(
    make_job: MakeJob, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_job(environment=plan(), save_seconds=0.0)

    def stop(self: worker._Run, method: Any, facts: Any, *, always: bool = False) -> bool:
        self.state.save(method.save, facts)
        raise worker.StopError

    with monkeypatch.context() as patch:
        patch.setattr(worker._Run, "_save", stop)
        assert worker.main(folder) == worker.STOPPED
    monkeypatch.setattr("onward.envs.environment.Environment.panel_hash", lambda *_: "other")
    assert worker.main(folder) == 1
    assert "serves other held-out tasks" in events[-1]["message"]


def test_caches_of_a_step_that_is_over_are_let_go_without_a_garbage_collection(
    make_job: MakeJob, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of many steps once held the key-value caches of all of them."""
    made: list[weakref.ref[Sampler]] = []
    most = 0

    class Watched(Sampler):
        def __init__(self, *args: Any, **options: Any) -> None:
            nonlocal most
            super().__init__(*args, **options)
            made.append(weakref.ref(self))
            most = max(most, sum(ref() is not None for ref in made))

    monkeypatch.setattr(paths, "Sampler", Watched)
    gc.disable()
    try:
        assert worker.main(make_job(environment=plan(steps=4))) == 0, events[-1]
    finally:
        gc.enable()
    # Each step, the held-out tasks before and after it, and the probe's answers with and without the adapter.
    assert len(made) == 4 + 5 + 2 and most == 1


def test_what_is_learned_from_is_sampled_for_training_and_what_is_measured_is_not(
    make_job: MakeJob, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, bool]] = []

    class Watched(Sampler):
        def submit(self, request: Any) -> None:
            asked.append((request.temperature, request.for_training))
            super().submit(request)

    monkeypatch.setattr(paths, "Sampler", Watched)
    assert worker.main(make_job(environment=plan(steps=1, held_out_temperature=0.0))) == 0, events[-1]
    assert set(asked) == {(1.0, True), (0.0, False)}


def test_a_server_whose_turns_do_not_sum_to_its_score_is_named_not_called_a_lack_of_signal(
    make_job: MakeJob, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PPO places each turn's reward; where the score is another number, no further step mends that."""
    whole = actor.trajectory

    def cheating(episode: Any, *, per_turn: bool) -> Any:
        made = whole(episode, per_turn=per_turn)
        return dataclasses.replace(made, reward=(made.reward or 0.0) + 1.0)

    monkeypatch.setattr("onward.training.job.onpolicy.trajectory", cheating)
    assert worker.main(make_job(environment=plan(steps=2), algorithm="ppo")) == 1
    assert "rewards per turn sum to" in events[-1]["message"] and events[-1]["code"] == "DATA"


def test_a_kl_penalty_in_an_environment_holds_to_where_the_run_began(
    make_job: MakeJob, events: Events
) -> None:
    """Held to the start of each update it would be nothing: one step per update starts at a KL of 0."""

    def ran(kl_coef: float) -> dict[str, Any]:
        folder = make_job(environment=plan(steps=4), algorithm="rloo", batch_rows=64, kl_coef=kl_coef)
        assert worker.main(folder) == 0, events[-1]
        return checkpoints.verify(folder / "checkpoint").metrics

    free, held = ran(0.0), ran(5.0)
    assert "reference_kl" not in free and held["reference_kl"] > 0
    assert held["policy_entropy"] != free["policy_entropy"]


def test_one_thread_plays_and_learns(
    make_job: MakeJob, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that compute are two teams of OpenMP, which then sleeps at every wait.

    The probe of the checkpoint is computed once, when the run is over, and may be elsewhere.
    """
    computing: set[int] = set()
    probed: list[int] = []
    sampled, learned, probing = Sampler.step, Learner.update, probe.make

    def at_the_end(*given: Any) -> probe.Probe:
        before = set(computing)
        made = probing(*given)
        computing.intersection_update(before)
        probed.append(len(computing))
        return made

    def step(self: Sampler) -> Any:
        computing.add(threading.get_ident())
        return sampled(self)

    def update(self: Learner, *given: Any, **more: Any) -> Any:
        computing.add(threading.get_ident())
        return learned(self, *given, **more)

    monkeypatch.setattr(Sampler, "step", step)
    monkeypatch.setattr(Learner, "update", update)
    monkeypatch.setattr(probe, "make", at_the_end)
    assert worker.main(make_job(environment=plan(steps=2))) == 0, events[-1]
    assert probed == [1]
    assert len(computing) == 1 and threading.get_ident() not in computing


def test_a_run_that_gets_worse_hands_out_its_best_and_keeps_the_last_beside_it(
    make_job: MakeJob, events: Events
) -> None:
    """OpenRLHF#1333: with a rate that ruins the policy, the start is the best, and the result says so."""
    folder = make_job(environment=plan(held_out=32), algorithm="rloo", learning_rate=3.0)
    assert worker.main(folder) == 0, events[-1]
    figures = [event["success"] for event in events if event["event"] == "held_out"]
    assert len(figures) == 4 and figures[-1] < figures[0] == max(figures)
    told = events[-1]["metrics"]["handed_out"]
    assert told == {"step": 0, "of": 3, "by": "held-out success", "figure": figures[0], "evaluations": 4}
    metrics = checkpoints.verify(folder / "checkpoint").metrics
    held_out = metrics["held_out"]
    assert [held_out[when]["success"] for when in ("before", "after")] == [figures[0]] * 2
    assert metrics["last"]["held_out"]["success"] == figures[-1]
    assert "success_rate" in metrics["last"] and "success_rate" not in metrics  # no update made the start
    assert checkpoints.verify(folder / "last").metrics["held_out"]["after"]["success"] == figures[-1]
    assert checkpoints.verify(folder / "last").adapter_digest != events[-1]["adapter_digest"]
    again = make_job(environment=plan(held_out=32, steps=1), algorithm="rloo", learning_rate=1e-12)
    shutil.copytree(folder / "checkpoint", again / "adapter")
    assert worker.main(again) == 0, events[-1]
    assert [event["success"] for event in events if event["event"] == "held_out"][4] == figures[0]


def test_the_last_policy_of_an_earlier_end_is_removed_when_the_new_last_one_is_the_best(
    make_job: MakeJob, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is extended by a step (--resume --steps), after which no policy is better than the last."""
    measured = iter([0.5, 0.25, 0.25, 0.25, 0.75])

    async def evaluate(self: onpolicy.OnPolicy, when: str) -> dict[str, Any]:
        success = next(measured)
        return {"success": success, "reward": success, "episodes": 8, "unscored": 0}

    monkeypatch.setattr(onpolicy.OnPolicy, "_evaluate", evaluate)
    folder = make_job(environment=plan(steps=2), algorithm="rloo")
    assert worker.main(folder) == 0, events[-1]
    assert (folder / "last").is_dir() and events[-1]["metrics"]["handed_out"]["step"] == 0
    spec = JobSpec.model_validate_json((folder / "spec.json").read_bytes())
    (folder / "spec.json").write_text(
        spec.model_copy(update={"environment": plan(steps=3)}).model_dump_json()
    )
    assert worker.main(folder) == 0, events[-1]
    assert events[-1]["metrics"]["handed_out"]["step"] == 3 and not (folder / "last").exists()


def test_a_job_of_the_service_never_hands_out_its_start(make_job: MakeJob, events: Events) -> None:
    folder = make_job(environment=plan(), algorithm="rloo", learning_rate=3.0, start_counts=False)
    assert worker.main(folder) == 0, events[-1]
    assert events[-1]["metrics"]["handed_out"]["step"] > 0


def test_the_rate_falls_over_the_steps_of_a_run_in_an_environment(make_job: MakeJob, events: Events) -> None:
    folder = make_job(environment=plan(steps=4, held_out=0), schedule="linear", learning_rate=0.01)
    assert worker.main(folder) == 0, events[-1]
    rates = [event["metrics"].get("learning_rate") for event in events if event["event"] == "progress"]
    expected = [0.01, 0.0075, 0.005, 0.0025]
    assert [rate or other for rate, other in zip(rates, expected, strict=True)] == pytest.approx(expected)
    assert any(rate is not None for rate in rates[1:])
