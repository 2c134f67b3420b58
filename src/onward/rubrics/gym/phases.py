"""The three phases of an episode: a rubric is written, the workflow is run, both rubrics score its files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from onward.rubrics.evaluation import Evaluator, ValidationEngine
from onward.rubrics.gym.actions import AskClarificationQuestions, GeneratePreferenceRubric
from onward.rubrics.gym.clarification import CommunicationService, Conversation, ConversationTurn
from onward.rubrics.gym.files import DIMENSIONS, Requirement
from onward.rubrics.gym.parts import Part, StakeholderProfile, WorkflowError
from onward.rubrics.gym.simulation import Manager, Run, Work, simulate
from onward.rubrics.gym.stakeholder import Stakeholder
from onward.rubrics.gym.workers import Worker, requirements
from onward.rubrics.gym.workflow import Workflow
from onward.rubrics.language.free import StagedRubric

AnyRubric = Evaluator | StagedRubric
RubricAction = AskClarificationQuestions | GeneratePreferenceRubric


class RubricObservation(Part):
    """Facts that the writer of a rubric sees: the workflow, what can be checked, and the answers so far."""

    workflow: str
    goal: str
    stakeholder: StakeholderProfile
    requirements: tuple[Requirement, ...]
    """Checks of the output files: the criteria that a rubric may use."""
    topics: tuple[str, ...] = DIMENSIONS
    turns: tuple[ConversationTurn, ...] = ()
    turns_left: int = 0


class RubricManager(Protocol):
    """Asks, and then writes a rubric."""

    async def take_action(self, observation: RubricObservation) -> RubricAction: ...


class InitialRubricGenerationPhase:
    """First phase: the manager asks at most ``max_turns`` times, then hands a rubric over.

    The rubric is appended to ``stakeholder.generated_rubrics``; ``conversation`` has the log.
    """

    def __init__(
        self,
        manager: RubricManager,
        stakeholder: Stakeholder,
        communication_service: CommunicationService,
        max_turns: int = 3,
    ) -> None:
        self.manager, self.stakeholder = manager, stakeholder
        self.conversation: Conversation = communication_service.open(max_turns)

    async def run(self, workflow: Workflow) -> AnyRubric:
        """Runs the phase and returns the rubric.

        Raises WorkflowError if the manager asks after its last turn, or hands over what is no rubric.
        """
        checks = requirements(workflow)
        while True:
            action = await self.manager.take_action(RubricObservation(
                workflow=workflow.name, goal=workflow.goal, stakeholder=self.stakeholder.profile,
                requirements=checks, turns=tuple(self.conversation.turns),
                turns_left=self.conversation.turns_left,
            ))  # fmt: skip
            if isinstance(action, AskClarificationQuestions):
                self.conversation.ask(action.questions, self.stakeholder)
                continue
            rubric = action.rubric
            if not isinstance(rubric, Evaluator | StagedRubric):
                raise WorkflowError(
                    f"The manager handed over a {type(rubric).__name__} as its rubric: "
                    "give an Evaluator or a StagedRubric."
                )
            self.stakeholder.generated_rubrics.append(rubric)
            return rubric


class ExecutionPhase:
    """Second phase: workers do the tasks and write the files. A workflow that was run before starts anew."""

    def __init__(self, worker: Work | None = None, manager: Manager | None = None) -> None:
        self.worker, self.manager = worker or Worker(), manager

    def run(self, workflow: Workflow) -> Run:
        """Runs the workflow from its beginning."""
        workflow.restart()
        return simulate(workflow, self.worker, self.manager)


@dataclass(frozen=True)
class DualScores:
    """Scores of the same files by two rubrics, from 0 to 1; None where a rubric has no score."""

    synthetic: float | None
    truth: float | None


class DualEvaluationPhase:
    """Third phase: the written rubric and the ground truth score the same files."""

    def __init__(self, engine: ValidationEngine) -> None:
        self.engine = engine

    async def run(self, workflow: Workflow, synthetic: AnyRubric, truth: AnyRubric) -> DualScores:
        """Returns both scores."""
        scores = [
            (await self.engine.evaluate_timestep(workflow, 0, None, workflow_evaluators=[rubric]))
            .weighted_preference_total
            for rubric in (synthetic, truth)
        ]  # fmt: skip
        return DualScores(*scores)
