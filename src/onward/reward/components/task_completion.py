"""Task completion: 1 for success, 0.5 + 0.5·completion for a part, 0 otherwise (the seed's rule)."""

from __future__ import annotations

from onward.contracts import Trajectory
from onward.reward.components.base import Scored, ScoringContext, Unscored
from onward.reward.judgement import Judgement


def completion_score(judgement: Judgement) -> float:
    """The raw score in [0, 1]; efficiency is multiplied by it."""
    if judgement.success:
        return 1.0
    if judgement.status == "partial_completion":
        return 0.5 + 0.5 * judgement.completion
    return 0.0


class TaskCompletion:
    name = "task_completion"

    def score(self, trajectory: Trajectory, context: ScoringContext) -> Scored | Unscored:
        judgement = context.judgement
        if judgement.unknown:
            return Unscored("no_outcome", "recorded by the gateway, and nobody said how it ended")
        score = completion_score(judgement)
        return Scored(
            score=score,
            source="automated",
            reasoning=f"Score {score:.3f}: {judgement.why} (completion {judgement.completion:.2f}).",
            raw_data={
                "status": judgement.status,
                "completion": judgement.completion,
                "derived": judgement.derived,
                "unparsable": judgement.unparsable,
            },
            evidence=0.5 if judgement.derived else 1.0,
        )
