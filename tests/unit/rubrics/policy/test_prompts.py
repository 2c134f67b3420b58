from __future__ import annotations

import json

import jsonschema
import pytest

from onward.rubrics.check import Check
from onward.rubrics.policy import prompts


def test_the_brief_lists_its_checks_in_canonical_order() -> None:
    made = prompts.brief_of("Audit.", [Check("row_count", "all"), Check("date_iso")])
    assert made == 'Audit.\nChecks:\n"date_iso": ""\n"row_count": "all"'


@pytest.mark.parametrize("topic", ["accuracy", "brevity", None])
def test_a_question_fits_its_schema_and_is_read_back(topic: str | None) -> None:
    text = prompts.question(topic)
    jsonschema.validate(json.loads(text), prompts.question_schema(["accuracy", "brevity"]))
    assert prompts.topic_of(text) == topic


@pytest.mark.parametrize("text", ["", "[]", '{"criteria": []}', '{"ask": 3}', "no"])
def test_another_text_asks_nothing(text: str) -> None:
    assert prompts.topic_of(text) is None


def test_the_last_reply_calls_for_the_rubric() -> None:
    assert prompts.reply("Sources first.", last=False) == "Sources first."
    assert prompts.reply("Sources first.", last=True) == "Sources first.\nWrite the rubric."
    assert prompts.reply(None, last=True) == "Write the rubric."
