"""Device and number format of a job, and what it says of a sampler that computes otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from docs_blocks import run_command
from job_world import Events, MakeJob, write_lines

from onward.errors import ConfigError
from onward.lm import devices, precision
from onward.lm.policy import Policy
from onward.lm.precision import Speeds
from onward.training import checkpoints
from onward.training.data import dataset
from onward.training.job import local, placing, worker

pytestmark = pytest.mark.slow

OUTCOMES = [1.0, 0.0, 1.0, 0.0]


def recorded(folder: Path, base: Path, shift: float) -> None:
    """Sets each recorded log-prob to the policy's own, plus ``shift``."""
    write_lines(folder, OUTCOMES)
    policy, lines = Policy.load(base), dataset.read(folder / dataset.FILE)
    for line in lines:
        ids: list[int] = []
        for call in line["calls"]:
            ids += [*call["prompt_ids"], *call["token_ids"]]
            logp = _log_probs(policy, ids)[-len(call["token_ids"]) :]
            call["logprobs"] = [value + shift for value in logp]
    (folder / dataset.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))


def _log_probs(policy: Policy, ids: list[int]) -> list[float]:
    from onward.lm.tokens import TokenRow

    (values,) = policy.logprobs([TokenRow(ids, [False] + [True] * (len(ids) - 1), [0.0] * len(ids))])
    return values.tolist()


def last_metrics(events: Events) -> dict[str, float]:
    return [event for event in events if event["event"] == "progress"][-1]["metrics"]


def test_a_job_says_how_far_the_samplers_log_probs_are_and_warns_beyond_a_limit(
    make_job: MakeJob, events: Events, arms_base: Path
) -> None:
    """Shifted by −0.2 nats, every token weighs e^0.2: one effective sample per sample."""
    for shift, warned in ((-0.03, 0), (-0.2, 1)):
        events.clear()
        folder = make_job()
        recorded(folder, arms_base, shift)
        assert worker.main(folder) == 0, events[-1]
        metrics = last_metrics(events)
        assert metrics["logprob_difference"] == pytest.approx(-shift, abs=1e-4)
        assert metrics["importance_ess"] == pytest.approx(1.0, abs=1e-4)
        sentences = [event["message"] for event in events if event["event"] == "warning"]
        assert len(sentences) == warned
        assert all("differ from the learner's by 0.200 nats on average" in one for one in sentences)


def test_a_job_on_work_of_its_own_arithmetic_is_not_corrected(
    make_job: MakeJob, events: Events, arms_base: Path
) -> None:
    folder = make_job()
    recorded(folder, arms_base, 0.0)
    assert worker.main(folder) == 0, events[-1]
    assert last_metrics(events)["logprob_difference"] < 1e-5
    assert last_metrics(events)["truncated_share"] == 0.0


def test_the_manifest_says_on_what_and_in_what_a_job_was_computed(make_job: MakeJob, events: Events) -> None:
    folder = make_job(dtype="bfloat16")
    write_lines(folder, OUTCOMES)
    assert worker.main(folder) == 0, events[-1]
    metrics = checkpoints.verify(folder / "checkpoint").metrics
    assert (metrics["device"], metrics["dtype"]) == ("cpu", "bfloat16")
    load = next(event for event in events if event["event"] == "stage")
    assert load == {"event": "stage", "name": "load", "device": "cpu", "dtype": "bfloat16", "why": "as asked"}


def test_a_second_attempt_computes_in_the_format_of_the_first(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine was measured slow at first and fast now: half of a run in each would be no run."""
    monkeypatch.setattr(precision, "SMALL", 0)
    folder = make_job()
    spec = worker.JobSpec.model_validate_json((folder / "spec.json").read_bytes())
    assert spec.dtype == spec.device == "auto"
    measured = iter([Speeds(1.0, 0.2, 0.0), Speeds(1.0, 9.0, 0.0)])
    defaults = {"parameters": None, "speeds": lambda: next(measured)}
    monkeypatch.setattr(precision.place, "__kwdefaults__", defaults)
    for why in ("0.2 times as fast", "as in the attempt before"):
        placed, told = placing.place_job(folder, spec)
        assert (placed.device, placed.dtype) == ("cpu", "float32") and why in told


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--device cuda", "The device cuda is not here"),
        ("--device tpu", "There is no device 'tpu': give auto, cpu, cuda or cuda:N."),
        ("--dtype fp8", "The option dtype is wrong"),
    ],
)
def test_a_run_for_what_is_not_here_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(devices, "gpus", lambda: 0)
    code, output = run_command(f"onward train --algorithm sft --env maze --demonstrations 4 {options}")
    assert code == 2 and sentence in output and len(output.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_service_for_a_gpu_that_is_not_here_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "onward.toml").write_text("[http]\ngateway_port = 0\napi_port = 0\n")
    monkeypatch.setattr(devices, "gpus", lambda: 0)
    code, output = run_command("onward up --device cuda:1 --dir data")
    assert code == 2 and "The device cuda:1 is not here" in output and "Traceback" not in output
    code, output = run_command("onward up --device fast --dir data")
    assert code == 2 and "'fast' is no device: give auto, cpu, cuda or cuda:N" in output


def test_a_run_goes_on_only_where_its_device_is(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: 0)
    with pytest.raises(ConfigError, match="The device cuda:1 is not here"):
        local.resumed(make_job(device="cuda:1"), None)
