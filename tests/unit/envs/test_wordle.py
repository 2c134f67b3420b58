"""Feedback of Wordle by hand, repeated letters above all, against an independent slow rule too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.envs.wordle import WORDLE, Secret, feedback
from onward.envs.wordle.words import SECRETS, WORDS


@pytest.mark.parametrize(
    ("guess", "word", "marks"),
    [
        ("crane", "crane", "ggggg"),
        ("crane", "moist", "bbbbb"),
        ("crane", "nacre", "yyyyg"),
        ("speed", "erase", "ybyyb"),  # both e of the guess, one s, no second p
        ("allot", "llama", "ygybb"),  # the second l stands right, the first is the other l of the word
        ("geese", "these", "bbggg"),  # the word has two e, both placed: the first e of the guess is b
        ("eerie", "sleep", "yybbb"),  # two e in the word: the third e of the guess is b
        ("abbey", "babes", "yyggb"),
        ("sassy", "issue", "ybgbb"),
        ("llama", "hello", "yybbb"),
    ],
)
def test_feedback_by_hand(guess: str, word: str, marks: str) -> None:
    assert feedback(guess, word) == marks


def _slow(guess: str, word: str) -> str:
    """Crosses letters of the word off one by one: first those in place, then from the left."""
    left = list(word)
    marks = ["b"] * len(guess)
    for at, letter in enumerate(guess):
        if word[at] == letter:
            marks[at] = "g"
            left.remove(letter)
    for at, letter in enumerate(guess):
        if marks[at] == "b" and letter in left:
            marks[at] = "y"
            left.remove(letter)
    return "".join(marks)


@given(st.text("abc", min_size=5, max_size=5), st.text("abc", min_size=5, max_size=5))
def test_feedback_agrees_with_crossing_letters_off(guess: str, word: str) -> None:
    assert feedback(guess, word) == _slow(guess, word)


def test_the_word_ends_it_with_reward_one() -> None:
    world = WORDLE.world(Secret("crane"))
    assert world.act("moist").observation == "moist: b b b b b. You have 5 tries left."
    effect = world.act("C R A N E")
    assert (effect.observation, effect.reward, effect.done, effect.success) == (
        "You found the word: crane.",
        1.0,
        True,
        True,
    )


def test_six_wrong_guesses_end_it_without_reward() -> None:
    world = WORDLE.world(Secret("crane"))
    effects = [world.act("moist") for _ in range(6)]
    assert [effect.done for effect in effects] == [False] * 5 + [True]
    assert effects[4].observation.endswith("You have 1 try left.")
    assert effects[5].observation == "moist: b b b b b. No tries left. The word was crane."
    assert effects[5].reward == 0 and not effects[5].success


@pytest.mark.parametrize("guess", ["", "abc", "cranes", "cr4ne", "crâne", "cra ne"])
def test_what_is_no_word_of_five_letters_is_told_and_costs_a_try(guess: str) -> None:
    said = WORDLE.world(Secret("crane")).act(guess).observation
    assert said == f"{guess!r} is not a word of five letters. You have 5 tries left."


def test_words_are_five_plain_letters_and_each_is_a_secret_in_one_split() -> None:
    assert len(WORDS) == len(set(WORDS)) >= 600
    assert all(len(word) == 5 and word.isascii() and word.isalpha() and word.islower() for word in WORDS)
    assert sorted(word for words in SECRETS.values() for word in words) == list(WORDS)


def test_a_seed_changes_the_order_of_secrets_and_not_the_secrets() -> None:
    first, second = ([WORDLE.task(ref).word for ref in WORDLE.panel("validation", seed)] for seed in (0, 1))
    assert first != second and sorted(first) == sorted(second) == sorted(SECRETS["validation"])
