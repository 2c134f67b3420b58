"""Runs one export from the warehouse to a file or folder and counts the trajectories that are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from onward import extras
from onward.capture.conversations.messages import conversation
from onward.errors import ConfigError
from onward.export import columns, records, writers
from onward.export.demonstrations import Demonstrations, openai_line
from onward.export.pairs import MOST_PER_GROUP, Pairs, Rules
from onward.export.records import Record
from onward.export.writers import Put
from onward.warehouse import trajectory_queries
from onward.warehouse.client import Warehouse
from onward.warehouse.trajectory_queries import TrajectorySelection

Format = Literal["jsonl", "parquet", "openai", "pairs", "datasets"]
FORMATS: dict[Format, str] = {
    "jsonl": "whole documents, each with its reward",
    "parquet": "one row of typed columns each, the documents beside them",
    "openai": "messages and tools as the chat API takes them",
    "pairs": "prompt, chosen, rejected, as TRL takes them",
    "datasets": "a folder for datasets.load_from_disk",
}
EXTRA = "export"
_NEEDS: dict[Format, str] = {"parquet": "pyarrow", "datasets": "datasets"}
OnProgress = Callable[[int], object]
"""Receives the number of trajectories examined so far."""


@dataclass(frozen=True)
class Report:
    """``written`` documents from ``used`` of ``stored`` trajectories; ``left_out``: the others, by reason."""

    written: int
    used: int
    stored: int
    left_out: Mapping[str, int]


@dataclass
class Export:
    """One export. Call ``count`` first. No file is made if there is nothing to write."""

    w: Warehouse
    chosen: TrajectorySelection
    limit: int | None
    out: Path
    on_progress: OnProgress = lambda _: None
    matching: int = field(default=0, init=False)
    stored: int = field(default=0, init=False)
    _left_out: Counter[str] = field(default_factory=Counter, init=False)

    async def count(self) -> int:
        """Returns the number of matching trajectories and stores why the others do not match."""
        found = await trajectory_queries.reasons(self.w, self.chosen)
        self.stored = sum(found.values())
        self.matching = found.pop("", 0)
        self._left_out = Counter(found)
        return self.matching

    async def trajectories(self, form: Format, rules: Rules | None = None) -> Report:
        """Writes all matching trajectories in one form; ``rules`` apply to pairs."""
        if form == "pairs":
            return await self._pairs(rules or Rules())
        if form == "parquet":
            return await self._each(writers.parquet(self.out), columns.row)
        if form == "datasets":
            return await self._each(writers.dataset(self.out), columns.trainable_row)
        make = _openai if form == "openai" else _whole
        return await self._each(writers.json_lines(self.out), make, "no_answer")

    async def demonstrations(self, made: Demonstrations) -> Report:
        """Writes those of the matching trajectories that can be imitated."""
        return await self._each(writers.json_lines(self.out), made.line, left_out=made.left_out)

    async def _each(
        self,
        opened: AbstractContextManager[Put],
        make: Callable[[Record], Mapping[str, Any] | None],
        reason: str = "",
        left_out: Counter[str] | None = None,
    ) -> Report:
        written = seen = 0
        with _written_to(self.out), opened as put:
            async for record in records.newest(self.w, self.chosen, self.limit):
                seen += 1
                document = make(record)
                if document is not None:
                    put(document)
                    written += 1
                self.on_progress(seen)
            if not written:
                raise _NothingError  # so that the file that was begun is removed
        beyond = {"limit": max(0, self.matching - seen)}
        passed = left_out if left_out is not None else {reason: seen - written}
        return Report(written, written, self.stored, self._left_out + Counter(beyond) + Counter(passed))

    async def _pairs(self, rules: Rules) -> Report:
        pairs = Pairs(rules)
        used: set[str] = set()
        written = seen = 0
        with _written_to(self.out), writers.json_lines(self.out) as put:
            async for members, beyond in records.groups(self.w, self.chosen, MOST_PER_GROUP):
                seen += len(members) + beyond
                pairs.left_out["beyond"] += beyond
                for pair in pairs.of_group(members):
                    if self.limit is None or written < self.limit:
                        put(pair)
                        written += 1
                        used |= {pair["chosen_id"], pair["rejected_id"]}
                self.on_progress(seen)
            if not written:
                raise _NothingError
        left_out = self._left_out + pairs.left_out + Counter(no_group=max(0, self.matching - seen))
        left_out["limit"] = max(0, self.stored - len(used) - left_out.total())
        return Report(written, len(used), self.stored, +left_out)


class _NothingError(Exception):
    """Raised when there is nothing to write."""


@contextmanager
def _written_to(out: Path) -> Iterator[None]:
    """Raises ConfigError if the disk cannot be written. Suppresses ``_NothingError``."""
    try:
        with suppress(_NothingError):
            yield
    except OSError as error:
        raise ConfigError(
            f"{out} cannot be written ({error.strerror}), so nothing was: make room, or give another --out."
        ) from error


def check_extra(form: Format) -> None:
    """Raises MissingExtraError if the library that writes ``form`` is not installed."""
    module = _NEEDS.get(form)
    if module is not None:
        extras.require(EXTRA, module, f"The format {form!r}")


def _whole(record: Record) -> dict[str, Any]:
    return {"trajectory": record.trajectory, "reward": record.reward}


def _openai(record: Record) -> dict[str, Any] | None:
    talk = conversation(record.trajectory).until_last_answer()
    return openai_line(talk.messages, talk.tools) if talk.answers else None
