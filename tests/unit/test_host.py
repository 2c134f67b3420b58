"""The host ends what it started, whatever a library does with a cancellation."""

import asyncio
from pathlib import Path

import pytest

from onward import config, host
from onward.errors import ConfigError


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
            raise KeyError("a defect")
        await real(name, ctx)

    monkeypatch.setattr(host, "_run_role", run_role)
    async with host.running(settings, roles=("collector", "archiver")) as loop, asyncio.timeout(20):
        while len(runs) < 2:
            await asyncio.sleep(0.05)
        assert loop.ctx.ready["collector"] is True
        assert "KeyError: 'a defect'" in str(loop.ctx.ready["archiver"])
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
