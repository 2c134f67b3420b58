"""rl_releases: the desired routes, and the part of ``ReleaseRecord`` that other roles read."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from onward.contracts.base import nullable, optional, required
from onward.contracts.buckets.document import Document, EmptyList, Loose, Piece


class ReleaseEntry(Document):
    """A release as the coordinator reads it: ``release.<id>``. Its states and their transitions are in
    ``onward.release.plan``. Without its record a release under way ends: the current model serves alone."""

    BUCKET, KEY = "rl_releases", "release."

    release_id: str | None = optional("Its id.")
    job_id: str | None = optional("Job that made the candidate.")
    state: str | None = optional("A State of the plan.")
    closed_at: Loose[str | None] = optional("ISO 8601; null while it is open.")

    def own_key(self) -> str | None:
        return None if self.release_id is None else self.KEY + self.release_id


class DesiredArm(Piece):
    """One arm of the routes. A gateway refuses an arm without a name, a model or a weight."""

    arm: str = Field(default="", description="current or candidate.")
    model_id: str = ""
    adapter_digest: str | None = nullable("Null: the base model alone.")
    model_digest: str | None = nullable(
        "Digest in the generation records of this arm; absent in gateways' reports."
    )
    weight: float = Field(default=0.0, description="Share of new sessions, in [0, 1].")


class PreviousModel(Piece):
    """Model that served before."""

    model_id: str
    adapter_digest: str | None = nullable("Null: the base model alone.")


class DesiredRoutes(Document):
    """Models that should serve, and the share of each, as every role reads it. Without it gateways serve what
    they serve, no job is requested, and the releaser writes it anew."""

    BUCKET, KEY = "rl_releases", "desired"

    release_id: str | None = nullable("Release under way; null while one model serves alone.")
    step: int | None = nullable("Step of the release; null counts as 0.")
    arms: Annotated[list[DesiredArm], EmptyList] = Field(
        default_factory=list, description="One arm, or current and candidate in this order."
    )
    previous: PreviousModel | None = nullable("Model before, for people.")


class Desired(DesiredRoutes):
    """The same with what identifies it: the releaser writes it, gateways follow it."""

    revision: int = required("Rises by one with each change of the routes.")
    epoch: int | None = optional("Lease epoch of the releaser that wrote it; an older releaser is refused.")

    def check(self) -> None:
        names = [arm.arm for arm in self.arms]
        if sorted(names) not in (["current"], ["candidate", "current"]):
            raise ValueError("arms needs one arm 'current' and at most one 'candidate'")
        for arm in self.arms:
            if not (arm.model_id and 0 <= arm.weight <= 1 and "weight" in arm.model_fields_set):
                raise ValueError("each of arms needs a model_id and a weight in [0, 1]")
