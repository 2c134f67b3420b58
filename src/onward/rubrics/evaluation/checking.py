"""Check of an evaluator or a free rubric on examples: criteria reach their maximum, and one can fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onward.rubrics.evaluation.engine import ValidationEngine
from onward.rubrics.evaluation.groups import groups_of
from onward.rubrics.evaluation.models import EvaluationError, Evaluator
from onward.rubrics.language.free import StagedRubric
from onward.rubrics.language.outcomes import CLOSE


async def check_evaluator(
    evaluator: Evaluator | StagedRubric,
    best: Any,
    others: Sequence[Any] = (),
    *,
    engine: ValidationEngine | None = None,
    context: Mapping[str, Any] | None = None,
) -> None:
    """Checks an evaluator on a workflow that should have full marks and on ``others`` that should not. For a
    free rubric, artefacts (JSON objects) may stand for workflows.

    Raises EvaluationError for a criterion that has no score or less than its maximum on ``best``, and for an
    evaluator that gives none of ``others`` a score below full marks. A criterion with a negative weight is a
    fault: it must have 0 on ``best``.
    """
    engine = engine or ValidationEngine(0)
    result = await engine.evaluate_timestep(best, 0, None, workflow_evaluators=[evaluator], context=context)
    (group,) = groups_of(None, [evaluator])
    faults = {id_ for id_, criterion in group.criteria() if criterion.share < 0}
    for one in result.criteria:
        if one.raw is None:
            reason = one.error or f"it does not apply ({one.message or 'no reason'})"
            raise EvaluationError(f"The criterion {one.id} fails on the best case: {reason}")
        if one.id in faults and one.raw > CLOSE:
            raise EvaluationError(
                f"The criterion {one.id} takes points from the best case: full marks cannot be reached. "
                f"Correct it."
            )
        if one.id not in faults and one.raw < one.max_score - CLOSE:
            raise EvaluationError(
                f"The criterion {one.id} gives the best case {one.raw:g} of {one.max_score:g}: full marks "
                f"cannot be reached. Lower its max_score or correct it."
            )
    total = result.weighted_preference_total
    if total is None or total < 1 - CLOSE:
        reason = next((one.error for one in result.evaluation_results if one.error), f"its total is {total}")
        raise EvaluationError(
            f"The evaluator {evaluator.name!r} has no full marks on the best case: {reason}"
        )
    totals = [
        (
            await engine.evaluate_timestep(other, 0, None, workflow_evaluators=[evaluator], context=context)
        ).weighted_preference_total
        for other in others
    ]
    if totals and all(total is None for total in totals):
        raise EvaluationError(
            f"The evaluator {evaluator.name!r} has no score for any of {len(totals)} poor cases: correct "
            f"the criterion that fails."
        )
    if totals and not any(total is not None and total < 1 - CLOSE for total in totals):
        raise EvaluationError(
            f"The evaluator {evaluator.name!r} cannot fail: all {len(totals)} poor cases have full "
            f"marks. Add a criterion that one of them breaks."
        )
