"""The ordered language of rubrics: each criterion comes after the one before it in canonical order.

The language is that of ``language.ordered.ordered_grammar``, which serves any tokenizer. In a closed
vocabulary every stretch of it is one token, and here it has no other spelling: a parser would allow each
stretch letter by letter too. A small automaton over these tokens is made in a sixth of the time of a
compilation, and writes a mask in less than half of a parser's time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from onward.lm.constrained import CompiledGrammar
from onward.rubrics.check import Check
from onward.rubrics.language import LEAST_CRITERIA, MOST_CRITERIA, WEIGHTS
from onward.rubrics.language.writing import BETWEEN, CLOSING, OPENING, TO_ARGUMENT, TO_WEIGHT

Encode = Callable[[str], Sequence[int]]
_Stage = Literal["open", "name", "to_arg", "arg", "to_weight", "weight", "next", "end", "done"]


@dataclass(frozen=True)
class _State:
    stage: _Stage
    last: int = -1
    """Place of the last whole check; before it is whole, of the last possible one of its name."""
    count: int = 0
    name: str = ""


class OrderedRubrics:
    """The automaton of one list of checks."""

    def __init__(self, checks: Sequence[Check], encode: Encode, vocab: int, end: int) -> None:
        self.checks, self.vocab, self.end = sorted(set(checks)), vocab, end
        self._encode = encode
        self._masks: dict[_State, np.ndarray] = {}
        self._moves: dict[_State, dict[int, _State]] = {}

    @classmethod
    def grammar(cls, checks: Sequence[Check], encode: Encode, vocab: int, end: int) -> CompiledGrammar | None:
        """Returns the grammar for a tokenizer; None if a stretch of the text is no single token of it."""
        made = cls(checks, encode, vocab, end)
        if any(len(encode(piece)) != 1 for piece in made.pieces):
            return None
        source = json.dumps([[check.name, check.arg] for check in made.checks])
        digest = hashlib.sha256(f"{source}{[list(encode(piece)) for piece in made.pieces]}".encode())
        return CompiledGrammar(
            "json_schema",
            source,
            begin=lambda: OrderedConstraint(made),
            vocab=vocab,
            fingerprint=digest.hexdigest(),
            max_tokens=_longest(min(len(made.checks), MOST_CRITERIA)),
        )

    @cached_property
    def pieces(self) -> list[str]:
        """The stretches that texts are made of."""
        words = [json.dumps(word) for check in self.checks for word in (check.name, check.arg)]
        return [OPENING, TO_ARGUMENT, TO_WEIGHT, BETWEEN, CLOSING, *map(str, WEIGHTS), *dict.fromkeys(words)]

    def mask(self, state: _State) -> np.ndarray:
        if state not in self._masks:
            words = np.zeros((self.vocab + 31) // 32, dtype=np.uint32)
            for token in self.moves(state):
                words[token // 32] |= np.uint32(1) << np.uint32(token % 32)
            self._masks[state] = words.view(np.int32)
        return self._masks[state]

    def moves(self, state: _State) -> dict[int, _State]:
        """Returns the allowed tokens with the states after them."""
        if state not in self._moves:
            self._moves[state] = {
                self.end if text is None else self._encode(text)[0]: after
                for text, after in self._after(state)
            }
        return self._moves[state]

    def _after(self, state: _State) -> list[tuple[str | None, _State]]:
        last, count, name = state.last, state.count, state.name
        if state.stage == "open":
            return [(OPENING, _State("name"))]
        if state.stage == "name":
            found = dict.fromkeys(self.checks[place].name for place in self._places(last, count))
            return [(json.dumps(one), _State("to_arg", last, count, one)) for one in found]
        if state.stage == "to_arg":
            return [(TO_ARGUMENT, _State("arg", last, count, name))]
        if state.stage == "arg":
            own = [place for place in self._places(last, count) if self.checks[place].name == name]
            return [(json.dumps(self.checks[p].arg), _State("to_weight", p, count + 1)) for p in own]
        if state.stage == "to_weight":
            return [(TO_WEIGHT, _State("weight", last, count))]
        if state.stage == "weight":
            return [(str(weight), _State("next", last, count)) for weight in WEIGHTS]
        if state.stage == "next":
            goes_on = [(BETWEEN, _State("name", last, count))] if self._places(last, count) else []
            return [*goes_on, *([(CLOSING, _State("end"))] if count >= LEAST_CRITERIA else [])]
        return [(None, _State("done"))] if state.stage == "end" else []

    def _places(self, last: int, count: int) -> range:
        """Returns the places of the next check that leave enough of them for the fewest criteria."""
        if count >= MOST_CRITERIA:
            return range(0)
        missing = max(0, LEAST_CRITERIA - count - 1)
        return range(last + 1, len(self.checks) - missing)


def _longest(criteria: int) -> int:
    """Returns the tokens of a rubric: opening, five of each criterion, one between two, closing, end."""
    return 6 * criteria + 2


class OrderedConstraint:
    """One answer under an automaton; it has the form of ``lm.constrained.Constraint``."""

    def __init__(self, automaton: OrderedRubrics) -> None:
        self._automaton = automaton
        self._state = _State("open")
        self.is_broken = False

    def mask(self, out: np.ndarray) -> None:
        out[:] = self._automaton.mask(self._state)

    def advance(self, token: int) -> None:
        after = self._automaton.moves(self._state).get(token)
        self.is_broken = self.is_broken or after is None
        self._state = after or self._state

    def reset(self) -> None:
        self._state, self.is_broken = _State("open"), False
