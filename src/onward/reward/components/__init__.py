"""Reward components, one file each. ``components_of`` builds those that the settings configure.

A training job reads one constant of one file, so each name is loaded on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.lazy import attributes

if TYPE_CHECKING:
    from onward.config import RewardSettings
    from onward.reward.components.accuracy import Accuracy
    from onward.reward.components.base import (
        Component,
        NotApplicable,
        Score,
        Scored,
        ScoringContext,
        Unscored,
    )
    from onward.reward.components.code_quality import CodeQuality
    from onward.reward.components.efficiency import Efficiency
    from onward.reward.components.rubric import Rubric, RubricEngine, RubricResult, RubricScore
    from onward.reward.components.safety import Safety
    from onward.reward.components.task_completion import TaskCompletion
    from onward.reward.components.user_feedback import UserFeedback

__all__ = [
    "Accuracy", "CodeQuality", "Component", "Efficiency", "NotApplicable", "Rubric", "RubricEngine",
    "RubricResult", "RubricScore", "Safety", "Score", "Scored", "ScoringContext", "TaskCompletion",
    "Unscored", "UserFeedback", "components_of",
]  # fmt: skip
__getattr__ = attributes(
    __name__,
    {
        "onward.reward.components.accuracy": "Accuracy",
        "onward.reward.components.base": "Component NotApplicable Score Scored ScoringContext Unscored",
        "onward.reward.components.code_quality": "CodeQuality",
        "onward.reward.components.efficiency": "Efficiency",
        "onward.reward.components.rubric": "Rubric RubricEngine RubricResult RubricScore",
        "onward.reward.components.safety": "Safety",
        "onward.reward.components.task_completion": "TaskCompletion",
        "onward.reward.components.user_feedback": "UserFeedback",
    },
)


def components_of(settings: RewardSettings) -> tuple[Component, ...]:
    """Returns the built-in components, then the user's own. Raises ConfigError for one of these that is
    unusable.

    All built-in components are scored and shown, also those without a weight. The exception is ``rubric``,
    which is included if it has a weight, or if the settings name a rubric.
    """
    from onward.reward.components.accuracy import Accuracy
    from onward.reward.components.code_quality import CodeQuality
    from onward.reward.components.custom import load
    from onward.reward.components.efficiency import Efficiency
    from onward.reward.components.rubric import RubricScore
    from onward.reward.components.safety import Safety
    from onward.reward.components.task_completion import TaskCompletion
    from onward.reward.components.user_feedback import UserFeedback

    built_in: list[Component] = [
        TaskCompletion(),
        Efficiency(),
        CodeQuality(),
        UserFeedback(exclude_default=settings.feedback_default == "exclude"),
        Safety(),
        Accuracy(),
    ]
    if settings.rubric > 0.0 or settings.rubrics:
        built_in.append(RubricScore())
    return (*built_in, *(load(name, custom) for name, custom in settings.custom.items()))
