"""A control job by ``agent.rl.training.control.v1``: from the message to the policy in the object store."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from training_service import training_service

from onward.bus import Bus
from onward.contracts import subjects
from onward.control.policies.policy import Policy
from onward.training.job import control
from onward.training.role import trainer as role
from onward.training.role.job_table import JobRecord, JobTable


def asked(job_id: str, **changes: Any) -> bytes:
    message = {
        "training_job_id": job_id,
        "timestamp": "2026-01-05T13:00:00Z",
        "requester": "tests",
        "algorithm": "reinforce",
        "environment": "CartPole-v1",
        "timesteps": 600,
        "settings": {"num_envs": 2},
        **changes,
    }
    return json.dumps(message).encode()


async def ended(table: JobTable, job_id: str) -> JobRecord:
    async with asyncio.timeout(120):
        while True:
            for record, _ in await table.all():
                if record.job_id == job_id and record.state in ("completed", "failed"):
                    return record
            await asyncio.sleep(0.1)


async def test_a_control_job_runs_as_a_child_reports_its_state_and_keeps_its_policy(
    bus: Bus, tmp_path: Path
) -> None:
    async with training_service(bus, tmp_path, takes=False) as served:
        running = asyncio.create_task(role.run(served.ctx))
        letters = await bus.nc.subscribe("agent.rl.dlq.v1.RL_TRAINING")
        heard = await bus.nc.subscribe(subjects.TRAINING_STATUS)
        try:
            for job_id, changes in (
                ("good", {}),
                ("import", {"environment": "os:system"}),
                ("nowhere", {"environment": "NoSuchTask-v9"}),
                ("dead", {"algorithm": "magic"}),
            ):
                await bus.publish(subjects.TRAINING_CONTROL, asked(job_id, **changes), msg_id=job_id)
            done = await ended(served.trainer.table, "good")
            assert done.state == "completed", done.error
            assert done.commit is None  # nothing that the releaser could take
            for job_id, words in (("import", "that a message may name"), ("nowhere", "NoSuchTask-v9")):
                failed = await ended(served.trainer.table, job_id)
                assert failed.error is not None and failed.error.code == "DATA"
                assert words in failed.error.message and "\n" not in failed.error.message
            assert "schema" in json.dumps(dict((await letters.next_msg(timeout=10)).headers or {}))
            shown = (await served.client.get("/training/good/status")).json()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        states = []
        while heard.pending_msgs:
            status = json.loads((await heard.next_msg()).data)
            if status["training_job_id"] == "good" and status["status"] not in states:
                states.append(status["status"])
        assert states == ["queued", "running", "completed"]
        assert shown["metadata"]["algorithm"] == "reinforce"
        kept = shown["metrics"]["current"]["policy"]
        names = await served.ctx.objects.list(kept)
        for name in names:
            await served.ctx.objects.get_file(name, tmp_path / "policy" / name.removeprefix(f"{kept}/"))
        assert Policy.load(tmp_path / "policy") is not None


def test_a_control_job_goes_on_whatever_its_earlier_attempt_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(control, "die_with_parent", lambda: None)
    (tmp_path / control.SPEC).write_bytes(asked("job-1", timesteps=200))
    (tmp_path / control.RUN).mkdir()
    (tmp_path / control.RUN / "config.json").write_text("{}")  # killed before its first saved state
    results = []
    for _ in range(2):  # and once more after it had ended
        assert control.main(tmp_path) == 0
        last = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
        assert last["event"] == "done"
        results.append(last["metrics"])
    assert results[0] == results[1] and results[0]["steps"] == 200
