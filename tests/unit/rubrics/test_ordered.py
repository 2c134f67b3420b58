"""The grammar of rubrics in canonical order has exactly the rubrics of a brute-force list."""

from __future__ import annotations

import json
import re
from itertools import combinations, product

import numpy as np
import pytest

from onward.rubrics.check import Check
from onward.rubrics.language import Criterion, InvalidRubric, Rubric
from onward.rubrics.language.ordered import ordered_grammar

CHECKS = [Check("d", "1"), Check("b"), Check("a", "x"), Check("a", "y")]


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
            is_weight = text.endswith(b'"weight": ') and chr(byte).isdigit()
            if is_weight and chr(byte) in "234" and re.search(rb": \d", text):
                continue
            copy = state.deep_copy()
            assert copy.consume_token(int(byte))
            open_ends.append((copy, text + bytes([byte])))
    return found


def test_the_grammar_has_each_rubric_once_and_nothing_else() -> None:
    """Beside every choice of three or four checks and their weights."""
    expected = {
        as_list(Rubric([Criterion(*pair) for pair in zip(chosen, weights, strict=True)]))
        for size in (3, 4)
        for chosen in combinations(sorted(CHECKS), size)
        for weights in product(range(1, 6), repeat=size)
        if set(weights[1:]) <= {1, 5}
    }
    assert len(expected) == 4 * 5 * 2**2 + 5 * 2**3
    assert language(ordered_grammar(CHECKS).source) == expected


def test_the_grammar_counts_to_seven() -> None:
    llguidance = pytest.importorskip("llguidance")
    checks = [Check(f"check_{place:02}") for place in range(11)]
    source = llguidance.LLMatcher.grammar_from_lark(ordered_grammar(checks).source)
    for size in range(1, 12):
        matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), source, log_level=0)
        chosen = [{"check": one.name, "arg": "", "weight": 5} for one in checks[-size:]]
        text = json.dumps({"criteria": chosen})
        assert (matcher.try_consume_tokens(list(text.encode())) == len(text)) == (3 <= size <= 7)


def test_fewer_checks_than_criteria_are_refused() -> None:
    with pytest.raises(InvalidRubric, match="2 checks were given: a rubric needs 3 different ones"):
        ordered_grammar(CHECKS[:2])
