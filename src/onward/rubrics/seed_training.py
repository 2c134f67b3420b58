"""Training of the manager by the plain loop: write a rubric, run the workflow, compare two scores, update.

The reward is minus the distance of the two scores on the same files. A rubric may match the truth for a
wrong reason, so several runs of different quality are scored; ``onward.rubrics.reward`` has the form that
excludes the known ways to cheat.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from onward.rubrics.decomposition import RubricDecompositionManagerAgent
from onward.rubrics.evaluation import Evaluator, ValidationEngine
from onward.rubrics.evaluation.aggregation import aggregate
from onward.rubrics.gym.clarification import CommunicationService
from onward.rubrics.gym.loading import load_workflow, workflow_names
from onward.rubrics.gym.parts import WorkflowError
from onward.rubrics.gym.phases import (
    AnyRubric,
    DualEvaluationPhase,
    ExecutionPhase,
    InitialRubricGenerationPhase,
)
from onward.rubrics.gym.simulation import Work
from onward.rubrics.gym.softmax_policy import Decision, SoftmaxPolicy
from onward.rubrics.gym.stakeholder import Stakeholder
from onward.rubrics.gym.truth_files import TRUTH, criterion_of, truth_of
from onward.rubrics.gym.workers import Worker, requirements
from onward.rubrics.gym.workflow import Workflow
from onward.rubrics.language import LEAST_CRITERIA, MOST_CRITERIA
from onward.rubrics.reward import spec_total

SKILLS = (0.4, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.9)
"""Quality of the runs that an episode scores. Each has faults of its own."""
NO_RUBRIC = -1.0
"""Reward of a rubric without a score: as bad as the largest distance."""


@dataclass(frozen=True)
class RubricRewardFunction:
    """Reward of a rubric: minus the distance of the two scores, plus three optional terms.

    With the weights at 0, the default, it is the plain form: −|synthetic − truth|, or its square.
    """

    distance: Literal["absolute", "squared"] = "absolute"
    quality_weight: float = 0.0
    """Reward of 3 to 7 criteria; each one fewer or more takes a quarter of it."""
    question_price: float = 0.0
    """Cost of each question."""
    coverage_weight: float = 0.0
    """Reward of the share of the truth's criteria that the rubric has."""

    def compute_reward(
        self,
        synthetic: float | None,
        truth: float | None,
        *,
        criteria: int = 3,
        questions: int = 0,
        coverage: float = 0.0,
    ) -> float:
        """Returns the reward; ``NO_RUBRIC`` if a score is missing."""
        outside = max(0, LEAST_CRITERIA - criteria, criteria - MOST_CRITERIA)
        total = spec_total(
            synthetic, truth, distance=self.distance,
            quality=self.quality_weight * max(0.0, 1 - outside / 4),
            efficiency=-self.question_price * questions, coverage=self.coverage_weight * coverage,
        )  # fmt: skip
        return NO_RUBRIC if total is None else total


AlignmentReward = RubricRewardFunction


@dataclass(frozen=True)
class Rollout:
    """One rubric with its scores on each run, its reward, and the stored decisions."""

    workflow: str
    rubric: AnyRubric
    synthetic: tuple[float | None, ...]
    truth: tuple[float | None, ...]
    reward: float
    questions: int
    decisions: tuple[Decision, ...]

    @property
    def action_logprobs(self) -> np.ndarray:
        """Log-probabilities of the manager's decisions, as they were drawn."""
        return np.array([one.logprob for one in self.decisions])


@dataclass(frozen=True)
class EpisodeSummary:
    """Figures of an episode: means over its rubrics and runs, before the update."""

    workflow: str
    synthetic: float
    truth: float
    reward: float
    questions: float

    @property
    def line(self) -> str:
        """Line of the episode in the training's output."""
        return f"Synthetic: {self.synthetic:.3f}, GT: {self.truth:.3f}, Reward: {self.reward:.3f}"


@dataclass(frozen=True)
class LoopSettings:
    """Settings of the loop: ``rounds`` updates on the runs of an episode, with ``group`` rubrics each."""

    group: int = 32
    rounds: int = 8
    rate: float = 4.0
    skills: tuple[float, ...] = SKILLS
    max_turns: int = 3
    seed: int = 42
    reward: RubricRewardFunction = field(default_factory=RubricRewardFunction)


def print_line(line: str) -> None:
    """Prints a line to standard output."""
    sys.stdout.write(line + "\n")


