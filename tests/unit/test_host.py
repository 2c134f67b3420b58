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
