"""rl_readers, rl_capture and rl_leases: positions, counts and holders."""

from __future__ import annotations

from pydantic import Field

from onward.contracts.base import optional, required
from onward.contracts.buckets.document import Document, Loose, Truth


class ReaderPosition(Document):
    """Position of one durable consumer: ``<stream>.<durable>``. It begins there when it is created again."""

    BUCKET = "rl_readers"

    stream_created: str = required("Creation time of the stream; another one has other sequences.")
    sequence: int = required("Every message up to this one is settled.")
    stored_at: str = required(
        "Server's time of that message, by which a replaced one is recognised; or empty."
    )


class OptOutCount(Document):
    """Count of trajectories that were dropped by an opt-out. Without it the count begins at 0."""

    BUCKET, KEY = "rl_capture", "opted_out"

    count: int = 0
    recent: list[int | str] = Field(
        default_factory=list, description="Newest counted messages, by sequence or name: each counts once."
    )


class LeaseHolder(Document):
    """Owner of a piece of work: ``<name of the lease>``. The revision is the epoch. An unreadable one counts
    as held until it has not changed for the reader's own TTL."""

    BUCKET = "rl_leases"

    owner: Loose[str | None] = optional("Process that holds it.")
    ttl: float = required("Seconds without a renewal after which another process may take it.")
    released: Truth = required("Given up by its owner: free at once.")
