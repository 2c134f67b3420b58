"""rl_writers: versions of the rubric writer, and the pointer to the one that is released.

The pointer alone decides. What became of a version is read from the changes of the pointer, so each release,
promotion and rollback is one write.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from onward.contracts.buckets.document import Loose, Piece, Record

MOST_CHANGES = 200
"""Changes that the pointer remembers; the oldest ones are dropped. It is read for each trajectory."""


class WriterVersion(Record):
    """A trained rubric writer, with the evidence of its validation: ``version.<version>``."""

    BUCKET, KEY = "rl_writers", "version."
    NAME: ClassVar[str] = "rubric-writer-v"
    """Beginning of the name of each version; its number follows."""

    version: str
    """Such as ``rubric-writer-v3``: the third one that was trained here."""
    number: int = Field(ge=1)
    job_id: str
    attempt: int
    made_at: str
    object_prefix: str
    manifest_sha256: str
    digest: str
    """SHA-256 over the names and hashes of its files."""
    passed: bool
    why: str
    """Result of the validation, in one sentence with numbers."""
    evidence: Loose[dict[str, Any]] = Field(default_factory=dict)
    """Figures on the validation tasks, and paired differences to the warm start and the released writer."""

    def own_key(self) -> str:
        return self.KEY + self.version


class WriterChange(Piece):
    """One change of the pointer."""

    at: str
    kind: Literal["released", "promoted", "rolled back"]
    """``released``: by its validation; ``promoted``, ``rolled back``: by an operator."""
    version: str
    """Version that is released from then on."""
    before: str | None
    by: str
    why: str


class ReleasedWriter(Record):
    """Pointer to the released writer. Without it no writer is released."""

    BUCKET, KEY = "rl_writers", "released"

    version: str
    digest: str
    object_prefix: str
    manifest_sha256: str
    back: list[str] = Field(default_factory=list)
    """Versions that a rollback goes to, one after the other, the last one first."""
    changes: list[WriterChange] = Field(default_factory=list)
    """Oldest first."""
