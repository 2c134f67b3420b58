"""Strict jobs: a request that cannot be met in every part fails, where it would else run and report. Pure."""

from __future__ import annotations

from onward.config import Settings
from onward.contracts import TrainingRequest
from onward.errors import TrainingError
from onward.training.spec import algorithms, differences


def is_strict(request: TrainingRequest, settings: Settings) -> bool:
    """Returns ``metadata.strict`` of the request, else ``training.strict``."""
    told = None if request.metadata is None else request.metadata.strict
    return settings.training.strict if told is None else told


def refuse_unmet(request: TrainingRequest, settings: Settings) -> None:
    """Raises TrainingError("DATA") for a strict request of which a part would not be done as asked."""
    if not is_strict(request, settings):
        return
    asked = request.training_config.hyperparameters.model_dump(exclude_none=True)
    unknown = sorted(set(asked) - algorithms.REQUESTED)
    unmet = differences.read(request, settings).differences
    unmet += [f"hyperparameters.{name} is not known." for name in unknown]
    if unmet:
        more = f" And {len(unmet) - 1} more." if len(unmet) > 1 else ""
        raise TrainingError(
            "DATA",
            f"This job is strict and cannot be done as asked: {unmet[0]}{more} Change the request, or leave "
            f"strict out.",
        )
