from __future__ import annotations

import json
from itertools import pairwise

import jsonschema
import torch

from onward.rubrics.language import parse, schema_of
from onward.rubrics.policy import prompts
from onward.rubrics.policy.demonstrations import Care, rows
from onward.rubrics.policy.episodes import Player
from onward.rubrics.policy.splits import training_tasks
from onward.rubrics.tasks import DIMENSIONS, TOPICS, Stakeholder


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
    assert player.chat.text(drawn) == said + one.notes + one.text
    jsonschema.validate(json.loads(one.notes), prompts.notes_schema())
    stakeholder = Stakeholder(task)
    whole = str(player.policy.tokenizer.decode(one.row.ids))
    for topic in one.questions:
        assert stakeholder.ask(topic).text in whole


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


def test_a_demonstration_is_a_row_as_an_episode_makes_it(player: Player) -> None:
    task = training_tasks((), 1)[5]
    row = next(iter(rows(player, [task], Care(1.0, 1.0), seed=3)))
    opening = player.chat.render(prompts.opening(task))
    assert row.ids[: len(opening)] == opening and not any(row.sampled[: len(opening)])
    assert all(row.ids[t] in row.allowed[t] for t in row.trained)
    text = player.chat.text([i for i, own in zip(row.ids, row.sampled, strict=True) if own])
    rubric = parse(text[text.rindex('{"criteria"') :], task.active)
    assert all(left < right for left, right in pairwise(rubric.checks))
    truth = {check for check, weight in zip(task.active, task.weights, strict=True) if weight > 0}
    assert set(rubric.checks) == truth  # a careful writer
    topics = [topic for topic in map(prompts.topic_of, _objects(text)) if topic]
    (noted,) = [levels for levels in map(prompts.levels_of, _objects(text)) if levels]
    for name, level in task.levels.items():
        assert noted[name] == (level if name not in task.hidden or name in topics else None)


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
