"""The rubrics of the settings, applied to trajectories.

A document is a free rubric. A family has tasks with a known truth. Checks are for a domain without any
program that judges: a rubric writer reads the task and weighs them, once for each task.

Invariant: what could not be checked is unknown, never zero; what a model has judged is named an opinion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from onward.children import Keeper
from onward.config import RewardSettings, RubricSource
from onward.contracts import Trajectory
from onward.errors import ConfigError, OnwardError
from onward.reward.components import RubricResult
from onward.reward.sandbox import Sandbox
from onward.rubrics.backends import ChatBackend, open_backend
from onward.rubrics.check import Check
from onward.rubrics.language import InvalidRubric
from onward.rubrics.language.code_rules import RULE_LIMITS
from onward.rubrics.language.criteria import LEAST_CRITERIA
from onward.rubrics.language.free import JudgeRule, StagedRubric, parse_free
from onward.rubrics.language.judging import Judge, JudgeError
from onward.rubrics.language.staged import RuleRunner, score_free
from onward.rubrics.tasks import CHECKS, RubricTask, describe, make_task
from onward.rubrics.tasks.checks import require_known
from onward.rubrics.tasks.family import family_of
from onward.rubrics.trajectories.document import FORM_CHECKS, missing_part, read_document
from onward.rubrics.trajectories.subject import Subject, subject_of
from onward.rubrics.trajectories.written import (
    RELEASED,
    WriterName,
    Writers,
    WriterSource,
    Writes,
)
from onward.rubrics.writer_process import WriterProcess

_CHECK = re.compile(r"([a-z_]+)(?:\(([^)]*)\))?")


class _Applied(Protocol):
    """One rubric of the settings."""

    async def result(self, subject: Subject) -> RubricResult | None: ...


class Rubrics:
    """Every rubric of the settings: the first that is about a trajectory scores it."""

    def __init__(
        self, applied: Sequence[tuple[frozenset[str], _Applied]], processes: Sequence[WriterProcess] = ()
    ) -> None:
        """``processes``: those of the rubric writers, which ``stop`` ends."""
        self._applied, self._processes = applied, processes

    @property
    def keepers(self) -> dict[str, Keeper]:
        """Name → keeper of each process of a rubric writer."""
        return {one.name: one.keeper for one in self._processes}

    async def stop(self) -> None:
        """Ends the processes of the rubric writers. A later trajectory starts its own again."""
        for one in self._processes:
            await one.stop()

    async def result(self, trajectory: Trajectory) -> RubricResult | None:
        """Returns the result of the first rubric that is about ``trajectory``; None if there is none. Raises
        EngineError if a model that a rubric needs is away."""
        subject = subject_of(trajectory)
        for kinds, one in self._applied:
            if not kinds or kinds & subject.kinds:
                found = await one.result(subject)
                if found is not None:
                    return found
        return None


def rubrics_of(
    settings: RewardSettings, released: WriterSource | None = None, *, logs: Path | None = None
) -> Rubrics:
    """Returns the rubrics of the settings, ready for use. ``released``: where the released writer is found;
    None refuses ``writer = "released"``. ``logs``: folder for the logs of writers' processes; None: they
    write none. Raises ConfigError for a rubric that cannot be used, and MissingExtraError without the part
    that its writer needs."""
    writers = Writers(released, logs)
    applied: list[tuple[frozenset[str], _Applied]] = []
    for name, source in settings.rubrics.items():
        try:
            applied.append((frozenset(source.task_types), _applied(name, source, writers)))
        except (ConfigError, InvalidRubric) as error:
            raise ConfigError(f"[reward.rubrics.{name}] cannot be used: {error}") from None
    return Rubrics(applied, writers.processes)


def needs_released(settings: RewardSettings) -> bool:
    """Returns whether a rubric of the settings is written by the released writer."""
    return any(source.writer == RELEASED for source in settings.rubrics.values())


def _applied(name: str, source: RubricSource, writers: Writers) -> _Applied:
    if source.document:
        return DocumentRubric(name, _read(source.document), _judge(source.judge))
    writer = writers.open(source.writer) if source.writer else None
    if source.family:
        family_of(source.family)
        return FamilyRubric(name, source.family, writer)
    return ChecksRubric(name, checks_named(source.checks), writer)


def _read(file: str) -> StagedRubric:
    try:
        return parse_free(Path(file).read_text())
    except OSError as error:
        raise ConfigError(f"the document {file} cannot be read ({error.strerror}).") from None


def _judge(name: str) -> Judge | None:
    if not name:
        return None
    backend = open_backend(name)
    if not isinstance(backend, ChatBackend):
        raise ConfigError(
            f"the judge {name!r} is no server: give openai:NAME, vllm:NAME@URL or sglang:NAME@URL."
        )
    return _ChatJudge(backend)


def checks_named(texts: Sequence[str]) -> tuple[Check, ...]:
    """Returns the checks of texts such as ``min_words(50)``. Raises ConfigError for an unknown one, and for
    one that needs the inputs of a task."""
    found = []
    for text in texts:
        match = _CHECK.fullmatch(text.strip())
        check = Check(match[1], match[2] or "") if match else Check(text)
        require_known(check)
        if check.name not in FORM_CHECKS:
            raise ConfigError(
                f"the check {check} compares an answer with the inputs of a known task: use one of "
                f"{', '.join(name for name in CHECKS if name in FORM_CHECKS)}."
            )
        found.append(check)
    different = sorted(set(found))
    if len(different) < LEAST_CRITERIA:
        raise ConfigError(
            f"{len(different)} different checks are given, and a rubric has three to seven: give more."
        )
    return tuple(different)


class _ChatJudge:
    """A chat backend as a judge: an answer that cannot be had is an error of the rule."""

    def __init__(self, backend: ChatBackend) -> None:
        self._backend = backend

    async def answer(self, prompt: str, *, model: str, seed: int) -> str:
        try:
            return await self._backend.answer(prompt, model=model, seed=seed)
        except OnwardError as error:
            raise JudgeError(str(error)) from None


class DocumentRubric:
    """A free rubric over the final answer and the files."""

    def __init__(self, name: str, rubric: StagedRubric, judge: Judge | None = None) -> None:
        self._name, self._rubric = name, rubric
        self._runner = RuleRunner(Sandbox(RULE_LIMITS), judge)

    async def result(self, subject: Subject) -> RubricResult | None:
        found = await score_free(self._rubric, subject.artefact(), self._runner)
        names = {key: f"{key[0]}: {key[1]}" for key in found.rules}
        unknown = tuple(names[key] for key, one in found.rules.items() if one.status == "error")
        if found.normalized is None:
            return RubricResult(0.0, unknown=unknown or (found.error,), rubric_id=self._name)
        scored = {key: one for key, one in found.rules.items() if one.normalized is not None}
        judged = {(s.name, r.name) for s in self._rubric.stages for r in s.rules if isinstance(r, JudgeRule)}
        total = self._rubric.max_total_score
        return RubricResult(
            score=found.normalized,
            criteria={names[key]: one.normalized or 0.0 for key, one in scored.items()},
            rubric_id=self._name,
            weights={names[key]: one.max_score / total for key, one in scored.items()},
            reasons={names[key]: one.message for key, one in scored.items() if one.message},
            opinions=tuple(names[key] for key in scored if key in judged),
        )


class FamilyRubric:
    """A family of tasks: the truth of the task, or a writer's rubric, over its checks."""

    def __init__(self, name: str, family: str, writer: Writes | None = None) -> None:
        self._name, self._family, self._writer = name, family, writer

    async def result(self, subject: Subject) -> RubricResult | None:
        family, _, seed = subject.task_id.partition("/")
        if family != self._family or not (seed.isascii() and seed.isdigit()):
            return None
        try:
            task = make_task(family, int(seed))
        except (ConfigError, ValueError):  # a seed outside of the splits: no task of the family
            return None
        weights, by = dict(zip(task.active, task.weights.tolist(), strict=True)), None
        if self._writer is not None:
            weights, by = await _written(self._writer, task)
        if not subject.answer:
            return _result(self._name, weights, dict.fromkeys(weights, False), {}, by)
        holds = dict(zip(task.active, task.bits(read_document(subject.answer)).tolist(), strict=True))
        return _result(self._name, weights, holds, {}, by)


