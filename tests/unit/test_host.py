"""The host ends what it started, whatever a library does with a cancellation."""

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from onward import config, host
from onward.attach import attached, lock_folder
from onward.bus import Bus, read_all
from onward.contracts.buckets import RoleFailure
from onward.errors import BusError, ConfigError
from onward.feedback.intake import FeedbackIntake


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_a_role_that_swallows_a_cancellation_is_cancelled_again() -> None:
    swallowed = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            swallowed.set()
        await asyncio.sleep(3600)

    async def broken() -> None:
        raise ValueError("a defect")

    tasks = [asyncio.create_task(stubborn()), asyncio.create_task(broken())]
    await asyncio.sleep(0)
    results = await asyncio.wait_for(host._end(tasks), 10)
    assert swallowed.is_set()
    assert results[0] is None
    assert isinstance(results[1], ValueError)


async def test_a_second_onward_on_one_folder_is_refused(tmp_path: Path) -> None:
    settings = config.load(environ={}, overrides={"data_dir": tmp_path, "nats": {"port": 0}})
    async with host.running(settings, roles=("collector",)):
        with pytest.raises(ConfigError, match="is in use by another Onward"):
            async with host.running(settings, roles=("collector",)):
                pass


async def test_a_role_that_fails_is_started_again_while_another_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config.load(environ={}, overrides={"data_dir": tmp_path, "nats": {"port": 0}})
    real, runs = host._run_role, []

    async def run_role(name: str, ctx: host.Context) -> None:
        if name == "archiver":
            runs.append(name)
            raise KeyError("a defect") if len(runs) == 1 else BusError("NATS is away.")
        await real(name, ctx)

    monkeypatch.setattr(host, "_run_role", run_role)
    async with host.running(settings, roles=("collector", "archiver")) as loop, asyncio.timeout(60):
        while len(runs) < 3:  # also an error for a person, once the start is over
            await asyncio.sleep(0.05)
        assert loop.ctx.ready["collector"] is True
        assert "NATS is away." in str(loop.ctx.ready["archiver"])
        assert not any(task.done() for task in loop.roles.values())


async def test_an_error_for_a_person_at_the_start_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config.load(environ={}, overrides={"data_dir": tmp_path, "nats": {"port": 0}})

    async def run_role(name: str, ctx: host.Context) -> None:
        raise ConfigError("The key is too short.")

    monkeypatch.setattr(host, "_run_role", run_role)
    with pytest.raises(ConfigError, match="too short"):
        async with host.running(settings, roles=("collector",)):
            pass


async def test_a_role_with_a_port_serves_on_the_same_port_after_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    settings = config.load(
        environ={}, overrides={"data_dir": tmp_path, "nats": {"port": 0}, "http": {"api_port": port}}
    )
    real, failed = FeedbackIntake.deliver, asyncio.Event()

    async def deliver(self: FeedbackIntake, bus: Bus) -> None:
        if not failed.is_set():
            failed.set()
            raise KeyError("a defect")
        await real(self, bus)

    monkeypatch.setattr(FeedbackIntake, "deliver", deliver)
    async with (
        host.running(settings, roles=("api",)) as loop,
        asyncio.timeout(30),
        httpx.AsyncClient() as client,
    ):
        await failed.wait()
        while loop.ctx.ready["api"] is not True:
            await asyncio.sleep(0.05)
        answer = await client.get(f"http://127.0.0.1:{port}/ready")
        assert (answer.status_code, answer.json()["ready"]) == (200, True)
        (report,) = await read_all(loop.ctx.bus.bucket(RoleFailure.BUCKET), RoleFailure)
        assert report.document is not None and report.document.error == "KeyError: 'a defect'"


async def test_a_role_that_starts_again_on_another_port_is_found_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config.load(
        environ={}, overrides={"data_dir": tmp_path, "nats": {"port": 0}, "http": {"api_port": 0}}
    )
    real, fails = FeedbackIntake.deliver, asyncio.Event()

    async def deliver(self: FeedbackIntake, bus: Bus) -> None:
        if not fails.is_set():
            await fails.wait()
            raise KeyError("a defect")
        await real(self, bus)

    def written() -> str:
        return json.loads((tmp_path / "run" / host.ENDPOINTS).read_bytes())["api_url"]

    monkeypatch.setattr(FeedbackIntake, "deliver", deliver)
    async with (
        host.running(settings, roles=("api",)) as loop,
        asyncio.timeout(30),
        httpx.AsyncClient() as client,
    ):
        first = written()
        with socket.socket() as taken:  # the port is not given a second time
            fails.set()
            while loop.ctx.ready["api"] is True:
                await asyncio.sleep(0.01)
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", int(first.rpartition(":")[2])))
            taken.listen()
            while loop.ctx.ready["api"] is not True:
                await asyncio.sleep(0.05)
        assert written() == loop.ctx.endpoints["api_url"] != first
        assert (await client.get(f"{written()}/ready")).json()["ready"] is True
    assert not (tmp_path / "run" / host.ENDPOINTS).exists()


def test_what_only_a_start_needs_is_not_loaded_by_commands_that_talk_to_a_service() -> None:
    code = (
        "import sys, onward.host\n"
        "print([m for m in ('fastapi', 'torch', 'chdb', 'onward.training.job') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_a_reward_component_that_cannot_be_used_is_refused_before_anything_is_started(
    tmp_path: Path,
) -> None:
    custom = {"short": {"source": "no_module_of_mine:short", "weight": 0.0}}
    settings = config.load(
        environ={},
        overrides={"data_dir": tmp_path / "data", "nats": {"port": 0}, "reward": {"custom": custom}},
    )
    with pytest.raises(
        ConfigError, match=r"Reward component 'short': .* needs the module 'no_module_of_mine'"
    ):
        async with host.running(settings, roles=("rewarder",)):
            pass
    assert not (tmp_path / "data" / "nats").exists()


async def test_a_command_after_a_kill_is_told_that_nothing_runs(tmp_path: Path) -> None:
    """A killed loop leaves its addresses behind, and its lock is free."""
    settings = config.load(environ={}, overrides={"data_dir": tmp_path})
    settings.run_dir.mkdir()
    (settings.run_dir / host.ENDPOINTS).write_text('{"nats_url": "nats://127.0.0.1:9"}')
    with pytest.raises(ConfigError, match=r"^Nothing runs on .*: start it with 'onward up'"):
        async with attached(settings):
            pass
    with lock_folder(settings.run_dir), pytest.raises(BusError, match="cannot be reached"):
        async with attached(settings):
            pass
