"""The finite language: canonical order, its schema, its writing and every reason of an invalid text."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.lm.constrained import WRITING, schema_source
from onward.rubrics.check import Check
from onward.rubrics.language import Criterion, InvalidRubric, Rubric, parse, schema_of, serialise

CHECKS = (
    Check("has_section", "risks"),
    Check("has_section", "summary"),
    Check("max_words", "120"),
    Check("next_step_present"),
    Check("sum_matches", "total"),
)
RUBRIC = Rubric(
    [Criterion(CHECKS[4], 5), Criterion(CHECKS[1], 2), Criterion(CHECKS[3], 3)],
)
TEXT = (
    '{"criteria": [{"check": "has_section", "arg": "summary", "weight": 2}, '
    '{"check": "next_step_present", "arg": "", "weight": 3}, '
    '{"check": "sum_matches", "arg": "total", "weight": 5}]}'
)


def test_a_rubric_has_one_text() -> None:
    assert serialise(RUBRIC) == TEXT
    assert parse(TEXT, CHECKS) == RUBRIC
    shuffled = json.dumps({"criteria": json.loads(TEXT)["criteria"][::-1]}, indent=1)
    assert serialise(parse(shuffled, CHECKS)) == TEXT


rubrics = st.lists(
    st.builds(Criterion, st.sampled_from(CHECKS), st.integers(1, 5)), min_size=3, max_size=7
).map(Rubric)


@settings(max_examples=40, deadline=None)
@given(rubrics)
def test_every_rubric_is_in_its_schema_and_is_read_back(rubric: Rubric) -> None:
    text = serialise(rubric)
    jsonschema.validate(json.loads(text), schema_of(CHECKS))
    assert parse(text, reversed(CHECKS)) == rubric


def test_the_schema_can_be_enforced_and_has_values_of_lists_alone() -> None:
    schema = schema_of(CHECKS)
    assert json.loads(schema_source(schema, "rubric", "response_format")) == schema
    items = schema["properties"]["criteria"]["items"]["anyOf"]
    assert [item["properties"]["check"]["const"] for item in items] == [
        "has_section",
        "max_words",
        "next_step_present",
        "sum_matches",
    ]
    assert items[0]["properties"]["arg"] == {"enum": ["risks", "summary"]}
    assert items[2]["properties"]["arg"] == {"enum": [""]}


def test_the_schema_and_the_reader_allow_the_same_items() -> None:
    """Every item of a small alphabet, beside two valid ones."""
    good = json.loads(TEXT)["criteria"][:2]
    validator = jsonschema.Draft202012Validator(schema_of(CHECKS))
    names = ["has_section", "max_words", "next_step_present", "other"]
    for name, argument, weight in product(names, ["risks", "120", "", None, 1], [0, 1, 5, 6, True, "1"]):
        value = {"criteria": [*good, {"check": name, "arg": argument, "weight": weight}]}
        try:
            parse(json.dumps(value), CHECKS)
            read = True
        except InvalidRubric:
            read = False
        # JSON Schema calls true an enumeration's 1; ours does not.
        assert read == (validator.is_valid(value) and weight is not True), value


ITEM = '{"check": "max_words", "arg": "120", "weight": 1}'


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "not JSON at character 0"),
        (TEXT[:-10], "not JSON at character"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", 'one object with the key "criteria" alone'),
        ('{"criteria": [], "more": 1}', 'the key "criteria" alone'),
        ('{"criteria": 3}', '"criteria" is 3: write a list'),
        ('{"criteria": []}', "has 0 criteria: use 3 to 7"),
        ('{"criteria": [' + ", ".join([ITEM] * 8) + "]}", "has 8 criteria: use 3 to 7"),
        ('{"criteria": [7]}', "Criterion 1 is 7: write an object"),
        ('{"criteria": [{"check": "max_words", "arg": "120"}]}', '"check", "arg" and "weight" alone'),
        ('{"criteria": [' + ITEM.replace("max_words", "max_word") + "]}", "did you mean 'max_words'?"),
        ('{"criteria": [' + ITEM.replace("max_words", "zzz") + "]}", "use one of has_section, max_words"),
        ('{"criteria": [' + ITEM.replace("120", "130") + "]}", "use '120'"),
        ('{"criteria": [' + ITEM.replace(": 1", ": 9") + "]}", "max_words(120) is 9"),
        ('{"criteria": [' + ITEM.replace(": 1", ": true") + "]}", "has the weight true"),
        ('{"criteria": [' + ITEM.replace(": 1", ": 1.0") + "]}", "has the weight 1.0"),
        ('{"criteria": [' + ITEM.replace(": 1", ": NaN") + "]}", "the value NaN"),
        ('{"criteria": [{"check": "a", "check": "b"}]}', "the key 'check' twice"),
        (
            '{"criteria": [' + ITEM.replace("120", "\\ud800") + "]}",
            'has the argument "\\ud800" for max_words',
        ),
    ],
)
def test_an_invalid_text_has_a_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidRubric) as caught:
        parse(text, CHECKS)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).encode()


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: ITEM.replace(": 1", ": " + "1" * 5000), "number with too many digits"),
        (lambda: "{" + "".join(f'"{n}": 1, ' for n in range(50_000)) + '"49999": 1}', "key '49999' twice"),
        (lambda: ITEM.replace("max_words", "m" * 10**6), "unknown check"),
    ],
)
def test_an_enormous_text_has_a_reason(make: Callable[[], str], reason: str) -> None:
    with pytest.raises(InvalidRubric, match=reason) as caught:
        parse('{"criteria": [' + make() + "]}", CHECKS)
    assert len(str(caught.value)) < 300


def test_a_weight_is_a_whole_number_of_any_kind_and_no_other() -> None:
    two: Any = np.int64(2)
    criteria = [Criterion(check, two) for check in CHECKS[:3]]
    assert {type(one.weight) for one in criteria} == {int}
    assert parse(serialise(Rubric(criteria)), CHECKS) == Rubric(criteria)
    for wrong in (1.0, True, "1", None, 0, 6, float("nan")):
        weight: Any = wrong
        with pytest.raises(InvalidRubric, match="use a whole number from 1 to 5"):
            Criterion(CHECKS[0], weight)


def test_a_repeated_check_is_valid_and_is_named() -> None:
    repeated = Rubric([Criterion(CHECKS[2], 1), Criterion(CHECKS[2], 1), Criterion(CHECKS[0], 4)])
    assert repeated.duplicates == (CHECKS[2],)
    assert RUBRIC.duplicates == ()
    assert parse(serialise(repeated), CHECKS) == repeated


def test_the_score_is_the_share_of_the_weight_that_holds() -> None:
    assert RUBRIC.score([True, False, True]) == pytest.approx(7 / 10)
    with pytest.raises(ValueError, match="2 results for 3 criteria"):
        RUBRIC.score([True, False])


def test_a_schema_needs_a_check() -> None:
    with pytest.raises(InvalidRubric, match="no check at all"):
        schema_of([])


def test_every_text_that_the_mask_allows_is_a_rubric() -> None:
    """Random walks over the allowed bytes of the schema; canonical texts lie within it as well."""
    llguidance = pytest.importorskip("llguidance")
    source = schema_source(schema_of(CHECKS), "rubric", "response_format")
    grammar = llguidance.LLMatcher.grammar_from_json_schema(source, overrides=dict(WRITING))
    tokenizer = llguidance.LLTokenizer("byte")
    draw = np.random.default_rng(0)
    lengths = set()
    for _ in range(40):
        matcher, text = llguidance.LLMatcher(tokenizer, grammar, log_level=0), b""
        while not matcher.is_stopped():
            if forced := matcher.compute_ff_bytes():
                assert matcher.consume_tokens(list(forced))
                text += forced
                continue
            mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
            allowed = np.flatnonzero(mask[:256])
            if not len(allowed):
                break
            byte = int(draw.choice(allowed))
            assert matcher.consume_token(byte)
            text += bytes([byte])
        assert not matcher.is_error()
        rubric = parse(text.decode(), CHECKS)
        lengths.add(len(rubric.criteria))
        canonical = serialise(rubric).encode()
        again = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
        assert again.try_consume_tokens(list(canonical)) == len(canonical) and again.is_accepting()
    assert lengths <= {3, 4, 5, 6, 7} and len(lengths) > 1
