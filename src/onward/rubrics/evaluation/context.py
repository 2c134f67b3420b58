"""The context of a criterion, and the JSON view of a workflow that code and judges get."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from onward.rubrics.evaluation.models import ContextItem


class WorkflowLike(Protocol):
    """A workflow as the engine reads it. ``goal``, ``messages``, ``agents``, ``owner`` and ``read(file)`` are
    used where it has them."""

    @property
    def name(self) -> str: ...

    @property
    def tasks(self) -> Mapping[Any, Any]: ...

    @property
    def resources(self) -> Mapping[Any, Any]: ...


class MissingContext(Exception):
    """A criterion reads a context item that was not given. The text names the item."""


@dataclass(frozen=True)
class EvaluationContext:
    """Facts beside the workflow. Items are attributes by the names of ``ContextItem``."""

    workflow: Any
    timestep: int
    cadence: str | None
    seed: int
    """Seed of this criterion, from the engine's, the criterion's id and the time step."""
    items: Mapping[str, Any]
    is_lenient: bool = False
    """True: a missing item is None, as in Manager Agent Gym, and no error."""

    def __getattr__(self, name: str) -> Any:
        if name not in ContextItem._value2member_map_:
            raise AttributeError(f"The context has no attribute {name!r}.")
        value = self.items.get(name)
        if value is None and not self.is_lenient:
            raise MissingContext(name)
        return value

    def missing(self, required: Iterable[ContextItem]) -> list[str]:
        """Returns the names of required items that were not given."""
        return sorted(item.value for item in required if self.items.get(item.value) is None)


def context_items(
    workflow: Any,
    communications: Sequence[Any] | None,
    manager_actions: Sequence[Any] | None,
    given: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Returns the items that are known: those given, and those that follow from the workflow."""
    messages = communications if communications is not None else getattr(workflow, "messages", None)
    found = {
        ContextItem.MANAGER_ACTIONS.value: manager_actions,
        ContextItem.COMMUNICATIONS_BY_SENDER.value: _grouped(messages, ("sender", "sender_id")),
        ContextItem.COMMUNICATIONS_BY_THREAD.value: _grouped(messages, ("thread", "thread_id")),
        ContextItem.STAKEHOLDER_PROFILE.value: getattr(workflow, "owner", None),
        ContextItem.RESOURCES_BY_TASK.value: _resources_by_task(workflow),
        ContextItem.AGENT_PUBLIC_STATES.value: getattr(workflow, "agents", None),
    }
    return {name: value for name, value in {**found, **(given or {})}.items() if value is not None}


def _grouped(messages: Sequence[Any] | None, fields: tuple[str, ...]) -> dict[str, list[Any]] | None:
    """Returns the messages by a field; None if one of them lacks it."""
    if messages is None:
        return None
    groups: dict[str, list[Any]] = {}
    for message in messages:
        key = next((_field(message, name) for name in fields if _field(message, name) is not None), None)
        if key is None:
            return None
        groups.setdefault(str(key), []).append(message)
    return groups


def _resources_by_task(workflow: Any) -> dict[str, list[Any]] | None:
    tasks, resources = getattr(workflow, "tasks", None), getattr(workflow, "resources", None)
    if tasks is None or resources is None:
        return None
    found = {}
    for key, task in tasks.items():
        names = _field(task, "outputs")
        names = names if names is not None else _field(task, "output_resource_ids") or ()
        found[str(key)] = [resources[name] for name in names if name in resources]
    return found


def artefact_of(workflow: Any) -> Any:
    """Returns the JSON view of a workflow: name, goal, time step, tasks, text of its resources, messages.

    A mapping is its own view. A resource that is not text has None.
    """
    if isinstance(workflow, Mapping):
        return plain(workflow)
    resources = getattr(workflow, "resources", None) or {}
    return {
        "name": str(getattr(workflow, "name", "")),
        "goal": str(getattr(workflow, "goal", None) or getattr(workflow, "workflow_goal", "")),
        "timestep": getattr(workflow, "timestep", 0),
        "tasks": plain(getattr(workflow, "tasks", None) or {}),
        "resources": {str(name): _text(workflow, name, one) for name, one in resources.items()},
        "messages": plain(getattr(workflow, "messages", None) or []),
    }


def _text(workflow: Any, name: Any, resource: Any) -> str | None:
    read = getattr(workflow, "read", None)
    content = read(name) if callable(read) else _field(resource, "content")
    if isinstance(content, bytes):
        try:
            return content.decode()
        except UnicodeDecodeError:
            return None
    return content if content is None or isinstance(content, str) else str(content)


def plain(value: Any) -> Any:
    """Returns a value as JSON: models and dataclasses become objects, anything unknown its text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, BaseModel):
        return plain(value.model_dump())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(one) for one in value), key=str)
    return getattr(value, "__name__", None) or str(value)


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
