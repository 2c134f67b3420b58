"""An artefact satisfies exactly the checks that were asked for, in every family."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from onward.errors import ConfigError
from onward.rubrics.tasks import BLOCK, CHECKS, HELD_OUT_FAMILIES, TRAINING_FAMILIES, RubricTask, make_task
from onward.rubrics.tasks.family import Family, family_of, faults_of, pick
from onward.rubrics.tasks.render import resource_text

FAMILIES = (*TRAINING_FAMILIES, *HELD_OUT_FAMILIES)


def disagreements(task: RubricTask, drawn: int) -> list[str]:
    """Returns where ``bits(build(bits))`` is not ``bits``: both designs, all ones, all zeros, drawn bits."""
    random = np.random.default_rng(task.seed)
    ones = np.ones(11, dtype=bool)
    rows = [ones, ~ones, *task.probes(), *task.hidden_probes(), *(random.random((drawn, 11)) < 0.6)]
    return [
        f"{task.family} {task.seed} way {way}: {task.active[place]} is {not row[place]}"
        for way in (0, 1)
        for row in rows
        for place in np.flatnonzero(task.bits(task.build(row, way=way)) != row)
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_checks_of_what_was_built_are_the_bits(family: str) -> None:
    for seed in (0, 3 * BLOCK):
        assert disagreements(make_task(family, seed), drawn=3) == []


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_checks_of_what_was_built_are_the_bits_over_50_seeds(family: str) -> None:
    for seed in (*range(1, 41), *range(3 * BLOCK, 3 * BLOCK + 10)):
        assert disagreements(make_task(family, seed), drawn=10) == []


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("way", [0, 1])
def test_each_operator_alone_changes_its_own_check_alone(name: str, way: int) -> None:
    found = 0
    for family in FAMILIES:
        task = make_task(family, 5)
        for place in [at for at, check in enumerate(task.active) if check.name == name]:
            bits = np.arange(11) != place
            built = task.build(bits, way=way)
            assert task.bits(built).tolist() == bits.tolist()
            assert built != task.compliant
            found += 1
    assert found >= 3


def test_the_two_ways_to_break_differ_for_every_check() -> None:
    zeros = np.zeros(11, dtype=bool)
    for family in FAMILIES:
        task = make_task(family, 2)
        for place in range(11):
            bits = np.arange(11) != place
            assert task.build(bits) != task.build(bits, way=1), task.active[place]
        assert task.build(zeros) != task.build(zeros, way=1)


def test_a_task_is_a_pure_function_of_family_and_seed() -> None:
    one, again, other = (make_task("risk_register", seed) for seed in (4, 4, 5))
    assert (one.brief, one.active, one.levels, one.hidden) == (
        again.brief,
        again.active,
        again.levels,
        again.hidden,
    )
    assert one.weights.tolist() == again.weights.tolist()
    assert json.dumps(one.compliant) == json.dumps(again.compliant)
    assert one.resources == again.resources
    assert one.brief != other.brief and one.compliant != other.compliant


def test_a_seed_of_numpy_is_the_same_task() -> None:
    one, other = make_task("sla_report", 3), make_task("sla_report", np.int64(3))
    assert type(other.seed) is int
    assert (one.brief, one.active, json.dumps(one.compliant)) == (
        other.brief,
        other.active,
        json.dumps(other.compliant),
    )


def test_tasks_are_the_same_in_every_process() -> None:
    program = (
        "import hashlib, json; from onward.rubrics.tasks import make_task, TaskStakeholder, guided_bits\n"
        "t = make_task('recall_notice', 4)\n"
        "parts = [t.brief, [str(c) for c in t.active], t.weights.tolist(), t.build(t.probes()[2]),\n"
        "    t.hidden, [TaskStakeholder(t).ask(n).text for n in t.levels],\n"
        "    guided_bits(t, t.weights).tolist()]\n"
        "print(hashlib.sha256(json.dumps(parts).encode()).hexdigest())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(found) == 1 and len(found.pop()) == 65


def test_nothing_that_a_policy_or_a_judge_reads_leads_to_the_truth() -> None:
    """The seed of a task is the key of its truth, and levels and weights are the truth itself."""
    for family in FAMILIES:
        task = make_task(family, 123_457)
        texts = [task.brief, json.dumps(task.build(task.probes()[0])), *map(resource_text, task.resources)]
        for text in texts:
            assert "123457" not in text and "seed" not in text
            assert not any(check.name in text for check in task.active)
            assert not any(f"{weight:.3f}" in text for weight in task.weights if weight)


def test_building_leaves_the_compliant_artefact_alone() -> None:
    task = make_task("sla_report", 1)
    before = json.dumps(task.compliant)
    task.build(np.zeros(11, dtype=bool))
    assert json.dumps(task.compliant) == before


def test_briefs_are_varied_and_name_the_work() -> None:
    tasks = [make_task("breach_notice", seed) for seed in range(200)]
    assert len({task.brief for task in tasks}) >= 195
    assert all("breach notice" in task.brief for task in tasks)
    assert {len(task.hidden) for task in tasks} == {0, 3}
    assert 20 <= sum(not task.hidden for task in tasks) <= 60  # a fifth
    assert all("Nothing else counts" in task.brief for task in tasks if not task.hidden)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_graph_of_a_task_runs_from_its_resources_to_its_artefact(family: str) -> None:
    task = make_task(family, 0)
    assert 2 <= len(task.subtasks) <= 4
    assert 1 <= len(task.resources) <= 3
    done: set[str] = set()
    for subtask in task.subtasks:
        assert set(subtask.needs) <= done and set(subtask.resources) <= {one.id for one in task.resources}
        done.add(subtask.name)
    assert set(task.subtasks[-1].needs) == done - {task.subtasks[-1].name}


def numbers_in(task: RubricTask) -> dict[str, dict[str, Any]]:
    """Reads amount, expected amount and status of each item from the text of the resources alone."""
    words, found = task.kind.words, {}
    for resource in task.resources:
        text = resource_text(resource)
        if resource.rows:
            titles = text.splitlines()[0].split(",")
            for line in text.splitlines()[1:]:
                row = dict(zip(titles, line.split(","), strict=True))
                found.setdefault(row["id"], {}).update(row)
        else:
            for line in re.findall(rf".*\b{words.prefix}-\d+.*", text):
                item = re.search(rf"{words.prefix}-\d+", line)
                amount = re.search(rf"{words.amount} ([\d.]+\d)", line)
                expected = re.search(rf"{words.expected}(?: was)? ([\d.]+\d)", line)
                status = re.search(r"(open|closed|in review)\.$", line)
                assert item and amount and expected and status
                found[item[0]] = {
                    words.amount: amount[1], words.expected: expected[1], "status": status[1]
                }  # fmt: skip
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_the_facts_follow_from_the_resources_that_people_read(family: str) -> None:
    task = make_task(family, 3)
    words, items = task.kind.words, numbers_in(task)
    amounts = {name: float(one[words.amount]) for name, one in items.items()}
    expected = {name: float(one[words.expected]) for name, one in items.items()}
    facts = task.facts
    assert facts.items == len(items)
    assert facts.values["largest"] == max(amounts.values())
    assert facts.values["average"] == pytest.approx(sum(amounts.values()) / len(amounts), abs=0.0051)
    assert facts.values["open"] == sum(one["status"] == "open" for one in items.values())
    for percent in (5, 10, 20):
        beyond = {
            name for name in items if abs(amounts[name] - expected[name]) > percent / 100 * expected[name]
        }
        assert set(facts.flagged(str(percent))) == beyond
        assert 5 <= len(beyond) < len(items)
    for seed in range(20):  # two at least, or no operator could change the figure
        assert make_task(family, seed).facts.values["open"] >= 2


def test_every_kind_of_check_is_met_in_training_and_no_family_repeats_another() -> None:
    trained = {one.name for family in TRAINING_FAMILIES for one in family_of(family).picks}
    assert trained == set(CHECKS)
    assert len(TRAINING_FAMILIES) == 24 and len(HELD_OUT_FAMILIES) == 8
    sets = [tuple(sorted((one.name, one.args) for one in family_of(name).picks)) for name in FAMILIES]
    assert len(set(sets)) == 32


def test_a_family_that_is_not_usable_is_refused_in_words() -> None:
    good = family_of("sla_report")
    picks = (pick("min_words", 1, "100"), pick("max_words", 1, "120"), pick("cites_resource", 1, "3"))
    bad = Family(
        good.id, good.noun, good.goals, ("one",), ("only",), good.words, good.layout, good.kpi, picks
    )  # fmt: skip
    assert [fault.split(",")[0] for fault in faults_of(bad)] == [
        "it has 3 checks instead of 11",
        "no check is about accuracy",
        "it has 1 subtasks instead of 2 to 4",
        "cites_resource(3) needs more than its 1 resources",
        "min_words(100) and max_words(120) cannot be together",
    ]


@pytest.mark.parametrize("form", [None, 3, "text", [], {}, [None], [{}], {"value": 1}, [{"id": []}]])
def test_a_part_in_another_form_satisfies_no_check_that_reads_it(form: Any) -> None:
    """Every part of every artefact is replaced in turn: a bit falls, and no error comes."""
    for family in FAMILIES:
        task = make_task(family, 6)
        for part in task.compliant:
            replaced: Any = {**task.compliant, part: form}
            found = task.bits(replaced)
            assert found.shape == (11,) and found.dtype == bool
    invoices = make_task("invoice_po_reconciliation", 6)
    broken: Any = {**invoices.compliant, "totals": form, "metadata": form, "citations": form}
    fallen = {
        check.name for check, kept in zip(invoices.active, invoices.bits(broken), strict=True) if not kept
    }
    assert fallen == {"sum_matches", "signoff_present", "cites_resource"}


def test_bad_input_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="no task family 'sla_repot': did you mean 'sla_report'"):
        make_task("sla_repot", 1)
    with pytest.raises(ConfigError, match="The seed -1 is outside of 0 to 3999999"):
        make_task("sla_report", -1)
    for wrong in (True, 1.0, "1", None):
        seed: Any = wrong
        with pytest.raises(ConfigError, match=f"The seed {seed!r} is a .*: give a whole number"):
            make_task("sla_report", seed)
    task = make_task("sla_report", 1)
    with pytest.raises(ConfigError, match="3 bits were given for 11 checks"):
        task.build([True] * 3)
    with pytest.raises(ConfigError, match="no way 2 to break a check: give 0 or 1"):
        task.build([True] * 11, way=2)
    partial: Any = {name: part for name, part in task.compliant.items() if name not in ("rows", "kpi")}
    with pytest.raises(ConfigError, match="The artefact has no kpi, rows"):
        task.bits(partial)
