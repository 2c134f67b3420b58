"""Scores stored trajectories again: after late feedback, or at an operator's request.

Invariants: a superseding reward is normalised against the windows as they are and never enters them, since
each trajectory counts once. Its id comes from its cause, so a reward stored under that id is published again
and not computed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from onward.context import Context
from onward.contracts import Trajectory
from onward.reward.answers import Said
from onward.reward.components import Component, Unscored
from onward.reward.role import publishing
from onward.reward.role.analysis import Analysis
from onward.reward.role.state import State
from onward.reward.scoring import rows
from onward.reward.scoring.rows import Candidate, Cause
from onward.reward.scoring.score import reward_id
from onward.telemetry.crashpoints import crashpoint
from onward.warehouse import queries, reward_queries

PORTION = 50
"""Trajectories whose rows are in memory at once, and for which the first scoring waits."""
CODE = "code_quality"


@dataclass(frozen=True)
class Task:
    """One trajectory to be scored again for one cause."""

    trajectory_id: str
    cause: Cause
    timestamp: datetime
    """Time of the reward; a repeat must pass the same one."""
    until: datetime | None = None
    """Feedback counts if it had arrived by then, or if the replaced reward took it into account; None: all
    that is stored."""


class Superseding:
    """Works portion by portion, each inside ``alone``: no first reward is made or stored meanwhile. ``fence``
    raises when it must not write."""

    def __init__(
        self,
        ctx: Context,
        alone: Callable[[], AbstractAsyncContextManager[None]],
        state: Callable[[], State],
        components: Sequence[Component],
        analysis: Analysis,
        said: Said,
        fence: Callable[[], None],
    ) -> None:
        self._ctx, self._alone, self._state = ctx, alone, state
        self._components, self._analysis, self._said, self._fence = components, analysis, said, fence

    async def work(
        self, tasks: Sequence[Task], *, dry: bool = False, waiting: set[str] | None = None
    ) -> Counter[str]:
        """Scores, stores and publishes, in the given order. Counts ``changed``, ``unchanged``, ``unscored``,
        ``waiting`` (for the first scoring, which includes all feedback that it finds) and ``gone``. With
        ``dry`` nothing is written. The causes that wait are added to ``waiting``. Raises BusError or
        WarehouseError; work done by then is recognised."""
        tally: Counter[str] = Counter()
        for start in range(0, len(tasks), PORTION):
            tally += await self._portion(tasks[start : start + PORTION], dry, waiting)
        return tally

    async def _portion(self, tasks: Sequence[Task], dry: bool, waiting: set[str] | None) -> Counter[str]:
        warehouse = self._ctx.warehouse
        found = await queries.trajectories_by_id(warehouse, {task.trajectory_id for task in tasks})
        candidates = await self._candidates(found, tasks)
        async with self._alone():
            newest = await queries.reward_for(warehouse, candidates)
            given = await reward_queries.rewards_by_id(
                warehouse, {_id(task): task.trajectory_id for task in tasks}
            )
            said = await self._said.about(item.row for item in candidates.values())
            made, again, tally = self._score(tasks, candidates, newest, given, said, waiting)
            if not dry and (made or again):
                self._fence()
                await publishing.store(self._ctx, made)
                crashpoint("superseding.stored")
                await publishing.publish(self._ctx, [*again, *made])
                crashpoint("superseding.published")
        if not dry:
            for task in tasks:
                if any(row["reward_id"] == _id(task) for row in made):
                    self._ctx.metrics.superseded.labels(cause=task.cause.kind).inc()
        return tally

    async def _candidates(
        self, found: Mapping[str, dict[str, Any]], tasks: Iterable[Task]
    ) -> dict[str, Candidate]:
        candidates = {name: Candidate(row, rows.read(row)) for name, row in found.items()}
        looked_at = {
            task.trajectory_id for task in tasks if task.cause.only is None or CODE in task.cause.only
        }
        readable = {
            name: item.trajectory
            for name, item in candidates.items()
            if name in looked_at and isinstance(item.trajectory, Trajectory)
        }
        reports = await self._analysis.reports(readable)
        return {name: replace(item, code=reports.get(name)) for name, item in candidates.items()}

    def _score(
        self,
        tasks: Sequence[Task],
        candidates: Mapping[str, Candidate],
        newest: dict[str, dict[str, Any]],
        given: Mapping[str, dict[str, Any]],
        said: Mapping[str, Sequence[rows.Row]],
        waiting: set[str] | None,
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Counter[str]]:
        """Returns rows to store and publish, rows to publish again, and counts."""
        state, settings = self._state(), self._ctx.settings.reward
        made: list[dict[str, Any]] = []
        again: list[dict[str, Any]] = []
        tally: Counter[str] = Counter()
        for task in tasks:
            name = task.trajectory_id
            candidate, old = candidates.get(name), newest.get(name)
            if candidate is None:
                tally["gone"] += 1
                continue
            if (stored := given.get(_id(task))) is not None:
                again.append(stored)
                tally["changed"] += 1
                continue
            if old is None and candidate.row["stream_seq"] > state.stream_seq:
                tally["waiting"] += 1
                if waiting is not None:
                    waiting.add(task.cause.cause_id)
                continue
            before = rows.included(old) if old is not None else frozenset[str]()
            if task.cause.cause_id in before:
                tally["unchanged"] += 1
                continue
            answer = rows.superseding_reward(
                candidate,
                old,
                task.cause,
                state,
                settings,
                self._components,
                task.timestamp,
                self._said.choose(said.get(name, ()), task.until, before),
            )
            if isinstance(answer, Unscored):
                tally["unscored"] += 1
            elif answer is None:
                tally["unchanged"] += 1
            else:
                made.append(answer)
                newest[name] = answer
                tally["changed"] += 1
        return made, again, tally


def _id(task: Task) -> str:
    return reward_id(task.trajectory_id, task.cause.cause_id)
