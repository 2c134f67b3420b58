"""The 21 workflows and their ground-truth rubrics: what a worker satisfies is what the checks find."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest

from onward.rubrics.evaluation import EvaluationError, Evaluator, ValidationEngine, check_evaluator
from onward.rubrics.gym.files import CHECKS, Requirement
from onward.rubrics.gym.loading import CATALOGUE, load_workflow, workflow_names, workflow_of
from onward.rubrics.gym.parts import WorkflowError
from onward.rubrics.gym.simulation import simulate
from onward.rubrics.gym.truth_files import TRUTH, criterion_of, read_truth, truth_of
from onward.rubrics.gym.workers import Worker, requirements, satisfied
from onward.rubrics.gym.workflow import Workflow

NAMES = workflow_names()


@cache
def ran(name: str, skill: float) -> Workflow:
    workflow = load_workflow(name)
    assert simulate(workflow, Worker(skill)).complete
    return workflow


def broken(name: str, unmet: Requirement) -> Workflow:
    workflow = load_workflow(name)
    simulate(workflow, Worker(1.0, decided={unmet: False}))
    return workflow


async def score(name: str, workflow: Workflow) -> float:
    rubric = truth_of(name).evaluator()
    result = await ValidationEngine(seed=1).evaluate_timestep(workflow, 0, None, workflow_evaluators=[rubric])
    assert result.weighted_preference_total is not None
    assert result.error_fraction == 0
    return result.weighted_preference_total


def test_there_are_21_workflows_each_with_a_rubric() -> None:
    assert len(NAMES) == 21
    assert {path.stem for path in TRUTH.glob("*.yaml")} == set(NAMES)
    levels = [truth_of(name).level for name in NAMES]
    assert min(levels.count(one) for one in ("simple", "medium", "complex")) >= 5
    assert {truth_of(name).aggregation for name in NAMES} == {"weighted_average", "min", "staged"}


@pytest.mark.parametrize("name", NAMES)
def test_a_workflow_has_work_and_stays_within_its_budget(name: str) -> None:
    workflow = ran(name, 1.0)
    assert 8 <= len(workflow.leaves()) <= 25
    assert workflow.budget is not None and 0.6 * workflow.budget <= workflow.spent <= workflow.budget
    assert any(task.dependencies for task in workflow.leaves())
    assert {one.role for one in workflow.resources.values()} == {"input", "intermediary", "output"}
    assert all(satisfied(workflow).values())


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_without_skill_satisfies_nothing(name: str) -> None:
    assert not any(satisfied(ran(name, 0.0)).values())


@pytest.mark.parametrize("name", NAMES)
def test_the_checks_find_exactly_what_the_worker_left_out(name: str) -> None:
    rng = random.Random(name)
    workflow = load_workflow(name, seed=rng.randrange(1000))
    decided = {one: rng.random() < 0.5 for one in requirements(workflow)}
    simulate(workflow, Worker(decided=decided))
    assert satisfied(workflow) == decided


@pytest.mark.parametrize("name", NAMES)
async def test_a_rubric_reaches_its_maximum_and_can_fail(name: str) -> None:
    await check_evaluator(truth_of(name).evaluator(), ran(name, 1.0), [ran(name, 0.0)])
    assert await score(name, ran(name, 1.0)) == 1.0
    assert await score(name, ran(name, 0.0)) == 0.0


@pytest.mark.parametrize("name", NAMES)
async def test_every_criterion_is_a_requirement_and_its_fault_costs_points(name: str) -> None:
    truth = truth_of(name)
    known = requirements(load_workflow(name))
    for one in truth.every_criterion():
        assert one.requirement in known, one.requirement.id
        assert 3 <= len(one.says.split()) <= 16
    dearest = max(truth.every_criterion(), key=lambda one: one.weight)
    assert await score(name, broken(name, dearest.requirement)) <= 0.8


async def test_points_of_a_weighted_a_weakest_and_a_staged_rubric_by_hand() -> None:
    # product_recall has the weights 5, 3, 2; supply_chain takes the weakest; data_breach has gates at 4 of 4
    # (zero), then 2 of 4 (skip), then 4 points without a gate: 12 in all.
    async def without(name: str, place: int) -> float:
        return await score(name, broken(name, truth_of(name).every_criterion()[place].requirement))

    assert [await without("product_recall", place) for place in range(3)] == pytest.approx([0.5, 0.7, 0.8])
    assert await without("supply_chain", 1) == 0.0
    found = [await without("data_breach", place) for place in (0, 1, 2, 4, 5)]
    assert found == pytest.approx([0.0, 0.0, 10 / 12, 10 / 12, 11 / 12])


async def test_a_rubric_that_cannot_fail_is_refused() -> None:
    always = Evaluator(name="easy", rubrics=(criterion_of(
        Requirement.of("plan.csv", "filled", column="channel"), 1.0
    ),))  # fmt: skip
    name = "marketing_campaign"
    with pytest.raises(EvaluationError, match="'easy' cannot fail"):
        await check_evaluator(always, ran(name, 1.0), [ran(name, 0.0)])


def test_every_kind_of_check_judges_the_catalogue() -> None:
    used = {one.check for name in NAMES for one in requirements(load_workflow(name))}
    assert used == set(CHECKS)


def test_the_same_seed_gives_the_same_files() -> None:
    one, two = load_workflow("genai_launch", 5), load_workflow("genai_launch", 5)
    simulate(one, Worker(0.5, 3))
    simulate(two, Worker(0.5, 3))
    assert one.resources == two.resources
    assert load_workflow("genai_launch", 6).resources != load_workflow("genai_launch", 5).resources


def test_a_better_worker_satisfies_more() -> None:
    shares = []
    for skill in (0.2, 0.5, 0.8):
        workflow = load_workflow("airline_launch")
        simulate(workflow, Worker(skill, 4))
        found = satisfied(workflow)
        shares.append(sum(found.values()) / len(found))
    assert shares == sorted(shares)
    assert shares[0] < 0.4 < 0.7 < shares[2]


TEXT = """
name: own
title: Own workflow
goal: Count.
owner: {name: Ada Lind, role: owner}
agents: [{id: a, name: Bo Kern, role: analyst}]
inputs: {rows.csv: {rows: 3, columns: {row: id R, amount: whole 1 9}}}
tasks: [{id: one, name: Figures, role: analyst, do: figures, in: [rows.csv], out: a.json,
         with: {figures: {n: count}}}]
