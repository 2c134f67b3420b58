"""Task completion: 1 for success, 0.5 + 0.5·completion for a part, 0 otherwise.

An outcome that was not reported, or that the results contradict, is derived instead. It scores a quarter at
most, and the reward marks it as derived.
"""

from __future__ import annotations

from typing import Any

from onward.contracts import Trajectory
from onward.reward.components.base import Scored, ScoringContext, Unscored
from onward.reward.measures.judgement import completion_score, evidence


class TaskCompletion:
    name = "task_completion"

    def score(self, trajectory: Trajectory, context: ScoringContext) -> Scored | Unscored:
        judgement = context.judgement
        if judgement.unknown:
            return Unscored("no_outcome", "recorded by the gateway, and nobody said how it ended")
        score = completion_score(judgement)
        raw_data: dict[str, Any] = {
            "status": judgement.status,
            "completion": judgement.completion,
            "derived": judgement.derived,
            "told_by": judgement.reported_by,
            "unparsable": judgement.unparsable,
        }
        if judgement.contradictions:
            raw_data |= {"told": judgement.reported, "contradictions": list(judgement.contradictions)}
        if judgement.corrected_at is not None:
            raw_data["corrected_at"] = judgement.corrected_at
        return Scored(
            score=score,
            source="automated",
            reasoning=f"Score {score:.3f}: {judgement.why} (completion {judgement.completion:.2f}).",
            raw_data=raw_data,
            evidence=evidence(judgement),
        )
