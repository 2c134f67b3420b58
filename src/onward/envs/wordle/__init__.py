"""Wordle: find a word of five letters in six guesses.

Feedback is a letter for each place of the guess: ``g`` right letter in the right place, ``y`` letter of the
word in another place, ``b`` not (or not once more) in the word. A repeated letter of the guess gets as many
``g`` and ``y`` as the word has of it: ``g`` first, then ``y`` from the left.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from onward.envs.environment import Effect, Environment, Player, World
from onward.envs.tasks import TaskRef
from onward.envs.wordle.words import SECRETS, WORDS

TRIES = 6
LENGTH = 5
SMALL = 30
"""Maximum candidates at which the reference also considers guesses that cannot be the word."""


@dataclass(frozen=True)
class Secret:
    """A task."""

    word: str


class WordleEnvironment(Environment):
    """Wordle: reward 1 for the word, else 0. Any five letters may be guessed; anything else costs a try."""

    name = "wordle"
    version = "1"
    horizon = TRIES
    panels: ClassVar[Mapping[str, int]] = {split: len(words) for split, words in SECRETS.items()}
    instructions = (
        "Find the secret English word of five letters. Answer with one word of five letters. For each letter "
        "you are told: g right place, y in the word but in another place, b not in the word."
    )

    def make_task(self, task: TaskRef) -> Secret:
        """Picks a word. Each seed has its own order of the split's words, so a panel repeats no word."""
        words = list(SECRETS[task.split])
        random.Random(f"wordle/{task.split}/{task.seed}").shuffle(words)
        return Secret(words[task.index])

    def definition(self, task: Secret) -> object:
        return task.word

    def world(self, task: Secret) -> World:
        return _Board(task.word)

    def reference(self, task: Secret) -> Player:
        """Returns a player that guesses the word which best divides the remaining ones of ``WORDS``."""
        return _Solver().guess

    def random(self, task: Secret, rng: random.Random) -> Player:
        words = iter(rng.sample(WORDS, TRIES))
        return lambda observation: next(words)


class _Board(World):
    def __init__(self, word: str) -> None:
        self._word, self._left = word, TRIES

    def describe(self) -> str:
        return f"Guess the word. You have {TRIES} tries."

    def act(self, action: str) -> Effect:
        self._left -= 1
        letters = action.lower()
        guess = letters.replace(" ", "") if len(letters) == 2 * LENGTH - 1 else letters
        if guess == self._word:
            return Effect(f"You found the word: {guess}.", reward=1.0, done=True, success=True)
        if not (len(guess) == LENGTH and guess.isascii() and guess.isalpha()):
            return self._goes_on(f"{action[:20]!r} is not a word of five letters.")
        return self._goes_on(f"{guess}: {' '.join(feedback(guess, self._word))}.")

    def _goes_on(self, said: str) -> Effect:
        if self._left == 0:
            return Effect(f"{said} No tries left. The word was {self._word}.", done=True)
        return Effect(f"{said} You have {self._left} {'try' if self._left == 1 else 'tries'} left.")


def feedback(guess: str, word: str) -> str:
    """Returns ``g``, ``y`` or ``b`` for each letter of ``guess``; both have the same length."""
    unplaced = Counter(w for g, w in zip(guess, word, strict=True) if g != w)
    marks = []
    for g, w in zip(guess, word, strict=True):
        if g == w:
            marks.append("g")
        elif unplaced[g] > 0:
            unplaced[g] -= 1
            marks.append("y")
        else:
            marks.append("b")
    return "".join(marks)


class _Solver:
    def __init__(self) -> None:
        self._candidates = WORDS
        self._guess = ""

    def guess(self, observation: str) -> str:
        if self._guess:
            marks = observation.partition(": ")[2][: 2 * LENGTH - 1].replace(" ", "")
            self._candidates = _left(self._candidates, self._guess, marks)
        self._guess = _best_guess(self._candidates)
        return self._guess


@lru_cache(maxsize=4096)
def _left(candidates: tuple[str, ...], guess: str, marks: str) -> tuple[str, ...]:
    return tuple(word for word in candidates if feedback(guess, word) == marks)


@lru_cache(maxsize=4096)
def _best_guess(candidates: tuple[str, ...]) -> str:
    """Returns the guess with the most different feedbacks over ``candidates``; a candidate in a tie."""
    if len(candidates) < 3:
        return min(candidates)
    if candidates is WORDS:
        return "stair"
    pool = (*candidates, *WORDS) if len(candidates) <= SMALL else candidates
    return max(pool, key=lambda guess: len({feedback(guess, word) for word in candidates}))


WORDLE = WordleEnvironment()

__all__ = ["TRIES", "WORDLE", "WORDS", "Secret", "WordleEnvironment", "feedback"]
