from __future__ import annotations

from pathlib import Path

from onward.lm import paths
from onward.rubrics.language import Criterion, Rubric, serialise
from onward.rubrics.policy import prompts
from onward.rubrics.policy.episodes import Player
from onward.rubrics.policy.plan import Plan
from onward.rubrics.policy.splits import training_tasks
from onward.rubrics.policy.vocabulary import Size, build
from onward.rubrics.tasks import CHECKS, TOPICS


def test_each_check_argument_and_topic_is_one_token(player: Player) -> None:
    words = [f'"{word}"' for kind in CHECKS.values() for word in (kind.name, *kind.args)]
    words += [f'"{topic}"' + "}" for topic in (*TOPICS, prompts.ENOUGH)]
    assert {word: len(player.chat.encode(word)) for word in words} == dict.fromkeys(words, 1)


def test_a_rubric_has_one_token_and_six_for_each_criterion(player: Player) -> None:
    task = training_tasks((), 1)[0]
    for count in (3, 7):
        text = serialise(Rubric(Criterion(check, 1) for check in task.active[:count]))
        ids = player.chat.encode(text)
        assert len(ids) == 1 + 6 * count
        assert player.chat.text(ids) == text


def test_any_text_is_read_whole(player: Player) -> None:
    for text in ("Zürich: 12,5 % of the flügel", '{"a": [1, 2]}', "tabs\tand\r\nlines", "語"):
        assert player.chat.text(player.chat.encode(text)) == text


def test_words_of_one_family_are_spelled_out_and_those_of_many_are_not(player: Player) -> None:
    assert len(player.chat.encode(" expense")) > 1
    assert len(player.chat.encode(" report")) == 1


def test_the_tiny_network_has_at_most_two_million_weights(tmp_path: Path) -> None:
    folder = build(tmp_path / "m", {"a": ["some words"]}, ['"x"'], Plan().size)
    assert paths.parameters(folder) <= 2_000_000


def test_the_same_texts_make_the_same_model(tmp_path: Path) -> None:
    size = Size(hidden=16, heads=2, intermediate=16)
    made = [
        build(Path(str(tmp_path)) / name, {"a": ["one two"], "b": ["two"]}, ['"x"'], size) for name in "pq"
    ]
    for name in ("tokenizer.json", "model.safetensors", "config.json"):
        first, second = ((folder / name).read_bytes() for folder in made)
        assert first == second
