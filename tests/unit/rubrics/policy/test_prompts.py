from __future__ import annotations

import json

import jsonschema
import pytest

from onward.rubrics.check import Check
from onward.rubrics.policy import prompts


def test_the_brief_lists_its_checks_in_canonical_order() -> None:
    made = prompts.brief_of("Audit.", [Check("row_count", "all"), Check("date_iso")])
    assert made == 'Checks:\n"date_iso": ""\n"row_count": "all"\nAudit.'


@pytest.mark.parametrize("topic", ["accuracy", "brevity", None])
def test_a_question_fits_its_schema_and_is_read_back(topic: str | None) -> None:
    text = prompts.question(topic)
    jsonschema.validate(json.loads(text), prompts.question_schema(["accuracy", "brevity"]))
    assert prompts.topic_of(text) == topic


@pytest.mark.parametrize("text", ["", "[]", '{"criteria": []}', '{"ask": 3}', "no"])
def test_another_text_asks_nothing(text: str) -> None:
    assert prompts.topic_of(text) is None


def test_a_reply_has_the_answer_and_what_to_write_next() -> None:
    assert prompts.reply("Sources first.", None) == "Sources first."
    assert prompts.reply("Sources first.", prompts.NOTE) == "Sources first.\nNote what matters."
    assert prompts.reply(None, prompts.NOW) == "Write the rubric."


def test_notes_fit_their_schema_and_are_read_back() -> None:
    text = prompts.notes({"accuracy": 3, "brevity": 0, "compliance": 1})
    assert text == (
        '{"accuracy": "decisive", "completeness": "unknown", "brevity": "none", "compliance": "helps", '
        '"traceability": "unknown", "actionability": "unknown"}'
    )
    jsonschema.validate(json.loads(text), prompts.notes_schema())
    levels = prompts.levels_of(text)
    assert {name for name, level in levels.items() if level is None} == {
        "completeness",
        "traceability",
        "actionability",
    }
    assert (levels["accuracy"], levels["brevity"], levels["compliance"]) == (3, 0, 1)


@pytest.mark.parametrize("text", ["", "[]", '{"accuracy": "very"}', '{"accuracy": ["decisive"]}', "no"])
def test_another_text_is_no_notes(text: str) -> None:
    assert prompts.levels_of(text) == {}
