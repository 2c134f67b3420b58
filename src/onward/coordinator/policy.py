"""The policy that serves as the current one, as the desired routes name it."""

from __future__ import annotations

from typing import NamedTuple

from onward.bus import Bus, read_document
from onward.contracts.buckets import DesiredRoutes


class Policy(NamedTuple):
    """The policy that serves as the current one."""

    digest: str | None
    """None for a bare base model, unless its arm has a ``model_digest``."""
    model_id: str
    release_id: str | None
    """Release under way."""


async def current_policy(bus: Bus) -> Policy | None:
    """Returns the current policy; None if none serves."""
    desired = await read_document(bus, DesiredRoutes)
    if desired is None or not desired.arms:
        return None
    heaviest = max(desired.arms, key=lambda arm: arm.weight)
    current = next((arm for arm in desired.arms if arm.arm == "current"), heaviest)
    return Policy(current.adapter_digest or current.model_digest, current.model_id, desired.release_id)