def load_training_workflows(count: int | None = None, seed: int = 42) -> list[Workflow]:
    """Returns the workflows of the catalogue that have a ground-truth rubric, the simple ones first."""
    order = {"simple": 0, "medium": 1, "complex": 2}
    known = [name for name in workflow_names() if (TRUTH / f"{name}.yaml").is_file()]
    known.sort(key=lambda name: (order[truth_of(name).level], name))
    return [load_workflow(name, seed) for name in known[:count]]


def load_ground_truth_rubrics() -> dict[str, AnyRubric]:
    """Returns the ground-truth rubric of each workflow, by its name, ready for ``ValidationEngine``."""
    return {name: truth_of(name).evaluator() for name in workflow_names()}


def stakeholder_of(workflow: Workflow) -> Stakeholder:
    """Returns a new stakeholder for an episode. It knows the ground truth of a workflow of the catalogue."""
    known = (TRUTH / f"{workflow.name}.yaml").is_file()
    return Stakeholder(workflow.owner, truth_of(workflow.name) if known else None)


async def draft(
    workflow: Workflow, manager: RubricDecompositionManagerAgent, max_turns: int
) -> tuple[AnyRubric, int]:
    """Runs the first phase and returns the rubric and the number of questions."""
    stakeholder = stakeholder_of(workflow)
    phase = InitialRubricGenerationPhase(
        manager=manager, stakeholder=stakeholder, communication_service=CommunicationService(),
        max_turns=max_turns,
    )  # fmt: skip
    await phase.run(workflow)
    return stakeholder.generated_rubrics[0], len(phase.conversation.turns)


async def collect_rollout(
    workflow: Workflow,
    gt_rubric: AnyRubric,
    manager: RubricDecompositionManagerAgent | None = None,
    *,
    worker: Work | None = None,
    max_turns: int = 3,
    reward: RubricRewardFunction | None = None,
    engine: ValidationEngine | None = None,
) -> Rollout:
    """Runs the three phases once: a rubric, a run of the workflow, both scores and the reward."""
    manager = manager or RubricDecompositionManagerAgent()
    rubric, questions = await draft(workflow, manager, max_turns)
    ExecutionPhase(worker or Worker(0.7)).run(workflow)
    scores = await DualEvaluationPhase(engine or ValidationEngine(seed=42)).run(workflow, rubric, gt_rubric)
    found = (reward or RubricRewardFunction()).compute_reward(
        scores.synthetic, scores.truth, criteria=_size(rubric), questions=questions,
        coverage=_coverage(rubric, gt_rubric),
    )  # fmt: skip
    return Rollout(
        workflow.name,
        rubric,
        (scores.synthetic,),
        (scores.truth,),
        found,
        questions,
        tuple(manager.decisions),
    )


async def train_one_episode(
    workflow: Workflow,
    gt_rubric: AnyRubric,
    manager: RubricDecompositionManagerAgent | None = None,
    *,
    worker: Work | None = None,
    max_turns: int = 3,
    report: Callable[[str], None] = print_line,
) -> float:
    """Runs one episode without an update, reports its line and returns the reward."""
    rollout = await collect_rollout(workflow, gt_rubric, manager, worker=worker, max_turns=max_turns)
    report(_summary([rollout]).line)
    return rollout.reward


async def train_rubric_manager(
    workflows: Sequence[Workflow] | None = None,
    gt_rubrics: Mapping[str, AnyRubric] | None = None,
    episodes: int = 100,
    settings: LoopSettings | None = None,
    writer: SoftmaxPolicy | None = None,
    report: Callable[[EpisodeSummary], None] | None = None,
) -> tuple[SoftmaxPolicy, list[EpisodeSummary]]:
    """Trains the small policy by REINFORCE with a leave-one-out baseline.

    Returns the policy and the summaries of the episodes. ``report`` gets each summary as it is made.
    """
    settings = settings or LoopSettings()
    workflows = list(workflows) if workflows is not None else load_training_workflows()
    truths = gt_rubrics if gt_rubrics is not None else load_ground_truth_rubrics()
    writer = writer or SoftmaxPolicy(settings.seed)
    found: list[EpisodeSummary] = []
    for episode in range(episodes):
        workflow = workflows[episode % len(workflows)]
        summary = await train_episode(workflow, truths[workflow.name], writer, settings, episode)
        found.append(summary)
        (report or _print_summary)(summary)
    return writer, found


