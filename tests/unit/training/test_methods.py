"""Every algorithm runs as a job, and goes on after a stop exactly as if there had been none."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from job_world import Events, MakeJob, write_lines
from safetensors.torch import load_file

from onward.training import checkpoints
from onward.training.data import dataset
from onward.training.job import methods, rows, worker
from onward.training.spec.algorithms import ALGORITHMS
from onward.training.spec.request import JobSpec

OUTCOMES = [1.0, 0.0, 0.25, 1.0, 1.0, 0.0, 0.0, 1.0]


def digest(folder: Path) -> str:
    return checkpoints.verify(folder / "checkpoint").adapter_digest


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_an_algorithm_runs_and_a_stopped_run_goes_on_exactly(
    make_job: MakeJob, events: Events, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    whole, stopped = (make_job(algorithm=algorithm, epochs=3, batch_rows=2) for _ in range(2))
    for folder in (whole, stopped):
        write_lines(folder, OUTCOMES)
    assert worker.main(whole) == 0, events[-1]
    steps = [event["step"] for event in events if event["event"] == "progress"]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 4

    seen: list[int] = []

    def save(run: Any, method: Any, facts: Any, *, always: bool = False) -> bool:
        seen.append(facts["step"])
        saved = run.state.save(method.save, facts)
        if len(seen) == 2:
            raise worker.StopError
        return saved

    with monkeypatch.context() as patch:
        patch.setattr(worker._Run, "_save", save)
        assert worker.main(stopped) == worker.STOPPED
    assert events[-1] == {"event": "stopped"} and seen == [1, 2]
    first = len(events)
    assert worker.main(stopped) == 0, events[-1]
    assert [event["step"] for event in events[first:] if event["event"] == "progress"] == steps[2:]
    assert digest(stopped) == digest(whole)


def test_the_critic_of_a_job_is_in_its_checkpoint_and_the_next_job_starts_from_it(
    make_job: MakeJob, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_job(algorithm="ppo")
    write_lines(first, OUTCOMES)
    assert worker.main(first) == 0, events[-1]
    tensors = load_file(first / "checkpoint" / "value_head.safetensors")
    assert set(checkpoints.verify(first / "checkpoint").files) >= {"value_head.safetensors"}
    assert len(tensors["rows"]) == len(OUTCOMES)
    assert "held_out_explained_variance" in events[-1]["metrics"]

    heads: list[tuple[bool, list[float]]] = []
    restored = worker._Run._restored

    def look(run: Any, method: Any) -> Any:
        heads.append((method.learner.critic.warm, method.learner.critic.weight.tolist()))
        return restored(run, method)

    monkeypatch.setattr(worker._Run, "_restored", look)
    second, bare = (make_job(algorithm="ppo", start_digest=digest(first)) for _ in range(2))
    for folder in (second, bare):
        shutil.copytree(first / "checkpoint", folder / "adapter")
        write_lines(folder, OUTCOMES)
    (bare / "adapter" / "value_head.safetensors").unlink()  # as checkpoints were before
    manifest = json.loads((bare / "adapter" / "manifest.json").read_text())
    del manifest["files"]["value_head.safetensors"]
    (bare / "adapter" / "manifest.json").write_text(json.dumps(manifest))
    for folder in (second, bare):
        assert worker.main(folder) == 0, events[-1]
    assert heads == [(True, tensors["weight"].tolist()), (False, [0.0] * len(tensors["weight"]))]


def test_full_training_in_every_precision_changes_every_weight(
    make_job: MakeJob, events: Events, arms_base: Path
) -> None:
    from onward.lm.policy import Policy

    for dtype in ("float32", "bfloat16", "float16"):
        folder = make_job(algorithm="sft", full=True, dtype=dtype)
        write_lines(folder, OUTCOMES)
        assert worker.main(folder) == 0, events[-1]
        weights = Policy.load(folder / "model", dtype=dtype).weights
        before = Policy.load(arms_base, dtype=dtype).weights
        assert all(bool((a != b).any()) for a, b in zip(weights.tensors(), before.tensors(), strict=True))
        assert not (folder / "checkpoint").exists()


def test_scale_and_weight_of_advantages_are_those_of_the_recipe(make_job: MakeJob) -> None:
    """RLOO in two groups of three: scaled to mean square 1, and what is below 0 halved after that."""
    spec = JobSpec.model_validate_json((make_job(algorithm="rloo") / "spec.json").read_bytes())
    folder = make_job()
    write_lines(folder, [1.0, 0.0, 0.0, 1.0, 0.0, 1.0])
    lines = dataset.read(folder / dataset.FILE)
    spec = spec.model_copy(update={"standardise": True, "negative_weight": 0.5})
    method = methods.make(worker._load(folder, spec)[0], spec)
    assert isinstance(method, methods.PolicyGradientMethod)
    method.prepare([rows.trajectory_of(line, spec, None) for line in lines])
    assert method._selection is not None
    found = [a.tolist() for a in method.algorithm.estimate(method._selection, None, None).advantages]
    # group g0 has t0, t2, t4 (1, 0, 0): 1, -.5, -.5; group g1 has t1, t3, t5 (0, 1, 1): -1, .5, .5
    plain = {"t0": 1.0, "t2": -0.5, "t4": -0.5, "t1": -1.0, "t3": 0.5, "t5": 0.5}
    scale = (sum(v * v for v in plain.values()) / 6) ** 0.5
    order = ["t0", "t2", "t4", "t1", "t3", "t5"]
    expected = [plain[n] / scale * (0.5 if plain[n] < 0 else 1.0) for n in order]
    assert [len(row) for row in found] == [4] * 6
    assert [row[0] for row in found] == pytest.approx(expected, rel=1e-4)


def test_case_9_scaling_does_not_blow_noise_up_to_full_size() -> None:
    """Case 9 (verl#6348): advantages of 1e-5 were scaled to 1 as advantages of 1 are."""
    noise = [1e-5, -1e-5, 2e-5, -2e-5]
    assert methods.standardised(noise) == noise
    assert methods.standardised([0.0, 0.0]) == [0.0, 0.0]
    assert methods.standardised([3.0, -1.0]) == pytest.approx([3 / 5**0.5, -1 / 5**0.5])


def test_a_group_whose_attempts_all_end_alike_teaches_a_group_method_nothing(
    make_job: MakeJob, events: Events
) -> None:
    """Shaping alone (0.25 against 0) does not rank attempts that all failed."""
    folder = make_job(algorithm="grpo")
    write_lines(folder, [0.25, 0.0, 0.0, 0.25])
    assert worker.main(folder) == 1
    assert "4 uniform_group" in events[-1]["message"] and events[-1]["code"] == "DATA"


def test_min_reward_chooses_rows_to_imitate_and_the_better_side_of_pairs(
    make_job: MakeJob, events: Events
) -> None:
    imitate = make_job(algorithm="sft", min_reward=0.25)
    write_lines(imitate, [1.0, 0.0, 0.25, 0.1])
    assert worker.main(imitate) == 0
    (train,) = [e for e in events if e["event"] == "stage" and e["name"] == "train"]
    assert train["rows"] == 2
    events.clear()
    compare = make_job(algorithm="dpo", min_reward=0.5)
    write_lines(compare, [1.0, 0.4, 0.0, 0.0])  # group g1: 0.4 over 0 is not good enough
    assert worker.main(compare) == 0
    (train,) = [e for e in events if e["event"] == "stage" and e["name"] == "train"]
    assert train["rows"] == 1


def test_rows_of_the_policy_before_need_truncated_importance_weights(
    make_job: MakeJob, events: Events
) -> None:
    def older(folder: Path) -> Path:
        write_lines(folder, OUTCOMES)
        lines = dataset.read(folder / dataset.FILE)
        lines[0]["staleness"] = 1
        (folder / dataset.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    assert worker.main(older(make_job(max_staleness=1, importance_cap=2.0))) == 0
    assert worker.main(older(make_job(max_staleness=1))) == 1
    assert "importance_cap" in events[-1]["message"]
    events.clear()
    assert worker.main(older(make_job())) == 0
    (train,) = [e for e in events if e["event"] == "stage" and e["name"] == "train"]
    assert train["excluded"] == {"stale": 1}


def test_rewards_per_turn_are_placed_by_ppo_and_refused_by_the_others(
    make_job: MakeJob, events: Events
) -> None:
    def dense(folder: Path) -> Path:
        write_lines(folder, OUTCOMES)
        lines = dataset.read(folder / dataset.FILE)
        for line in lines:
            line["turn_rewards"] = [0.25 * line["raw_total"], 0.75 * line["raw_total"]]
        (folder / dataset.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    assert worker.main(dense(make_job(algorithm="ppo", dense_rewards=True, return_from="raw_total"))) == 0
    assert worker.main(dense(make_job(algorithm="rloo", dense_rewards=True, return_from="raw_total"))) == 1
    assert "rewards per turn" in events[-1]["message"]


def test_text_alone_is_refused_by_a_policy_gradient_unless_it_recomputes(
    make_job: MakeJob, events: Events
) -> None:
    def text(folder: Path) -> Path:
        write_lines(folder, [1.0, 0.0, 1.0, 0.0])
        lines = dataset.read(folder / dataset.FILE)
        for number, line in enumerate(lines):
            del line["calls"]
            said = ("left", "right")[number % 2]
            line["messages"] = [
                {"role": "user", "content": "left or right"},
                {"role": "assistant", "content": said},
            ]
        (folder / dataset.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    assert worker.main(text(make_job(behaviour="recompute"))) == 0, events[-1]
    assert worker.main(text(make_job())) == 1
    assert "recompute" in events[-1]["message"]
