"""What a job starts from when nothing serves yet: a fresh start is waited for, an empty one is refused."""

import asyncio
import json
from pathlib import Path

import pytest
from test_environment_jobs import asked  # type: ignore[import-not-found]
from test_service import World  # type: ignore[import-not-found]

from onward.errors import TrainingError
from onward.training import frozen

BASE = {"arm": "current", "model_id": "base", "adapter_digest": None, "model_digest": "d"}


async def test_a_request_right_after_a_fresh_start_waits_for_the_first_policy(tmp_path: Path) -> None:
    world = World(tmp_path)
    freezing = asyncio.create_task(frozen.freeze(world.ctx, asked({"name": "arms"}), tmp_path))
    await world.clock.advance(10)
    assert not freezing.done()
    world.bucket("rl_releases").data["desired"] = (json.dumps({"arms": [BASE]}).encode(), 1)
    await world.clock.advance(1)
    assert (await freezing)["start_digest"] is None


async def test_a_request_where_no_policy_comes_is_refused_after_a_minute(tmp_path: Path) -> None:
    world = World(tmp_path)
    freezing = asyncio.create_task(frozen.freeze(world.ctx, asked({"name": "arms"}), tmp_path))
    await world.clock.advance(59)
    assert not freezing.done()
    await world.clock.advance(2)
    with pytest.raises(TrainingError, match=r"No policy serves yet.*release one first") as refused:
        await freezing
    assert refused.value.code == "DATA"
