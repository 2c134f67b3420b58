"""The user's own components: found by entry point or by ``module:function``, and tried before they are used.

The object found may be a component (with ``score``), a class or function without arguments that makes one, or
a function ``(trajectory, context)`` that scores. The component's name is its name in the settings. A wrong
answer at run time makes a trajectory unscored, never zero, and stops nothing.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from importlib import metadata
from typing import Any, get_args

from onward import own_code
from onward.config import CustomComponent
from onward.contracts import Trajectory, canonical_json, validate
from onward.contracts.examples import TRAJECTORY
from onward.errors import ConfigError, ContractError
from onward.reward.components.base import NotApplicable, Score, Scored, ScoringContext, Source, Unscored
from onward.reward.measures.baselines import Baselines
from onward.reward.measures.judgement import judge
from onward.telemetry import logs

GROUP = "onward.reward_components"
"""Entry point group in which a distribution offers components."""
BROKEN = "component_error"
MAX_FACTS = 64 << 10
"""Maximum bytes of reasoning and raw data, since they travel in every message."""
MAX_REPORTED = 100
_SOURCES: tuple[str, ...] = get_args(Source)
_log = logs.get("rewarder")


class GuardedComponent:
    """Wraps one of the user's own components: checks its answers and catches its exceptions."""

    def __init__(self, name: str, score: Callable[[Trajectory, ScoringContext], Any]) -> None:
        self.name = name
        self._score = score
        self._reported: set[str] = set()
        """Sentences of the log: one fault is reported once, however many trajectories meet it."""

    def score(self, trajectory: Trajectory, context: ScoringContext) -> Score:
        try:
            answer = self._score(trajectory, context)
        except Exception as error:  # user code may raise anything
            return self._broken(type(error).__name__, own_code.sentence(error, text=False))
        fault = _fault(answer)
        return self._broken(fault, f"gave {fault}: {_EXPECTED}") if fault else answer

    def _broken(self, fault: str, sentence: str) -> Unscored:
        if sentence not in self._reported and len(self._reported) < MAX_REPORTED:
            self._reported.add(sentence)
            _log.error(
                "a component broke, its trajectories stay unscored", component=self.name, error=sentence
            )
        return Unscored(BROKEN, fault)


def load(name: str, custom: CustomComponent) -> GuardedComponent:
    """Loads the component ``name`` and tries it on the contract's example.

    Raises ConfigError when it cannot be found, has no way to score, or returns an invalid answer. A component
    that raises on the example is accepted, since it may need data that the example lacks.
    """
    found, where = _find(name, custom.source)
    score = _scorer(name, found, where)
    example = validate(TRAJECTORY, Trajectory)
    try:
        answer = score(example, ScoringContext(judge(example), Baselines()))
    except Exception as error:
        _log.warning("a component broke on the example", component=name, error=own_code.sentence(error))
    else:
        fault = _fault(answer)
        if fault:
            raise ConfigError(f"Reward component {name!r} ({where}) gave {fault}: {_EXPECTED}.")
    return GuardedComponent(name, score)


_EXPECTED = "it must return Scored with a finite score from 0 to 1, NotApplicable or Unscored"


def _find(name: str, source: str) -> tuple[Any, str]:
    if not source:
        entries = sorted(metadata.entry_points(group=GROUP, name=name), key=lambda entry: entry.value)
        if not entries:
            known = sorted({entry.name for entry in metadata.entry_points(group=GROUP)})
            offered = ", ".join(known) or "none"
            raise ConfigError(
                f"Reward component {name!r} has no source, and no installed distribution offers it as an "
                f"entry point in {GROUP} (offered: {offered}): give source = 'module:function' or install it."
            )
        if len({entry.value for entry in entries}) > 1:
            values = ", ".join(entry.value for entry in entries)
            raise ConfigError(
                f"Reward component {name!r} is offered more than once ({values}): give a source."
            )
        source = entries[0].value
    try:
        return own_code.load(source), source
    except ConfigError as error:
        raise ConfigError(f"Reward component {name!r}: {error}") from error


def _scorer(name: str, found: Any, where: str) -> Callable[[Trajectory, ScoringContext], Any]:
    if inspect.isclass(found) or (callable(found) and not hasattr(found, "score") and _takes(found, 0)):
        try:
            found = found()
        except Exception as error:
            raise ConfigError(
                f"Reward component {name!r} ({where}) cannot be made ({type(error).__name__}): a class or a "
                "function that makes a component takes no arguments."
            ) from error
    score = getattr(found, "score", found)
    if not callable(score) or not _takes(score, 2):
        raise ConfigError(
            f"Reward component {name!r} ({where}) cannot score: expected score(trajectory, context), as a "
            "function or on an object."
        )
    return score


def _takes(call: Callable[..., Any], count: int) -> bool:
    """Checks whether ``call`` accepts ``count`` positional arguments."""
    try:
        inspect.signature(call).bind(*[None] * count)
    except (TypeError, ValueError):
        return False
    return True


def _fault(answer: Any) -> str:
    """Returns the fault of an answer; empty for a valid one."""
    if isinstance(answer, (NotApplicable, Unscored)):
        return ""
    if not isinstance(answer, Scored):
        return f"a {type(answer).__name__}"
    number = isinstance(answer.score, (int, float)) and not isinstance(answer.score, bool)
    if not number or not math.isfinite(answer.score) or not 0.0 <= answer.score <= 1.0:
        return "a score that is not a finite number from 0 to 1"
    if answer.source not in _SOURCES:
        return f"the source {str(answer.source)[:40]!r}, which is none of {', '.join(_SOURCES)}"
    if not isinstance(answer.evidence, (int, float)) or not 0.0 <= answer.evidence <= 1.0:
        return "an evidence that is not from 0 to 1"
    try:
        size = len(canonical_json({"reasoning": answer.reasoning, "raw_data": dict(answer.raw_data)}))
    except (ContractError, TypeError, ValueError):
        return "facts that JSON cannot hold"
    return "" if size <= MAX_FACTS else f"more than {MAX_FACTS} bytes of facts"
