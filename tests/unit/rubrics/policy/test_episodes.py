from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

import jsonschema
import pytest
import torch

from onward.lm.request import Sample, SampleRequest
from onward.rubrics.language import parse, schema_of
from onward.rubrics.policy import prompts
from onward.rubrics.policy.demonstrations import Care, rows
from onward.rubrics.policy.episodes import Attempt, Player, answers_of
from onward.rubrics.policy.scoring import TruthScorer
from onward.rubrics.policy.splits import training_tasks
from onward.rubrics.tasks import DIMENSIONS, TOPICS, TaskStakeholder
from onward.rubrics.tasks.phrases import ASPECTS
from onward.rubrics.writers import no_stakeholder


def test_every_answer_of_an_untrained_policy_fits_its_grammar_when_hot(player: Player) -> None:
    tasks = training_tasks((), 2)
    for one in player.play(tasks, temperature=1.5):
        assert one.problem == ""
        jsonschema.validate(json.loads(one.text), schema_of(one.task.active))
        assert parse(one.text, one.task.active) == one.rubric
        assert len(one.questions) <= 3 and set(one.questions) <= set(TOPICS)


def test_rows_train_what_the_policy_drew_and_no_word_of_others(player: Player) -> None:
    task = training_tasks((), 1)[3]
    one = player.play([task] * 8, for_training=True)[0]
    drawn = [token for token, own in zip(one.row.ids, one.row.sampled, strict=True) if own]
    said = "".join([*(prompts.question(topic) for topic in one.questions)])
    said += "" if len(one.questions) == 3 else prompts.question(None)
    assert player.chat.text(drawn) == said + one.text
    jsonschema.validate(json.loads(one.notes), prompts.notes_schema())
    stakeholder = TaskStakeholder(task)
    whole = str(player.policy.tokenizer.decode(one.row.ids))
    for topic in one.questions:
        assert f"{topic}: {stakeholder.ask(topic).text}" in whole
    assert one.notes in whole


def test_a_writer_that_has_no_stakeholder_asks_nothing_and_pays_nothing(player: Player) -> None:
    """It reads what it would read if it asked nothing of its own accord. What it did not draw, it does not
    train."""
    task = training_tasks((), 1)[3]
    free = player.play([task] * 64, seed=1)
    own = next(one for one in free if not one.questions)
    assert any(one.questions for one in free), "this policy asks where it can"
    (one,) = player.play([task], stakeholder=no_stakeholder, for_training=True)
    assert one.questions == () and one.rubric is not None
    read, expected = (player.chat.text(some.row.ids).removesuffix(some.text) for some in (one, own))
    assert read == expected and '{"ask": "nothing"}' in read
    drawn = [token for token, sampled in zip(one.row.ids, one.row.sampled, strict=True) if sampled]
    assert player.chat.text(drawn) == one.text
    asked = len(player.chat.encode('{"ask": "nothing"}')) + 1  # and the end of the turn
    assert (
        own.drawn - len(player.chat.encode(own.text)) == one.drawn - len(player.chat.encode(one.text)) + asked
    )


@pytest.mark.parametrize("notes", [True, False])
def test_a_writer_that_never_asks_writes_the_same_with_and_without_a_stakeholder(
    player: Player, notes: bool
) -> None:
    silent = Player(player.policy, questions=0, notes=notes)
    tasks = training_tasks((), 1)[:2]
    texts = [
        [one.text for one in silent.play(tasks, stakeholder=one, seed=3)]
        for one in (answers_of, no_stakeholder)
    ]
    assert texts[0] == texts[1]


def test_notes_are_the_likeliest_ones_however_hot_the_episode_is(player: Player) -> None:
    silent = Player(player.policy, questions=0)
    tasks = [training_tasks((), 1)[3]] * 8
    hot, cold = silent.play(tasks, temperature=1.5, seed=4), silent.play(tasks[:1], temperature=0.0)
    assert {one.notes for one in hot} == {cold[0].notes}
    assert len({one.text for one in hot}) > 1


def test_log_probs_of_the_sampler_are_those_of_the_learner(player: Player) -> None:
    one = player.play(training_tasks((), 1)[:4], for_training=True)[2]
    found = player.policy.logprobs([one.row])[0].cpu()[one.row.trained]
    recorded = torch.tensor([one.row.logprobs[t] for t in one.row.trained])
    assert len(recorded) > 6
    assert torch.allclose(found, recorded, atol=1e-3)
    forced = [t for t, own in enumerate(one.row.sampled) if own and t not in one.row.trained]
    assert {one.row.logprobs[t] for t in forced} == {0.0}


