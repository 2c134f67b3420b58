"""What a job starts from when nothing serves yet: a fresh start is waited for, an empty one is refused."""

import asyncio
import hashlib
import json
from pathlib import Path

import pytest
from snapshot_folder import stored_dataset
from trainer_world import World, asked

from onward.capture import provenance
from onward.contracts import TrainingRequest
from onward.errors import TrainingError
from onward.training.data import dataset, frozen, snapshots
from onward.training.role import remedies
from onward.training.role.job_table import JobRecord
from onward.training.role.remedies import Remedy
from onward.warehouse import Objects, queries

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

    async def nobody(*_: object) -> dict[str, int]:
        return {}

    monkeypatch.setattr(queries, "trajectories_for_training", rows)
    monkeypatch.setattr(queries, "trajectories_of_others", nobody)
    world = World(tmp_path)
    world.ctx.warehouse = None
    world.bucket("rl_releases").data["desired"] = (json.dumps({"arms": [BASE]}).encode(), 1)
    provenance.load_key(world.settings.run_dir, create=True)
    document = json.loads(asked({"name": "arms"}).model_dump_json())
    document["training_config"]["dataset"] = {"source": "clickhouse", "sample_size": 512}
    document["metadata"] = metadata
    request = TrainingRequest.model_validate({k: v for k, v in document.items() if v is not None})
    with pytest.raises(TrainingError, match=r"none were found"):
        await frozen.freeze(world.ctx, request, tmp_path)
    assert asked_for["until_seq"] == until


def test_rows_without_the_bad_ones_have_a_snapshot_of_their_own_that_verifies(tmp_path: Path) -> None:
    """The one of all rows describes other data than what the job was trained on."""
    whole = stored_dataset(tmp_path)
    folder, objects = tmp_path / "work", Objects.open(tmp_path / "objects")
    body = (folder / dataset.FILE).read_bytes()
    bad = json.dumps({**json.loads(body.splitlines()[1]), "outcome": float("nan")}).encode() + b"\n"
    rows = body.splitlines(keepends=True)
    (folder / dataset.FILE).write_bytes(rows[0] + bad + rows[2])
    made = {
        "dataset_sha256": hashlib.sha256(rows[0] + bad + rows[2]).hexdigest(),
        "samples": 3, "excluded": {"too_long": 2}, "snapshot": whole, "start_digest": None,
    }  # fmt: skip
    (folder / frozen.MARKER).write_text(json.dumps(made))
    world = World(tmp_path / "data")
    world.ctx.objects = objects

    async def again() -> None:
        assert isinstance(await remedies.find("DATA", JobRecord.model_construct(attempt=1), folder), Remedy)
        found = [await frozen.freeze(world.ctx, asked({"name": "arms"}), folder) for _ in range(2)]
        assert found[0] == found[1] == json.loads((folder / frozen.MARKER).read_bytes())
        part = await snapshots.load(objects, found[0]["snapshot"])
        assert part["part_of"] == whole and part["samples"] == found[0]["samples"] == 2
        assert part["excluded"] == {"bad_row": 1, "too_long": 2}
        assert await snapshots.rows(objects, part) == rows[0] + rows[2]
        assert [one["trajectory_id"] for one in part["members"]] == ["t0", "t2"]
        assert await snapshots.verify(objects, found[0]["snapshot"]) == []

    asyncio.run(again())


@pytest.mark.parametrize("left", [b"{}\n", None])
async def test_other_rows_than_those_that_were_frozen_are_not_trained_on(
    tmp_path: Path, left: bytes | None
) -> None:
    world = World(tmp_path)
    (tmp_path / frozen.MARKER).write_text(json.dumps({"dataset_sha256": "0" * 64, "samples": 4}))
    if left is not None:
        (tmp_path / dataset.FILE).write_bytes(left)
    with pytest.raises(TrainingError, match="not those that were frozen") as refused:
        await frozen.freeze(world.ctx, asked({"name": "arms"}), tmp_path)
    assert refused.value.code == "DATA"
    found = await remedies.find("DATA", JobRecord.model_construct(attempt=1), tmp_path)
    assert isinstance(found, Remedy) and "frozen anew" in found.sentence


async def test_a_job_that_played_has_no_rows_to_validate_again(tmp_path: Path) -> None:
    (tmp_path / frozen.MARKER).write_text(json.dumps({"dataset_sha256": None, "samples": None}))
    found = await remedies.find("DATA", JobRecord.model_construct(attempt=1), tmp_path)
    assert found == "It has no frozen rows to validate again."
