"""The ordered map: its grammar has exactly the maps of a brute-force list; its reader gives reasons."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import combinations, product

import numpy as np
import pytest

from onward.lm.constrained import Grammar
from onward.rubrics.check import Check
from onward.rubrics.language import Criterion, InvalidRubric, Rubric
from onward.rubrics.language.ordered import map_grammar, ordered_grammar, parse_map, serialise_map

CHECKS = [Check("d", "1"), Check("b"), Check("a", "x"), Check("a", "y")]


def as_map(rubric: Rubric) -> str:
    return json.dumps({str(one.check): one.weight for one in rubric.criteria})


def as_list(rubric: Rubric) -> str:
    items = [{"check": one.check.name, "arg": one.check.arg, "weight": one.weight} for one in rubric.criteria]
    return json.dumps({"criteria": items})


def language(source: str) -> set[str]:
    """Returns all texts of a grammar in which the weights after the first are 1 or 5: a walk over bytes."""
    llguidance = pytest.importorskip("llguidance")
    grammar = llguidance.LLMatcher.grammar_from_lark(source)
    start = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar, log_level=0)
    assert not start.is_error(), start.get_error()
    found: set[str] = set()
    open_ends = [(start, b"")]
    while open_ends:
        state, text = open_ends.pop()
        if forced := state.compute_ff_bytes():
            text += forced
            assert state.consume_tokens(list(forced))
        if state.is_accepting():
            found.add(text.decode())
            continue
        allowed = np.unpackbits(np.frombuffer(state.compute_bitmask(), np.uint8), bitorder="little")
        for byte in np.flatnonzero(allowed[:256]):
            is_weight = text.endswith((b'"weight": ', b'": ')) and chr(byte).isdigit()
            if is_weight and chr(byte) in "234" and re.search(rb": \d", text):
                continue
            copy = state.deep_copy()
            assert copy.consume_token(int(byte))
            open_ends.append((copy, text + bytes([byte])))
    return found


@pytest.mark.parametrize("grammar, written", [(map_grammar, as_map), (ordered_grammar, as_list)])
def test_the_grammar_has_each_rubric_once_and_nothing_else(
    grammar: Callable[[list[Check]], Grammar], written: Callable[[Rubric], str]
) -> None:
    """Beside every choice of three or four checks and their weights."""
    expected = {
        written(Rubric([Criterion(*pair) for pair in zip(chosen, weights, strict=True)]))
        for size in (3, 4)
        for chosen in combinations(sorted(CHECKS), size)
        for weights in product(range(1, 6), repeat=size)
        if set(weights[1:]) <= {1, 5}
    }
    assert len(expected) == 4 * 5 * 2**2 + 5 * 2**3
    assert language(grammar(CHECKS).source) == expected


def test_the_grammar_counts_to_seven() -> None:
    llguidance = pytest.importorskip("llguidance")
    checks = [Check(f"check_{place:02}") for place in range(11)]
    source = llguidance.LLMatcher.grammar_from_lark(map_grammar(checks).source)
    for size in range(1, 12):
        matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), source, log_level=0)
        text = json.dumps({str(check): 5 for check in checks[-size:]})
        assert (matcher.try_consume_tokens(list(text.encode())) == len(text)) == (3 <= size <= 7)


def test_a_map_is_written_and_read_back() -> None:
    rubric = Rubric([Criterion(CHECKS[0], 5), Criterion(CHECKS[1], 1), Criterion(CHECKS[3], 2)])
    assert serialise_map(rubric) == '{"a(y)": 2, "b": 1, "d(1)": 5}'
    assert parse_map(serialise_map(rubric), CHECKS) == rubric
    with pytest.raises(InvalidRubric, match="b is repeated"):
        serialise_map(Rubric([Criterion(CHECKS[1], 1)] * 3))
    with pytest.raises(InvalidRubric, match="2 checks were given"):
        map_grammar(CHECKS[:2])


@pytest.mark.parametrize(
    "text, reason",
    [
        ("[]", "not an object"),
        ("{", "not JSON"),
        ('{"a(x)": 1, "b": 2}', "has 2 criteria: use 3 to 7"),
        ('{"a(x)": 1, "a(x)": 1, "b": 2}', "the key 'a(x)' twice"),
        ('{"b": 2, "a(x)": 1, "d(1)": 1}', "'a(x)' is out of order"),
        ('{"b": 2, "c": 1, "d(1)": 1}', "unknown check 'c'"),
        ('{"a(x)": 1, "b": true, "d(1)": 1}', "weight of b is true"),
        ('{"a(x)": 1, "b": 6, "d(1)": 1}', "weight of b is 6"),
    ],
)
def test_an_invalid_map_has_a_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidRubric) as caught:
        parse_map(text, CHECKS)
    assert reason in str(caught.value)
