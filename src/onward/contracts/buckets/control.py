"""rl_control: switches and requests of operators."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from onward.clock import read_time
from onward.contracts.base import nullable, optional, required
from onward.contracts.buckets.document import Document, Loose, Moment, Piece, Truth


class Learning(Document):
    """Switch of ``onward pause`` and ``onward resume``: no job is requested or started while it is paused.
    A switch that was never readable pauses (``onward.bus.documents.is_learning_paused``)."""

    BUCKET, KEY = "rl_control", "learning"

    paused: Truth = False


class Traffic(Document):
    """Switch of a maintenance window: gateways refuse new calls with 429. A deleted key resumes. While it is
    unreadable, gateways go on as they are."""

    BUCKET, KEY = "rl_control", "traffic"

    paused: Annotated[bool, BeforeValidator(lambda value: value is True)] = Field(
        default=False, description="Paused by true alone; any other value resumes."
    )
    until: Loose[str | None] = optional("Time in ISO 8601 (UTC without a zone) at which traffic resumes.")

    def check(self) -> None:
        if self.paused and self.until is not None:
            read_time(self.until)


class Pin(Document):
    """Model that ``onward pin`` keeps serving: nothing is released meanwhile. A pin that was never readable
    counts as one of an unknown model: nothing is released, and the routes stay."""

    BUCKET, KEY = "rl_control", "pin"

    model_id: str | None = nullable("Null after 'onward unpin'.")


COMMANDS = ("abort", "promote", "hold", "resume", "approve", "refuse")

SHARE = "share"
"""Command of the admin API alone, beside COMMANDS: gives the candidate ``share`` of new sessions."""


class ReleaseCommand(Document):
    """Newest command to the release under way. The releaser obeys each revision of the key once; one that is
    unreadable is consumed, changing nothing."""

    BUCKET, KEY = "rl_control", "release"

    command: str | None = optional("One of COMMANDS, or SHARE; an unknown one is consumed, changing nothing.")
    release_id: str | None = nullable("Release that is meant; null: whichever is under way.")
    by: str | None = nullable("Who asked; needed to approve or refuse. Null: an operator's command line.")
    reason: str | None = optional("Why it is approved or refused; needed for these two.")
    share: float | None = nullable("Share of new sessions for the candidate, in (0, 1); for SHARE alone.")

    def may_stand_in(self) -> bool:
        return False


class AdminResult(Piece):
    """Answer of the releaser to a request of the admin API."""

    status: int = required("Status of HTTP.")
    document: dict[str, Any] = required("Body of the answer, or of the error.")


class AdminRequest(Document):
    """Request of the gateway's admin API to the releaser: ``admin.<id>``. The releaser decides and writes the
    result; the gateway deletes the key after reading it. An unreadable request is never carried out."""

    BUCKET, KEY = "rl_control", "admin."

    request_id: str
    kind: str = required("register or traffic.")
    by: str = required("Name of the API key; anonymous without one.")
    body: dict[str, Any] = required("Body of the call, checked by the gateway.")
    asked_at: Moment
    result: AdminResult | None = nullable("Null until the releaser has answered.")

    def own_key(self) -> str:
        return self.KEY + self.request_id

    def may_stand_in(self) -> bool:
        return False


class RescoreRequest(Document):
    """Newest request of ``onward rescore``. An unknown key could narrow the work: it is refused. An
    unreadable request begins nothing, and ends the run of the one before it."""

    BUCKET, KEY = "rl_control", "rescore"
    model_config = ConfigDict(extra="forbid")

    run_id: str
    since: Moment = required("ISO 8601; selects trajectories that began then or later.")
    component: str | None = nullable("Component computed anew, others retain their raw scores; null: all.")
    limit: int | None = nullable("Maximum number of trajectories, the oldest first.")
    dry_run: bool
    requested_at: Moment
    stop: bool = Field(default=False, description="Set by 'onward rescore --stop': the run ends early.")

    def may_stand_in(self) -> bool:
        return False
