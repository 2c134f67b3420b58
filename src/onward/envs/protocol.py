"""What crosses the wire between an environment server and its clients: AgentGym's protocol, family A.

Clients of AgentGym read the fields they know from our answers, so fields are only ever added. What AgentGym
does otherwise is listed in docs/environments.md.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

PROTOCOL = "agentgym-a/1"


class CreateRequest(BaseModel):
    """``POST /create``. No body, ``{}`` and AgentGym's TextCraft fields set to null are all the same."""

    model_config = ConfigDict(extra="ignore")

    split: str | None = None
    data_idx: int = 0
    seed: int = 0
    commands: None = None
    """TextCraft's own recipes and goal are refused: here a task is a name."""
    goal: None = None


class ResetRequest(BaseModel):
    """``POST /reset``: start the ``data_idx``-th task of a split. The same request, the same start."""

    model_config = ConfigDict(extra="ignore")

    id: int
    data_idx: int = 0
    split: str | None = None
    """Default: the split that the server was started with."""
    seed: int = 0
    """Draws another panel of the same split."""


class StepRequest(BaseModel):
    """``POST /step``: ``action`` is the action, or a whole answer with one ``Action:`` line."""

    model_config = ConfigDict(extra="ignore")

    id: int
    action: str


class CloseRequest(BaseModel):
    """``POST /close``; the answer is true, or false for an instance that is not open."""

    model_config = ConfigDict(extra="ignore")

    id: int


class State(BaseModel):
    """What ``/step`` answers. ``reward`` is that step's, ``score`` the sum since the start."""

    observation: str
    reward: float
    score: float
    done: bool
    success: bool | None = None
    """Known once done."""


class Started(State):
    """What ``/create`` and ``/reset`` answer."""

    id: int
    task_id: str


class Detail(State):
    """What ``/detail`` answers. ``deleted`` is always false: a closed instance is an error."""

    task_id: str
    deleted: bool = False


class Meta(BaseModel):
    """What ``GET /meta`` answers: all that a client must know before it plays."""

    model_config = ConfigDict(extra="ignore")

    protocol: str = PROTOCOL
    name: str
    version: str
    instructions: str
    horizon: int = Field(ge=1)
    reward_range: tuple[float, float]
    """Of the score at the end."""
    panels: dict[str, int]
    """Split → number of tasks."""
    split: str
    """The split of a request that names none."""
    held_out: str
    panel_hash: str
    """Hash of the held-out task list: equal hashes, equal tasks."""
    ttl_seconds: float
    """An instance that is not used for so long is closed."""