class ChecksRubric:
    """Checks of the form of an answer, weighed by a writer for each task, or all alike."""

    def __init__(self, name: str, checks: tuple[Check, ...], writer: Writes | None = None) -> None:
        self._name, self._checks, self._writer = name, checks, writer

    async def result(self, subject: Subject) -> RubricResult | None:
        weights, by = dict.fromkeys(self._checks, 1.0 / len(self._checks)), None
        if self._writer is not None:
            nothing = np.zeros(len(self._checks))
            task = RubricTask("", 0, subject.instructions, self._checks, nothing, {}, ())
            weights, by = await _written(self._writer, task)
        holds, reasons = dict.fromkeys(weights, False), {}
        artefact = read_document(subject.answer)
        for check in weights:
            lacking = "final answer" if not subject.answer else missing_part(artefact, check.name)
            if lacking:
                reasons[check] = f"There is no {lacking}."
            else:
                holds[check] = _satisfied(check, artefact)
        return _result(self._name, weights, holds, reasons, by)


async def _written(writer: Writes, task: RubricTask) -> tuple[dict[Check, float], WriterName | None]:
    """Returns the weights of a rubric written for ``task``, and the version of its writer."""
    found = await writer.rubric(task)
    return dict(zip(found.rubric.checks, found.rubric.weights.tolist(), strict=True)), found.writer


def _satisfied(check: Check, artefact: object) -> bool:
    nothing: object = None
    try:
        return bool(CHECKS[check.name].holds(artefact, check.arg, nothing))  # pyright: ignore[reportArgumentType]
    except (LookupError, TypeError, ValueError, AttributeError):
        return False  # a part in another form satisfies no check that reads it


def _result(
    name: str,
    weights: Mapping[Check, float],
    holds: Mapping[Check, bool],
    reasons: Mapping[Check, str],
    by: WriterName | None = None,
) -> RubricResult:
    counted = {check: weight for check, weight in weights.items() if weight > 0}
    score = sum(weight * holds[check] for check, weight in counted.items())
    return RubricResult(
        score=min(1.0, max(0.0, float(score))),
        criteria={str(check): float(holds[check]) for check in counted},
        rubric_id=name,
        weights={str(check): weight for check, weight in counted.items()},
        reasons={str(check): reasons.get(check, describe(check)) for check in counted},
        writer={} if by is None else {"version": by.version, "digest": by.digest},
    )
