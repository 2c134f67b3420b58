"""``onward jobs`` and ``onward dlq`` against a real bus: list, show, retry, drop, as tables and as JSON."""

import asyncio
import json
from pathlib import Path

import pytest
from docs_blocks import run_command

from onward import host
from onward.bus import Bus, NatsServer, deadletter
from onward.clock import SystemClock
from onward.contracts import TrainingRequest, examples, subjects
from onward.ids import new_id
from onward.training.role.job_table import JobError, JobTable


@pytest.fixture
def data_dir(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> Path:
    """A data folder that says where the bus is, as one does on which 'onward up' runs."""
    run_dir = tmp_path / "data" / "run"
    run_dir.mkdir(parents=True)
    (run_dir / "nats.token").write_text(nats_server.token)
    (run_dir / host.ENDPOINTS).write_text(json.dumps({"nats_url": nats_server.url}))
    return tmp_path / "data"


async def onward(data_dir: Path, words: str) -> tuple[int, str]:
    return await asyncio.to_thread(run_command, f"onward {words} --dir {data_dir}")


async def job(bus: Bus) -> str:
    table = JobTable(bus.bucket("rl_jobs"), SystemClock())
    request = {**examples.TRAINING_REQUEST, "training_job_id": new_id()}
    record, _ = await table.register(TrainingRequest.model_validate(request))
    record, revision = await table.get(record.job_id)
    record, revision = await table.claim(record, revision, "here")
    error = JobError(code="DATA", message="Only 3 of 100 trajectories can be learned from.")
    await table.move(record, revision, "failed", error=error)
    return record.job_id


async def test_a_failed_job_says_why(bus: Bus, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await onward(data_dir, "jobs list") == (0, "No job was asked for yet.\n")
    name = await job(bus)
    monkeypatch.setenv("COLUMNS", "80")
    code, output = await onward(data_dir, "jobs list")
    assert code == 0
    assert name in output  # whole, also at 80 columns
    assert "DATA: Only 3 of 100 trajectories can be learned from." in " ".join(output.split())
    code, output = await onward(data_dir, "jobs list --json")
    (found,) = json.loads(output)
    assert (found["job_id"], found["state"], found["attempt"]) == (name, "failed", 1)
    assert found["error"]["code"] == "DATA"
    assert found["release"] is None
    assert json.loads((await onward(data_dir, "jobs list --state completed --json"))[1]) == []
    assert (await onward(data_dir, "jobs list --state completed"))[1] == "No job is completed.\n"
    code, output = await onward(data_dir, f"jobs show {name} --json")
    assert json.loads(output) == {**found, "log": None}
    assert await onward(data_dir, f"jobs show {name[:-1]} --json") == (code, output), "a unique prefix"
    code, output = await onward(data_dir, f"jobs show {name}")
    assert code == 0 and f"job             {name}" in output
    assert await onward(data_dir, "jobs list --state nope") == (
        2,
        "--state is 'nope': expected one of queued, running, completed, failed, cancelled.\n",
    )


async def dead_letter(bus: Bus, body: bytes) -> None:
    headers = {deadletter.REASON: "not_json", deadletter.SOURCE_SUBJECT: subjects.FEEDBACK}
    headers[deadletter.SOURCE_STREAM] = "RL_FEEDBACK"
    await bus.publish(f"{subjects.DLQ}.RL_FEEDBACK", body, msg_id=new_id(), headers=headers)


async def test_dead_letters_are_listed_shown_sent_again_and_dropped(
    bus: Bus, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    assert await onward(data_dir, "dlq list") == (0, "No dead letters.\n")
    for body in (b"\x1b[2Jone", b"\xff two", b"three"):
        await dead_letter(bus, body)
    listed = json.loads((await onward(data_dir, "dlq list --json"))[1])
    assert [(letter["sequence"], letter["reason"], letter["size"]) for letter in listed] == [
        (1, "not_json", 7),
        (2, "not_json", 5),
        (3, "not_json", 5),
    ]
    code, output = await onward(data_dir, "dlq show 1")
    assert code == 0 and output.endswith("\\x1b[2Jone\n") and "\x1b" not in output
    assert json.loads((await onward(data_dir, "dlq show 1 --json"))[1])["body"] == "\x1b[2Jone"
    assert json.loads((await onward(data_dir, "dlq show 2 --json"))[1])["body_base64"] == "/yB0d28="
    assert await onward(data_dir, "dlq retry 1") == (0, "Dead letter 1 was published again.\n")
    assert await onward(data_dir, "dlq replay 2") == (
        0,
        "'onward dlq replay' is now 'onward dlq retry': the old name goes with the next release.\n"
        "Dead letter 2 was published again.\n",
    )
    assert (await bus.js.stream_info("RL_FEEDBACK")).state.messages == 2
    assert await onward(data_dir, "dlq drop") == (
        2,
        "Give one id or more ('onward dlq list' shows them), or --all.\n",
    )
    code, output = await onward(data_dir, "dlq drop 3")
    assert (code, output) == (2, "No terminal to ask in: give --yes to drop dead letters for good.\n")
    assert await onward(data_dir, "dlq drop --all --yes") == (0, "Dead letter 3 was dropped for good.\n")
    assert await onward(data_dir, "dlq drop 3 --yes") == (
        2,
        "There is no dead letter 3: see 'onward dlq list'.\n",
    )
    assert await deadletter.dead_letters(bus) == []
    message = await bus.js.get_msg("RL_AUDIT", seq=1)
    entry = json.loads(message.data or b"")
    assert (entry["event"], entry["by"], entry["sequence"], entry["result"]) == (
        "dlq.drop",
        "ada",
        3,
        "dropped",
    )
    assert (await bus.js.stream_info("RL_AUDIT")).state.messages == 1
