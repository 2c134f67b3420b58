"""Parts of a workflow, as frozen models: a change makes a new object, so that no two runs share state."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from onward.errors import OnwardError


class WorkflowError(OnwardError):
    """A workflow, one of its files, or an action on it is not usable."""


class Part(BaseModel):
    """Base of every part: immutable, and unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskStatus(StrEnum):
    """State of a task. Readiness is no state: it follows from the tasks before it (``Workflow.ready``)."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class Task(Part):
    """A piece of work: an operation on input files that makes output files.

    A task with children (tasks that name it as ``parent``) is composite: its children are the work.
    """

    id: str
    name: str
    description: str = ""
    role: str = ""
    """Role of the agent that can do it; empty for any."""
    operation: str = ""
    """Name of the worker's function; empty for work that leaves no file."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    dependencies: tuple[str, ...] = ()
    parent: str | None = None
    status: TaskStatus = TaskStatus.PENDING
    assigned_to: str | None = None
    estimated_hours: float = Field(default=1.0, gt=0)
    actual_hours: float | None = None
    estimated_cost: float = Field(default=0.0, ge=0)
    actual_cost: float | None = None
    ready_at: float | None = None
    """Simulated hour at which the last of its dependencies was completed."""
    started_at: float | None = None
    completed_at: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def dead_hours(self) -> float:
        """Simulated hours for which it was ready and no one had started it."""
        if self.ready_at is None or self.started_at is None:
            return 0.0
        return max(0.0, self.started_at - self.ready_at)


class Resource(Part):
    """A file of a workflow: its name, and the content's digest in the store."""

    name: str
    description: str = ""
    digest: str
    mime_type: str
    size: int = Field(ge=0)
    role: Literal["input", "intermediary", "output"] = "output"
    made_by: str | None = None
    """Task that wrote it; None for an input."""


class Agent(Part):
    """A worker, simulated: its role, price, and the time steps for which it is present."""

    id: str
    name: str
    role: str
    hourly_cost: float = Field(default=0.0, ge=0)
    skill: float = Field(default=1.0, ge=0, le=1)
    """Share of the requirements of a task that it satisfies (``workers.Worker``)."""
    joins_at: int = 0
    leaves_at: int | None = None

    def is_present(self, timestep: int) -> bool:
        """Returns whether it may work at ``timestep``."""
        return self.joins_at <= timestep and (self.leaves_at is None or timestep < self.leaves_at)


class Constraint(Part):
    """A rule of the workflow, for its manager to observe."""

    name: str
    description: str
    kind: Literal["hard", "soft", "regulatory", "organizational"] = "soft"
    enforcement: float = Field(default=1.0, ge=0, le=1)


class StakeholderProfile(Part):
    """Facts about the stakeholder that the manager may know; the preferences are not among them."""

    name: str
    role: str
    summary: str = ""


class Message(Part):
    """A message between participants, at a time step."""

    sender: str
    receiver: str
    text: str
    timestep: int = 0
