"""``agent.rl.feedback.v1``: a user's statement (explicit) or action (implicit) about an agent's work.

Feedback never edits a trajectory. The last explicit signal wins; late feedback leads to a new reward that
supersedes the old one.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from onward.contracts import examples
from onward.contracts.base import Id, Message, Positive, SessionId, Share, Text, Timestamp, optional, required


class Feedback(Message):
    """A user's statement or action about a session, a trajectory or a turn."""

    model_config = ConfigDict(
        title="Agent RL Feedback",
        json_schema_extra={
            "examples": [examples.FEEDBACK],
            "if": {"properties": {"signal": {"const": "rating"}}},
            "then": {"required": ["value"]},
        },
    )

    feedback_id: Id = required("Unique id of this feedback, a UUID as a rule.")
    session_id: SessionId = required("Session that the feedback is about.")
    trajectory_id: Id | None = optional("Trajectory that it is about; without it, the whole session.")
    turn_id: Positive | None = optional("Turn that it is about.")
    kind: Literal["explicit", "implicit"] = required(
        "Explicit: expressed by the user; implicit: shown by behaviour."
    )
    signal: Id = required(
        "What was said or done: thumbs_up, thumbs_down, rating, correction, abandoned, retry, accepted, …",
        examples=["thumbs_up", "thumbs_down", "rating", "correction", "abandoned"],
    )
    value: Share | None = optional("The signal as a number, 0 bad to 1 good; a rating must have one.")
    comment: Text | None = optional("What the user wrote.")
    source: Text | None = optional("Where it was given.", examples=["webui", "api"])
    timestamp: Timestamp = required("When it was given.")

    @model_validator(mode="after")
    def _rating_has_value(self) -> Self:
        if self.signal == "rating" and self.value is None:
            raise PydanticCustomError("rating", "should have a value from 0 to 1, since it is a rating")
        return self
