"""Checks of a free rubric on examples: every rule reaches its maximum, and the rubric can fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onward.rubrics.language.criteria import InvalidRubric
from onward.rubrics.language.free import StagedRubric
from onward.rubrics.language.staged import RuleRunner, score_free


async def check_discrimination(
    rubric: StagedRubric, best: Any, others: Sequence[Any], runner: RuleRunner | None = None
) -> None:
    """Checks a rubric on an artefact that should have full marks and on ``others`` that should not.

    Raises InvalidRubric for a rule that fails or does not reach its maximum on ``best``, and for a rubric
    that gives each of ``others`` full marks as well.
    """
    if not others:
        raise InvalidRubric(
            f"{rubric.name!r} was to be checked without an artefact that should fail: give at least one."
        )
    result = await score_free(rubric, best, runner)
    for (stage, name), outcome in result.rules.items():
        where = f"The rule {name!r} of the stage {stage!r}"
        if outcome.status == "error":
            raise InvalidRubric(f"{where} fails on the best artefact: {outcome.error}")
        if outcome.raw is not None and outcome.raw < outcome.max_score:
            raise InvalidRubric(
                f"{where} gives the best artefact {outcome.raw:g} of {outcome.max_score:g}: no artefact can "
                f"have full marks. Lower its weight or correct the rule."
            )
    scores = [(await score_free(rubric, artefact, runner)).normalized for artefact in others]
    if all(score is not None and score >= 1 for score in scores):
        raise InvalidRubric(
            f"{rubric.name!r} cannot fail: all {len(others)} poor artefacts have full marks. Add a rule that "
            f"one of them breaks."
        )
