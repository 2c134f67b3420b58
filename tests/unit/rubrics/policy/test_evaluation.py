from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onward.errors import ConfigError
from onward.lm.tokens import TokenRow
from onward.rubrics.language import Criterion, Rubric, serialise
from onward.rubrics.policy.episodes import Attempt, Player, answers_of
from onward.rubrics.policy.evaluation import (
    CONTROLS,
    Judged,
    by_hidden_design,
    controls,
    difference,
    judged,
    reference_points,
    shuffled,
)
from onward.rubrics.policy.scoring import TruthScorer
from onward.rubrics.policy.splits import HELD_OUT, SPLITS, judging_tasks
from onward.rubrics.tasks import RubricTask
from onward.rubrics.tasks.baselines import full_oracle
from onward.rubrics.tasks.designs import skill
from onward.rubrics.tasks.family import family_of
from onward.rubrics.tasks.phrases import ANSWERS, STATED
from onward.rubrics.tasks.splits import splits


def truthful(task: RubricTask) -> Attempt:
    weights = full_oracle(task)
    rubric = Rubric(Criterion(task.active[p], int(weights[p])) for p in np.flatnonzero(weights))
    return Attempt(task, TokenRow([], [], []), (), serialise(rubric), rubric)


def of_truth(tasks: list[RubricTask]) -> Judged:
    attempts = [truthful(task) for task in tasks]
    return Judged(attempts, TruthScorer()(attempts))


def test_true_rubrics_fall_when_they_are_scored_on_other_tasks() -> None:
    tasks = judging_tasks("new_seeds", 3)
    right = of_truth(tasks)
    moved = shuffled(right, tasks)
    assert right.skill.mean > 0.9
    assert difference([right], [moved]).low > 0.3
    # By hand for the first task: its weights against the truth of the next seed of its family.
    weights, other = np.asarray(full_oracle(tasks[0]), float), tasks[1]
    expected = max(-1.0, skill(weights / weights.sum(), other.weights))
    assert moved.skills[0] == pytest.approx(expected, abs=1e-9)


def test_the_hidden_design_judges_a_true_rubric_as_the_probes_do() -> None:
    for task in judging_tasks(HELD_OUT, 1)[:3]:
        found = by_hidden_design(truthful(task))
        assert found.measures["skill"] > 0.9
        assert found.measures["f1"] == pytest.approx(1.0)


def test_tasks_of_a_family_have_the_same_kinds_of_checks_at_the_same_places() -> None:
    """By these places a rubric is moved to another task, also where a family has two sections to check."""
    for split in SPLITS:
        kinds = {}
        for task in judging_tasks(split, 8):
            picks = family_of(task.family).picks
            found = [
                {n for n, pick in enumerate(picks) if pick.name == check.name and check.arg in pick.args}
                for check in task.active
            ]
            assert kinds.setdefault(task.family, found) == found and all(len(one) == 1 for one in found)


def test_a_family_with_one_task_has_no_control() -> None:
    tasks = judging_tasks("new_seeds", 1)[:2]
    with pytest.raises(ConfigError, match="give 2 or more"):
        shuffled(of_truth(tasks), tasks)


def test_an_episode_that_the_environment_ended_counts_in_no_difference() -> None:
    tasks = judging_tasks("new_seeds", 2)[:8]
    right, failed = of_truth(tasks), replace(truthful(tasks[0]), rubric=None, finished=False, problem="gone")
    attempts = [failed, *right.attempts[1:]]
    broken = Judged(attempts, TruthScorer()(attempts))
    rest = Judged(right.attempts[1:], right.rewards[1:])
    assert broken.skill == rest.skill
    worse = shuffled(right, tasks)
    without = Judged(worse.attempts[1:], worse.rewards[1:])
    assert difference([broken], [worse]) == difference([rest], [without])
    assert by_hidden_design(failed).total is None


def test_the_answers_of_each_control_are_those_that_it_names() -> None:
    """A player that asks about everything that is hidden, and keeps what it heard."""
    heard: list[list[str]] = []

    class Asks:
        def play(
            self, tasks: Sequence[RubricTask], *, stakeholder: Any = answers_of, **_: Any
        ) -> list[Attempt]:
            heard.append([stakeholder(task)(task.hidden[0]) for task in tasks])
            return [truthful(task) for task in tasks]

    tasks = [task for task in judging_tasks("new_seeds", 12)[:36] if task.hidden]
    controls(Asks(), tasks, of_truth(tasks))
    blank, shuffled_answers, none = heard
    for task, true, moved, nothing in zip(tasks, blank, shuffled_answers, none, strict=True):
        family = [one for one in tasks if one.family == task.family]
        other = family[(family.index(task) + 1) % len(family)]
        topic = task.hidden[0]
        assert true in ANSWERS[task.levels[topic]]
        assert moved in ANSWERS[other.levels[topic]]
        assert nothing in STATED
    assert sum(a != b for a, b in zip(blank, shuffled_answers, strict=True)) > len(tasks) / 3


def test_every_control_is_of_the_same_tasks(player: Player) -> None:
    tasks = judging_tasks("new_seeds", 2)[:6]
    right = judged(player, tasks, temperature=1.0)
    made = controls(player, tasks, right, temperature=1.0)
    assert tuple(made) == CONTROLS
    for one in made.values():
        assert one.families == right.families and len(one.rewards) == len(tasks)
    assert [one.task.brief for one in made["blank_brief"].attempts] == [""] * len(tasks)


def test_a_difference_is_paired_by_task_and_averaged_over_runs() -> None:
    tasks = judging_tasks("new_seeds", 2)[:8]
    right = of_truth(tasks)
    found = difference([right, right], [shuffled(right, tasks)])
    expected = np.mean(right.skills) - np.mean(shuffled(right, tasks).skills)
    assert found.mean == pytest.approx(expected)


def test_reference_points_stand_in_their_order() -> None:
    found = reference_points(judging_tasks(HELD_OUT, 2))
    skills = {name: one["skill"] for name, one in found.items()}
    assert skills["random"] < skills["public_oracle"] < skills["ask_all"] <= skills["full_oracle"]


def test_no_split_that_judges_has_a_family_or_seed_of_training() -> None:
    train, first = set(splits().train), 1_000_000
    for split in SPLITS:
        for task in judging_tasks(split, 1):
            assert task.family not in train if split == HELD_OUT else task.seed >= first
