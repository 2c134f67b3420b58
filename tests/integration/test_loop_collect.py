"""M1: what an agent records comes out stored once, redacted, and scored."""

import asyncio
import json
from pathlib import Path

from onward import Recorder, config, host
from onward.api import status
from onward.warehouse import queries


async def test_recorded_work_is_stored_once_without_its_secret_and_scored(tmp_path: Path) -> None:
    settings = config.load(environ={}, overrides={"data_dir": tmp_path / "data", "nats": {"port": 0}})
    secret = "ghp_" + "a1B2" * 9
    async with host.running(settings, roles=("collector", "rewarder")) as loop:
        agent = (settings.run_dir / "agent.url").read_text()
        recorder = Recorder(tmp_path / "outbox.db", nats_url=agent)
        for number in range(5):
            with recorder.task(f"Task {number}", session_id=f"s{number}") as task:
                task.turn(
                    observation=f"Use {secret} to log in",
                    action={"type": "response", "raw_response": "Done."},
                    result={"success": True},
                )
                task.outcome("completed_successfully" if number else "failed")
        assert await asyncio.to_thread(recorder.flush, 20.0)
        recorder.close()
        for _ in range(200):
            counts = await queries.counts(loop.ctx.warehouse)
            if counts["rewarded"] == 5:
                break
            await asyncio.sleep(0.05)
        assert (counts["trajectories"], counts["rewarded"]) == (5, 5)
        rows = await loop.ctx.warehouse.query("SELECT payload FROM trajectories_v")
        assert all(secret not in row["payload"] for row in rows)
        rewards = await loop.ctx.warehouse.query("SELECT success, payload FROM rewards_v ORDER BY success")
        assert [row["success"] for row in rewards] == [0, 1, 1, 1, 1]
        assert all("raw_total" in json.loads(row["payload"])["metadata"] for row in rewards)
        found = await status.collect(loop.ctx.bus, loop.ctx.warehouse, settings, loop.ctx.clock)
        lag = next(s["lag"] for s in found["streams"] if s["name"] == "RL_TRAJECTORIES")
        assert sum(lag.values()) == 0