"""


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("goal: Count.", "", "wrong at goal: Field required"),
        ("do: figures", "do: figurs", "did you mean 'figures'"),
        ("in: [rows.csv]", "in: [row.csv]", "did you mean 'rows.csv'"),
        ("role: analyst, do", "role: pilot, do", "needs a pilot"),
        ("tasks: [", "tasks: [{id: one, name: x}, ", "two tasks 'one'"),
        ("name: own", "name: [", "is no YAML"),
        ("name: Figures,", "name: Figures, hour: 3,", "Extra inputs are not permitted"),
        ("id: one,", "id: one, after: [two],", "depends on 'two'"),
    ],
)
def test_a_file_that_is_wrong_is_one_sentence(tmp_path: Path, old: str, new: str, reason: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(TEXT)
    assert [task.id for task in workflow_of(path).leaves()] == ["one"]
    path.write_text(TEXT.replace(old, new, 1))
    with pytest.raises(WorkflowError, match=reason):
        workflow_of(path)


def test_unknown_names_and_missing_files_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(WorkflowError, match=r"no workflow 'produkt_recall'.*did you mean 'product_recall'"):
        load_workflow("produkt_recall")
    with pytest.raises(WorkflowError, match=r"no rubric for 'produkt_recall'.*did you mean 'product_recall'"):
        truth_of("produkt_recall")
    with pytest.raises(WorkflowError, match="cannot be read"):
        workflow_of(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("check: keeps_all", "check: keep_all", "no check 'keep_all'.*did you mean 'keeps_all'"),
        ("with: {column: email}", "with: {}", r"masked of 'public_list.csv' has arguments \[\]"),
        ("aggregation: weighted_average", "aggregation: staged", "give stages for 'staged'"),
        ("weight: 5", "weight: 0", "criteria.0.weight"),
    ],
)
def test_a_rubric_file_that_is_wrong_is_one_sentence(tmp_path: Path, old: str, new: str, reason: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text((TRUTH / "product_recall.yaml").read_text().replace(old, new, 1))
    with pytest.raises(WorkflowError, match=reason):
        read_truth(path)


def test_every_file_of_the_catalogue_names_itself() -> None:
    assert [load_workflow(name).name for name in NAMES] == list(NAMES)
    assert {read_truth(path).workflow for path in TRUTH.glob("*.yaml")} == set(NAMES)
    assert len(list(CATALOGUE.glob("*.yaml"))) == 21
