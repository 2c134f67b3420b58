"""A checkpoint goes 90 days after its job ended, and never while something may load it."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from release_world import World

from onward.clock import utc_text
from onward.contracts import subjects
from onward.release import retention
from onward.release.record import Model, ReleaseRecord, release_id
from onward.warehouse import Objects

FILES = ("manifest.json", "adapter_model.safetensors", "adapter_config.json")


class Kept:
    """A store with checkpoints of jobs that ended some days ago, and the buckets that speak of them."""

    def __init__(self, folder: Path, **training: Any) -> None:
        self.world = World()
        self.now: datetime = self.world.clock.now()
        self.objects = Objects.open(folder)
        ctx = self.world.ctx
        settings = ctx.settings.model_copy(
            update={"training": ctx.settings.training.model_copy(update=training)}
        )
        self.ctx = type(ctx)(
            **{**vars(ctx), "objects": self.objects, "settings": settings},
        )

    def put(self, bucket: str, key: str, value: dict[str, Any]) -> None:
        self.world.bus.bucket(bucket).data[key] = (json.dumps(value).encode(), 1)

    async def job(self, name: str, days: float, *, epoch: int = 1, state: str = "completed") -> Model:
        """A job, its stored checkpoint and its closed release; returns its model, which is in no bucket."""
        prefix = f"checkpoints/{name}/{epoch}"
        for file in FILES:
            await self.objects.put(f"{prefix}/{file}", b"{}")
        await self.objects.put(f"jobs/{name}/COMMIT", b"{}")
        ended = utc_text(self.now - timedelta(days=days))
        commit = {"epoch": epoch, "adapter_digest": name, "object_prefix": prefix}
        self.put(
            "rl_jobs",
            f"job.{name}",
            {"job_id": name, "state": state, "updated_at": ended}
            | ({"commit": commit} if state == "completed" else {}),
        )
        model = Model(model_id=name, adapter_digest=name, object_prefix=prefix, training_job_id=name)
        self.release(model, model, "promoted")
        return model

    def release(self, candidate: Model, current: Model, state: str, *, settled: bool = True) -> None:
        record = ReleaseRecord.model_validate(
            {
                "release_id": release_id(candidate.training_job_id, 1),
                "job_id": candidate.training_job_id,
                "epoch": 1,
                "state": state,
                "created_at": utc_text(self.now),
                "updated_at": utc_text(self.now),
                "candidate": candidate,
                "current": current,
                "settled": settled,
            }
        )
        self.put("rl_releases", record.own_key(), json.loads(record.dump()))

    def model(self, model: Model, state: Any) -> None:
        self.put("rl_models", model.model_id, json.loads(model.model_copy(update={"state": state}).dump()))


async def test_ninety_days_after_its_end_a_jobs_checkpoints_go_and_its_commit_stays(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    await kept.job("old", 90.01)
    await kept.job("young", 89.99)
    await kept.job("broken", 91, state="failed")
    assert await retention.sweep(kept.ctx) == ["checkpoints/broken/1", "checkpoints/old/1"]
    assert await kept.objects.list("checkpoints") == [f"checkpoints/young/1/{f}" for f in sorted(FILES)]
    assert await kept.objects.exists("jobs/old/COMMIT")
    ((subject, entry),) = kept.world.bus.published.values()
    assert subject == subjects.AUDIT
    assert json.loads(entry)["prefixes"] == ["checkpoints/broken/1", "checkpoints/old/1"]
    assert await retention.sweep(kept.ctx) == []


@pytest.mark.parametrize("state", ["current", "previous", "candidate", "added"])
async def test_a_model_that_may_be_loaded_keeps_its_checkpoint(tmp_path: Path, state: str) -> None:
    kept = Kept(tmp_path)
    kept.model(await kept.job("old", 1000), state)
    assert await retention.sweep(kept.ctx) == []


@pytest.mark.parametrize("state", ["retired", "rolled_back", "aborted"])
async def test_a_model_that_is_out_of_use_does_not(tmp_path: Path, state: str) -> None:
    kept = Kept(tmp_path)
    kept.model(await kept.job("old", 1000), state)
    assert await retention.sweep(kept.ctx) == ["checkpoints/old/1"]


@pytest.mark.parametrize("state", ["validating", "rolled_back"])
async def test_both_models_of_a_release_keep_theirs_until_every_gateway_has_settled(
    tmp_path: Path, state: str
) -> None:
    kept = Kept(tmp_path)
    candidate, current = await kept.job("new", 100), await kept.job("old", 1000)
    kept.release(candidate, current, state, settled=False)
    assert await retention.sweep(kept.ctx) == []
    kept.release(candidate, current, "rolled_back")
    assert await retention.sweep(kept.ctx) == ["checkpoints/new/1", "checkpoints/old/1"]


async def test_a_pinned_model_and_one_that_the_routes_name_keep_theirs(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    for name in ("pinned", "served"):
        kept.model(await kept.job(name, 1000), "retired")
    kept.put("rl_control", "pin", {"model_id": "pinned"})
    kept.put("rl_releases", "desired", {"arms": [{"arm": "current", "adapter_digest": "served"}]})
    assert await retention.sweep(kept.ctx) == []


async def test_attempts_that_lost_go_with_their_job_and_a_running_job_keeps_all(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    await kept.job("won", 100, epoch=2)
    kept.release(
        Model(model_id="x", adapter_digest="x", object_prefix="", training_job_id="won"),
        Model(model_id="x", adapter_digest="x", object_prefix="", training_job_id="won"),
        "promoted",
    )
    await kept.objects.put("checkpoints/won/1/manifest.json", b"{}")
    await kept.job("runs", 100, state="running")
    assert await retention.sweep(kept.ctx) == ["checkpoints/won/1"]  # no release took up epoch 2 yet


async def test_a_checkpoint_of_an_unknown_job_stays(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    await kept.objects.put("checkpoints/stranger/1/manifest.json", b"{}")
    assert await retention.sweep(kept.ctx) == []


@pytest.mark.parametrize(
    ("bucket", "key"),
    [("rl_models", "damaged"), ("rl_releases", "release.damaged"), ("rl_releases", "desired"),
     ("rl_control", "pin")],
)  # fmt: skip
async def test_nothing_is_deleted_while_a_part_of_what_is_held_cannot_be_read(
    tmp_path: Path, bucket: str, key: str
) -> None:
    kept = Kept(tmp_path)
    await kept.job("old", 1000)
    kept.world.bus.bucket(bucket).data[key] = (b"{", 1)
    assert await retention.sweep(kept.ctx) == []


async def test_a_model_that_is_taken_back_while_others_are_deleted_keeps_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep of a large store takes minutes, in which an operator may pin an old model."""
    kept = Kept(tmp_path)
    for name in ("first", "second"):
        kept.model(await kept.job(name, 1000), "retired")
    delete = kept.objects.delete

    async def delete_and_pin(key: str) -> None:
        kept.put("rl_control", "pin", {"model_id": "second"})
        await delete(key)

    monkeypatch.setattr(kept.objects, "delete", delete_and_pin)
    assert await retention.sweep(kept.ctx) == ["checkpoints/first/1"]
    assert len(await kept.objects.list("checkpoints/second/1")) == len(FILES)
