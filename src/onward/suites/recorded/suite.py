"""Chooses recorded tasks by a rule and freezes them, so that both models get the same items.

A rule is ``recorded:agent=NAME,days=30,items=30``: see ``Rule``. The chosen items are stored below
``suites/recorded/`` of the data folder under their own hash; a file that does not match its name is refused.
``recorded:set=HASH`` names such a set again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from onward.errors import ConfigError, NotFoundError, TamperedError
from onward.export import records
from onward.files import write_whole
from onward.suites.finding import Sources
from onward.suites.recorded.replay import ReplaySuite, load_rubric
from onward.suites.recorded.tasks import RecordedTask, task_of
from onward.warehouse.trajectory_queries import TrajectorySelection

KEYS = ("agent", "domain", "task", "days", "min_reward", "max_reward", "outcome", "items", "set")


@dataclass(frozen=True)
class Rule:
    """A choice of recorded tasks. Without an expected answer, a check or a rubric only tasks that succeeded
    can be judged, so ``outcome`` is then ``success``."""

    agent: str | None = None
    domain: str | None = None
    task: tuple[str, ...] = ()
    """Ids of tasks, separated by ``+``; empty: any."""
    days: float | None = None
    """Only tasks of the last so many days."""
    min_reward: float | None = None
    max_reward: float | None = None
    outcome: str | None = None
    items: int | None = None
    """Most items, the newest first."""
    set: str | None = None
    """Hash of a frozen set; then nothing else is given."""

    def selection(self, task: str | None, now: datetime) -> TrajectorySelection:
        since = None if self.days is None else now - timedelta(days=self.days)
        return TrajectorySelection(
            since=since,
            agent=self.agent,
            domain=self.domain,
            task=task,
            outcome=self.outcome,
            min_reward=self.min_reward,
            max_reward=self.max_reward,
        )


def parse(text: str) -> Rule:
    """Parses ``agent=NAME,days=30``. Raises ConfigError that names the part."""
    given: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if name not in KEYS or not equals or not value or name in given:
            raise ConfigError(
                f"The part {part.strip()[:60]!r} of recorded:{text[:80]} is not understood: give each of "
                f"{', '.join(KEYS)} at most once, as in recorded:agent=NAME,days=30,items=30."
            )
        given[name] = value
    try:
        for name in ("days", "min_reward", "max_reward"):
            if name in given:
                given[name] = float(given[name])
        if "items" in given:
            given["items"] = int(given["items"])
    except ValueError:
        raise ConfigError(f"recorded:{text[:80]} has no number where one must be: write days=30.") from None
    if "task" in given:
        given["task"] = tuple(given["task"].split("+"))
    return Rule(**given)


async def make(rest: str, sources: Sources) -> ReplaySuite:
    """Makes the suite ``recorded:RULE``. Raises ConfigError, NotFoundError if no recorded task matches."""
    rule, rubric = parse(rest), load_rubric(sources.rubric)
    name = f"recorded:{rest}"
    if rule.set is not None:
        return ReplaySuite(name, read_set(_folder(sources), rule.set), rubric)
    if rubric is None and rule.outcome is None:
        rule = replace(rule, outcome="success")
    tasks = await choose(rule, sources)
    if not tasks:
        raise NotFoundError(
            f"No recorded task matches {name}: widen the rule; 'onward trajectories list' shows them."
        )
    freeze(_folder(sources), tasks)
    return ReplaySuite(name, tasks, rubric)


async def choose(rule: Rule, sources: Sources, now: datetime | None = None) -> list[RecordedTask]:
    """Returns the newest matching tasks, each question once, in the order of their ids."""
    if sources.warehouse is None:
        raise ConfigError(
            "Recorded tasks are in the warehouse, which is not open here: start the loop with 'onward up'."
        )
    most = rule.items or sources.items
    found: dict[str, RecordedTask] = {}
    for name in rule.task or (None,):
        chosen = rule.selection(name, now or datetime.now(UTC))
        async for record in records.newest(sources.warehouse, chosen):
            if len(found) == most:
                break
            task = task_of(record.trajectory)
            if task is not None:
                found.setdefault(json.dumps(task.messages, sort_keys=True), task)
    return sorted(found.values(), key=lambda task: task.item_id)


def freeze(folder: Path, tasks: list[RecordedTask]) -> str:
    """Stores the items under their hash, once, and returns it."""
    data = json.dumps([task.document() for task in tasks], sort_keys=True, ensure_ascii=False).encode()
    digest = hashlib.sha256(data).hexdigest()
    path = folder / f"{digest}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(path, data, 0o600)
    return digest


def read_set(folder: Path, digest: str) -> list[RecordedTask]:
    """Reads a frozen set. Raises NotFoundError, TamperedError."""
    path = folder / f"{Path(digest).name}.json"
    try:
        data = path.read_bytes()
    except OSError:
        raise NotFoundError(f"There is no set {digest[:64]!r} in {folder}: choose one by a rule.") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise TamperedError(f"{path} does not match its name: delete it and choose its tasks again.")
    return [RecordedTask.from_document(document) for document in json.loads(data)]


def _folder(sources: Sources) -> Path:
    if sources.data_dir is None:
        raise ConfigError("Recorded tasks need a data folder for the frozen set: name it with --dir.")
    return sources.data_dir / "suites" / "recorded"
