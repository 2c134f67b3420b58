from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import jsonschema
import numpy as np

from onward.lm.constrained import CompiledGrammar
from onward.rubrics.check import Check
from onward.rubrics.language import Criterion, Rubric, schema_of, serialise
from onward.rubrics.policy.episodes import Player
from onward.rubrics.policy.ordered import OrderedRubrics
from onward.rubrics.policy.splits import training_tasks

CHECKS = (
    Check("date_iso"),
    Check("has_section", "risks"),
    Check("has_section", "summary"),
    Check("row_count", "all"),
)


def language(player: Player, checks: tuple[Check, ...]) -> set[str]:
    """All texts that the masks allow, with weights 1 alone: the others branch in the same way."""
    vocab, end = player.policy.shape.vocab, player.chat.end_of_turn
    grammar = OrderedRubrics.grammar(checks, player.chat.encode, vocab, end)
    assert grammar is not None
    others = {player.chat.encode(str(weight))[0] for weight in (2, 3, 4, 5)}
    found, open_ = set(), [[]]
    words: np.ndarray = np.zeros((vocab + 31) // 32, dtype=np.int32)
    while open_:
        ids: list[int] = open_.pop()
        constraint = grammar.begin()
        for token in ids:
            constraint.advance(token)
        constraint.mask(words)
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        assert len(allowed)
        for token in map(int, allowed):
            if token == end:
                found.add(player.chat.text(ids))
            elif token not in others:
                open_.append([*ids, token])
    return found


def test_the_masks_allow_each_set_of_checks_once_and_nothing_else(player: Player) -> None:
    expected = {
        serialise(Rubric(Criterion(check, 1) for check in chosen))
        for count in (3, 4)
        for chosen in itertools.combinations(CHECKS, count)
    }
    assert language(player, CHECKS) == expected
    for text in expected:
        jsonschema.validate(json.loads(text), schema_of(CHECKS))


def test_the_most_tokens_are_those_of_the_longest_rubric(player: Player) -> None:
    """A walk over every path, weights aside: of three to nine checks at most seven are chosen."""
    task = training_tasks((), 1)[0]
    for count in (3, 4, 6, 7, 9):
        checks = sorted(set(task.active))[:count]
        assert len(checks) == count
        vocab, end = player.policy.shape.vocab, player.chat.end_of_turn
        grammar = OrderedRubrics.grammar(checks, player.chat.encode, vocab, end)
        assert grammar is not None
        lengths = {len(ids) for ids in _endings(player, grammar)}
        assert max(lengths) == grammar.max_tokens and min(lengths) == 3 * 6 + 2


def _endings(player: Player, grammar: CompiledGrammar) -> Iterator[list[int]]:
    """Every answer of the grammar with the weight 1, as tokens."""
    others = {player.chat.encode(str(weight))[0] for weight in (2, 3, 4, 5)}
    words: np.ndarray = np.zeros((grammar.vocab + 31) // 32, dtype=np.int32)
    open_: list[list[int]] = [[]]
    while open_:
        ids = open_.pop()
        if ids and ids[-1] == player.chat.end_of_turn:
            yield ids
            continue
        constraint = grammar.begin()
        for token in ids:
            constraint.advance(token)
        constraint.mask(words)
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        open_ += [[*ids, token] for token in map(int, allowed) if token not in others]


def test_no_rubric_of_the_ordered_language_repeats_a_check(player: Player) -> None:
    for one in player.play(training_tasks((), 2), temperature=1.5):
        assert one.rubric is not None and not one.rubric.duplicates
        assert serialise(one.rubric) == one.text


def test_a_token_outside_of_the_language_breaks_the_answer(player: Player) -> None:
    vocab, end = player.policy.shape.vocab, player.chat.end_of_turn
    grammar = OrderedRubrics.grammar(CHECKS, player.chat.encode, vocab, end)
    assert grammar is not None
    constraint = grammar.begin()
    constraint.advance(end)
    assert constraint.is_broken
    constraint.reset()
    assert not constraint.is_broken


def test_a_vocabulary_that_splits_the_text_has_no_ordered_language() -> None:
    assert OrderedRubrics.grammar(CHECKS, lambda text: [ord(c) for c in text], 512, 2) is None
