"""What a job made is in the object store, and its status says where; its log leaks no secret."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from trainer_world import World, asked

from onward.errors import ObjectError, TrainingError
from onward.training import checkpoints, signatures
from onward.training.role import artefacts
from onward.training.role import trainer as service
from onward.training.role.attempt import Attempt
from onward.training.spec import request

SECRET = "sk-proj-" + "a1B2c3D4" * 6


def _child(world: World, *, fails: bool = False) -> Any:
    """What the child leaves in its folder, and its log."""

    async def compute(self: Attempt, at: Path, _: Any) -> dict[str, Any]:
        record = self._lease.record
        logs = world.settings.data_dir / "logs"
        logs.mkdir(exist_ok=True)
        (logs / f"job-{record.job_id}.log").write_text(f"Loading.\nOPENAI_API_KEY={SECRET}\n")
        for name in ("metrics.jsonl", "metrics.csv", "curves.png", "events.out.tfevents.1.here.2"):
            (at / name).write_text(name)
        if fails:
            raise TrainingError("OOM", "The job ran out of memory.")
        out = at / "checkpoint"
        out.mkdir(exist_ok=True)
        (out / "adapter_config.json").write_text("{}")
        (out / "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        (out / "README.md").write_text("A card.")
        checkpoints.write_manifest(out, job_id=record.job_id, epoch=record.attempt, base_digest="base")
        return {"seconds": 10.0, "total_seconds": 1800.0, "samples": 2, "peak_memory_gb": 1.5,
                "metrics": {"loss": 0.5}}  # fmt: skip

    return compute


async def _prepared(*_: Any) -> dict[str, Any]:
    return {}


async def _run(world: World, monkeypatch: pytest.MonkeyPatch, **how: Any) -> None:
    monkeypatch.setattr(request, "check", lambda *_: None)
    monkeypatch.setattr(Attempt, "_prepare", _prepared)
    monkeypatch.setattr(Attempt, "_compute", _child(world, **how))
    trainer = service.Trainer(world.ctx)
    await trainer.table.register(asked(None))
    working = asyncio.create_task(trainer.run_jobs())
    for _ in range(400):
        await world.clock.advance(0.1)
        await asyncio.sleep(0.005)
        if world.job.state in ("completed", "failed"):
            break
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


async def test_a_completed_job_says_where_everything_is_and_what_it_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, training={"cost_per_hour": 3.0})
    key = signatures.make_key(world.settings.run_dir)
    await _run(world, monkeypatch)
    (status,) = [one for one in world.published.values() if one["status"] == "completed"]
    objects, at = world.ctx.objects, "jobs/job-1/attempts/1"
    assert status["artifacts"] == {
        "final_checkpoint": "checkpoints/job-1/1",
        "training_curves": f"{at}/curves.png",
        "tensorboard_logs": f"{at}/tensorboard",
        "model_card": "checkpoints/job-1/1/README.md",
    }
    assert status["resource_usage"] == {
        "total_training_time_seconds": 1800.0, "peak_memory_gb": 1.5, "cost_usd": 1.5,
    }  # fmt: skip
    assert await objects.get(status["artifacts"]["training_curves"]) == b"curves.png"
    assert await objects.list(f"{at}/tensorboard") == [f"{at}/tensorboard/events.out.tfevents.1.here.2"]
    assert await objects.get(status["artifacts"]["model_card"]) == b"A card."
    assert json.loads(await objects.get(f"{at}/results.json"))["metrics"] == {"loss": 0.5}
    text = (await objects.get(f"{at}/job.log")).decode()
    assert text.startswith("Loading.") and SECRET not in text
    # and the role has signed it, with the key of its folder
    trust = signatures.Trust.of_keys([key], required=True)
    await checkpoints.fetch(objects, "checkpoints/job-1/1", tmp_path / "fetched", trust=trust)


async def test_the_log_and_curves_of_a_failed_job_are_stored_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    await _run(world, monkeypatch, fails=True)
    found = await world.ctx.objects.list("jobs/job-1/attempts/1")
    assert {Path(key).name for key in found} >= {"job.log", "curves.png"}
    assert not await world.ctx.objects.exists("jobs/job-1/COMMIT")


async def test_a_failure_keeps_its_own_reason_while_the_store_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)

    async def away(*_: Any, **__: Any) -> None:
        raise ObjectError("The store is away.")

    monkeypatch.setattr(world.ctx.objects, "put", away)
    (tmp_path / "job").mkdir()
    await artefacts.store_failed(world.ctx, "job-1", 1, tmp_path / "job")


async def test_a_log_that_cannot_be_redacted_is_withheld(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onward.capture import make_redactor

    def broken(_: Any) -> Any:
        raise RuntimeError(SECRET)

    world = World(tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "job-job-1.log").write_text(SECRET)
    monkeypatch.setattr(make_redactor, "redactor_of", broken)
    await artefacts.store(world.ctx, "job-1", 1, tmp_path)
    assert await world.ctx.objects.get("jobs/job-1/attempts/1/job.log") == artefacts.WITHHELD
