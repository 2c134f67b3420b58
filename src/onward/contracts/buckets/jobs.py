"""rl_jobs and rl_models: the parts of ``JobRecord`` and ``Model`` that other roles read."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from onward.contracts.base import nullable, optional, required
from onward.contracts.buckets.document import Document, EmptyObject, Loose, Piece, Truth

ENDED_JOBS = frozenset({"completed", "failed", "cancelled"})
"""States of a job that never change again."""


class JobCommit(Piece):
    """Checkpoint that a completed job committed."""

    epoch: int
    adapter_digest: str
    object_prefix: str
    manifest_sha256: str | None = optional("SHA-256 of the checkpoint's manifest.")


class JobEntry(Document):
    """A training job as coordinator and releaser read it: ``job.<id>``. Its states and their transitions are
    in ``onward.training.role.job_table``. An unreadable job is left out, unless it had ended before: an older
    state of a job that is open could run an attempt twice."""

    BUCKET, KEY = "rl_jobs", "job."

    job_id: str | None = optional("Its id.")
    state: str | None = optional("A JobState.")
    number: Loose[int | None] = optional("Number of the job, from 1 on.")
    request: Annotated[dict[str, Any], EmptyObject] = Field(
        default_factory=dict, description="The training request."
    )
    progress: Annotated[dict[str, Any], EmptyObject] = Field(
        default_factory=dict, description="Newest progress; metrics inside."
    )
    start_digest: str | None = optional("Adapter that training started from.")
    samples: Loose[int | None] = optional("Trajectories used in training.")
    commit: JobCommit | None = optional("Present once it is completed.")
    skip_validation: Truth = False
    updated_at: str | None = optional("ISO 8601.")

    def own_key(self) -> str | None:
        return None if self.job_id is None else self.KEY + self.job_id

    def may_stand_in(self) -> bool:
        return self.state in ENDED_JOBS


class JobNumber(Document):
    """Last number given to a job: ``number``. An older value never counts: the numbers in the jobs do."""

    BUCKET, KEY = "rl_jobs", "number"

    last: int
    job_id: str = required("Job that holds it.")

    def may_stand_in(self) -> bool:
        return False


class ModelEntry(Document):
    """Location of a model's files, for gateways and trainers: ``<model_key(model_id)>``. Without it the model
    cannot be loaded anew; one that serves serves on, since the releaser then takes it from its release."""

    BUCKET = "rl_models"

    adapter_digest: str | None = nullable("Null: the base model alone.")
    object_prefix: str = Field(
        default="", description="Folder in the object store; empty for the base model."
    )
    manifest_sha256: str | None = nullable("Hash of the committed manifest; null if no job made it.")
