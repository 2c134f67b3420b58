"""The requested mix of task domains, checked. Pure."""

from __future__ import annotations

import math
from typing import Any, get_args

from onward.contracts.training import DatasetSpec
from onward.contracts.trajectory import Domain
from onward.errors import TrainingError

DOMAINS: tuple[str, ...] = get_args(Domain)


def shares_of(dataset: DatasetSpec) -> dict[str, float] | None:
    """Returns domain → share, or None if the request has no mix. Raises TrainingError("DATA")."""
    given: Any = dataset.domain_mix
    if given is None:  # a value of another type is among the foreign ones
        given = (dataset.model_extra or {}).get("domain_mix")
    if given is None:
        return None
    if not isinstance(given, dict) or not given:
        raise _wrong("is no object with shares")
    for name, share in given.items():
        if name not in DOMAINS:
            raise _wrong(f"names {str(name)[:40]!r}, which is none of {', '.join(DOMAINS)}")
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 100:
            raise _wrong(f"has no share above 0 for {name}")
    total = math.fsum(given.values())
    if not any(math.isclose(total, whole, rel_tol=1e-6) for whole in (1.0, 100.0)):
        raise _wrong(f"sums to {total:g}, not to 1 or 100")
    return {name: share / total for name, share in given.items()}


def _wrong(why: str) -> TrainingError:
    return TrainingError(
        "DATA",
        f'dataset.domain_mix {why}: give shares such as {{"coding": 40, "research": 30, "general": 30}}.',
    )
