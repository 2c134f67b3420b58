"""Results: at most 4 KB, paged, redacted, foreign text marked, shortened and without hidden characters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.redaction import Redactor
from onward.redaction.known import Known
from onward.tools.results import MOST, NOTE, page, render, shorten, untrusted

REDACTOR = Redactor()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=200), inner, max_size=30),
    max_leaves=30,
)


def test_a_small_result_is_compact_and_unchanged() -> None:
    assert render({"state": "queued", "number": 47, "é": [1, 2]}, REDACTOR) == (
        '{"state":"queued","number":47,"é":[1,2]}'
    )


def test_a_long_list_is_cut_at_an_item_and_pages_give_every_item_once() -> None:
    items = [{"number": number, "text": "words " * 20} for number in range(200)]
    seen: list[int] = []
    offset = 0
    for _ in range(100):
        text = render({"total": 200, "items": items[offset:]}, REDACTOR, offset)
        assert len(text.encode()) <= MOST
        found = json.loads(text)
        assert found["total"] == 200
        seen += [one["number"] for one in found["items"]]
        if "next_offset" not in found:
            break
        offset = found["next_offset"]
    assert seen == list(range(200))


def test_one_item_that_is_too_large_is_shortened_and_passed() -> None:
    found = json.loads(render({"items": [{"text": "x" * 9000}, {"text": "y"}]}, REDACTOR, 4))
    assert found["next_offset"] == 5
    assert "more characters" in json.dumps(found["items"])


def test_secrets_and_hidden_characters_are_gone() -> None:
    key = "sk-ant-" + "api03-" + "Zk3Qv9" * 15 + "AA"
    hidden = "safe\u202eevil\u200b\x1b[31m\U000e0041end"
    text = render(untrusted({"said": f"use {key}", "and": hidden}, REDACTOR), REDACTOR)
    assert key not in text and "<ANTHROPIC_KEY:1>" in text
    found = json.loads(text)
    assert found["note"] == NOTE
    assert found["untrusted"]["and"] == "safeevil[31mend"


@pytest.mark.parametrize(
    ("value", "most", "expected"),
    [
        ("a" * 700, 650, "a" * 600 + "… (100 more characters)"),
        (list(range(100)), 60, [*range(20), "… (80 more)"]),
        ({"a": 1}, 100, {"a": 1}),
    ],
)
def test_texts_and_lists_are_cut_with_a_count(value: Any, most: int, expected: Any) -> None:
    if isinstance(value, str):
        assert len(json.dumps(value)) > most
    assert shorten(value, most if not isinstance(value, list) else 100) == expected


@given(JSON)
@settings(max_examples=40, deadline=None)
def test_whatever_it_is_the_result_is_json_within_the_limit(value: Any) -> None:
    text = render(untrusted(value, REDACTOR), REDACTOR)
    assert len(text.encode()) <= MOST
    assert json.loads(text)["note"] == NOTE


def test_pages_of_a_text_are_the_text() -> None:
    text = "".join(f"line {number} — ü\n" for number in range(1500))
    parts, offset = [], 0
    while True:
        found = page(text, offset)
        parts.append(found["untrusted"])
        assert len(json.dumps(found, ensure_ascii=False).encode()) < MOST
        if "next_offset" not in found:
            break
        offset = found["next_offset"]
    assert "".join(parts) == text and found["characters"] == len(text)


@pytest.mark.parametrize("before", [590, 570, 293, 140, 75])
def test_a_secret_at_the_place_where_a_text_is_cut_is_not_shown_in_part(before: int) -> None:
    secret = "tango-" + "foxtrot-" + "7-lima-4"
    redactor = Redactor(Known([secret]))
    said = "x" * (before - 1) + " " + secret + " " + "y" * 3000
    text = render(untrusted({"said": said, "more": ["z" * 900] * 30}, redactor), redactor)
    assert secret[:6] not in text and "xxx" in text
