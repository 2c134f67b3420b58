"""Check of an evaluator on examples: every criterion reaches its maximum on a best case, and one can fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onward.rubrics.evaluation.engine import ValidationEngine
from onward.rubrics.evaluation.models import EvaluationError, Evaluator
from onward.rubrics.language.free import StagedRubric


async def check_evaluator(
    evaluator: Evaluator | StagedRubric,
    best: Any,
    others: Sequence[Any] = (),
    *,
    engine: ValidationEngine | None = None,
    context: Mapping[str, Any] | None = None,
) -> None:
    """Checks an evaluator on a workflow that should have full marks and on ``others`` that should not.

    Raises EvaluationError for a criterion that cannot be evaluated or does not reach its maximum on ``best``,
    and for an evaluator that gives every one of ``others`` full marks.
    """
    engine = engine or ValidationEngine(0)
    result = await engine.evaluate_timestep(best, 0, None, workflow_evaluators=[evaluator], context=context)
    for one in result.criteria:
        if one.status == "error":
            raise EvaluationError(f"The criterion {one.id} fails on the best case: {one.error}")
        if one.raw is not None and one.raw < one.max_score:
            raise EvaluationError(
                f"The criterion {one.id} gives the best case {one.raw:g} of {one.max_score:g}: full marks "
                f"cannot be reached. Lower its max_score or correct it."
            )
    totals = [
        (
            await engine.evaluate_timestep(other, 0, None, workflow_evaluators=[evaluator], context=context)
        ).weighted_preference_total
        for other in others
    ]
    if totals and all(total is not None and total >= 1 for total in totals):
        raise EvaluationError(
            f"The evaluator {evaluator.name!r} cannot fail: all {len(totals)} poor workflows have full "
            f"marks. Add a criterion that one of them breaks."
        )
