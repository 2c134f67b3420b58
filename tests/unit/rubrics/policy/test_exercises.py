"""Exercises of the warm start: no truth of a family, nothing that is kept for judging, right rubrics."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace

import numpy as np

from onward.rubrics.policy.demonstrations import Care, demonstrate
from onward.rubrics.policy.exercises import Exercises
from onward.rubrics.policy.prompts import known_levels
from onward.rubrics.policy.splits import training_tasks
from onward.rubrics.tasks import CHECKS, DIMENSIONS
from onward.rubrics.tasks.family import TRAINING_FAMILIES, family_of
from onward.rubrics.tasks.truth import RESERVED

TASKS = training_tasks((), 2)
DRAWN = [
    one
    for made, rng in [(Exercises(TASKS, random.Random(0)), random.Random(1))]
    for one in (made.draw(rng) for _ in range(300))
]


def test_a_list_of_checks_is_about_every_dimension_and_is_no_familys_own() -> None:
    families = {frozenset(pick.name for pick in family_of(name).picks) for name in TRAINING_FAMILIES}
    for one in DRAWN:
        names = [check.name for check in one.task.active]
        assert len(set(names)) == len(names) == 11 and frozenset(names) not in families
        assert {CHECKS[name].dimension for name in names} == set(DIMENSIONS)
        assert list(one.task.active) == sorted(one.task.active)


def test_no_exercise_has_what_is_kept_for_judging() -> None:
    kept = {
        (pick.name, pick.args[-1])
        for name in TRAINING_FAMILIES
        for pick in family_of(name).picks
        if len(pick.args) > 1
    }
    free = {
        (pick.name, arg)
        for name in TRAINING_FAMILIES
        for pick in family_of(name).picks
        for arg in (pick.args[:-1] or pick.args)
    }
    for one in DRAWN:
        levels = one.task.levels
        assert not any((levels[left], levels[right]) == pair for (left, right), pair in RESERVED.items())
        assert not {(check.name, check.arg) for check in one.task.active} & (kept - free)


def test_the_truths_of_a_list_follow_from_levels_and_mean_bases_by_hand() -> None:
    picks = [pick for name in sorted({task.family for task in TASKS}) for pick in family_of(name).picks]
    for one in DRAWN[:40]:
        raw = [
            np.mean([pick.base for pick in picks if pick.name == check.name])
            * one.task.levels[CHECKS[check.name].dimension]
            for check in one.task.active
        ]
        kept = sorted(range(11), key=lambda place: (-raw[place], place))[:6]
        want = np.array([raw[place] if place in kept else 0.0 for place in range(11)])
        assert np.allclose(one.task.weights, want / want.sum())


def test_a_careful_writer_that_knows_all_takes_what_counts_and_nothing_else() -> None:
    rng, seen = random.Random(1), 0
    for one in DRAWN:
        topics, rubric = demonstrate(one, Care(1.0, 1.0), rng, 3)
        assert set(topics) <= set(one.task.hidden)
        if len(topics) < len(one.task.hidden):
            continue
        seen += 1
        weight = dict(zip(one.task.active, one.task.weights, strict=True))
        assert all(weight[check] > 0 for check in rubric.checks)
        gaps = [share - weight[check] for check, share in zip(rubric.checks, rubric.weights, strict=True)]
        assert max(map(abs, gaps)) < 0.04  # whole weights from 1 to 5 are this near to any truth
        assert {check for check, value in weight.items() if value > 0.1} <= set(rubric.checks)
    assert seen > 100


def test_a_careless_writer_takes_wrong_checks_too() -> None:
    rng = random.Random(1)
    wrong = [
        sum(one.task.weights[one.task.active.index(check)] == 0 for check in rubric.checks)
        / len(rubric.checks)
        for one in DRAWN
        if not one.task.hidden
        for _, rubric in [demonstrate(one, Care(0.6, 1.0), rng, 0)]
    ]
    assert 0.3 < float(np.mean(wrong)) < 0.5


def test_a_writer_that_is_careless_in_weights_alone_takes_the_right_checks() -> None:
    rng, shares = random.Random(1), []
    for one in DRAWN:
        _, rubric = demonstrate(one, Care(1.0, 0.3), rng, 0)
        _, right = demonstrate(one, Care(1.0, 1.0), rng, 0)
        assert rubric.checks == right.checks
        pairs = zip(rubric.criteria, right.criteria, strict=True)
        shares += [a.weight == b.weight for a, b in pairs]
    assert abs(float(np.mean(shares)) - 0.44) < 0.04  # 0.3, and a fifth of the other 0.7
    assert len(shares) > 1000


def test_what_a_demonstration_does_not_know_changes_nothing_in_it() -> None:
    """The same brief and no question: other levels behind it, which the writer cannot know."""
    compared = 0
    for one in DRAWN:
        if not one.task.hidden:
            continue
        stated = {name: level for name, level in one.task.levels.items() if name not in one.task.hidden}
        table = one.table.levels
        agree = [all(row[DIMENSIONS.index(n)] == level for n, level in stated.items()) for row in table]
        for row in np.flatnonzero(agree).tolist()[:3]:
            levels = dict(zip(DIMENSIONS, map(int, table[row]), strict=True))
            other = replace(one, task=replace(one.task, levels=levels, weights=one.table.weights[row]))
            written = [demonstrate(some, Care(1.0, 1.0), random.Random(1), 0) for some in (one, other)]
            assert written[0] == written[1]
            compared += levels != one.task.levels
    assert compared > 100


def test_notes_of_a_demonstration_have_what_was_said_and_nothing_else() -> None:
    one = next(one for one in DRAWN if one.task.hidden)
    first = one.task.hidden[0]
    noted = known_levels(one.task, [first])
    assert noted == {
        name: None if name in one.task.hidden and name != first else one.task.levels[name]
        for name in DIMENSIONS
    }


def test_exercises_read_no_task_that_judges() -> None:
    program = (
        "import random, sys\n"
        "from onward.rubrics.policy.exercises import Exercises\n"
        "from onward.rubrics.policy.splits import training_tasks\n"
        "Exercises(training_tasks((), 1), random.Random(0)).draw(random.Random(1))\n"
        "sys.exit('onward.rubrics.tasks.held_out' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
