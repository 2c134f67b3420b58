"""The stakeholder answers what was asked, within its bits, and gives no part of the rubric away."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from itertools import product

import numpy as np
import pytest

from onward.errors import ConfigError, RefusedError
from onward.rubrics.tasks import (
    DIMENSIONS,
    HELD_OUT_FAMILIES,
    TOPICS,
    TRAINING_FAMILIES,
    RubricTask,
    TaskStakeholder,
    Turn,
    make_task,
    task_with,
)
from onward.rubrics.tasks.baselines import posterior_weights
from onward.rubrics.tasks.designs import skill
from onward.rubrics.tasks.family import family_of, truth_table_of
from onward.rubrics.tasks.phrases import ANSWERS
from onward.rubrics.tasks.rounding import normalised, rounded
from onward.rubrics.tasks.stakeholder import question

FAMILIES = (*TRAINING_FAMILIES, *HELD_OUT_FAMILIES)


def hiding(seed: int = 0) -> RubricTask:
    """A task of a family with three hidden dimensions."""
    return next(task for at in range(99) if (task := make_task("sla_report", seed + at)).hidden)


def test_a_hidden_dimension_is_answered_once_and_the_log_has_every_question() -> None:
    task = hiding()
    topic, stated = task.hidden[0], next(iter(task.public))
    stakeholder = TaskStakeholder(task)
    first = stakeholder.ask(topic)
    assert (first.level, first.cost) == (task.levels[topic], 1)
    assert stakeholder.ask(topic).level is None
    replies = stakeholder.ask_together([stated, "other"])
    assert [reply.level for reply in replies] == [None, None]
    assert stakeholder.cost == 4
    assert [(turn.index, turn.topic, turn.cost) for turn in stakeholder.log] == [
        (1, topic, 1), (2, topic, 1), (3, stated, 1), (3, "other", 1),
    ]  # fmt: skip
    assert stakeholder.log[0] == Turn(1, topic, question(topic), first.text, 1)


def test_one_turn_cannot_answer_a_topic_twice() -> None:
    task = hiding()
    one, two = TaskStakeholder(task).ask_together([task.hidden[0]] * 2)
    assert (one.level, two.level) == (task.levels[task.hidden[0]], None)


def test_questions_without_end_are_one_clear_error() -> None:
    stakeholder = TaskStakeholder(hiding(), turns=2)
    with pytest.raises(RefusedError, match="has answered 2 turns of questions, which is the limit: write"):
        while True:
            stakeholder.ask("accuracy")
    assert stakeholder.cost == 2 and stakeholder.turns_left == 0


def test_bad_questions_are_one_sentence() -> None:
    stakeholder = TaskStakeholder(hiding())
    with pytest.raises(ConfigError, match="no topic 'acuracy': did you mean 'accuracy'"):
        stakeholder.ask("acuracy")
    with pytest.raises(ConfigError, match="A turn has 4 questions: ask 1 to 3 together"):
        stakeholder.ask_together(TOPICS[:4])
    with pytest.raises(ConfigError, match="0 turns were asked for: give 1 to 3"):
        TaskStakeholder(hiding(), turns=0)
    assert stakeholder.cost == 0 and stakeholder.turns_left == 3


def test_where_nothing_is_hidden_a_question_brings_nothing() -> None:
    task = next(task for seed in range(99) if not (task := make_task("ab_readout", seed)).hidden)
    assert all(TaskStakeholder(task).ask(topic).level is None for topic in TOPICS)


def serialised(task: RubricTask) -> str:
    """The truth in three forms: JSON of the criteria, words of the checks, levels by dimension."""
    criteria = [
        {"check": check.name, "arg": check.arg, "weight": round(float(weight), 3)}
        for check, weight in zip(task.active, task.weights, strict=True)
    ]
    spoken = " ".join(f"{check.name.replace('_', ' ')} {check.arg}" for check in task.active)
    return f"{json.dumps(criteria)} {spoken} {json.dumps(dict(task.levels))}"


def runs(text: str, length: int = 4) -> set[tuple[str, ...]]:
    words = re.findall(r"[a-z0-9]+", text.lower())
    return {tuple(words[at : at + length]) for at in range(len(words) - length + 1)}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_answer_shares_four_words_with_the_truth(family: str) -> None:
    for seed in range(6):
        task = make_task(family, seed)
        answers = [TaskStakeholder(task).ask(topic).text for topic in TOPICS]
        truth = runs(serialised(task))
        assert not any(runs(answer) & truth for answer in answers)
        assert not re.search(r"\d|_", " ".join(answers))


def test_the_search_for_a_leak_finds_one() -> None:
    task = hiding()
    leaking = f"I want {task.active[0].name} with arg {task.active[0].arg}"
    assert runs(json.dumps({"check": task.active[0].name, "arg": task.active[0].arg}) + leaking) & runs(
        leaking
    )


def test_the_wording_of_an_answer_does_not_depend_on_any_level() -> None:
    """So the text of an answer carries its level and nothing else: the other levels may be anything."""
    family, wordings = "sla_report", {}
    places: dict[str, set[int]] = {topic: set() for topic in DIMENSIONS[:3]}
    table = truth_table_of(family)
    for row in table.levels.tolist():
        levels = dict(zip(DIMENSIONS, row, strict=True))
        task = task_with(family, 9, levels, DIMENSIONS[:3])
        for topic in DIMENSIONS[:3]:
            text = TaskStakeholder(task).ask(topic).text
            wordings.setdefault((topic, levels[topic]), set()).add(text)
            places[topic].add(ANSWERS[levels[topic]].index(text))
    assert set(wordings) == set(product(DIMENSIONS[:3], (0, 1, 3)))
    assert all(len(texts) == 1 for texts in wordings.values())
    assert all(len(found) == 1 for found in places.values())


def test_an_answer_has_the_bits_that_were_meant() -> None:
    """Mutual information of answer and truth by enumeration: the entropy of the level, at most log2 3."""
    for family in ("sla_report", "breach_notice", "asset_register"):
        table = truth_table_of(family)
        rows = table.levels[table.training_rows].tolist()
        for place, topic in enumerate(DIMENSIONS):
            hidden = (topic, *(name for name in DIMENSIONS if name != topic))[:3]
            joint: Counter[tuple[str, tuple[int, ...]]] = Counter()
            for row in rows[::7]:
                task = task_with(family, 4, dict(zip(DIMENSIONS, row, strict=True)), hidden)
                joint[TaskStakeholder(task).ask(topic).text, tuple(row)] += 1
            total = sum(joint.values())
            answers: Counter[str] = Counter()
            for (text, _), count in joint.items():
                answers[text] += count
            shared = sum(
                count / total * math.log2(count / total / (answers[text] / total * (1 / total)))
                for (text, _), count in joint.items()
            )
            levels = Counter(row[place] for row in rows[::7])
            entropy = -sum(count / total * math.log2(count / total) for count in levels.values())
            assert shared == pytest.approx(entropy)
            assert 1.2 < entropy <= math.log2(3) + 1e-12


def test_answers_have_several_wordings() -> None:
    tasks = [make_task("sla_report", seed) for seed in range(300)]
    said: dict[int, set[str]] = {0: set(), 1: set(), 3: set()}
    for task in tasks:
        for topic in task.hidden:
            reply = TaskStakeholder(task).ask(topic)
            assert reply.level is not None
            said[reply.level].add(reply.text)
    assert [len(texts) for texts in said.values()] == [5, 5, 5]
    assert not said[0] & said[1] and not said[1] & said[3] and not said[0] & said[3]


def test_a_question_is_worth_what_it_should_be() -> None:
    """Mean skill of the best rubric after 0 to 3 answers. The band is four standard errors or less."""
    tasks = [make_task(family, seed) for family in TRAINING_FAMILIES for seed in range(50)]
    hidden = [task for task in tasks if task.hidden]
    found = [
        np.mean([skill(normalised(rounded(posterior_weights(task, asked))), task.weights) for task in hidden])
        for asked in range(4)
    ]
    assert found == pytest.approx([0.73, 0.83, 0.92, 0.998], abs=0.02)
    gains = np.diff(found)
    assert ((gains > 0.06) & (gains < 0.12)).all()


def test_without_the_cut_to_six_criteria_a_question_is_worth_the_published_figures() -> None:
    """0.70, 0.79, 0.88, 0.97 for 0 to 3 questions, from 4,000 simulated tasks."""
    random, found = np.random.default_rng(0), [[] for _ in range(4)]
    combinations = np.array(list(product((0, 1, 3), repeat=6)))
    for family in TRAINING_FAMILIES:
        facets = family_of(family).facets
        raw = combinations[:, [DIMENSIONS.index(name) for name, _ in facets]] * [base for _, base in facets]
        truths = raw / np.maximum(raw.sum(axis=1, keepdims=True), 1)
        usable = (raw.sum(axis=1) > 0) & (truths.max(axis=1) <= 0.4)
        levels, truths = combinations[usable], truths[usable]
        for _ in range(60):
            at, order = random.integers(len(levels)), random.permutation(6)
            for asked in range(4):
                known = order[: 3 + asked]
                agree = (levels[:, known] == levels[at, known]).all(axis=1)
                best = rounded(truths[agree].mean(axis=0))
                found[asked].append(skill(normalised(best), truths[at]))
    assert [np.mean(one) for one in found] == pytest.approx([0.70, 0.79, 0.88, 0.97], abs=0.02)
