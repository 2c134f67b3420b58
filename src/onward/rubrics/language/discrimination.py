"""Checks of a free rubric on examples: every rule reaches its maximum, and the rubric can fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onward.rubrics.language.criteria import InvalidRubric
from onward.rubrics.language.free import StagedRubric
from onward.rubrics.language.outcomes import CLOSE
from onward.rubrics.language.staged import RuleRunner, score_free


async def check_discrimination(
    rubric: StagedRubric, best: Any, others: Sequence[Any], runner: RuleRunner | None = None
) -> None:
    """Checks a rubric on an artefact that should have full marks and on ``others`` that should not.

    Raises InvalidRubric for a rule that has no score or less than its maximum on ``best``, and for a rubric
    that gives none of ``others`` a score below full marks.
    """
    if not others:
        raise InvalidRubric(
            f"{rubric.name!r} was to be checked without an artefact that should fail: give at least one."
        )
    result = await score_free(rubric, best, runner)
    for (stage, name), outcome in result.rules.items():
        where = f"The rule {name!r} of the stage {stage!r}"
        if outcome.raw is None:
            reason = outcome.error or f"it does not apply ({outcome.message or 'no reason'})"
            raise InvalidRubric(f"{where} fails on the best artefact: {reason}")
        if outcome.raw < outcome.max_score - CLOSE:
            raise InvalidRubric(
                f"{where} gives the best artefact {outcome.raw:g} of {outcome.max_score:g}: no artefact can "
                f"have full marks. Lower its weight or correct the rule."
            )
    scores = [(await score_free(rubric, artefact, runner)).normalized for artefact in others]
    if all(score is None for score in scores):
        raise InvalidRubric(
            f"{rubric.name!r} has no score for any of {len(others)} poor artefacts: correct the rule that "
            f"fails."
        )
    if not any(score is not None and score < 1 - CLOSE for score in scores):
        raise InvalidRubric(
            f"{rubric.name!r} cannot fail: all {len(others)} poor artefacts have full marks. Add a rule that "
            f"one of them breaks."
        )
