"""rl_recovery: checks of the warehouse."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from onward.contracts.base import required
from onward.contracts.buckets.document import Document, Loose


class RecoveryRequest(Document):
    """Newest request of ``onward warehouse verify|rebuild``."""

    BUCKET, KEY = "rl_control", "recovery"

    run_id: str
    restore: bool = required("Store missing rows again; otherwise only count them.")
    accept: bool = Field(default=False, description="Stop listing what was lost by now.")
    asked: bool = Field(default=False, description="Asked by an operator, who waits for the report.")
    requested_at: str


class RecoveryReport(Document):
    """Report of the newest check of the warehouse, also while it runs."""

    BUCKET, KEY = "rl_recovery", "report"

    run_id: str
    at: str
    restore: bool
    finished: bool
    answered: str = Field(default="", description="Newest request that was answered.")
    table: str = Field(default="", description="Table under way.")
    done: int = 0
    total: int = Field(default=0, description="Messages to read for this table.")
    tables: Loose[dict[str, Any]] = Field(default_factory=dict, description="Results of each table.")
    without_reward: int = 0
    detached: Loose[dict[str, list[str]]] = Field(
        default_factory=dict, description="Table → parts that were set aside."
    )


class CheckedUntil(Document):
    """Position up to which a table was checked: ``until.<table>``. A message after it that the stream does
    not hold, and that made no row, is lost."""

    BUCKET, KEY = "rl_recovery", "until."

    stream_created: str
    sequence: int
