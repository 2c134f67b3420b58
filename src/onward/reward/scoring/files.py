"""Scores the trajectories of a file: no service, no history, the same raw scores as in the service.

Invariants: the input is raw, so it is redacted and enriched first, exactly as in the collector, and
components see only the result. Errors name a place in the file, never its content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePath
from typing import Any, BinaryIO

from onward.capture.claim_check import BODY_BYTES
from onward.capture.collecting.trajectory_row import enrich
from onward.config import RewardSettings
from onward.contracts import (
    MAX_DEPTH,
    Trajectory,
    canonical_json,
    decode,
    decode_document,
    to_document,
    validate,
)
from onward.errors import ConfigError, ContractError, RedactionError
from onward.redaction import Redactor
from onward.reward.code.report import CodeReport
from onward.reward.components import Component, RubricResult, Unscored, components_of
from onward.reward.scoring.score import score
from onward.reward.scoring.state import State

Analyse = Callable[[Trajectory], CodeReport | Unscored | None]
ByRubric = Callable[[Trajectory], RubricResult | Unscored | None]
_LINES = frozenset((".jsonl", ".ndjson"))
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Answer:
    """Result for one document of the file."""

    place: str
    """``line 3`` of JSON lines; ``item 3`` of a list, counted from 1."""
    document: dict[str, Any] | None
    """``{trajectory_id, components: {name: {score, weight, reasoning}}, total_reward}``, or
    ``{trajectory_id, unscored: {reason, detail}}``; None where the place holds no trajectory."""
    error: str = ""


def score_file(
    source: BinaryIO,
    name: str,
    settings: RewardSettings,
    redactor: Redactor,
    analyse: Analyse | None = None,
    by_rubric: ByRubric | None = None,
) -> Iterator[Answer]:
    """Scores one trajectory, a JSON list of them, or JSON lines, each by itself.

    The suffix of ``name`` decides whether it is JSON lines; else the content does. ``analyse`` examines the
    code of a trajectory; without it code is judged by the results that the trajectory carries. ``by_rubric``
    scores it by the rubrics of the settings. Raises ConfigError for any other content.
    """
    components = components_of(settings)
    for place, document in _documents(source, name):
        if isinstance(document, ContractError):
            yield Answer(place, None, str(document))
            continue
        try:
            yield Answer(
                place, score_document(document, settings, redactor, components, analyse, by_rubric=by_rubric)
            )
        except (ContractError, RedactionError) as error:
            yield Answer(place, None, str(error))


def score_document(
    document: Any,
    settings: RewardSettings,
    redactor: Redactor,
    components: Iterable[Component],
    analyse: Analyse | None = None,
    state: State | None = None,
    by_rubric: ByRubric | None = None,
) -> dict[str, Any]:
    """Scores one parsed trajectory. Weights are those after rescaling, and the total is the weighted sum of
    the raw scores. With ``state``, of earlier trajectories, to which this one is added, the normalised total
    stands beside it. Raises ContractError and RedactionError."""
    if not isinstance(document, dict):
        raise ContractError("schema", "It is no trajectory but another JSON value: give one object for each.")
    raw = to_document(validate(document, Trajectory))
    clean = enrich(redactor.trajectory(raw).document)
    trajectory = decode(canonical_json(clean), Trajectory, max_bytes=2 * BODY_BYTES)
    try:
        answer = score(
            trajectory,
            State(settings.window) if state is None else state,
            settings=settings,
            timestamp=trajectory.end_timestamp,
            components=tuple(components),
            code=analyse(trajectory) if analyse else None,
            rubric=by_rubric(trajectory) if by_rubric else None,
        )
    except ContractError:
        raise
    except Exception as error:  # as in the service: a broken component leaves this one unscored
        answer = Unscored("component_error", type(error).__name__)
    if isinstance(answer, Unscored):
        unscored = {"reason": answer.reason, "detail": answer.detail}
        return {"trajectory_id": trajectory.trajectory_id, "unscored": unscored}
    return {
        "trajectory_id": answer.trajectory_id,
        "components": {
            name: {"score": part.score, "weight": part.weight, "reasoning": part.reasoning}
            for name, part in answer.reward_components.items()
        },
        "total_reward": answer.metadata.raw_total,
        **({} if state is None else {"normalized_reward": answer.total_reward}),
    }


def _documents(source: BinaryIO, name: str) -> Iterator[tuple[str, Any]]:
    """Yields place and parsed document, or the ContractError that explains why there is none."""
    lines = _lines(source, name)
    head: list[bytes] = []
    for line in lines:
        head.append(line)
        if line.strip(_BOM + b" \t\r\n"):
            break
    suffix = PurePath(name).suffix.lower()
    if suffix in _LINES or (suffix != ".json" and head and _is_json(head[-1])):
        yield from _by_line(chain(head, lines))
        return
    whole = b"".join(chain(head, _limited(lines, name)))
    if not whole.strip(_BOM + b" \t\r\n"):
        return
    try:
        found = decode_document(whole.removeprefix(_BOM), max_bytes=len(whole), max_depth=MAX_DEPTH + 1)
    except ContractError as error:
        parts = whole.splitlines(keepends=True)
        if not any(_is_json(part) for part in parts if part.startswith(b"{")):
            raise ConfigError(
                f"{name} is no trajectory, JSON list or JSON lines: {error} "
                "Give what the recorder publishes, one object a line."
            ) from None
        yield from _by_line(parts)
        return
    yield from _items(found)


def _items(found: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(found, list):
        for number, item in enumerate(found, start=1):
            yield f"item {number}", item
    else:
        yield "item 1", found


def _by_line(lines: Iterable[bytes]) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix(_BOM).strip()
        if not text:
            continue
        try:
            found = decode_document(text, max_bytes=BODY_BYTES, max_depth=MAX_DEPTH + 1)
        except ContractError as error:
            yield f"line {number}", error
            continue
        for place, item in _items(found):
            yield (f"line {number}, {place}" if isinstance(found, list) else f"line {number}"), item


def _lines(source: BinaryIO, name: str) -> Iterator[bytes]:
    number = 0
    while line := source.readline(BODY_BYTES + 1):
        number += 1
        if len(line) > BODY_BYTES:
            raise ConfigError(
                f"Line {number} of {name} has more than {BODY_BYTES >> 20} MiB: give shorter ones."
            )
        yield line


def _limited(lines: Iterable[bytes], name: str) -> Iterator[bytes]:
    size = 0
    for line in lines:
        size += len(line)
        if size > BODY_BYTES:
            raise ConfigError(
                f"{name} has more than {BODY_BYTES >> 20} MiB and is read whole: give JSON lines instead."
            )
        yield line


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line.removeprefix(_BOM))
    except (ValueError, RecursionError):
        return False
    return True
