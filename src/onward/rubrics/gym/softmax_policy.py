"""A small policy that writes rubrics: a softmax for each decision, updated by REINFORCE.

Decisions are which topics to ask about, the weight of each check, and the aggregation. The logits of a
decision are sums of parameter vectors: one of the kind of check, one of the stakeholder's answer about its
topic, one of this workflow alone. What is learned in one workflow so helps in the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onward.files import check_file, read_json, write_whole
from onward.rubrics.evaluation import Evaluator
from onward.rubrics.gym.files import Requirement
from onward.rubrics.gym.parts import WorkflowError
from onward.rubrics.gym.phases import RubricObservation
from onward.rubrics.gym.stakeholder import LEVELS
from onward.rubrics.gym.truth_files import criterion_of

WEIGHTS = (0, 1, 3, 5)
"""Weights of a criterion to choose from; 0 leaves it out."""
AGGREGATIONS = ("weighted_average", "min")
OMIT = 2.5
"""Logit of leaving a check out, before training: a rubric begins with about a fifth of the checks."""
STEP_LIMIT = 3.0
SHARED_RATE = 0.2
"""Learning rate of the parameters that all workflows share, as a share of that of a workflow's own ones:
many more decisions change them."""


@dataclass(frozen=True)
class Decision:
    """One draw of the policy, with what the update needs: the probabilities it was drawn from."""

    keys: tuple[str, ...]
    choice: int
    probabilities: tuple[float, ...]

    @property
    def logprob(self) -> float:
        """Log-probability of the choice at the time of the draw."""
        return float(np.log(self.probabilities[self.choice]))


class SoftmaxPolicy:
    """The policy. Its parameters are vectors by name; a missing one is zero."""

    def __init__(self, seed: int = 0) -> None:
        self.parameters: dict[str, np.ndarray] = {}
        self._rng = np.random.default_rng(seed)

    def probabilities(self, keys: Sequence[str], prior: np.ndarray) -> np.ndarray:
        """Returns the distribution of a decision: softmax of ``prior`` and the parameters of ``keys``."""
        logits = prior + sum(self.parameters.get(key, 0.0) for key in keys)
        weights = np.exp(logits - np.max(logits))
        return weights / weights.sum()

    def decide(self, keys: Sequence[Sequence[str]], prior: np.ndarray) -> list[Decision]:
        """Draws decisions that are independent of each other, each over the choices of ``prior``."""
        chances = np.array([self.probabilities(one, prior) for one in keys]).reshape(-1, len(prior))
        passed = self._rng.random((len(chances), 1)) > np.cumsum(chances, axis=1)
        choices = np.minimum(passed.sum(axis=1), len(prior) - 1)
        return [
            Decision(tuple(one), int(choice), tuple(row))
            for one, choice, row in zip(keys, choices, chances.tolist(), strict=True)
        ]

    def ask(self, observation: RubricObservation) -> tuple[tuple[str, ...], list[Decision]]:
        """Draws the topics to ask about."""
        found = self.decide([[f"ask {topic}"] for topic in observation.topics], np.zeros(2))
        chosen = [topic for topic, one in zip(observation.topics, found, strict=True) if one.choice]
        return tuple(chosen), found

    def write(self, observation: RubricObservation) -> tuple[Evaluator, list[Decision]]:
        """Draws a rubric. It has no criterion if every check was left out."""
        answers = {turn.topic: turn.answer for turn in observation.turns if turn.answer in LEVELS}
        prior = np.array([OMIT] + [0.0] * (len(WEIGHTS) - 1))
        keys = [_keys(observation.workflow, one, answers) for one in observation.requirements]
        decisions = self.decide(keys, prior)
        together = self.decide(
            [["aggregation", f"own {observation.workflow} aggregation"]], np.array([1.0, 0.0])
        )
        rubrics = tuple(
            criterion_of(one, WEIGHTS[decision.choice])
            for one, decision in zip(observation.requirements, decisions, strict=True)
            if decision.choice
        )
        rubric = Evaluator(
            name=f"written:{observation.workflow}",
            aggregation=AGGREGATIONS[together[0].choice],
            rubrics=rubrics,
        )
        return rubric, decisions + together

    def update(self, episodes: Iterable[tuple[Sequence[Decision], float]], rate: float) -> float:
        """Takes one REINFORCE step: rate · mean of advantage · gradient of the stored log-probabilities.

        Returns the norm of the step. No component of it is larger than ``STEP_LIMIT``.
        """
        step: dict[str, np.ndarray] = {}
        episodes = list(episodes)
        for decisions, advantage in episodes:
            for one in decisions:
                gradient = -np.array(one.probabilities)
                gradient[one.choice] += 1.0
                for key in one.keys:
                    scale = rate * (1.0 if key.startswith("own ") else SHARED_RATE) / len(episodes)
                    step[key] = step.get(key, 0.0) + scale * advantage * gradient
        for key, change in step.items():
            self.parameters[key] = self.parameters.get(key, 0.0) + np.clip(change, -STEP_LIMIT, STEP_LIMIT)
        return float(np.sqrt(sum(float(np.sum(change**2)) for change in step.values())))

    def save(self, path: Path) -> None:
        """Writes the parameters as JSON."""
        check_file(path)
        data = {key: value.tolist() for key, value in sorted(self.parameters.items())}
        write_whole(path, json.dumps({"parameters": data}, indent=1).encode())

    @classmethod
    def load(cls, path: Path, seed: int = 0) -> SoftmaxPolicy:
        """Reads a saved policy. Raises WorkflowError if the file has none."""
        data = read_json(path)
        if not isinstance(data, dict) or not isinstance(data.get("parameters"), dict):
            raise WorkflowError(f"The file {path} has no rubric writer: give one that training has saved.")
        writer = cls(seed)
        writer.parameters = {key: np.array(value, dtype=float) for key, value in data["parameters"].items()}
        return writer


def _keys(workflow: str, requirement: Requirement, answers: dict[str, str]) -> list[str]:
    dimension = requirement.kind.dimension
    level = LEVELS.index(answers[dimension]) if dimension in answers else "not asked"
    return [f"answer {level}", f"check {requirement.check}", f"own {workflow} {requirement.id}"]
