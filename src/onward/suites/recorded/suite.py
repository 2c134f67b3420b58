"""Chooses recorded tasks by a rule and freezes them, so that both models get the same items.

A rule is ``recorded:agent=NAME,days=30,items=30``: see ``Rule``. The chosen items are stored below
``suites/recorded/`` of the data folder under their own hash; a file that does not match its name is refused.
``recorded:set=HASH`` names such a set again, exactly. A rule leaves out what the models were trained on.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from onward.errors import ConfigError, NotFoundError, TamperedError
from onward.export import records
from onward.export.records import Record
from onward.files import write_whole
from onward.suites.finding import Sources
from onward.suites.recorded.replay import ReplaySuite, load_rubric
from onward.suites.recorded.tasks import RecordedTask, task_of
from onward.suites.trained import Match, TrainedOn, question
from onward.warehouse import Warehouse, trajectory_queries
from onward.warehouse.trajectory_queries import TrajectorySelection

REACH = 50
"""Documents that are read for each item that is wanted, at most: many may have a question of another one."""
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
    """Makes the suite ``recorded:RULE``. It may have no item, if all matching tasks were trained on. Raises
    ConfigError, NotFoundError if no recorded task matches."""
    rule, rubric = parse(rest), load_rubric(sources.rubric)
    name = f"recorded:{rest}"
    if rule.set is not None:
        tasks = read_set(_folder(sources), rule.set)
        return ReplaySuite(name, tasks, rubric, facts=_overlap(tasks, sources.trained))
    if rubric is None and rule.outcome is None:
        rule = replace(rule, outcome="success")
    chosen = _chosen_path(rest, sources)
    before = None if chosen is None or sources.fresh else _chosen_before(chosen, _folder(sources))
    if before is not None:
        return ReplaySuite(name, before[0], rubric, facts=before[1])
    tasks, left_out = await choose(rule, sources)
    if not tasks and not left_out.total():
        raise NotFoundError(
            f"No recorded task matches {name}: widen the rule; 'onward trajectories list' shows them."
        )
    facts = _facts(sources.trained, left_out=left_out)
    if tasks:
        digest = freeze(_folder(sources), tasks)
        if chosen is not None:
            chosen.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(chosen, json.dumps({"set": digest, "facts": facts}).encode(), 0o600)
    return ReplaySuite(name, tasks, rubric, facts=facts)


def _chosen_path(rest: str, sources: Sources) -> Path | None:
    """Returns the file with the choice of a rule for one comparison. A validation that goes on after a
    restart finds its items there, although newer tasks match by then."""
    if sources.comparison is None:
        return None
    key = json.dumps([rest, sources.items, sources.rubric, sources.comparison])
    return _folder(sources) / "chosen" / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.json"


def _chosen_before(path: Path, folder: Path) -> tuple[list[RecordedTask], dict[str, Any]] | None:
    """Returns the tasks and the facts of an earlier choice; None if there is none that can be read."""
    try:
        found = json.loads(path.read_bytes())
        return read_set(folder, str(found["set"])), dict(found["facts"])
    except (OSError, ValueError, KeyError, TypeError, NotFoundError, TamperedError):
        return None


def _facts(trained: TrainedOn | None, **counted: Counter[Match]) -> dict[str, Any]:
    """Returns what a report says about the work that the models were trained on; empty if it was not looked
    up."""
    if trained is None:
        return {}
    counts = {name: dict(sorted(matches.items())) for name, matches in counted.items()}
    return {"trained_on": {**counts, "unknown": list(trained.unknown)}}


def _overlap(tasks: Sequence[RecordedTask], trained: TrainedOn | None) -> dict[str, Any]:
    """Returns the facts of a frozen set, whose tasks stay whatever was trained on."""
    if trained is None:
        return {}
    found: Counter[Match] = Counter()
    for task in tasks:
        match = trained.match(task.item_id, task.task_id, question(task.messages))
        if match is not None:
            found[match] += 1
    return _facts(trained, overlap=found)


async def choose(
    rule: Rule, sources: Sources, now: datetime | None = None
) -> tuple[list[RecordedTask], Counter[Match]]:
    """Returns the newest matching tasks, each question once, in the order of their ids; and how many newer
    ones were left out because a model was trained on them, by what they have in common."""
    if sources.warehouse is None:
        raise ConfigError(
            "Recorded tasks are in the warehouse, which is not open here: start the loop with 'onward up'."
        )
    most, trained = rule.items or sources.items, sources.trained or TrainedOn()
    found: dict[str, RecordedTask] = {}
    left_out: Counter[Match] = Counter()
    for name in rule.task or (None,):
        if len(found) >= most:
            break
        chosen = rule.selection(name, now or datetime.now(UTC))
        async for record in _newest(sources.warehouse, chosen, trained, left_out, REACH * most):
            task = task_of(record.trajectory)
            if task is None:
                continue
            match = trained.match(task.item_id, task.task_id, question(task.messages))
            if match is not None:
                left_out[match] += 1
                continue
            found.setdefault(json.dumps(task.messages, sort_keys=True), task)
            if len(found) >= most:
                break
    return sorted(found.values(), key=lambda task: task.item_id), left_out


def _count(names: Sequence[str], trained: TrainedOn, left_out: Counter[Match]) -> None:
    known = sum(name in trained.trajectories for name in names)
    left_out.update({"trajectory": known} if known else {})


async def _newest(
    warehouse: Warehouse,
    chosen: TrajectorySelection,
    trained: TrainedOn,
    left_out: Counter[Match],
    reach: int,
) -> AsyncIterator[Record]:
    """Yields matching records, newest first, ``reach`` at most. Trajectories that were trained on are counted
    by their ids alone, so that skipping many of them reads no document."""
    after: tuple[str, str] | None = None
    while reach > 0:
        page = await trajectory_queries.newest(warehouse, chosen, records.ID_PAGE, after)
        for start in range(0, len(page), records.MOST_AT_ONCE):
            part = [name for _, name in page[start : start + records.MOST_AT_ONCE]]
            kept = [name for name in part if name not in trained.trajectories][:reach]
            reach -= len(kept)
            at = 0
            async for record in records.documents(warehouse, kept):
                end = part.index(record.trajectory["trajectory_id"], at)
                _count(part[at:end], trained, left_out)
                at = end + 1
                yield record
            _count(part[at:], trained, left_out)
            if reach <= 0:
                return
        if len(page) < records.ID_PAGE:
            return
        after = page[-1]


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
