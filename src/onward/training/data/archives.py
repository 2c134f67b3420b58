"""Trajectories in files: exports and archives as JSON lines or Parquet, in a folder or an object store.

A JSON line is ``{"trajectory", "reward"}``, as ``onward trajectories export`` writes it, or a
``trajectory.v1`` or ``reward.v1`` document by itself. A Parquet row has them as text in its columns
``document`` and ``reward``. Nothing here trusts a file to be redacted.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import io
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from onward import extras
from onward.bus import Message
from onward.capture.make_redactor import inspector_of
from onward.config import Settings
from onward.contracts import Reward, canonical_json, subjects, to_document, validate
from onward.errors import ContractError, MissingExtraError, NotFoundError, ObjectRefusedError, TrainingError
from onward.training.data.admission import ScoredTrajectory
from onward.training.data.stream import admitted
from onward.training.spec.places import confined, is_within, read_confined
from onward.warehouse import Objects

SUFFIXES = (".jsonl", ".parquet")
_COLUMNS = ("document", "reward")


@dataclass(frozen=True)
class File:
    """One file with its content."""

    name: str
    body: bytes

    def facts(self) -> dict[str, Any]:
        return {"name": self.name, "sha256": hashlib.sha256(self.body).hexdigest(), "bytes": len(self.body)}

    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields place and content of each record. Raises TrainingError("DATA")."""
        if self.name.endswith(".parquet"):
            yield from _parquet_records(self)
            return
        for number, line in enumerate(self.body.split(b"\n"), 1):
            if line.strip():
                yield f"{self.name}, line {number}", _object(f"{self.name}, line {number}", line)


async def local_files(settings: Settings, path: str | None) -> AsyncIterator[File]:
    """Yields a file, or the files of a folder, under ``training.data_roots``. Raises TrainingError("DATA")
    for a path or a link that leads out of them."""
    if not path:
        raise TrainingError("DATA", "Data source 'local' names no file: add dataset.path.")
    roots = settings.training.data_roots
    place = confined(path, roots, field="dataset.path", setting="training.data_roots")
    homes = [Path(root).resolve() for root in roots]
    found = sorted(one for one in place.rglob("*") if one.suffix in SUFFIXES) if place.is_dir() else [place]
    for one in found:
        try:
            real = one.resolve()
        except (OSError, RuntimeError):
            raise TrainingError("DATA", f"{one.name} is a link in a circle: delete it.") from None
        if not any(is_within(real, home) for home in homes):
            raise TrainingError(
                "DATA", f"{one.name} is a link out of training.data_roots: put the file itself there."
            )
        _check_suffix(one.name)
        try:
            yield File(str(real), await asyncio.to_thread(read_confined, real, roots))
        except OSError as error:
            raise TrainingError("DATA", f"{one.name} cannot be read ({error.strerror}).") from None
    if not found:
        raise TrainingError("DATA", f"{path[:80]!r} has no {' or '.join(SUFFIXES)} file.")


async def stored_files(settings: Settings, path: str | None) -> AsyncIterator[File]:
    """Yields an object, or all below a prefix, of ``objects.trajectories_url``. Raises TrainingError("DATA"),
    ObjectError."""
    store = settings.objects.trajectories_url
    if not store:
        raise TrainingError(
            "DATA", "Data source 's3' needs objects.trajectories_url, which the operator sets to the store."
        )
    objects = Objects.open(store)
    try:
        keys = [key for key in await objects.list(path or "") if key.endswith(SUFFIXES)]
    except ObjectRefusedError as error:
        raise TrainingError("DATA", f"dataset.path cannot be read: {error}") from None
    if not keys:
        raise TrainingError(
            "DATA",
            f"{(path or '')[:80]!r} has no {' or '.join(SUFFIXES)} object in objects.trajectories_url.",
        )
    for key in keys:
        try:
            yield File(key, await objects.get(key))
        except NotFoundError:
            raise TrainingError("DATA", f"{key} was deleted while it was read: ask again.") from None


