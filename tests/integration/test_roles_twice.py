"""Each role of ``onward run ROLE`` beside the same one of ``onward up``: nothing is lost, nothing doubled."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from onward import Recorder, config, host
from onward.contracts import TrainingRequest, decode
from onward.contracts.buckets import Desired, DesiredArm
from onward.errors import ConfigError, PortBusyError
from onward.training.role import trainer
from onward.warehouse import queries

TASKS = 40
ROLES = ("collector", "archiver", "rewarder", "coordinator", "releaser", "api")


def settings(folder: Path) -> config.Settings:
    changed = {
        "data_dir": folder / "data",
        "nats": {"port": 0},
        "http": {"gateway_port": 0, "api_port": 0},
        "training": {"threshold": TASKS},
    }
    return config.load(environ={}, overrides=changed)


async def bodies(loop: host.Loop, stream: str) -> list[bytes]:
    last = (await loop.ctx.bus.js.stream_info(stream)).state.last_seq
    return [(await loop.ctx.bus.js.get_msg(stream, seq=n)).data or b"" for n in range(1, last + 1)]


def record(loop: host.Loop, folder: Path, numbers: range) -> None:
    token = (loop.ctx.settings.run_dir / "nats.token").read_text().strip()
    recorder = Recorder(folder / "outbox.db", nats_url=loop.endpoints["nats_url"], nats_token=token)
    for number in numbers:
        with recorder.task(f"Task {number}", session_id=f"s{number}") as task:
            task.turn(
                observation="go", action={"type": "response", "raw_response": "ok"}, result={"success": True}
            )
            task.outcome("completed_successfully")
    assert recorder.flush(30.0)
    recorder.close()


async def test_two_of_each_role_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    async with host.running(chosen, roles=ROLES) as first:
        arm = DesiredArm(arm="current", model_id="base", adapter_digest=None, weight=1.0)
        desired = Desired(revision=1, release_id=None, step=0, arms=[arm], previous=None)
        await first.ctx.bus.bucket(Desired.BUCKET).put(Desired.KEY, desired.dump())
        async with host.running(chosen, roles=ROLES, join=True) as second:
            await asyncio.to_thread(record, first, tmp_path, range(TASKS))
            async with asyncio.timeout(60):
                while not await bodies(first, "RL_TRAINING"):
                    await asyncio.sleep(0.05)
            assert second.ctx.endpoints["api_url"] != first.ctx.endpoints["api_url"]
        # The first goes on alone, after the second has ended.
        await asyncio.to_thread(record, first, tmp_path, range(TASKS, TASKS + 5))
        async with asyncio.timeout(60):
            while (await queries.counts(first.ctx.warehouse))["rewarded"] < TASKS + 5:
                await asyncio.sleep(0.05)
        counts = await queries.counts(first.ctx.warehouse)
        assert (counts["trajectories"], counts["rewarded"]) == (TASKS + 5, TASKS + 5)
        rewards = [json.loads(body)["trajectory_id"] for body in await bodies(first, "RL_REWARDS")]
        assert len(rewards) == len(set(rewards)) == TASKS + 5
        (asked,) = await bodies(first, "RL_TRAINING")
        assert decode(asked, TrainingRequest)
        assert await bodies(first, "RL_DLQ") == []


async def test_a_second_api_or_gateway_on_a_busy_port_is_refused_with_a_sentence(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    async with host.running(chosen, roles=("api",)) as first:
        port = int(first.ctx.endpoints["api_url"].rpartition(":")[2])
        for role in ("api", "gateway"):
            http = chosen.http.model_copy(update={f"{role}_port": port})
            taken = chosen.model_copy(update={"http": http})
            with pytest.raises(PortBusyError, match=str(port)):
                async with host.running(taken, roles=(role,), join=True):
                    pass


async def test_a_second_loop_on_a_folder_is_refused_with_a_sentence(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    async with host.running(chosen, roles=("archiver",)):
        with pytest.raises(ConfigError, match="in use by another Onward"):
            async with host.running(chosen, roles=("archiver",)):
                pass


async def test_a_second_trainer_on_a_folder_is_refused_with_a_sentence(tmp_path: Path) -> None:
    async with host.running(settings(tmp_path), roles=("archiver",)) as first:
        running = asyncio.create_task(trainer.run(first.ctx))
        try:
            async with asyncio.timeout(30):
                while not first.ctx.ready.get("trainer"):
                    await asyncio.sleep(0.02)
            with pytest.raises(ConfigError, match="Another trainer runs on this data folder"):
                await trainer.run(first.ctx)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
