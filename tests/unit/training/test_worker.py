"""The job child on a real tiny network: it trains, goes on after a kill, and says why it cannot."""

import errno
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from any_networks import build

from onward import files
from onward.lm.any_model.policy import AnyPolicy
from onward.lm.tiny import build_tiny
from onward.training import checkpoints
from onward.training.data import dataset
from onward.training.job import methods, rows, steps, worker
from onward.training.spec.request import JobSpec


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worker") / "base"
    return build_tiny(folder, ["one two three"] * 20, layers=1, hidden=32, heads=2, kv_heads=2)


@pytest.fixture
def job(tmp_path: Path, base: Path) -> Path:
    shutil.copytree(base, tmp_path / "base")
    folder = tmp_path / "job"
    folder.mkdir()
    spec = JobSpec(
        job_id="job-1", epoch=1, algorithm="reinforce", base_model="tiny",
        model_folder=str(tmp_path / "base"), start_digest=None, learning_rate=1e-3, epochs=2,
        batch_rows=2, clip_epsilon=0.2, lora_rank=2,
        lora_alpha=4.0, first_lora_layer=0.0, normaliser="token", return_from="outcome",
        unparsable_penalty=0.5, standardise=True, negative_weight=1.0,
        kl_coef=0.0, seed=0, threads=1,
    )  # fmt: skip
    (folder / "spec.json").write_text(spec.model_dump_json())
    return folder


def _lines(folder: Path, outcomes: list[float]) -> None:
    lines = [
        {
            "trajectory_id": f"t{number}", "session_id": "s", "task_type": "a", "group_key": None,
            "outcome": outcome, "success": outcome == 1.0, "raw_total": outcome, "unparsable": False,
            "calls": [
                {
                    "generation_id": f"g{number}", "continues": None, "prompt_ids": [5, 6, 7],
                    "token_ids": [8 + number, 9], "logprobs": [-6.0, -6.0], "temperature": 1.0,
                }
            ],
        }
        for number, outcome in enumerate(outcomes)
    ]  # fmt: skip
    (folder / dataset.FILE).write_text("\n".join(json.dumps(line) for line in lines) + "\n")


def test_it_trains_and_writes_a_checkpoint_that_verifies(job: Path, events: list[dict[str, Any]]) -> None:
    _lines(job, [1.0, 0.0, 1.0, 0.0])
    assert worker.main(job) == 0
    manifest = checkpoints.verify(job / "checkpoint")
    assert manifest.adapter_digest == events[-1]["adapter_digest"]
    assert [e["step"] for e in events if e["event"] == "progress"] == [1, 2, 3, 4]
    assert all(e["metrics"]["kl_divergence"] >= 0 for e in events if e["event"] == "progress")
    assert manifest.metrics["reward_mean"] == 0.5
    # Four rewards of one type, each seen once, then decayed by 0.9: what the next job starts from.
    assert manifest.metrics["baseline"]["sums"]["a"] == pytest.approx(0.9 * 2.0)
    assert manifest.metrics["baseline"]["weights"]["a"] == pytest.approx(0.9 * 4)


