"""Reward components, one file each. ``code_quality`` and others have a weight but no file yet: a
component that is not here is treated like one that does not apply.
"""

from __future__ import annotations

from onward.config import RewardSettings
from onward.reward.components.base import (
    Component,
    NotApplicable,
    Score,
    Scored,
    ScoringContext,
    Unscored,
)
from onward.reward.components.efficiency import Efficiency
from onward.reward.components.task_completion import TaskCompletion
from onward.reward.components.user_feedback import UserFeedback

__all__ = [
    "Component",
    "Efficiency",
    "NotApplicable",
    "Score",
    "Scored",
    "ScoringContext",
    "TaskCompletion",
    "Unscored",
    "UserFeedback",
    "components_of",
]


def components_of(settings: RewardSettings) -> tuple[Component, ...]:
    """The components that ``settings`` ask for. Raises ConfigError for one that cannot be used."""
    return (
        TaskCompletion(),
        Efficiency(),
        UserFeedback(exclude_default=settings.feedback_default == "exclude"),
    )