def test_the_same_seed_gives_the_same_episodes_and_another_one_does_not(player: Player) -> None:
    tasks = training_tasks((), 1)[:6]
    texts = [[one.text for one in player.play(tasks, seed=seed)] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_every_answer_of_every_episode_has_draws_of_its_own(
    player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds, submit = [], player._sampler.submit

    def seen(request: SampleRequest) -> None:
        seeds.append(request.seed)
        submit(request)

    monkeypatch.setattr(player._sampler, "submit", seen)
    found = player.play(training_tasks((), 1)[:3] * 2, seed=2)
    answers = sum(min(3, len(one.questions) + 1) + 2 for one in found)  # questions, notes, rubric
    assert len(seeds) == len(set(seeds)) == answers


def test_an_answer_that_the_sampler_could_not_complete_is_no_fault_of_the_policy(
    player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = player._sampler.step

    def ended(reason: str) -> Attempt:
        def broken() -> list[Sample]:
            return [replace(one, finish_reason=reason, error="gone") for one in step()]

        monkeypatch.setattr(player._sampler, "step", broken)
        return player.play(training_tasks((), 1)[:1])[0]

    failed, cut = ended("error"), ended("length")
    assert (failed.finished, failed.rubric, failed.problem) == (False, None, "gone")
    assert TruthScorer().reward(failed).total is None
    assert (cut.finished, cut.rubric) == (True, None) and TruthScorer().reward(cut).total == -2.0


def test_a_demonstration_is_a_row_as_an_episode_makes_it(player: Player) -> None:
    found = list(rows(player, training_tasks((), 1)[5:7], Care(1.0, 1.0), 12, seed=3))
    short = [row for row in found if "Checks:" not in player.policy.tokenizer.decode(row.ids)]
    assert 1 <= len(short) < len(found)
    for row in found:
        text = player.chat.text([i for i, own in zip(row.ids, row.sampled, strict=True) if own])
        *questions, notes = [one for one in _objects(text) if "criteria" not in one]
        assert all(row.ids[t] in row.allowed[t] for t in row.trained)
        assert None not in [prompts.levels_of(notes).get(name, 9) for name in asked(questions)]
        context = [i for i, own in zip(row.ids, row.sampled, strict=True) if not own]
        heard = re.sub(r"\{.*?\}", "", str(player.policy.tokenizer.decode(context)))
        for name, level in prompts.levels_of(notes).items():  # what no one said is unknown
            stated = any(aspect in heard for aspect in ASPECTS[name])
            assert (level is not None) == (stated or f"{name}: " in heard)
        goals = [task.brief.partition(". ")[0] for task in training_tasks((), 1)[5:7]]
        assert any(goal in heard for goal in goals) == (row not in short)
        if row in short:
            assert notes == text  # what was asked is context
        else:
            rubric = json.loads(text[text.rindex('{"criteria"') :])["criteria"]
            names = [(one["check"], one["arg"]) for one in rubric]
            assert names == sorted(set(names)) and 3 <= len(names) <= 7


def asked(questions: Sequence[str]) -> list[str]:
    return [topic for topic in map(prompts.topic_of, questions) if topic]


def _objects(text: str) -> list[str]:
    """The JSON objects of an episode's answers, which follow each other."""
    found, decoder = [], json.JSONDecoder()
    while text:
        _, end = decoder.raw_decode(text)
        found.append(text[:end])
        text = text[end:]
    return found


def test_without_questions_and_notes_the_first_answer_is_the_rubric(player: Player) -> None:
    silent = Player(player.policy, questions=0, notes=False)
    one = silent.play(training_tasks((), 1)[:1])[0]
    assert one.questions == () and one.rubric is not None
    drawn = [token for token, own in zip(one.row.ids, one.row.sampled, strict=True) if own]
    assert drawn[-1] == silent.chat.end_of_turn
    assert silent.chat.text(drawn) == one.text and one.notes == ""


def test_without_questions_the_first_answer_is_the_notes(player: Player) -> None:
    one = Player(player.policy, questions=0).play(training_tasks((), 1)[:1])[0]
    assert one.questions == () and list(prompts.levels_of(one.notes)) == list(DIMENSIONS)
