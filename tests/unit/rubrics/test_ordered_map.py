"""The ordered map: its grammar has exactly the maps of a brute-force list; its reader gives reasons."""

from __future__ import annotations

import json
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from onward.rubrics.check import Check
from onward.rubrics.language import Criterion, InvalidRubric, Rubric
from onward.rubrics.language.ordered_map import map_grammar, parse_map, serialise_map

CHECKS = [Check("d", "1"), Check("b"), Check("a", "x"), Check("a", "y")]
NAMES = ["a(x)", "a(y)", "b", "d(1)"]


def test_the_grammar_has_each_map_once_and_nothing_else() -> None:
    """A walk over all allowed bytes, beside every choice of three or four checks and their weights."""
    llguidance = pytest.importorskip("llguidance")
    matcher = llguidance.LLMatcher(
        llguidance.LLTokenizer("byte"),
        llguidance.LLMatcher.grammar_from_lark(map_grammar(CHECKS).source),
        log_level=0,
    )
    assert not matcher.is_error(), matcher.get_error()
    expected = {
        json.dumps(dict(zip(chosen, weights, strict=True)))
        for size in (3, 4)
        for chosen in combinations(NAMES, size)
        for weights in product(range(1, 6), repeat=size)
        if set(weights[1:]) <= {1, 5}
    }
    found: set[str] = set()

    def walk(state: Any, text: bytes) -> None:
        forced = state.compute_ff_bytes()
        if forced:
            text += forced
            assert state.consume_tokens(list(forced))
        if state.is_accepting():
            found.add(text.decode())
            return
        allowed = np.unpackbits(np.frombuffer(state.compute_bitmask(), np.uint8), bitorder="little")
        for byte in np.flatnonzero(allowed[:256]):
            # Weights after the first: 1 and 5 alone, so that the walk ends soon.
            if chr(byte) in "234" and text.count(b": ") > 1 and text.endswith(b": "):
                continue
            copy = state.deep_copy()
            assert copy.consume_token(int(byte))
            walk(copy, text + bytes([byte]))

    walk(matcher, b"")
    assert found == expected


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
