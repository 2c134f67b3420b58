"""Tools on documents: validate, redact, score. They need no service, but for the reward of a stored one."""

from __future__ import annotations

import asyncio
from typing import Any

from onward.config import RewardSettings
from onward.contracts import (
    Feedback,
    ModelDeployed,
    Reward,
    SessionOutcome,
    TrainingRequest,
    TrainingStatus,
    Trajectory,
    canonical_json,
    validate,
)
from onward.contracts.base import Part
from onward.errors import ConfigError, ContractError
from onward.ids import check_id
from onward.redaction import table
from onward.tools.arguments import ComputeReward, RedactSensitiveInfo, ValidateTrajectory
from onward.tools.results import page, untrusted
from onward.tools.toolbox import Toolbox

MODELS: dict[str, type[Part]] = {
    "trajectory.v1.schema.json": Trajectory,
    "reward.v1.schema.json": Reward,
    "training.request.v1.schema.json": TrainingRequest,
    "training.status.v1.schema.json": TrainingStatus,
    "model.deployed.v1.schema.json": ModelDeployed,
    "feedback.v1.schema.json": Feedback,
    "outcome.v1.schema.json": SessionOutcome,
}
_GROUPS = {
    "api_key": ("KEY", "TOKEN", "SECRET", "SAS", "DSN", "WEBHOOK"),
    "token": ("TOKEN", "JWT"),
    "password": ("PASSWORD", "ASSIGNED"),
    "credit_card": ("CARD",),
    "name": ("PERSON",),
    "ip_address": ("IP",),
}
"""Common names of kinds → words of our kinds."""


async def validate_trajectory(box: Toolbox, arguments: ValidateTrajectory) -> dict[str, Any]:
    """Checks a document against a contract; an invalid one is a result, not an error."""
    try:
        found = validate(arguments.trajectory_data, MODELS[arguments.schema_name])
    except ContractError as error:
        faults = [fault.removeprefix(".") for fault in error.faults]
        said = {"reason": error.reason, "error": str(error), "faults": faults}
        return {"valid": False, "schema": arguments.schema_name, **said}
    turns = {"turns": len(found.turns)} if isinstance(found, Trajectory) else {}
    return {"valid": True, "schema": arguments.schema_name, **turns}


async def redact_sensitive_info(box: Toolbox, arguments: RedactSensitiveInfo) -> dict[str, Any]:
    """Redacts a document or a text. Every kind is removed; ``patterns`` chooses those that are reported."""
    document = arguments.trajectory_data
    is_trajectory = isinstance(document, dict) and "turns" in document
    redact: Any = box.redactor.trajectory if is_trajectory else box.redactor.document
    found = await asyncio.to_thread(redact, document)
    counts = found.counts
    if arguments.patterns is not None:
        counts = {name: _counted(name, counts) for name in arguments.patterns}
    clean = found.document
    text = clean if isinstance(clean, str) else canonical_json(clean).decode()
    return {"replaced": counts, "policy_version": found.policy_version, **page(text, arguments.offset)}


def _counted(name: str, counts: dict[str, int]) -> int:
    """Returns how often the kinds of one pattern were replaced. Raises ConfigError for an unknown name."""
    words = _GROUPS.get(name.lower(), (name.upper(),))
    kinds = {row[0] for row in table()} | set(counts)
    meant = [kind for kind in kinds if any(kind == word or kind.endswith(f"_{word}") for word in words)]
    if not meant:
        known = ", ".join([*_GROUPS, "email", "phone", "iban"])
        raise ConfigError(
            f"No kind is called {name[:40]!r}: use one of {known}, or a kind of 'onward redact rules'."
        )
    return sum(counts.get(kind, 0) for kind in meant)


async def compute_reward(box: Toolbox, arguments: ComputeReward) -> dict[str, Any]:
    """Scores a trajectory as the rewarder would, and stores nothing; explains the reward of a stored one."""
    if isinstance(arguments.trajectory, str):
        name = check_id(arguments.trajectory, "Trajectory id")
        if arguments.weights is not None or arguments.historical_data is not None:
            raise ConfigError("weights and historical_data go with a whole trajectory, not with an id.")
        found = await box.service.training().call("GET", f"/rewards/{name}")
        return await asyncio.to_thread(untrusted, found, box.redactor)
    try:
        return await asyncio.to_thread(_score, box, arguments)
    except ContractError as error:
        if len(error.faults) < 2:
            raise
        raise ConfigError(f"{error} validate_trajectory lists each of the {len(error.faults)}.") from None


def _score(box: Toolbox, arguments: ComputeReward) -> dict[str, Any]:
    from onward.reward.components import components_of
    from onward.reward.scoring.files import score_document
    from onward.reward.scoring.state import State

    settings = weighted(box.settings.reward, arguments.weights)
    components = tuple(components_of(settings))
    history = arguments.historical_data
    state = None if history is None else State(settings.window)
    unscored = 0
    for earlier in history or ():
        unscored += "unscored" in score_document(earlier, settings, box.redactor, components, state=state)
    found = score_document(arguments.trajectory, settings, box.redactor, components, state=state)
    counted = {} if history is None else {"history": len(history) - unscored}
    return {**found, **counted, "stored": False}


def weighted(settings: RewardSettings, weights: dict[str, float] | None) -> RewardSettings:
    """Returns the settings with other weights; a component that is not named counts 0. Raises ConfigError."""
    if weights is None:
        return settings
    present = settings.weights()
    unknown = set(weights) - set(present)
    if unknown:
        raise ConfigError(
            f"weights names {sorted(unknown)[0][:40]!r}: the components are {', '.join(present)}."
        )
    own = {
        name: custom.model_copy(update={"weight": weights.get(name, 0.0)})
        for name, custom in settings.custom.items()
    }
    changed = {name: weights.get(name, 0.0) for name in present if name not in own}
    try:
        return RewardSettings.model_validate({**settings.model_dump(), **changed, "custom": own})
    except ValueError:
        raise ConfigError(
            f"weights sum to {sum(weights.values()):g}: they must be from 0 to 1 and sum to 1."
        ) from None