def test_a_job_leaves_its_curves_tensorboard_events_and_model_card(
    job: Path, pictures: None, events: list[dict[str, Any]]
) -> None:
    _lines(job, [1.0, 0.0, 1.0, 0.0])
    assert worker.main(job) == 0
    rows = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    told = [e["metrics"]["loss"] for e in events if e["event"] == "progress"]
    assert [(row["step"], row["loss"]) for row in rows] == list(enumerate(told, 1))
    assert (job / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert list(job.glob("events.out.tfevents.*"))
    card = (job / "checkpoint" / "README.md").read_text()
    digest = hashlib.sha256((job / dataset.FILE).read_bytes()).hexdigest()
    assert f"4 frozen records, SHA-256 `{digest}`" in card
    assert "README.md" in checkpoints.verify(job / "checkpoint").files
    assert events[-1]["total_seconds"] >= rows[-1]["seconds"] > 0


def test_a_run_without_a_state_keeps_nothing_of_the_steps_of_an_attempt_before(
    job: Path, events: list[dict[str, Any]]
) -> None:
    """A checkpoint of a later step would stand in for those of this run, and be signed and stored."""
    _lines(job, [1.0, 0.0, 1.0, 0.0])
    numbers = {"save_steps": 1, "max_checkpoints": 1}
    (job / "spec.json").write_text(json.dumps(json.loads((job / "spec.json").read_text()) | numbers))
    (job / steps.FOLDER / "90").mkdir(parents=True)
    (job / "metrics.jsonl").write_text('{"step": 1, "seconds": 50.0}\n{"step": 90, "seconds": 100.0}\n')
    assert worker.main(job) == 0
    taken = [event["step"] for event in events if event["event"] == "progress"]
    rows = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == taken and rows[0]["seconds"] > 100.0
    assert [step for step, _ in steps.found(job)] == taken[-1:]


def test_a_network_of_another_family_trains_through_transformers_and_says_why(
    job: Path, tmp_path: Path, events: list[dict[str, Any]]
) -> None:
    """The path and its reason are in an event, in the manifest, and so in a job's status. The upper half of
    the blocks has the adapter, as the spec says."""
    model = build("mixtral", tmp_path / "mixtral", tmp_path / "base")
    spec = JobSpec.model_validate_json((job / "spec.json").read_bytes())
    spec = spec.model_copy(update={"model_folder": str(model), "first_lora_layer": 0.5})
    (job / "spec.json").write_text(spec.model_dump_json())
    _lines(job, [1.0, 0.0, 1.0, 0.0])
    assert worker.main(job) == 0, events
    (loaded,) = [e for e in events if e.get("name") == "loaded"]
    assert loaded["path"] == "transformers" and "'mixtral'" in loaded["reason"] and loaded["notes"] == []
    metrics = checkpoints.verify(job / "checkpoint").metrics
    assert (metrics["path"], metrics["path_reason"]) == ("transformers", loaded["reason"])
    policy = AnyPolicy.load(model)
    adapter = policy.add_adapter("made", job / "checkpoint")
    assert {name.split(".")[4] for name in adapter.params} == {"1"}
    assert any(bool(tensor.any()) for name, tensor in adapter.params.items() if "lora_B" in name)


def test_an_answer_that_cannot_be_parsed_costs_more_than_a_wrong_one(job: Path) -> None:
    _lines(job, [1.0, 0.0, 0.25])
    lines = dataset.read(job / dataset.FILE)
    lines[2]["unparsable"] = True
    spec = JobSpec.model_validate_json((job / "spec.json").read_bytes())
    spec = spec.model_copy(update={"standardise": False})
    method = methods.make(worker._load(job, spec)[0], spec)
    assert isinstance(method, methods.PolicyGradientMethod)
    method.prepare([rows.trajectory_of(line, spec, None) for line in lines])
    assert method._selection is not None
    estimate = method.algorithm.estimate(method._selection, None, None)
    # Returns 1, 0 and 0.25 - 0.5, each less the mean of the others of its type; two tokens each.
    expected = [1.0 - (0.0 - 0.25) / 2, 0.0 - (1.0 - 0.25) / 2, -0.25 - (1.0 + 0.0) / 2]
    assert [a.tolist() for a in estimate.advantages] == [pytest.approx([value] * 2) for value in expected]
    told = rows.summary(lines, spec)
    assert told["outcome_mean"] == pytest.approx(1.25 / 3)
    assert told["unparsable_share"] == pytest.approx(1 / 3)


def test_equal_returns_are_named_as_the_reason(job: Path, events: list[dict[str, Any]]) -> None:
    _lines(job, [0.5, 0.5, 0.5])
    assert worker.main(job) == 1
    assert (events[-1]["event"], events[-1]["code"]) == ("failed", "DATA")
    assert "All returns are equal" in events[-1]["message"]


def test_rloo_without_groups_is_refused_with_the_remedy(job: Path, events: list[dict[str, Any]]) -> None:
    spec = json.loads((job / "spec.json").read_text())
    (job / "spec.json").write_text(json.dumps({**spec, "algorithm": "rloo"}))
    _lines(job, [1.0, 0.0])
    assert worker.main(job) == 1
    assert "or use reinforce" in events[-1]["message"]


def test_a_half_written_state_is_thrown_away_not_fatal(job: Path, events: list[dict[str, Any]]) -> None:
    _lines(job, [1.0, 0.0])
    (job / "state" / "1").mkdir(parents=True)
    (job / "state" / "1" / "learner.pt").write_bytes(b"PK\x03\x04 cut off")
    (job / "state" / "1" / "facts.json").write_text("{}")
    (job / "state" / "CURRENT").write_text("1")
    assert worker.main(job) == 0
    assert any("starting over" in event.get("name", "") for event in events)


def _no_memory() -> None:
    torch.empty(1 << 52, dtype=torch.uint8)


def _no_gpu_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def _no_python_memory() -> None:
    raise MemoryError


@pytest.mark.parametrize("run_out", [_no_memory, _no_gpu_memory, _no_python_memory])
def test_a_lack_of_memory_has_its_code_and_leaves_the_saved_state(
    job: Path, events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, run_out: Callable[[], None]
) -> None:
    """Torch has errors of its own for it, which are no MemoryError; a restore may meet them too."""
    _lines(job, [1.0, 0.0])
    _change(job, save_steps=1)
    assert worker.main(job) == 0
    saved = (job / "state" / "CURRENT").read_text()
    monkeypatch.setattr(methods.PolicyGradientMethod, "restore", lambda *_: run_out())
    assert worker.main(job) == 1
    assert (events[-1]["event"], events[-1]["code"]) == ("failed", "OOM")
    assert (job / "state" / "CURRENT").read_text() == saved


def test_a_job_that_died_after_its_last_step_tells_of_it_and_is_no_failure(
    job: Path, events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of four steps was skipped; with nothing left to do, the one was taken for all of them."""
    _lines(job, [1.0, 0.0, 1.0, 0.0])

    class DiedError(Exception):
        pass

    def die(*_: Any) -> None:
        raise DiedError

    def save(run: worker._Run, method: Any, facts: Any, *, always: bool = False) -> bool:
        method.stepper.skipped = 1
        return run.state.save(method.save, facts)

    with monkeypatch.context() as patch:
        patch.setattr(worker._Run, "_save", save)
        patch.setattr(worker._Run, "_finish", die)
        with pytest.raises(DiedError):
            worker.main(job)
    last = [e for e in events if e["event"] == "progress"][-1]["metrics"]
    assert worker.main(job) == 0, events[-1]
    told = checkpoints.verify(job / "checkpoint").metrics
    assert (told["steps"], told["skipped_steps"], told["loss"]) == (4, 1, last["loss"])


def test_text_that_does_not_fit_the_network_is_left_out_of_imitation_and_counted(
    job: Path, events: list[dict[str, Any]]
) -> None:
    spec = json.loads((job / "spec.json").read_text())
    (job / "spec.json").write_text(json.dumps({**spec, "algorithm": "sft"}))
    _lines(job, [1.0, 1.0])
    lines = dataset.read(job / dataset.FILE)
    lines[0]["calls"][0]["prompt_ids"] = [5] * 5000
    (job / dataset.FILE).write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    assert worker.main(job) == 0, events[-1]
    (train,) = [e for e in events if e["event"] == "stage" and e["name"] == "train"]
    assert (train["rows"], train["excluded"]["too_long"]) == (1, 1)
    (job / dataset.FILE).write_text(json.dumps(lines[0]) + "\n")
    assert worker.main(job) == 1
    assert "None of the 1 rows to imitate fits" in events[-1]["message"]


def test_the_share_of_answers_without_tokens_is_told(job: Path, events: list[dict[str, Any]]) -> None:
    _lines(job, [1.0, 0.0])
    lines = dataset.read(job / dataset.FILE)
    void = {**lines[0]["calls"][0], "generation_id": "void", "token_ids": [], "logprobs": []}
    lines[0]["calls"] += [void, {**void, "generation_id": "after", "continues": "void", "token_ids": [9],
                                 "logprobs": [-1.0]}]  # fmt: skip
    (job / dataset.FILE).write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    assert worker.main(job) == 0, events[-1]
    assert checkpoints.verify(job / "checkpoint").metrics["masked_share"] == 0.5


def test_work_of_another_policy_than_the_one_that_is_trained_is_refused(
    job: Path, events: list[dict[str, Any]]
) -> None:
    """Its token ids may even be of another tokenizer, and nothing else would tell."""
    from onward.lm.policy import Policy

    _lines(job, [1.0, 0.0])
    lines = dataset.read(job / dataset.FILE)
    own = Policy.load(job.parent / "base").base_digest
    for policy, code in (("d" * 64, 1), (own, 0)):
        body = "".join(json.dumps({**line, "policy": policy}) + "\n" for line in lines)
        (job / dataset.FILE).write_text(body)
        assert worker.main(job) == code
    failed = next(event for event in events if event["event"] == "failed")
    assert failed["code"] == "DATA" and "work of policy dddddddddddd" in failed["message"]


@pytest.mark.parametrize(
    ("error", "room", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 1 << 40, "INFRA"),
        (OSError(errno.EROFS, "Read-only file system"), 1 << 40, "INFRA"),
        (RuntimeError("failed writing file"), 0, "INFRA"),  # torch's own words on a full disk
        (RuntimeError("shapes do not match"), 1 << 40, None),
        (FileNotFoundError(errno.ENOENT, "No such file"), 0, None),
    ],
)
def test_a_disk_that_fails_is_no_error_of_the_job(tmp_path, monkeypatch, capsys, error, room, code):
    def run(*_):
        raise error

    monkeypatch.setattr(worker, "_Run", lambda *_: SimpleNamespace(run=run))
    monkeypatch.setattr(worker.Stop, "listen", lambda self: None)
    monkeypatch.setattr(worker, "die_with_parent", lambda: None)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda folder: SimpleNamespace(free=room))
    if code is None:
        with pytest.raises(type(error)):
            worker.main(tmp_path)
        return
    assert worker.main(tmp_path) == 1
    assert json.loads(capsys.readouterr().out)["code"] == code


def _words(folder: Path, texts: list[str], name: str = dataset.FILE, **changes: Any) -> None:
    """Lines of text: answers to one question, alternately good and bad, two to a group."""
    lines = [
        {
            "trajectory_id": f"t{n}", "session_id": "", "task_type": "a", "group_key": f"g{n // 2}",
            "outcome": float(n % 2), "success": None, "raw_total": float(n % 2), "unparsable": False,
            "place": f"x.jsonl, record {n + 1}",
            "messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": text}],
            **changes,
        }
        for n, text in enumerate(texts)
    ]  # fmt: skip
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def _change(folder: Path, **changes: Any) -> None:
    spec = JobSpec.model_validate_json((folder / "spec.json").read_bytes())
    (folder / "spec.json").write_text(spec.model_copy(update=changes).model_dump_json())


@pytest.mark.parametrize("algorithm", ["rloo", "reinforce", "ppo", "sft", "dpo"])
def test_a_row_that_is_too_long_is_left_out_with_its_place_and_the_run_goes_on(
    job: Path, events: list[dict[str, Any]], algorithm: str
) -> None:
    _change(job, algorithm=algorithm, behaviour="recompute", max_length=40, min_reward=0.0)
    _words(job, ["two", "three", "one " * 60, "two", "one", "three"])
    assert worker.main(job) == 0, events[-1]
    (stage,) = [event for event in events if event.get("name") == "train"]
    assert stage["excluded"]["truncated" if algorithm == "dpo" else "too_long"] == 1
    assert stage["places"]["too_long"] == ["x.jsonl, record 3"]


def test_a_row_that_makes_no_tokens_is_left_out_and_if_all_are_the_first_cause_is_told(
    job: Path, events: list[dict[str, Any]]
) -> None:
    _lines(job, [1.0, 0.5, 0.0])
    lines = dataset.read(job / dataset.FILE)
    lines[1]["calls"][0]["logprobs"] = [-1.0]
    (job / dataset.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert worker.main(job) == 0, events[-1]
    (stage,) = [event for event in events if event.get("name") == "train"]
    assert (stage["excluded"], stage["places"]) == ({"bad_row": 1}, {"bad_row": ["t1"]})
    (job / dataset.FILE).write_text(json.dumps(lines[1]) + "\n")
    shutil.rmtree(job / "state", ignore_errors=True)
    assert worker.main(job) == 1
    assert "None of the 1 rows can be trained on. The first: Generation 'g1' has 2 tokens" in str(events[-1])


def test_a_call_with_a_field_that_no_call_has_is_a_bad_row_and_named_if_there_is_no_other(
    job: Path, events: list[dict[str, Any]]
) -> None:
    _lines(job, [1.0, 0.5, 0.0])
    lines = dataset.read(job / dataset.FILE)
    lines[1]["calls"][0]["log_probs"] = [-1.0]
    (job / dataset.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert worker.main(job) == 0, events[-1]
    (stage,) = [event for event in events if event.get("name") == "train"]
    assert (stage["excluded"], stage["places"]) == ({"bad_row": 1}, {"bad_row": ["t1"]})
    (job / dataset.FILE).write_text(json.dumps(lines[1]) + "\n")
    shutil.rmtree(job / "state", ignore_errors=True)
    assert worker.main(job) == 1 and events[-1]["code"] == "DATA"
    assert "The call 'g1' has the field 'log_probs', which is not read: leave it out" in str(events[-1])


@pytest.mark.parametrize("full", [False, True])
def test_the_best_policy_by_the_evaluation_is_handed_out_and_the_last_beside_it(
    job: Path, events: list[dict[str, Any]], full: bool
) -> None:
    """Trained to say one word and judged on another, it gets worse: the start is the best."""
    _change(job, algorithm="sft", epochs=3, learning_rate=1.0, full=full, min_reward=0.0)
    _words(job, ["two"] * 6)
    _words(job, ["three three three three three"] * 2, name=dataset.EVAL_FILE)
    assert worker.main(job) == 0, events[-1]
    told = [event for event in events if event["event"] == "eval"]
    assert [one["step"] for one in told] == [0, 3, 6, 9] and told[-1]["eval_loss"] > told[0]["eval_loss"]
    assert events[-1]["metrics"]["handed_out"] == {
        "step": 0, "of": 9, "by": "loss on --eval", "figure": told[0]["eval_loss"], "evaluations": 4,
    }  # fmt: skip
    metrics = events[-1]["metrics"]
    assert metrics["eval_loss"] == told[0]["eval_loss"] and "loss" not in metrics
    assert metrics["last"]["eval_loss"] == told[-1]["eval_loss"] and metrics["steps"] == 9
    from onward.lm.policy import Policy

    base = Policy.load(job.parent / "base")
    if full:
        last = Policy.load(job / "last")
        best = Policy.load(job / "model")
        pairs = zip(base.weights.tensors(), best.weights.tensors(), last.weights.tensors(), strict=True)
        assert all(bool((a == b).all()) for a, b, _ in pairs)
        assert not bool((base.weights.norm == last.weights.norm).all())
    else:
        start = base.add_adapter("start", job / "checkpoint").params
        moved = base.add_adapter("last", job / "last").params
        assert any(not bool((start[name] == moved[name]).all()) for name in start)
        assert checkpoints.verify(job / "last").adapter_digest != events[-1]["adapter_digest"]


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_an_evaluation_that_is_not_finite_is_null_and_never_the_best(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], algorithm: str
) -> None:
    """The run's events are JSON, which has no NaN; the policy before it stays the best."""
    monkeypatch.setattr(worker, "die_with_parent", lambda: None)
    monkeypatch.setattr(worker.Stop, "listen", lambda self: None)
    _change(job, algorithm=algorithm, epochs=3, eval_every=1, min_reward=None if algorithm == "dpo" else 0.0)
    _words(job, ["two", "three"] * 2)
    _words(job, ["two", "three"], name=dataset.EVAL_FILE)
    kind = methods.SupervisedMethod if algorithm == "sft" else methods.PreferenceMethod
    losses = iter([2.0, float("nan"), 1.0, float("inf"), *[float("nan")] * 20])
    monkeypatch.setattr(kind, "judge", lambda self, rows: {"eval_loss": next(losses), "eval_accuracy": 0.5})
    assert worker.main(job) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    told = [event for event in events if event["event"] == "eval"]
    assert [one["eval_loss"] for one in told[:4]] == [2.0, None, 1.0, None]
    handed_out = events[-1]["metrics"]["handed_out"]
    assert (handed_out["step"], handed_out["figure"]) == (2, 1.0)
    assert "eval_loss" not in events[-1]["metrics"]["last"]


def test_a_rate_that_ruins_every_number_ends_with_a_sentence(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "die_with_parent", lambda: None)
    monkeypatch.setattr(worker.Stop, "listen", lambda self: None)
    _change(job, algorithm="sft", epochs=3, learning_rate=1e30, min_reward=0.0)
    _words(job, ["two"] * 6)
    _words(job, ["three"] * 2, name=dataset.EVAL_FILE)
    assert worker.main(job) == 1
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["eval_loss"] for one in events if one["event"] == "eval"][1:] == [None] * 3
    assert (events[-1]["event"], events[-1]["code"]) == ("failed", "CONVERGENCE")


def test_a_run_that_was_killed_knows_the_same_best(
    job: Path, events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _change(job, algorithm="sft", epochs=3, learning_rate=0.1, min_reward=0.0, save_seconds=0.0)
    _words(job, ["two"] * 6)
    _words(job, ["two", "three"], name=dataset.EVAL_FILE)
    whole = job.parent / "whole"
    shutil.copytree(job, whole)
    assert worker.main(whole) == 0
    wanted = events[-1]
    saved = worker._Run._save

    def dies(self: Any, method: Any, facts: dict[str, Any], *, always: bool = False) -> bool:
        done = saved(self, method, facts, always=always)
        if facts["step"] == 7:
            raise worker.StopError
        return done

    with monkeypatch.context() as patch:
        patch.setattr(worker._Run, "_save", dies)
        assert worker.main(job) == worker.STOPPED
    assert worker.main(job) == 0
    assert events[-1]["adapter_digest"] == wanted["adapter_digest"]
    assert events[-1]["metrics"]["handed_out"] == wanted["metrics"]["handed_out"]


def test_a_state_of_the_version_before_goes_on(job: Path, events: list[dict[str, Any]]) -> None:
    """Its spec has none of the new numbers, and its state no best policy."""
    told = json.loads((job / "spec.json").read_text())
    for name in ("schedule", "warmup_steps", "max_length", "reference", "label_smoothing",
                 "length_normalised", "eval_every", "start_counts"):  # fmt: skip
        told.pop(name)
    (job / "spec.json").write_text(json.dumps(told))
    _lines(job, [1.0, 0.0, 1.0, 0.0])
    assert worker.main(job) == 0, events[-1]


def test_dpo_refers_to_its_start_to_the_base_or_to_a_policy_in_a_folder(
    job: Path, events: list[dict[str, Any]]
) -> None:
    """Once an adapter was trained, only the start itself gives a first loss of ln 2 (0.6931)."""
    _change(job, algorithm="sft", epochs=4, learning_rate=0.1, min_reward=0.0)
    _words(job, ["two", "three"] * 2)
    assert worker.main(job) == 0, events[-1]
    found = {}
    for name, reference in (
        ("start", "start"),
        ("base", "base"),
        ("adapter", "reference"),
        ("model", str(job.parent / "base")),
    ):
        folder = job.parent / f"refers to {name}"
        folder.mkdir()
        shutil.copy(job / "spec.json", folder)
        shutil.copytree(job / "checkpoint", folder / "adapter")
        shutil.copytree(job / "checkpoint", folder / "reference")
        digest = checkpoints.verify(job / "checkpoint").adapter_digest
        _change(folder, algorithm="dpo", reference=reference, start_digest=digest, epochs=1, min_reward=None)
        _words(folder, ["two", "one one one"])
        assert worker.main(folder) == 0, events[-1]
        (step,) = [event for event in events if event["event"] == "progress"][-1:]
        found[name] = step["metrics"]["loss"]
    assert found["start"] == pytest.approx(0.693147, abs=1e-5)
    assert found["adapter"] == pytest.approx(0.693147, abs=1e-5)  # the same policy, from its folder
    assert abs(found["base"] - 0.693147) > 1e-3
    assert found["model"] == pytest.approx(found["base"], abs=1e-5)


def test_dpo_that_trains_all_weights_refers_to_an_adapter_of_the_network_as_it_was(
    job: Path, events: list[dict[str, Any]]
) -> None:
    """A new adapter changes nothing, so the reference is the start in both runs."""
    _change(job, algorithm="sft", epochs=1, learning_rate=1e-12, min_reward=0.0)
    _words(job, ["two", "three"] * 2)
    assert worker.main(job) == 0, events[-1]
    found = {}
    for reference in ("start", "reference"):
        folder = job.parent / f"refers to {reference}"
        folder.mkdir()
        shutil.copy(job / "spec.json", folder)
        shutil.copytree(job / "checkpoint", folder / "reference")
        _change(
            folder,
            algorithm="dpo",
            full=True,
            reference=reference,
            epochs=4,
            learning_rate=1e-2,
            min_reward=None,
        )
        _words(folder, ["two", "one one one"])
        _words(folder, ["two", "one one one"], name=dataset.EVAL_FILE)
        begun = len(events)
        assert worker.main(folder) == 0, events[-1]
        found[reference] = [event["eval_loss"] for event in events[begun:] if event["event"] == "eval"]
    assert found["reference"] == pytest.approx(found["start"], abs=1e-4)
    assert found["reference"][0] == pytest.approx(0.693147, abs=1e-5)
    assert found["reference"][-1] < 0.6
