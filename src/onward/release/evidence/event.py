"""One outcome event, as the gates read it from RL_OUTCOMES."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onward.contracts import SessionOutcome, decode
from onward.errors import ContractError


@dataclass(frozen=True)
class Event:
    """One outcome event. Times are milliseconds since the epoch; ``at`` is never after its arrival, and
    ``stored_at`` is its arrival by the server's clock."""

    sequence: int
    session_id: str
    release_id: str
    candidate: bool
    weight: float
    assigned_at: int
    at: int
    kind: str
    value: float
    model_id: str
    stored_at: int | None = None
    raw_total: float | None = None
    """Weighted sum of the reward's raw scores, in [0, 1]; None if it is not known."""
    failure: dict[str, Any] | None = None
    """Facts about a failed session, for the incident: error, context_tokens, domain, tool."""


def parse(sequence: int, data: bytes, stored_at_ms: int | None = None) -> Event:
    """Reads one message of RL_OUTCOMES. Raises ContractError. ``stored_at_ms`` is the server's time of the
    message: a gateway whose clock runs ahead must not make other sessions mature early."""
    outcome = decode(data, SessionOutcome)
    at = round(outcome.timestamp.timestamp() * 1000)
    if stored_at_ms is not None:
        at = min(at, stored_at_ms)
    if not 0.0 < outcome.weight <= 1.0:
        raise ContractError("schema", f"An outcome has weight {outcome.weight}: expected above 0, at most 1.")
    return Event(
        sequence=sequence,
        session_id=outcome.session_id,
        release_id=outcome.release_id or "",
        candidate=outcome.arm == "candidate",
        weight=float(outcome.weight),
        assigned_at=min(at, round(outcome.assigned_at.timestamp() * 1000)),
        at=at,
        kind=outcome.kind,
        value=float(outcome.value),
        model_id=outcome.model_id or "",
        stored_at=stored_at_ms,
        raw_total=None if outcome.raw_total is None else float(outcome.raw_total),
        failure=_failure(outcome) if outcome.kind in ("error", "lost") else None,
    )


def _failure(outcome: SessionOutcome) -> dict[str, Any]:
    return {
        "arm": outcome.arm,
        "error": "lost" if outcome.kind == "lost" else outcome.error,
        "context_tokens": outcome.context_tokens,
        "domain": outcome.domain,
        "tool": outcome.tool,
    }
