"""Phases of an episode: questions have a limit, answers have few bits, both rubrics score one run."""

from __future__ import annotations

from typing import Any

import pytest

from onward.rubrics.evaluation import Evaluator, ValidationEngine
from onward.rubrics.gym.actions import AskClarificationQuestions, GeneratePreferenceRubric
from onward.rubrics.gym.clarification import CommunicationService, Question
from onward.rubrics.gym.files import DIMENSIONS
from onward.rubrics.gym.loading import load_workflow, workflow_names
from onward.rubrics.gym.parts import WorkflowError
from onward.rubrics.gym.phases import (
    DualEvaluationPhase,
    ExecutionPhase,
    InitialRubricGenerationPhase,
    RubricObservation,
)
from onward.rubrics.gym.stakeholder import LEVELS, REPEATED, UNKNOWN, Stakeholder
from onward.rubrics.gym.truth_files import criterion_of, truth_of
from onward.rubrics.gym.workers import Worker, requirements


def questions(*topics: str) -> tuple[Question, ...]:
    return tuple(Question(topic=one) for one in topics)


class Asker:
    """Asks ``turns`` times, then hands ``rubric`` over."""

    def __init__(self, turns: int, rubric: Any = None) -> None:
        self.turns, self.rubric = turns, rubric or Evaluator(name="mine")
        self.seen: list[RubricObservation] = []

    async def take_action(self, observation: RubricObservation) -> Any:
        self.seen.append(observation)
        if len(self.seen) <= self.turns:
            return AskClarificationQuestions(questions=questions(DIMENSIONS[len(self.seen) - 1]))
        return GeneratePreferenceRubric(rubric=self.rubric)


def phase(manager: Asker, max_turns: int = 3, name: str = "product_recall") -> InitialRubricGenerationPhase:
    stakeholder = Stakeholder(load_workflow(name).owner, truth_of(name))
    return InitialRubricGenerationPhase(
        manager=manager, stakeholder=stakeholder, communication_service=CommunicationService(0.05),
        max_turns=max_turns,
    )  # fmt: skip


async def test_questions_are_logged_and_priced_one_by_one() -> None:
    manager = Asker(2)
    first = phase(manager)
    rubric = await first.run(load_workflow("product_recall"))
    assert first.stakeholder.generated_rubrics == [rubric]
    assert [(turn.index, turn.topic) for turn in first.conversation.turns] == [
        (1, "accuracy"), (2, "completeness"),
    ]  # fmt: skip
    # Weights 5 (completeness), 3 (accuracy), 2 (compliance) of 10: both topics are above a quarter.
    assert [turn.answer for turn in first.conversation.turns] == [LEVELS[2], LEVELS[2]]
    assert first.conversation.cost == pytest.approx(0.10)
    assert [one.turns_left for one in manager.seen] == [3, 2, 1]
    assert [len(one.turns) for one in manager.seen] == [0, 1, 2]


async def test_an_endless_loop_of_questions_is_a_clear_error() -> None:
    with pytest.raises(WorkflowError, match="asks in turn 4, and 3 turns are allowed: it has to write"):
        await phase(Asker(99)).run(load_workflow("product_recall"))
    with pytest.raises(WorkflowError, match="asks in turn 1, and 0 turns are allowed"):
        await phase(Asker(1), max_turns=0).run(load_workflow("product_recall"))


async def test_what_is_no_rubric_is_refused_and_not_stored() -> None:
    broken = phase(Asker(0, rubric={"criteria": []}))
    with pytest.raises(WorkflowError, match="handed over a dict as its rubric"):
        await broken.run(load_workflow("product_recall"))
    assert broken.stakeholder.generated_rubrics == []


def test_limits_of_a_conversation() -> None:
    service = CommunicationService()
    with pytest.raises(WorkflowError, match="4 questions: ask at least 1 and at most 3"):
        service.open(3).ask(questions("a", "b", "c", "d"), Stakeholder(load_workflow("ediscovery").owner))
    with pytest.raises(WorkflowError, match="max_turns is -1"):
        service.open(-1)
    with pytest.raises(WorkflowError, match="price of a question is -1"):
        CommunicationService(-1)
    one, two = service.open(1), service.open(1)
    one.ask(questions("accuracy"), Stakeholder(load_workflow("ediscovery").owner))
    assert (one.turns_left, two.turns_left) == (0, 1)


@pytest.mark.parametrize("name", workflow_names())
def test_an_answer_is_one_of_three_and_shows_nothing_of_the_rubric(name: str) -> None:
    truth = truth_of(name)
    stakeholder = Stakeholder(load_workflow(name).owner, truth)
    first = [stakeholder.answer(Question(topic=topic)) for topic in DIMENSIONS]
    assert set(first) <= set(LEVELS)
    assert LEVELS[0] in first  # no rubric cares about everything
    assert {stakeholder.answer(Question(topic=topic)) for topic in DIMENSIONS} == {REPEATED}
    assert stakeholder.answer(Question(topic="What criteria should I use?")) == UNKNOWN
    said = " ".join(first).lower()
    assert not any(one.says.lower() in said or one.file in said for one in truth.every_criterion())


async def test_both_rubrics_score_the_same_run_and_a_second_run_starts_anew() -> None:
    workflow = load_workflow("product_recall")
    every = requirements(workflow)
    ours = Evaluator(name="ours", rubrics=(criterion_of(every[0], 1.0), criterion_of(every[1], 3.0)))
    truth = truth_of("product_recall").evaluator()
    dual = DualEvaluationPhase(ValidationEngine(seed=3))
    run = ExecutionPhase(Worker(1.0, decided={every[0]: False})).run(workflow)
    assert run.complete
    scores = await dual.run(workflow, ours, truth)
    assert (scores.synthetic, scores.truth) == (0.75, 1.0)
    again = ExecutionPhase(Worker(0.0)).run(workflow)
    assert again.timesteps == run.timesteps
    scores = await dual.run(workflow, ours, truth)
    assert (scores.synthetic, scores.truth) == (0.0, 0.0)
