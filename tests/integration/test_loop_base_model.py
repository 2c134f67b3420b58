"""A service that nobody warmed up learns too: from the bare base model to a first trained adapter."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from onward import Recorder, config, host
from onward.contracts import ModelDeployed, decode
from onward.training.role.job_table import JobTable
from onward.warehouse import queries

SESSIONS = 3


def record(loop: host.Loop, recorder: Recorder, number: int) -> None:
    """One session through the gateway, recorded as an agent would; the first one succeeds."""
    key = (loop.ctx.settings.run_dir / "api.key").read_text()
    answer = httpx.post(
        f"{loop.endpoints['gateway_url']}/v1/chat/completions",
        json={"messages": [{"role": "user", "content": f"Add {number} and 3."}], "max_tokens": 8},
        headers={"Authorization": f"Bearer {key}", "Onward-Session": f"s{number}"},
        timeout=60,
    ).raise_for_status()
    with recorder.task(f"Add {number} and 3.", session_id=f"s{number}", task_type="sum") as task:
        action = {**task.from_completion(answer.json()), "type": "response"}
        task.turn(observation=f"Add {number} and 3.", action=action, result={"success": True})
        task.outcome("completed_successfully" if number == 0 else "failed")


@pytest.mark.long
async def test_a_service_without_a_warm_start_asks_for_a_job_and_trains_it(tmp_path: Path) -> None:
    from onward.lm.tiny import build_tiny

    settings = config.load(
        environ={},
        overrides={
            "data_dir": tmp_path,
            "nats": {"port": 0},
            "http": {"gateway_port": 0, "api_port": 0},
            "model": {"base": "tiny", "threads": 1},
            "training": {"algorithm": "reinforce", "threshold": SESSIONS},
            "validation": {"suites": ["desk"], "size": 10},
        },
    )
    build_tiny(tmp_path / "models" / "tiny", ["Add 2 and 3."], vocab=300)
    async with host.running(settings) as loop, asyncio.timeout(120):
        ctx = loop.ctx
        while (desired := await ctx.bus.bucket("rl_releases").get("desired")) is None:
            await asyncio.sleep(0.05)
        (arm,) = json.loads(desired.value)["arms"]
        assert (arm["model_id"], arm["adapter_digest"]) == ("tiny", None)

        token = (settings.run_dir / "nats.token").read_text().strip()
        recorder = Recorder(tmp_path / "agent.db", nats_url=loop.endpoints["nats_url"], nats_token=token)
        for number in range(SESSIONS):
            await asyncio.to_thread(record, loop, recorder, number)
        assert await asyncio.to_thread(recorder.flush, 20.0)
        recorder.close()

        table = JobTable(ctx.bus.bucket("rl_jobs"), ctx.clock)
        while not (jobs := await table.all()) or jobs[0][0].state not in ("completed", "failed"):
            await asyncio.sleep(0.1)
        ((job, _),) = jobs
        assert job.state == "completed", job.error
        assert (job.samples, job.start_digest) == (SESSIONS, None)
        assert job.commit is not None and job.commit.adapter_digest != arm["model_digest"]
        assert await queries.rewarded_count(ctx.warehouse, arm["model_digest"]) == SESSIONS

        # The releaser takes it up: it continues what serves.
        while True:
            keys = await ctx.bus.bucket("rl_releases").keys("release.")
            entries = [await ctx.bus.bucket("rl_releases").get(key) for key in keys]
            records = [json.loads(entry.value) for entry in entries if entry is not None]
            mine = [record for record in records if record["job_id"] == job.job_id]
            if mine and mine[0]["state"] != "proposed":
                break
            await asyncio.sleep(0.1)
        assert mine[0]["reason_code"] != "stale_start"
        assert mine[0]["current"]["model_id"] == "tiny"

        message = await ctx.bus.js.get_msg("RL_DEPLOY", seq=1)
        event = decode(message.data or b"", ModelDeployed)
        assert event.metadata is not None and event.metadata.event == "installed"
        assert event.model_info.checkpoint_path == "base:tiny"

        states: set[str] = set()
        while not states >= {"queued", "running", "completed"}:
            rows = await ctx.warehouse.query(
                "SELECT status FROM status_v WHERE training_job_id = {id:String}", id=job.job_id
            )
            states = {row["status"] for row in rows}
            await asyncio.sleep(0.1)
        assert (await queries.counts(ctx.warehouse))["deployments"] >= 1
