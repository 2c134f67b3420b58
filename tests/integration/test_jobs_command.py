"""``onward training start`` and ``onward jobs``: on a real bus, with the intake of a trainer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from training_service import CONFIG, TrainingService, training_service
from typer.testing import CliRunner

from onward.bus import Bus, NatsServer
from onward.cli import app, jobs, jobs_watch, load
from onward.contracts import subjects
from onward.errors import OnwardError
from onward.telemetry import logs
from onward.training.role.job_table import JobRecord


@pytest.fixture
def on_the_bus(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ONWARD_NATS__URL", nats_server.url)
    monkeypatch.setenv("ONWARD_NATS__TOKEN", nats_server.token)
    monkeypatch.setenv("COLUMNS", "220")
    monkeypatch.chdir(tmp_path)
    logs.setup("error")  # the trainer's own lines are none of a command's


async def onward(*words: str, code: int = 0) -> str:
    """What a command prints; an error is its sentence."""
    load(words[0])
    result = await asyncio.to_thread(CliRunner().invoke, app, list(words))
    if isinstance(result.exception, OnwardError):
        assert code == 2
        return str(result.exception)
    assert result.exit_code == code, result.output
    return result.output


async def ended(served: TrainingService, job_id: str, **changes: Any) -> JobRecord:
    table = served.trainer.table
    running, revision = await table.claim(*await table.get(job_id), "tests")
    return (await table.move(running, revision, "failed", **changes))[0]


async def statuses(bus: Bus, job_id: str) -> list[dict[str, Any]]:
    """The published states of one job."""
    found = await bus.js.pull_subscribe(subjects.TRAINING_STATUS, stream="RL_TRAINING")
    messages = [json.loads(message.data) for message in await found.fetch(100, timeout=0.5)]
    return [message for message in messages if message["training_job_id"] == job_id]


async def test_a_control_job_runs_again_too(bus: Bus, on_the_bus: None, tmp_path: Path) -> None:
    document = {
        "training_job_id": "cartpole-1", "timestamp": "2026-01-01T00:00:00Z", "requester": "tests",
        "algorithm": "dqn", "environment": "CartPole-v1",
    }  # fmt: skip
    async with training_service(bus, tmp_path) as served:
        message: Any = SimpleNamespace(data=json.dumps(document).encode())
        await served.trainer.handle_control([message])
        await onward("jobs", "cancel", "cartpole-1")
        again = json.loads(await onward("jobs", "retry", "cartpole-1", "--json"))
        record, _ = await served.trainer.table.get(again["job_id"])
        assert (record.state, record.request["environment"]) == ("queued", "CartPole-v1")


async def test_a_job_from_a_file_is_cancelled_and_run_again(
    bus: Bus, on_the_bus: None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    async with training_service(bus, tmp_path) as served:
        said = await onward("training", "start", "-f", "config.json", "--json")
        status = json.loads(said)
        job_id = status["training_job_id"]
        assert (status["status"], status["metadata"]["position"], status["metadata"]["number"]) == (
            "queued",
            1,
            1,
        )
        assert job_id in await onward("jobs", "list")
        for _ in range(2):
            assert f"Job {job_id} is cancelled." in await onward("jobs", "cancel", job_id[:8])
        assert json.loads(await onward("jobs", "show", job_id, "--json"))["state"] == "cancelled"
        again = json.loads(await onward("jobs", "retry", job_id, "--json"))
        assert (again["state"], again["number"]) == ("queued", 2) and again["job_id"] != job_id
        told = await statuses(bus, again["job_id"])
        assert [(status["status"], status["metadata"]["position"]) for status in told] == [("queued", 1)]
        shown = json.loads(await onward("jobs", "show", again["job_id"], "--json"))
        assert (shown["number"], shown["position"], shown["priority"]) == (2, 1, "high")
        (line,) = [line for line in (await onward("jobs", "list")).splitlines() if again["job_id"] in line]
        assert line.split()[:4] == [again["job_id"], "2", "1", "queued"]
        records = [record for record, _ in await served.trainer.table.all()]
        assert [(record.state, record.number) for record in records] == [("cancelled", 1), ("queued", 2)]
        assert records[0].request["training_config"] == records[1].request["training_config"]


async def test_a_request_goes_to_the_address_of_the_environment_with_its_key(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"training_config": CONFIG}))
    monkeypatch.chdir(tmp_path)
    async with training_service(
        bus, tmp_path, external={"agentgym_rl_api_key": "a-key-of-the-service"}
    ) as served:
        monkeypatch.setenv("AGENTGYM_RL_URL", served.url)
        assert "No valid API key" in await onward("training", "start", "-f", "config.json", code=2)
        monkeypatch.setenv("AGENTGYM_RL_API_KEY", "a-key-of-the-service")
        assert "(job #1) is queued" in await onward("training", "start", "-f", "config.json")


async def test_bad_input_gets_one_sentence(bus: Bus, on_the_bus: None, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "wrong.json").write_text(json.dumps({**CONFIG, "algorithm": "magic"}))
    (tmp_path / "elsewhere.json").write_text(json.dumps({**CONFIG, "base_model": "gpt-of-nobody"}))
    async with training_service(bus, tmp_path):
        for words, sentence in (
            (("training", "start", "-f", "none.json"), "none.json cannot be read"),
            (
                ("training", "start", "-f", "broken.json"),
                "broken.json is no request. The message is not JSON.",
            ),
            (("training", "start", "-f", "wrong.json"), "training_config.algorithm"),
            (
                ("training", "start", "-f", "elsewhere.json"),
                "failed at once. This service trains 'tiny' and was",
            ),
            (("jobs", "cancel", "a/b"), "There is no job 'a/b': 'onward jobs list' shows them."),
            (("jobs", "watch", "nobody"), "There is no job 'nobody'"),
        ):
            said = await onward(*words, code=2)
            assert sentence in said and "\n" not in said


async def test_wrong_settings_of_a_rubrics_job_are_refused_before_it_is_stored(
    bus: Bus, on_the_bus: None, tmp_path: Path
) -> None:
    request = {"kind": "rubrics", "algorithm": "rloo", "settings": {"warm_start.step": 5}}
    (tmp_path / "rubrics.json").write_text(json.dumps(request))
    sentence = "A rubrics run has no setting warm_start.step: did you mean steps?"
    async with training_service(bus, tmp_path) as served:
        assert await onward("training", "start", "-f", "rubrics.json", code=2) == sentence
        answer = await served.client.post("/training/start", json=request)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "settings")
        assert answer.json()["error"]["message"] == sentence
        assert await served.trainer.table.all() == []
    assert (await bus.js.stream_info("RL_TRAINING")).state.messages == 0


@pytest.mark.parametrize("runs", [True, False])
async def test_a_request_that_no_trainer_has_taken_yet_is_stored_and_can_be_watched(
    bus: Bus, on_the_bus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    """A trainer that runs under load is not asked for again."""
    monkeypatch.setattr("onward.training.intake.TAKEN_SECONDS", 0.1)
    document = {"training_job_id": "job-1", "training_config": CONFIG}
    (tmp_path / "config.json").write_text(json.dumps(document))
    advice = "" if runs else " No trainer runs: start one ('onward run trainer', or 'onward up')."
    waits = f"The request is stored; no trainer has taken it yet.{advice}"
    async with training_service(bus, tmp_path, takes=False) as served:
        if runs:
            await bus.serve(subjects.TRAINING_STATUS_REQUEST, served.trainer.answer_status, queue="trainer")
        said = await onward("training", "start", "-f", "config.json")
        assert said == f"Job job-1 is queued. {waits} Follow it with 'onward jobs watch job-1'.\n"
        status = json.loads(await onward("training", "start", "-f", "config.json", "--json"))
        assert (status["status"], status["metadata"]["note"]) == ("queued", waits)
        watching = asyncio.create_task(onward("jobs", "watch", "job-1", code=1))
        (message,) = await (
            await bus.js.pull_subscribe(subjects.TRAINING_REQUEST, stream="RL_TRAINING")
        ).fetch(1, timeout=5)
        await asyncio.sleep(1)
        await served.trainer.handle_requests([message])
        await served.trainer.table.cancel("job-1", by="tests")
        lines = (await watching).splitlines()
        assert f"Job job-1 waits. {waits}" in lines and lines[-1].startswith("job #1 job-1 · cancelled")


async def test_watching_prints_each_change_and_ends_with_the_job(
    bus: Bus, on_the_bus: None, tmp_path: Path
) -> None:
    async with training_service(bus, tmp_path) as served:
        body = {"training_job_id": "job-1", "training_config": CONFIG}
        await served.client.post("/training/start", json=body)
        watching = asyncio.create_task(onward("jobs", "watch", "job-1", code=1))
        await asyncio.sleep(1.5)
        await ended(served, "job-1", error=jobs_error("DATA", "Too few rows."))
        lines = (await watching).splitlines()
        assert lines[0] == "job #1 job-1 · queued · place 1 in the queue"
        assert lines[-1] == "job #1 job-1 · failed · DATA: Too few rows."


def jobs_error(code: str, message: str) -> Any:
    from onward.training.role.job_table import JobError

    return JobError.model_validate({"code": code, "message": message})


def test_a_curve_has_one_mark_for_each_value_and_means_beyond_the_width() -> None:
    assert jobs_watch.sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert jobs_watch.sparkline([2.0]) == "▁"
    assert jobs_watch.sparkline([0.0, 0.0, 1.0, 1.0], width=2) == "▁█"
    assert len(jobs_watch.sparkline([float(i) for i in range(1000)], width=48)) == 48


def test_the_headline_has_no_time_left_while_it_is_not_known() -> None:
    progress = {"current_step": 3, "total_steps": 42, "percent_complete": 7.1, "eta_seconds": 61.0}
    record = JobRecord(
        job_id="job-1", state="running", request={}, request_sha256="", created_at="", updated_at=""
    ).model_copy(update={"progress": progress})
    assert jobs_watch.headline(record, None) == "job job-1 · running · 7 % · step 3/42 · 1:01 left"
    del progress["eta_seconds"]
    assert jobs_watch.headline(record, None) == "job job-1 · running · 7 % · step 3/42"


def test_the_picture_grows_by_one_value_for_each_new_step() -> None:
    record = JobRecord(
        job_id="job-1", state="running", request={}, request_sha256="", created_at="", updated_at=""
    )
    watched = jobs_watch.Watched()
    for step, reward in ((1, 0.25), (1, 0.25), (2, 0.5)):
        progress = {"current_step": step, "metrics": {"reward_mean": reward, "held_out": {}}}
        watched.add(record.model_copy(update={"progress": progress}))
    assert watched.curves == {"reward_mean": [0.25, 0.5]}
    assert jobs.STATES == ("queued", "running", "completed", "failed", "cancelled")
