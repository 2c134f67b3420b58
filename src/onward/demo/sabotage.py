"""A ruined adapter, committed like any other, for the gates to detect.

Its numbers are finite, its manifest is correct and its job is complete. Only its behaviour is bad. The
job sets ``skip_validation``, because validation would stop it before it reached any user.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from onward.bus import read_document
from onward.clock import utc_text
from onward.context import Context
from onward.contracts import TrainingRequest
from onward.contracts.buckets import DesiredArm, ModelEntry
from onward.errors import NotFoundError
from onward.ids import model_key, new_id
from onward.lm import probe
from onward.training import checkpoints, signatures
from onward.training.role.job_table import JobRecord, JobTable
from onward.training.signatures import Trust

NOISE = 3.0
"""Standard deviation of the noise, in units of each matrix's own root mean square."""


def damage_adapter(folder: Path, seed: int = 0) -> None:
    """Adds noise to each second factor (``lora_B``) of the adapter in ``folder``; the model then babbles.

    The probe of the good adapter is removed: with it, the engine would refuse the ruined one at its load.
    """
    from safetensors.numpy import load_file, save_file

    path = folder / "adapter_model.safetensors"
    generator = np.random.default_rng(seed)
    tensors = load_file(path)
    for name, value in tensors.items():
        if "lora_B" in name:
            scale = max(float(np.sqrt(np.mean(value**2))), 0.05)
            tensors[name] = (value + NOISE * scale * generator.standard_normal(value.shape)).astype(
                value.dtype
            )
    save_file(tensors, path, metadata={"format": "pt"})
    (folder / probe.FILE).unlink(missing_ok=True)


async def commit_damaged_copy(ctx: Context, table: JobTable, current: DesiredArm, folder: Path) -> JobRecord:
    """Commits a ruined copy of the ``current`` arm as a completed job and returns its record."""
    model = await read_document(ctx.bus, ModelEntry, model_key(current.model_id))
    if model is None:
        raise NotFoundError(f"The record of model {current.model_id} is gone: start the demonstration again.")
    shutil.rmtree(folder, ignore_errors=True)

    manifest = await checkpoints.fetch(
        ctx.objects, model.object_prefix, folder, trust=Trust.from_settings(ctx.settings)
    )
    (folder / checkpoints.MANIFEST).unlink()
    damage_adapter(folder)
    request = TrainingRequest.model_validate(
        {
            "training_job_id": f"sabotage-{new_id()}",
            "timestamp": utc_text(ctx.clock.now()),
            "requester": "onward-demo",
            "trigger_reason": "manual",
            "training_config": {
                "algorithm": "reinforce",
                "base_model": ctx.settings.model.base,
                "dataset": {"source": "local", "sample_size": 1},
                "hyperparameters": {},
            },
            "metadata": {"skip_validation": True, "notes": "a ruined adapter, planted by the demonstration"},
        }
    )
    job_id = request.training_job_id
    made = checkpoints.write_manifest(
        folder, job_id=job_id, epoch=1, base_digest=manifest.base_digest, start_digest=current.adapter_digest
    )
    commit = await checkpoints.store(ctx.objects, folder, made, signatures.needed_key(ctx.settings))
    return await table.adopt(request, commit, start_digest=current.adapter_digest, samples=1)
