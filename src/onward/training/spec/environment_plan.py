"""The plan for learning from an environment: its place, tasks, attempts and held-out tasks. Pure.

Invariants: the tasks of a step are a function of (seed, step) alone, so that a run that was stopped and
continues plays the same ones. Held-out tasks are never among them; those of a server without splits are drawn
from a part that no option changes, so that no run trains on what another one is judged by.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from onward.envs.horizon import HorizonSchedule
from onward.envs.registry import BUILT_IN
from onward.envs.sources import TaskSource
from onward.envs.tasks import TaskRef
from onward.errors import ConfigError, OnwardError, TrainingError
from onward.training.spec.numbers import PLAYING, Option

KEY_VARIABLE = "ONWARD_ENVIRONMENT_KEY"
"""Environment variable with the key of an environment server."""
_PLAIN_ADDRESS = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]+(/[A-Za-z0-9._~/-]*)?")
"""An address without user, query, fragment, escapes and anything that two parsers could read differently."""
AGENTGYM_TASKS = 200
"""Tasks taken from a server that does not report how many it has."""
HELD_OUT = 50
"""Held-out tasks of a run by default."""
RESERVED_PART = 5
"""A task of a server without splits is reserved with a chance of one in this many."""


class EnvironmentPlan(BaseModel):
    """``dataset.environment`` of a request, with every default filled in."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    place: str
    """A built-in name, ``package.module:object``, or ``http://HOST:PORT`` of a server with AgentGym's API."""
    dialect: Annotated[str | None, Option("--dialect", PLAYING)] = None
    """Dialect of a server that does not report it."""
    steps: int = Field(20, ge=1)
    """Policy updates, each on episodes of its own."""
    episodes: Annotated[int, Field(ge=1), Option("--episodes", PLAYING)] = 64
    """Attempts per update: episodes / group_size tasks."""
    group_size: Annotated[int, Field(ge=1), Option("--group-size", PLAYING)] = 8
    """Attempts at one task."""
    horizon: Annotated[str, Option("--horizon", PLAYING)] = ""
    """Turn limits by stage, such as 4,8,12/20. Default: the environment's own."""
    split: str = "train"
    panel_seed: int = Field(0, ge=0)
    tasks: Annotated[int | None, Field(ge=1), Option("--tasks", PLAYING)] = None
    """Number of tasks used from the start of the split; needed for a server that does not report its own."""
    held_out: Annotated[int | None, Field(ge=0), Option("--held-out", PLAYING)] = None
    """Held-out tasks, tried before and after; 0 tries none. Default: 50, or as many as there are."""
    max_tokens: Annotated[int, Field(ge=1), Option("--max-tokens", PLAYING)] = 48
    """Tokens per answer."""
    temperature: Annotated[float, Field(gt=0), Option("--temperature", PLAYING)] = 1.0
    """Temperature of sampling while it plays."""
    held_out_temperature: float = Field(1.0, ge=0)
    """0 takes the most probable token each time."""
    concurrency: int = Field(64, ge=1)
    """Episodes that run at once."""

    @property
    def held_out_count(self) -> int:
        """Held-out tasks where there are enough of them."""
        return HELD_OUT if self.held_out is None else self.held_out

    @property
    def schedule(self) -> HorizonSchedule | None:
        """The parsed ``horizon``. Raises ConfigError."""
        return HorizonSchedule.parse(self.horizon) if self.horizon else None


def is_listed(place: str, listed: Sequence[str]) -> bool:
    """Returns whether a message may name ``place``: a built-in name, or one that the operator listed.

    A listed address covers the paths below it. An address with a user, a query or a detour is never covered.
    """
    if "://" not in place:
        return place in BUILT_IN or place in listed
    wanted = _origin_and_path(place)
    if wanted is None:
        return False
    allowed = [found for entry in listed if (found := _origin_and_path(entry)) is not None]
    return any(wanted[0] == origin and wanted[1][: len(path)] == path for origin, path in allowed)


def _origin_and_path(url: str) -> tuple[tuple[str, str, int], list[str]] | None:
    """Returns (scheme, host, port) and the segments of the path; None for any other than a plain address."""
    if _PLAIN_ADDRESS.fullmatch(url) is None:
        return None
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except ValueError:
        return None
    segments = [segment for segment in parts.path.split("/") if segment]
    if parts.hostname is None or any(segment in (".", "..") for segment in segments):
        return None
    return (parts.scheme, parts.hostname.rstrip("."), port), segments


