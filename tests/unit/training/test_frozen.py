"""What a job starts from when nothing serves yet: a fresh start is waited for, an empty one is refused."""

import asyncio
import json
from pathlib import Path

import pytest
from trainer_world import World, asked

from onward.contracts import TrainingRequest
from onward.errors import TrainingError
from onward.training.data import frozen

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


@pytest.mark.parametrize(("metadata", "until"), [({"until": 700}, 700), ({}, None), (None, None)])
async def test_what_was_stored_after_the_request_is_left_for_the_next_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metadata: dict[str, int] | None, until: int | None
) -> None:
    """On a fast machine more arrives before the job starts; its data must be the same as on a slow one."""
    asked_for: dict[str, object] = {}

    async def rows(warehouse: object, **given: object) -> list[dict[str, object]]:
        asked_for.update(given)
        return []

    monkeypatch.setattr(frozen.queries, "trajectories_for_training", rows)
    world = World(tmp_path)
    world.ctx.warehouse = None
    document = json.loads(asked({"name": "arms"}).model_dump_json())
    document["training_config"]["dataset"] = {"source": "clickhouse", "sample_size": 512}
    document["metadata"] = metadata
    request = TrainingRequest.model_validate({k: v for k, v in document.items() if v is not None})
    assert await frozen._scored(world.ctx, request, ["d"]) == ([], 0)
    assert asked_for["until_seq"] == until
    assert asked_for["limit"] == 2 * 512
