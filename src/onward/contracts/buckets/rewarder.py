"""rl_rewarder: state of the rewarder."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, model_validator

from onward.contracts.base import required
from onward.contracts.buckets.document import BEGINNING, Document, NotNegative


class RescoreProgress(Document):
    """Progress of the newest run of ``onward rescore``: a restart continues from it. Without it the run
    begins again, and recognises what it has done."""

    BUCKET, KEY = "rl_rewarder", "rescore"

    run_id: str
    total: int = required("Trajectories that the run will look at.")
    seen: int = 0
    start_ts: str = Field(default=BEGINNING, description="Cursor: start of the last one seen.")
    trajectory_id: str = Field(default="", description="Cursor: id of the last one seen.")
    counts: dict[str, int] = Field(
        default_factory=dict, description="changed, unchanged, unscored, waiting, gone."
    )
    finished: bool = Field(default=False, description="Final: only another request starts a new run.")
    stopped: bool = Field(default=False, description="Finished early, by --stop or for an unknown component.")


class RewarderState(Document):
    """Windows and baselines that rewards are normalised by. Without it new windows begin, and the trajectory
    stream is read from its beginning; what was scored is recognised."""

    BUCKET, KEY = "rl_rewarder", "state"
    VERSION: ClassVar[int] = 1

    version: int
    stream_seq: int = required("Last message of the trajectory stream that counted.")
    windows: dict[str, list[float]] = required("Newest raw scores per component, oldest first.")
    baselines: list[tuple[str, dict[str, tuple[int, float, NotNegative]]]] = required(
        "Pairs of a key and its baselines per measure: number, mean, variance."
    )
    recent: list[str] = Field(
        default_factory=list, description="Newest trajectories: why each is unscored, empty for a scored one."
    )

    @model_validator(mode="before")
    @classmethod
    def _is_readable(cls, document: Any) -> Any:
        if document["version"] != cls.VERSION:
            raise ValueError(
                f"the rewarder's record has another version than {cls.VERSION}, which this program reads"
            )
        return document
