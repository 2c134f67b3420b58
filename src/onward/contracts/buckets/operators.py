"""rl_roles and rl_set_aside: what operators look at."""

from __future__ import annotations

from onward.contracts.base import required
from onward.contracts.buckets.document import Document


class RoleFailure(Document):
    """Failures of a role since it last ran quietly for a minute: ``<role>``. Deleted when it recovered."""

    BUCKET = "rl_roles"

    role: str
    error: str = required("Its last failure in one sentence.")
    restarts: int = required("Times that it was started again.")
    failed_at: str = required("ISO 8601 time of its last failure.")


class SetAside(Document):
    """Copy of a value that could not be read: ``<bucket>.<key>.<revision>``. No role reads it."""

    BUCKET = "rl_set_aside"

    bucket: str
    key: str
    revision: int
    reason: str = required("Why it could not be read, in one sentence.")
    found_at: str = required("ISO 8601 time at which a reader found it.")
    value: str = required("The value, in base64.")
