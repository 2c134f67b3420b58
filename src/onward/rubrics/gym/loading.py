"""Workflows from files: the 21 of the catalogue, or a YAML file of the user's own in the same form."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from onward.rubrics.gym.graph import suggestion
from onward.rubrics.gym.inputs import generate
from onward.rubrics.gym.parts import Agent, Constraint, StakeholderProfile, Task, WorkflowError
from onward.rubrics.gym.store import ResourceStore
from onward.rubrics.gym.workers import requirements
from onward.rubrics.gym.workflow import Workflow

CATALOGUE = Path(__file__).with_name("catalogue")


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class AgentEntry(_Entry):
    """An agent in a workflow file."""

    id: str
    name: str
    role: str
    cost: float = 0.0
    skill: float = 1.0
    joins: int = 0
    leaves: int | None = None


class TaskEntry(_Entry):
    """A task in a workflow file. It waits for the tasks that write its inputs, and for those of ``after``."""

    id: str
    name: str
    role: str = ""
    hours: float = 1.0
    do: str = ""
    inputs: tuple[str, ...] = Field(default=(), alias="in")
    out: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict, alias="with")
    after: tuple[str, ...] = ()


class WorkflowEntry(_Entry):
    """A workflow file."""

    name: str
    title: str
    goal: str
    owner: StakeholderProfile
    budget: float | None = None
    agents: tuple[AgentEntry, ...]
    constraints: tuple[Constraint, ...] = ()
    inputs: dict[str, dict[str, Any]]
    tasks: tuple[TaskEntry, ...]


EntryT = TypeVar("EntryT", bound=BaseModel)


def read_entry(path: Path, kind: type[EntryT]) -> EntryT:
    """Reads a YAML file. Dates stay text. Raises WorkflowError with one sentence if it is not as expected."""
    import yaml

    try:
        data = _parsed(path.read_text(encoding="utf-8"))
        return kind.model_validate(data)
    except OSError as error:
        raise WorkflowError(f"The file {path} cannot be read ({error.strerror}): give a YAML file.") from None
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 1
        raise WorkflowError(f"The file {path} is no YAML (line {line}): mend that line.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the top"
        raise WorkflowError(f"The file {path} is wrong at {where}: {first['msg']}.") from None


@cache
def _parsed(text: str) -> Any:
    """Returns the data of a YAML text. Dates stay text."""
    import yaml

    class TextDates(yaml.SafeLoader):
        yaml_implicit_resolvers: ClassVar = {
            letter: [one for one in found if one[0] != "tag:yaml.org,2002:timestamp"]
            for letter, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    return yaml.load(text, TextDates)


def workflow_names() -> tuple[str, ...]:
    """Returns the names of the catalogue."""
    return tuple(sorted(path.stem for path in CATALOGUE.glob("*.yaml")))


def load_workflow(name: str, seed: int = 42, store: ResourceStore | None = None) -> Workflow:
    """Returns a workflow of the catalogue, before any task is done. ``seed`` makes its input files.

    Raises WorkflowError for an unknown name.
    """
    names = workflow_names()
    if name not in names:
        raise WorkflowError(
            f"There is no workflow {name!r}{suggestion(name, names)}: use one of {', '.join(names)}."
        )
    return workflow_of(CATALOGUE / f"{name}.yaml", seed, store)


def workflow_of(path: Path, seed: int = 42, store: ResourceStore | None = None) -> Workflow:
    """Returns the workflow of a YAML file, checked. Raises WorkflowError with one sentence."""
    entry = read_entry(path, WorkflowEntry)
    agents = {
        one.id: Agent(
            id=one.id, name=one.name, role=one.role, hourly_cost=one.cost, skill=one.skill,
            joins_at=one.joins, leaves_at=one.leaves,
        )
        for one in entry.agents
    }  # fmt: skip
    workflow = Workflow(
        name=entry.name, title=entry.title, goal=entry.goal, owner=entry.owner, seed=seed,
        budget=entry.budget, agents=agents, constraints=entry.constraints, store=store or ResourceStore(),
    )  # fmt: skip
    workflow.add_inputs(
        workflow.store.put(file, generate(file, spec, seed), role="input")
        for file, spec in entry.inputs.items()
    )
    writers = {one.out: one.id for one in entry.tasks if one.out}
    rates = {one.role: one.cost for one in reversed(entry.agents)}
    for one in entry.tasks:
        if one.id in workflow.tasks:
            raise WorkflowError(f"The file {path} has two tasks {one.id!r}: give each a name of its own.")
        if one.role and one.role not in rates:
            raise WorkflowError(f"The task {one.id!r} needs a {one.role}, and {path} has none: add an agent.")
        waits = [writers[name] for name in one.inputs if name in writers] + list(one.after)
        workflow.put(Task(
            id=one.id, name=one.name, role=one.role, operation=one.do, arguments=one.arguments,
            inputs=one.inputs, outputs=(one.out,) if one.out else (),
            dependencies=tuple(dict.fromkeys(waits)),
            estimated_hours=one.hours, estimated_cost=one.hours * rates.get(one.role, 0.0),
        ))  # fmt: skip
    workflow.check()
    requirements(workflow)  # raises for an unknown operation or argument
    return workflow