async def train_episode(
    workflow: Workflow, truth: AnyRubric, writer: SoftmaxPolicy, settings: LoopSettings, episode: int
) -> EpisodeSummary:
    """Runs the workflow at each skill, then updates the policy ``rounds`` times on these runs.

    Returns the summary of the first round: of rubrics that were written before this episode's updates.
    """
    engine = ValidationEngine(seed=settings.seed)
    runs = [
        await _run_scores(
            workflow, truth, engine, Worker(skill, 1009 * (settings.seed + 7919 * episode) + place)
        )
        for place, skill in enumerate(settings.skills)
    ]
    first: EpisodeSummary | None = None
    for _ in range(settings.rounds):
        rollouts = [await _scored(workflow, runs, truth, writer, settings) for _ in range(settings.group)]
        first = first or _summary(rollouts)
        update(writer, rollouts, settings.rate)
    if first is None:
        raise WorkflowError(f"rounds is {settings.rounds}: give 1 or more.")
    return first


def update(writer: SoftmaxPolicy, rollouts: Sequence[Rollout], rate: float) -> None:
    """Updates the policy: the advantage of a rubric is its reward less the mean of the others, over their
    standard deviation. Equal rewards change nothing."""
    rewards = np.array([one.reward for one in rollouts])
    spread = float(rewards.std())
    if len(rewards) < 2 or spread < 1e-9:
        return
    others = (rewards.sum() - rewards) / (len(rewards) - 1)
    advantages = (rewards - others) / spread
    writer.update(zip((one.decisions for one in rollouts), map(float, advantages), strict=True), rate)


@dataclass(frozen=True)
class RunScores:
    """Verdicts of the engine on one run: of every check of the workflow, and of the ground truth."""

    checks: Mapping[str, float]
    truth: float | None

    def score(self, rubric: Evaluator) -> float | None:
        """Returns the score that the engine gives to a rubric over these checks, from its verdicts."""
        return aggregate(
            rubric.aggregation,
            [self.checks[one.name] for one in rubric.rubrics],
            [one.share for one in rubric.rubrics],
        )


async def _run_scores(
    workflow: Workflow, truth: AnyRubric, engine: ValidationEngine, worker: Worker
) -> RunScores:
    ExecutionPhase(worker).run(workflow)
    every = Evaluator(
        name="every check", rubrics=tuple(criterion_of(one, 1.0) for one in requirements(workflow))
    )
    checks = await engine.evaluate_timestep(workflow, 0, None, workflow_evaluators=[every])
    by_truth = await engine.evaluate_timestep(workflow, 0, None, workflow_evaluators=[truth])
    return RunScores(
        {one.name: one.normalized for one in checks.criteria if one.normalized is not None},
        by_truth.weighted_preference_total,
    )


async def _scored(
    workflow: Workflow,
    runs: Sequence[RunScores],
    truth: AnyRubric,
    writer: SoftmaxPolicy,
    settings: LoopSettings,
) -> Rollout:
    manager = RubricDecompositionManagerAgent(writer=writer)
    rubric, questions = await draft(workflow, manager, settings.max_turns)
    if not isinstance(rubric, Evaluator):
        raise WorkflowError(f"The policy wrote a {type(rubric).__name__}: it has to write an Evaluator.")
    scores = tuple(run.score(rubric) for run in runs)
    terms = {"criteria": _size(rubric), "questions": questions, "coverage": _coverage(rubric, truth)}
    rewards = [
        settings.reward.compute_reward(score, run.truth, **terms)
        for score, run in zip(scores, runs, strict=True)
    ]
    return Rollout(
        workflow.name, rubric, scores, tuple(run.truth for run in runs),
        math.fsum(rewards) / len(rewards), questions, tuple(manager.decisions),
    )  # fmt: skip


def _summary(rollouts: Sequence[Rollout]) -> EpisodeSummary:
    def mean(values: list[float | None]) -> float:
        known = [value for value in values if value is not None]
        return math.fsum(known) / len(known) if known else 0.0

    return EpisodeSummary(
        workflow=rollouts[0].workflow,
        synthetic=mean([value for one in rollouts for value in one.synthetic]),
        truth=mean([value for one in rollouts for value in one.truth]),
        reward=mean([one.reward for one in rollouts]),
        questions=mean([float(one.questions) for one in rollouts]),
    )


def _print_summary(summary: EpisodeSummary) -> None:
    print_line(summary.line)


def _names(rubric: AnyRubric) -> set[str]:
    if isinstance(rubric, Evaluator):
        return {one.name for one in rubric.rubrics}
    return {rule.name for stage in rubric.stages for rule in stage.rules}


def _size(rubric: AnyRubric) -> int:
    return len(_names(rubric))


def _coverage(rubric: AnyRubric, truth: AnyRubric) -> float:
    return len(_names(rubric) & _names(truth)) / len(_names(truth))
