"""rl_gateways, rl_sessions and rl_closes: what gateways serve, and what they ask each other."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from onward.contracts.base import Part, nullable, optional, required
from onward.contracts.buckets.document import Document, Loose, Moment
from onward.contracts.buckets.releases import DesiredArm

GATEWAY_LEASE_SECONDS = 15.0
"""A gateway that could not read the desired routes for this long serves the current model alone. A releaser
counts a gateway without a new report for this long as gone. The two must agree."""


class GatewayReport(Document):
    """Routes that one gateway really serves: ``<gateway id>``, written every five seconds. While it is
    unreadable the gateway counts as one that does not follow."""

    BUCKET = "rl_gateways"

    gateway_id: Loose[str | None] = optional("Its own key.")
    revision: int = Field(default=-1, description="Revision of the desired routes; -1 before the first ones.")
    release_id: Loose[str | None] = nullable("Release under way.")
    step: Loose[int] = 0
    arms: list[DesiredArm] = Field(default_factory=list)
    served: list[str | None] = Field(
        default_factory=list, description="Digests of adapters that the engine holds for these arms."
    )
    probes: Loose[dict[str, float]] = Field(
        default_factory=dict, description="Adapter digest → mean log-probability of its probe."
    )
    paused: Loose[bool] = False
    in_flight: Loose[int] = Field(default=0, description="Calls that run now.")
    error: Loose[str | None] = nullable("Why newer routes are not served yet.")
    providers: Loose[dict[str, str]] = Field(
        default_factory=dict, description="Provider → state of its circuit: closed, open or half-open."
    )
    updated_at: Loose[str | None] = optional("By the gateway's own clock.")


class AskedClose(Document):
    """Close of a session whose tasks another gateway may hold. Key: ``ask.<id>``."""

    BUCKET, KEY = "rl_closes", "ask."

    gateway_id: str = required("Gateway that asks.")
    name: str = required("Session or trajectory to be closed.")
    owner: str | None = nullable("Hash of the client's key; null: an administrator, for any client.")
    outcome: dict[str, Any] | None = nullable("Outcome of the tasks.")


class ClosedTask(Part):
    """A task that was closed and recorded."""

    trajectory_id: str
    session_id: str
    turns: int
    silent: bool = required(
        "True: no feedback is published about it. Its user opted out, or it is a choice that was not used."
    )


class AnsweredClose(Document):
    """Answer of one gateway to a close. Key: ``answer.<id>.<gateway id>``."""

    BUCKET, KEY = "rl_closes", "answer."

    closed: list[ClosedTask] = Field(default_factory=list, description="What it closed and recorded.")
    status: int = Field(default=200, description="HTTP status; another than 200 if it could not close.")
    error: str = Field(default="", description="Sentence for the client, if it could not close.")


ArmName = Literal["candidate", "current"]


class Assignment(Document):
    """Arm of one session, unchanged for the life of a release. Key: ``session_key`` of the session id.
    Without it the session is assigned again, by the same hash."""

    BUCKET = "rl_sessions"

    session_id: str
    release_id: str
    arm: ArmName
    weight: float = required("The candidate's share when the session was assigned.")
    assigned_at: Moment
    model_id: str
    earlier: tuple[str, ...] = Field(
        default=(),
        description="Releases it was assigned under before; their late rewards do not count for this one.",
    )
    answered: bool = Field(
        default=False, description="A task of it ended with an answer that was not judged: it is not lost."
    )