class Newest:
    """The newest trajectories of some files, ``most`` at most, with the rewards in these files."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[tuple[datetime, str, dict[str, Any]]] = []
        self._names: set[str] = set()
        self._rewards: dict[str, dict[str, Any]] = {}

    def add(self, file: File) -> Counter[str]:
        """Adds the records of one file; returns the number of other records, by reason."""
        left_out: Counter[str] = Counter()
        for where, record in file.records():
            trajectory = record.get("trajectory", record)
            if "reward_components" in record:
                self._add_reward(record)
            elif isinstance(trajectory, dict) and "turns" in trajectory:
                if isinstance(record.get("reward"), dict):
                    self._add_reward(record["reward"])
                self._add(where, trajectory, left_out)
            else:
                raise TrainingError(
                    "DATA",
                    f"{where}, is no trajectory.v1 and no reward.v1: give files of 'onward trajectories "
                    f"export', or train from files of other forms with 'onward train --data'.",
                )
        return left_out

    def pages(self, size: int) -> Iterator[list[tuple[dict[str, Any], dict[str, Any] | None]]]:
        """Yields trajectories with their rewards, newest first."""
        ordered = sorted(self._heap, key=lambda one: one[:2], reverse=True)
        for start in range(0, len(ordered), size):
            yield [(found, self._rewards.get(name)) for _, name, found in ordered[start : start + size]]

    def _add(self, where: str, trajectory: dict[str, Any], left_out: Counter[str]) -> None:
        try:
            ended = _moment(trajectory["end_timestamp"])
            entry = (ended, str(trajectory["trajectory_id"]), trajectory)
        except (KeyError, ValueError, TypeError, AttributeError):
            raise TrainingError(
                "DATA", f"{where}, has no id or no end_timestamp: give trajectory.v1."
            ) from None
        if entry[1] in self._names:
            left_out["duplicate"] += 1
            return
        self._names.add(entry[1])
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)
            left_out["older"] += 1

    def _add_reward(self, reward: dict[str, Any]) -> None:
        name = str(reward.get("trajectory_id"))
        known = self._rewards.get(name)
        if known is None or _age(known) <= _age(reward):
            self._rewards[name] = reward


async def judged(
    settings: Settings,
    page: Sequence[tuple[dict[str, Any], dict[str, Any] | None]],
    now: datetime,
    left_out: Counter[str],
) -> list[ScoredTrajectory]:
    """Returns the trajectories of a page that the collector would store, redacted, with their rewards."""
    inspector = inspector_of(settings)
    rewards = {str(trajectory["trajectory_id"]): reward for trajectory, reward in page}

    def inspect() -> list[ScoredTrajectory]:
        items = [inspector.inspect(_as_message(trajectory), now) for trajectory, _ in page]
        return admitted(items, left_out)

    kept: list[ScoredTrajectory] = []
    for one in await asyncio.to_thread(inspect):
        reward = rewards[one.trajectory["trajectory_id"]]
        try:
            told = None if reward is None else to_document(validate(reward, Reward))
        except ContractError:
            left_out["bad_reward"] += 1
            continue
        kept.append(ScoredTrajectory(one.trajectory, told, None, one.identity, 0))
    return kept


def _as_message(trajectory: Mapping[str, Any]) -> Message:
    """Returns a message that came when the trajectory ended, so that its age is no reason to refuse it."""
    ended = _moment(trajectory["end_timestamp"])
    return Message(canonical_json(trajectory), {}, subjects.TRAJECTORY, 0, 1, ended)


def _parquet_records(file: File) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        extras.require("export", "pyarrow", "Reading Parquet")
    except MissingExtraError as error:
        raise TrainingError("DATA", str(error)) from None
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        opened = pyarrow.parquet.ParquetFile(io.BytesIO(file.body))
        if "document" not in opened.schema_arrow.names:
            raise TrainingError(
                "DATA", f"{file.name} has no column 'document': give one of 'onward trajectories export'."
            )
        columns = [name for name in _COLUMNS if name in opened.schema_arrow.names]
        for batch in opened.iter_batches(512, columns=columns):
            for row in batch.to_pylist():
                number += 1
                where = f"{file.name}, row {number}"
                reward = row.get("reward")
                yield (
                    where,
                    {
                        "trajectory": _object(where, row["document"]),
                        "reward": None if reward is None else _object(where, reward),
                    },
                )
    except pyarrow.ArrowInvalid:
        raise TrainingError("DATA", f"{file.name} is not a Parquet file: export it again.") from None


def _object(where: str, text: bytes | str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise TrainingError("DATA", f"{where}, is no JSON object: export the file again.")
    return value


def _check_suffix(name: str) -> None:
    if not name.endswith(SUFFIXES):
        raise TrainingError("DATA", f"{name[:80]!r} is neither {' nor '.join(SUFFIXES)}: give one of these.")


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _age(reward: Mapping[str, Any]) -> tuple[int, str]:
    metadata = reward.get("metadata")
    revision = metadata.get("revision") if isinstance(metadata, dict) else 0
    return (revision if isinstance(revision, int) else 0), str(reward.get("timestamp") or "")
