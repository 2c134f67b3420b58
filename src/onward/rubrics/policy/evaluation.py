"""The evaluation of a rubric writer on tasks that it never trained on, with reference points and controls.

The controls show whether skill comes from reading the task. ``shuffled_tasks``: each rubric is scored on
another task of its family. ``blank_brief``: the writer sees the checks alone. ``shuffled_answers``: the
stakeholder answers for another task; ``no_answers``: the stakeholder has nothing to add. ``hidden_design``:
other outputs, made by other operators, score the same rubrics. No writer can fail the last one: a rubric has
the same skill on both designs. A gap would be a fault of the operators or of the checks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np

from onward.errors import ConfigError
from onward.rubrics.language import Criterion, Rubric
from onward.rubrics.policy.episodes import Attempt, StakeholderOf, answers_of
from onward.rubrics.policy.figures import Interval, figures, interval, skill_of
from onward.rubrics.policy.scoring import TruthScorer
from onward.rubrics.reward import RubricReward, score
from onward.rubrics.tasks import RubricTask, task_with
from onward.rubrics.tasks.baselines import BASELINES, Baseline

CONTROLS = ("shuffled_tasks", "blank_brief", "shuffled_answers", "no_answers", "hidden_design")


class Plays(Protocol):
    """Anything that plays episodes: a trained policy, a language model, a reference point."""

    def play(
        self,
        tasks: Sequence[RubricTask],
        *,
        seed: int = 0,
        temperature: float = 1.0,
        stakeholder: StakeholderOf = answers_of,
    ) -> list[Attempt]: ...


@dataclass(frozen=True)
class Judged:
    """Episodes with their rewards, one for each task."""

    attempts: Sequence[Attempt]
    rewards: Sequence[RubricReward]

    @property
    def skills(self) -> list[float]:
        """Skill of each episode; NaN for one that failed through the environment."""
        return [skill_of(reward) for reward in self.rewards]

    @property
    def families(self) -> list[str]:
        return [one.task.family for one in self.attempts]

    @property
    def skill(self) -> Interval:
        return interval(self.skills, self.families)

    def report(self) -> dict[str, Any]:
        """Returns the figures and the interval of the skill as JSON."""
        return {**asdict(figures(self.attempts, self.rewards)), "interval": asdict(self.skill)}


def judged(
    player: Plays,
    tasks: Sequence[RubricTask],
    *,
    temperature: float = 0.0,
    seed: int = 0,
    stakeholder: StakeholderOf = answers_of,
) -> Judged:
    """Plays one episode of each task and scores its rubric by the task's truth."""
    attempts = player.play(tasks, seed=seed, temperature=temperature, stakeholder=stakeholder)
    return Judged(attempts, TruthScorer()(attempts))


def difference(
    better: Sequence[Judged], worse: Sequence[Judged], by: Callable[..., Interval] = interval
) -> Interval:
    """Returns the difference in skill on the same tasks, and its interval over families (``by``). Several
    runs of each side (training seeds) are averaged task by task first. A task on which an episode failed
    through the environment is left out."""
    values = np.mean([one.skills for one in better], axis=0) - np.mean([one.skills for one in worse], axis=0)
    return by(values.tolist(), better[0].families)


def controls(
    player: Plays, tasks: Sequence[RubricTask], right: Judged, *, temperature: float = 0.0, seed: int = 0
) -> dict[str, Judged]:
    """Returns what each of ``CONTROLS`` makes of the writer; ``right`` are its episodes on ``tasks``."""

    def again(some: Sequence[RubricTask], stakeholder: StakeholderOf) -> Judged:
        return judged(player, some, temperature=temperature, seed=seed, stakeholder=stakeholder)

    others = {id(task): other for task, other in zip(tasks, _others(tasks), strict=True)}
    return {
        "shuffled_tasks": shuffled(right, tasks),
        "blank_brief": again([replace(task, brief="") for task in tasks], answers_of),
        "shuffled_answers": again(tasks, lambda task: answers_of(_with_levels(task, others[id(task)]))),
        "no_answers": again(tasks, lambda task: answers_of(replace(task, hidden=()))),
        "hidden_design": Judged(right.attempts, [by_hidden_design(one) for one in right.attempts]),
    }


def shuffled(right: Judged, tasks: Sequence[RubricTask]) -> Judged:
    """Returns the same rubrics, each scored by the truth of another task of its family. Checks are matched by
    their place: tasks of a family differ in arguments, and those of a split in no place."""
    moved = [_moved(one, other) for one, other in zip(right.attempts, _others(tasks), strict=True)]
    return Judged(moved, TruthScorer()(moved))


def _moved(one: Attempt, other: RubricTask) -> Attempt:
    if one.rubric is None:
        return replace(one, task=other)
    moved = dict(zip(one.task.active, other.active, strict=True))
    rubric = Rubric(Criterion(moved[c.check], c.weight) for c in one.rubric.criteria)
    return replace(one, task=other, rubric=rubric)


def _others(tasks: Sequence[RubricTask]) -> list[RubricTask]:
    """Returns for each task the next one of its family, for the last one the first. Raises ConfigError for a
    family with one task, which has no other."""
    families: defaultdict[str, list[RubricTask]] = defaultdict(list)
    for task in tasks:
        families[task.family].append(task)
    for family, some in families.items():
        if len(some) < 2:
            raise ConfigError(f"There is 1 task of {family}, and controls need another one: give 2 or more.")
    place = {id(task): (some, n) for some in families.values() for n, task in enumerate(some)}
    return [some[(n + 1) % len(some)] for some, n in (place[id(task)] for task in tasks)]


def _with_levels(task: RubricTask, other: RubricTask) -> RubricTask:
    """Returns a task whose stakeholder knows about the same topics what ``other`` has there."""
    return task_with(task.family, task.seed, other.levels, task.hidden)


def by_hidden_design(one: Attempt) -> RubricReward:
    """Returns the reward of a rubric on artefacts of the hidden design, built by the other operators."""
    task = one.task
    if one.rubric is None:
        return TruthScorer().reward(one)
    found = np.array([task.bits(task.build(bits, way=1)) for bits in task.hidden_probes()], dtype=float)
    places = {check: place for place, check in enumerate(task.active)}
    columns = found[:, [places[check] for check in one.rubric.checks]]
    weights = np.array([criterion.weight for criterion in one.rubric.criteria], dtype=float)
    return score(columns, weights, found, task.weights, questions=len(one.questions))


def reference_points(tasks: Sequence[RubricTask]) -> dict[str, dict[str, Any]]:
    """Returns skill and reward of the rubrics that need no learning, by name."""
    return {name: _reference(one, tasks) for name, one in BASELINES.items()}


def _reference(one: Baseline, tasks: Sequence[RubricTask]) -> dict[str, Any]:
    rewards: list[RubricReward] = []
    for task in tasks:
        weights = np.asarray(one.write(task), dtype=float)
        probes, chosen = np.asarray(task.probes(), dtype=float), np.flatnonzero(weights)
        asked = one.questions(task)
        rewards.append(score(probes[:, chosen], weights[chosen], probes, task.weights, questions=asked))
    found = interval([skill_of(reward) for reward in rewards], [task.family for task in tasks])
    mean = float(np.mean([reward.total for reward in rewards if reward.total is not None]))
    return {"words": one.words, "skill": found.mean, "interval": asdict(found), "reward": mean}
