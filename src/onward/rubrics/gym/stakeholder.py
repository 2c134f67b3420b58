"""Stakeholder of a workflow: has a rubric in mind, answers by topic, and never shows the rubric itself."""

from __future__ import annotations

from onward.rubrics.evaluation import Evaluator
from onward.rubrics.gym.clarification import Question
from onward.rubrics.gym.files import DIMENSIONS
from onward.rubrics.gym.parts import StakeholderProfile
from onward.rubrics.gym.truth_files import GroundTruth
from onward.rubrics.language.free import StagedRubric

LEVELS = ("It does not matter to me.", "It matters a little.", "It matters a lot.")
"""The three answers to a question: at most log2(3) bits each."""
UNKNOWN = "I have no opinion on that topic."
REPEATED = "I have answered that already."
MUCH = 0.25
"""Share of the weight from which on a topic matters a lot."""


class Stakeholder:
    """Answers questions about its rubric by topic (``DIMENSIONS``). A repeated question learns nothing.

    ``generated_rubrics`` are those that the manager wrote for it. Use a new one for each episode.
    """

    def __init__(self, profile: StakeholderProfile, truth: GroundTruth | None = None) -> None:
        self.profile = profile
        self.generated_rubrics: list[Evaluator | StagedRubric] = []
        self._shares: dict[str, float] = dict.fromkeys(DIMENSIONS, 0.0)
        self._answered: set[str] = set()
        criteria = truth.every_criterion() if truth is not None else ()
        total = sum(one.weight for one in criteria)
        for one in criteria:
            self._shares[one.requirement.kind.dimension] += one.weight / total

    def answer(self, question: Question) -> str:
        """Returns one of ``LEVELS``; ``UNKNOWN`` or ``REPEATED`` for a question that has no answer."""
        topic = question.topic.strip().lower()
        if topic not in self._shares:
            return UNKNOWN
        if topic in self._answered:
            return REPEATED
        self._answered.add(topic)
        share = self._shares[topic]
        return LEVELS[2 if share >= MUCH else 1 if share > 0 else 0]
