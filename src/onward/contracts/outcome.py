"""``agent.rl.outcome.v1``: the result of one session under one arm of a release, for the gates.

Arm and weight come from the gateway's own assignment record, never from the claims of a trajectory.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from onward.contracts import examples
from onward.contracts.base import (
    Count,
    Id,
    Message,
    SessionId,
    Share,
    Text,
    Timestamp,
    nullable,
    optional,
    required,
)


class SessionOutcome(Message):
    """Result of one session under one arm of a release."""

    model_config = ConfigDict(
        title="Agent RL Session Outcome", json_schema_extra={"examples": [examples.OUTCOME]}
    )

    outcome_id: Id = required("Unique id of this outcome, derived from session, release and kind.")
    session_id: SessionId = required("The session.")
    release_id: Id | None = nullable("Release under which the session was assigned; null outside of one.")
    arm: Literal["candidate", "current"] = required("Arm that the session was assigned to.")
    weight: Share = required("The candidate's share of traffic when the session was assigned.")
    assigned_at: Timestamp = required("When the session was assigned.")
    timestamp: Timestamp = required("When the outcome was known.")
    kind: Literal["error", "reward", "feedback", "lost"] = required(
        "error: transport or engine failure or an unreadable answer; reward: the judged value; "
        "feedback: what the user said; lost: no outcome in time."
    )
    value: Share = required(
        "For error and lost 1 is failed, 0 is not; for reward the judged value; "
        "for feedback 1 is negative, 0 is not."
    )
    raw_total: Share | None = optional("Weighted sum of the reward's raw scores, for kind reward.")
    model_id: Text | None = optional("Model that served the session.")
    error: Text | None = optional(
        "Kind of failure: out_of_memory, timeout, engine or unparsable. Never the engine's own words."
    )
    context_tokens: Count | None = optional("Estimated tokens of the failing request's messages.")
    domain: Text | None = optional("Kind of task of the failing session.")
    tool: Text | None = optional("Last tool whose result the failing request contains.")
    signature: Text | None = optional(
        "HMAC-SHA256, in hex, by the gateway that made the assignment; an outcome without it does not count."
    )
