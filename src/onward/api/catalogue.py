"""The models that were released, as ``GET /models`` lists them."""

from __future__ import annotations

from typing import Any

from onward.bus import read_document
from onward.context import Context
from onward.contracts.buckets import DesiredRoutes
from onward.contracts.deployment import ModelInfo
from onward.release.record import Model, Releases


async def models_since(ctx: Context, since: str | None) -> list[dict[str, Any]]:
    """Returns the models, the one that was deployed last first. ``since``: only those deployed from then on.

    A model without a release of its own (the first one, one that was added) has no time of deployment and
    comes last.
    """
    releases = Releases(ctx.bus, ctx.clock)
    deployed: dict[str, str] = {}
    for record in await releases.all():
        if record.started_at is not None and record.kind == "candidate":
            deployed[record.candidate.model_id] = record.started_at
    desired = await read_document(ctx.bus, DesiredRoutes)
    traffic: dict[str, float] = {}
    for arm in desired.arms if desired is not None else []:
        traffic[arm.model_id] = traffic.get(arm.model_id, 0.0) + arm.weight
    found = [
        _shown(model, deployed.get(model.model_id), traffic.get(model.model_id, 0.0))
        for model in await releases.models()
    ]
    found.sort(key=lambda model: model.get("deployed_at") or "", reverse=True)
    return [model for model in found if since is None or (model.get("deployed_at") or "") >= since]


def _shown(model: Model, deployed_at: str | None, weight: float) -> dict[str, Any]:
    known = {name: model.info[name] for name in ModelInfo.model_fields if name in model.info}
    return {
        **known,
        "model_id": model.model_id,
        "checkpoint_path": model.object_prefix,
        "training_job_id": model.training_job_id,
        "state": model.state,
        "parent": model.parent,
        "deployed_at": deployed_at,
        "traffic_percentage": round(100.0 * weight, 3),
    }
