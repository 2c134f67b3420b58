"""Messages between an environment server and its clients: AgentGym's protocol, family A.

Clients of AgentGym read the fields they know from Onward's answers, so fields are only ever added.
Differences from AgentGym are listed in docs/environments.md.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

PROTOCOL = "agentgym-a/1"


class CreateRequest(BaseModel):
    """Request of ``POST /create``. No body, ``{}`` and AgentGym's TextCraft fields set to null are
    equivalent."""

    split: str | None = None
    data_idx: int = 0
    seed: int = 0
    commands: None = None
    """TextCraft's own recipes and goal are refused: in Onward a task is a name."""
    goal: None = None


class ResetRequest(BaseModel):
    """Request of ``POST /reset``: starts the ``data_idx``-th task of a split. Equal requests give equal
    starts."""

    id: int
    data_idx: int = 0
    split: str | None = None
    """Default: the split that the server was started with."""
    seed: int = 0
    """Seed for another panel of the same split."""


class StepRequest(BaseModel):
    """Request of ``POST /step``: ``action`` is the action, or a whole answer with one ``Action:`` line."""

    id: int
    action: str


class CloseRequest(BaseModel):
    """Request of ``POST /close``; the answer is true, or false for an instance that is not open."""

    id: int


class State(BaseModel):
    """Answer to ``/step``. ``reward`` is that step's, ``score`` the sum since the start."""

    observation: str
    reward: float
    score: float
    done: bool
    success: bool | None = None
    """Known once done."""


class Started(State):
    """Answer to ``/create`` and ``/reset``."""

    id: int
    task_id: str


class Detail(State):
    """Answer to ``/detail``. ``deleted`` is always false: a closed instance is an error."""

    task_id: str
    deleted: bool = False


class Meta(BaseModel):
    """Answer to ``GET /meta``: everything that a client must know before it plays."""

    protocol: str = PROTOCOL
    name: str
    version: str
    instructions: str
    horizon: int = Field(ge=1)
    reward_range: tuple[float, float]
    """Range of the score at the end."""
    panels: dict[str, int]
    """Split → number of tasks."""
    split: str
    """Split of a request that names none."""
    held_out: str
    panel_hash: str
    """Hash of the held-out task list: equal hashes, equal tasks."""
    ttl_seconds: float
    """Idle seconds after which an instance is closed."""