def read(given: Mapping[str, Any], *, max_tokens: int) -> EnvironmentPlan:
    """Builds the plan from a request's open object ``dataset.environment``.

    It names the environment as ``name`` or ``url``. Raises TrainingError("DATA") with one sentence.
    """
    rest = dict(given)
    name, url = rest.pop("name", None), rest.pop("url", None)
    if (name is None) == (url is None):
        raise TrainingError(
            "DATA", "dataset.environment names no environment, or two: give either `name` or `url`."
        )
    try:
        plan = EnvironmentPlan(**{"max_tokens": max_tokens, **rest, "place": str(name or url)})
        if plan.schedule is not None:
            plan.schedule.turns_at(0)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        known = ", ".join(field for field in EnvironmentPlan.model_fields if field != "place")
        raise TrainingError(
            "DATA", f"dataset.environment.{where} is wrong ({first['msg']}): it may have {known}."
        ) from None
    except OnwardError as error:
        raise TrainingError("DATA", str(error)) from None
    return plan


def check(plan: EnvironmentPlan, algorithm: str, grouped: bool) -> None:
    """Raises ConfigError when ``algorithm`` cannot learn from this plan."""
    if plan.episodes % plan.group_size:
        raise ConfigError(
            f"{plan.episodes} episodes cannot be split into groups of {plan.group_size}: "
            f"give a multiple of it."
        )
    if grouped and plan.group_size < 2:
        raise ConfigError(
            f"{algorithm} compares attempts at the same task, so groups of one teach it nothing: give a "
            f"group size of 2 or more, or use reinforce or ppo, which need no groups."
        )


def panels(plan: EnvironmentPlan, source: TaskSource) -> tuple[list[TaskRef], list[TaskRef]]:
    """Returns (tasks to train on, held-out tasks); no task is in both. Raises NotFoundError, ConfigError.

    A server without splits (AgentGym's own) often sorts its tasks by difficulty. Its held-out tasks are
    therefore drawn from the whole range of its reserved tasks (``spread``), and are the same for every
    ``panel_seed``. No reserved task is trained on, whether it is tried or not.
    """
    told = getattr(source, "meta", source) is not None
    if not told:
        everything = foreign_tasks(plan, source)
        reserved = [task for task in everything if is_reserved(task)]
        train = [task for task in everything if not is_reserved(task)]
        if not train:
            raise ConfigError(
                f"{len(everything)} tasks, {len(reserved)} of them reserved for evaluation, leave none to "
                f"train on: give more tasks."
            )
        count = min(HELD_OUT, len(reserved)) if plan.held_out is None else plan.held_out
        if count > len(reserved):
            raise ConfigError(
                f"{count} held-out tasks were asked for, and {len(reserved)} of the {len(everything)} tasks "
                f"of {source.name} are reserved for evaluation: hold out at most {len(reserved)}, or give "
                f"more tasks."
            )
        return train, [reserved[at] for at in spread(len(reserved), count)]
    count = plan.held_out_count
    held_out = source.panel(None, 0, count) if count else []
    kept_back = set(source.panel(None, 0))
    train = [task for task in source.panel(plan.split, plan.panel_seed, plan.tasks) if task not in kept_back]
    if not train:
        raise ConfigError(
            f"The split {plan.split!r} of {source.name} is the held-out one: train on another, "
            f"such as 'train'."
        )
    return train, held_out


def is_reserved(task: TaskRef) -> bool:
    """Returns whether a task of a server without splits is for evaluation alone, in every run."""
    digest = hashlib.sha256(f"{task.environment}/{task.index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % RESERVED_PART == 0


def foreign_tasks(plan: EnvironmentPlan, source: TaskSource) -> list[TaskRef]:
    """Returns the tasks of a server that reports none: as many as were asked for, or as this kind of server
    is known to have, or 200."""
    try:
        known = source.panel(None, plan.panel_seed)
    except ConfigError:
        known = None
    wanted = plan.tasks or AGENTGYM_TASKS
    if known is None or (plan.tasks is not None and plan.tasks < len(known)):
        return source.panel(None, plan.panel_seed, wanted)
    return known


def spread(count: int, chosen: int) -> list[int]:
    """Returns ``chosen`` of ``count`` indices in rising order, one from each of as many equal parts, the same
    for the same numbers: a list that is sorted by difficulty gives each difficulty its share."""
    draw = random.Random(f"held-out/{count}/{chosen}")
    edges = [count * part // chosen for part in range(chosen + 1)] if chosen else []
    return [draw.randrange(low, high) for low, high in itertools.pairwise(edges)]


def tasks_of(step: int, tasks: Sequence[TaskRef], count: int, seed: int) -> list[TaskRef]:
    """Returns ``count`` tasks for ``step`` (from 0): every task comes once before any comes again."""
    chosen: list[TaskRef] = []
    at = step * count
    while len(chosen) < count:
        cycle, offset = divmod(at, len(tasks))
        order = list(tasks)
        random.Random(f"{seed}/tasks/{cycle}").shuffle(order)
        part = order[offset : offset + count - len(chosen)]
        chosen += part
        at += len(part)
    return chosen
