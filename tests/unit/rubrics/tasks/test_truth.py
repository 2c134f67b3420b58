"""The truth of a task: the worked episode, the limits, and an enumeration that was written a second time."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from onward.errors import ConfigError
from onward.rubrics.tasks import BLOCK, DIMENSIONS, HELD_OUT_FAMILIES, TRAINING_FAMILIES, make_task, task_with
from onward.rubrics.tasks.designs import (
    expected_error,
    hidden_design,
    probe_design,
    score_variance,
    skill,
)
from onward.rubrics.tasks.family import family_of, truth_table_of
from onward.rubrics.tasks.truth import RESERVED

FAMILIES = (*TRAINING_FAMILIES, *HELD_OUT_FAMILIES)
WORKED = {
    "accuracy": 3, "completeness": 1, "brevity": 0, "compliance": 1, "traceability": 3, "actionability": 0,
}  # fmt: skip


def test_the_worked_episode_has_its_weights() -> None:
    task = task_with(
        "invoice_po_reconciliation", 7, WORKED, ("traceability", "completeness", "actionability")
    )
    assert {one.name: one.base for one in task.kind.picks} == {
        "sum_matches": 3, "value_equals_input": 2, "threshold_flagged": 1, "row_count": 3, "has_section": 2,
        "max_words": 2, "signoff_present": 3, "pii_masked": 2, "cites_resource": 3, "id_format": 1,
        "next_step_present": 2,
    }  # fmt: skip
    weights = {check.name: weight for check, weight in zip(task.active, task.weights, strict=True) if weight}
    assert {name: round(weight, 3) for name, weight in weights.items()} == {
        "sum_matches": 0.273, "cites_resource": 0.273, "value_equals_input": 0.182,
        "threshold_flagged": 0.091, "row_count": 0.091, "signoff_present": 0.091,
    }  # fmt: skip
    assert round(score_variance(task.weights), 4) == 0.0517
    assert task.public == {"accuracy": 3, "brevity": 0, "compliance": 1}


def test_the_worked_episode_has_the_errors_of_its_two_rubrics() -> None:
    task = task_with("invoice_po_reconciliation", 7, WORKED)

    def rubric(**given: int) -> np.ndarray:
        found = np.array([float(given.get(check.name, 0)) for check in task.active])
        return found / found.sum()

    blind = rubric(sum_matches=5, value_equals_input=4, threshold_flagged=2, row_count=2, signoff_present=2)
    asked = rubric(
        sum_matches=5,
        cites_resource=5,
        value_equals_input=3,
        threshold_flagged=2,
        row_count=2,
        signoff_present=2,
    )
    assert round(expected_error(blind, task.weights), 5) == 0.02266
    assert round(expected_error(asked, task.weights), 5) == 0.00034
    assert (round(skill(blind, task.weights), 3), round(skill(asked, task.weights), 3)) == (0.561, 0.993)


@pytest.mark.parametrize("design", [probe_design(), hidden_design()], ids=["probes", "hidden"])
def test_designs_are_balanced_and_orthogonal(design: np.ndarray) -> None:
    assert design.shape in {(12, 11), (24, 11)}
    assert (design.sum(axis=0) == len(design) / 2).all()
    signs = np.where(design, 1, -1)
    assert (signs.T @ signs == len(design) * np.eye(11)).all()
    assert len(np.unique(design, axis=0)) == len(design)


@pytest.mark.parametrize("design", [probe_design(), hidden_design()], ids=["probes", "hidden"])
def test_error_and_variance_have_their_closed_form(design: np.ndarray) -> None:
    random = np.random.default_rng(3)
    for family in FAMILIES:
        task = make_task(family, 11)
        weights = random.dirichlet(np.ones(11))
        gaps = design @ weights - task.score(design)
        assert np.mean(gaps**2) == pytest.approx(expected_error(weights, task.weights), abs=1e-14)
        assert np.var(task.score(design)) == pytest.approx(score_variance(task.weights), abs=1e-14)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_drawn_truth_is_within_the_limits(family: str) -> None:
    for seed in (*range(40), *range(2 * BLOCK, 2 * BLOCK + 10), *range(3 * BLOCK, 3 * BLOCK + 5)):
        task = make_task(family, seed)
        assert task.weights.sum() == pytest.approx(1.0)
        assert 4 <= np.count_nonzero(task.weights) <= 6
        assert task.weights.max() <= 0.4 + 1e-12
        assert score_variance(task.weights) >= 0.01
        assert len(np.unique(task.score(task.probes()).round(9))) >= 3
        assert list(task.active) == sorted(task.active) and len(set(task.active)) == 11


def slow_truths(family: str) -> dict[tuple[int, ...], list[float]]:
    """The table of a family in plain Python: products, the six largest, the limits."""
    facets, found = family_of(family).facets, {}
    for levels in product((0, 1, 3), repeat=6):
        raw = [base * levels[DIMENSIONS.index(dimension)] for dimension, base in facets]
        kept = sorted(range(11), key=lambda place: (-raw[place], place))[:6]
        kept = [place for place in kept if raw[place] > 0]
        total = sum(raw[place] for place in kept)
        if len(kept) >= 4 and max(raw) / total <= 0.4:
            found[levels] = [raw[place] / total if place in kept else 0.0 for place in range(11)]
    return found


@pytest.mark.parametrize("family", ["invoice_po_reconciliation", "complaint_reply", "training_plan"])
def test_the_table_of_a_family_is_the_enumeration(family: str) -> None:
    table, slow = truth_table_of(family), slow_truths(family)
    assert {tuple(levels) for levels in table.levels.tolist()} == set(slow)
    assert np.allclose(table.weights, [slow[tuple(levels)] for levels in table.levels.tolist()])
    known = {"accuracy": 3, "brevity": 0}
    agreeing = [
        weights
        for levels, weights in slow.items()
        if (levels[0], levels[2]) == (3, 0)
        and (levels[1], levels[5]) != (1, 3)
        and (levels[3], levels[4]) != (3, 1)
    ]
    assert np.allclose(table.posterior(known), np.mean(agreeing, axis=0))


def test_reserved_pairs_are_in_their_split_alone() -> None:
    def pairs(seeds: range) -> list[int]:
        tasks = [make_task(family, seed) for family in FAMILIES[:6] for seed in seeds]
        return [
            sum((task.levels[one], task.levels[two]) == pair for (one, two), pair in RESERVED.items())
            for task in tasks
        ]

    assert (
        max(pairs(range(60)) + pairs(range(BLOCK, BLOCK + 20)) + pairs(range(3 * BLOCK, 3 * BLOCK + 20))) == 0
    )
    assert min(pairs(range(2 * BLOCK, 2 * BLOCK + 60))) >= 1


def test_reserved_arguments_are_in_their_split_alone() -> None:
    for family in TRAINING_FAMILIES:
        last = {(one.name, one.args[-1]) for one in family_of(family).picks if len(one.args) > 1}
        trained = {(check.name, check.arg) for seed in range(30) for check in make_task(family, seed).active}
        asked = {(check.name, check.arg) for check in make_task(family, 3 * BLOCK).active}
        twice = (
            {"has_section"}
            if sum(one.name == "has_section" for one in family_of(family).picks) > 1
            else set()
        )
        assert {pair for pair in last & trained if pair[0] not in twice} == set()
        assert last <= asked


def test_a_preference_without_a_truth_is_refused() -> None:
    with pytest.raises(ConfigError, match="give 0, 1 or 3 for each of accuracy, completeness"):
        task_with("sla_report", 1, {"accuracy": 3})
    with pytest.raises(ConfigError, match="too few criteria or one above"):
        task_with("sla_report", 1, dict.fromkeys(DIMENSIONS, 0))
