from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file

from onward.lm import paths
from onward.rubrics.language import Criterion, Rubric, serialise
from onward.rubrics.policy import prompts
from onward.rubrics.policy.episodes import Player
from onward.rubrics.policy.plan import Plan
from onward.rubrics.policy.splits import training_tasks
from onward.rubrics.policy.vocabulary import Size, build, phrases_of
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
    assert len(player.chat.encode(" plan")) == 1


def test_a_statement_or_an_answer_is_few_tokens_in_a_family_that_was_never_seen(player: Player) -> None:
    text = " The itinerary stands or falls with exact numbers."
    pieces = [player.policy.tokenizer.decode([token]) for token in player.chat.encode(text)]
    assert pieces[0] == " The" and pieces[-1] == " stands or falls with exact numbers."
    answer = prompts.answered("brevity", "You can leave that aside.")
    assert len(player.chat.encode(answer)) == 1


def test_phrases_are_runs_of_words_that_families_share_and_end_with_a_sentence() -> None:
    texts = {
        name: [[" the", f" {name}", " counts", " most.", " And", " more."]] * 6 for name in ("a", "b", "c")
    }
    assert phrases_of(texts) == [" counts most.", " And more."]


def test_the_tiny_network_has_at_most_two_million_weights(tmp_path: Path) -> None:
    folder = build(tmp_path / "m", {"a": ["some words"]}, ['"x"'], Plan().size)
    assert paths.parameters(folder) <= 2_000_000


def test_weights_are_wide_enough_for_a_narrow_network_to_attend(tmp_path: Path) -> None:
    folder = build(tmp_path / "m", {"a": ["some words"]}, ['"x"'], Size(hidden=64))
    weights = load_file(folder / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
    assert abs(float(weights.std()) - 1 / 8) < 0.01


def test_the_same_texts_make_the_same_model(tmp_path: Path) -> None:
    size = Size(hidden=16, heads=2, intermediate=16)
    made = [
        build(Path(str(tmp_path)) / name, {"a": ["one two"], "b": ["two"]}, ['"x"'], size) for name in "pq"
    ]
    for name in ("tokenizer.json", "model.safetensors", "config.json"):
        first, second = ((folder / name).read_bytes() for folder in made)
        assert first == second
