"""What was found once is replaced everywhere: where it is a number, and where its letters are escaped."""

import copy
import json
import random
import re

import pytest

from onward.contracts import Trajectory, validate
from onward.contracts.examples import TRAJECTORY
from onward.redaction import Known, decode, redact, redact_trajectory

NUMBER = 83726154
PIN = 128009
SECRET = "ghp_" + "aB3dE5fG7hJ9" * 3
ESCAPED = "\\u0067" + SECRET[1:]


def redacted(document, known: Known | None = None):
    """Redacted, and unchanged by a second run."""
    first = redact(document, known=known or Known())
    assert not redact(first.document, known=known or Known()).changed
    return first


def test_a_number_that_was_found_is_replaced_where_it_is_a_number():
    document = {
        "tool_args": {"password": NUMBER},
        "output": NUMBER,
        "list": [1, NUMBER, [NUMBER]],
        "float": float(NUMBER),
        "negative": -NUMBER,
        "text": f"it is {NUMBER}.",
        "others": [NUMBER + 1, NUMBER * 10, NUMBER / 10, True, None, 5],
    }
    found = redacted(document)
    mark = "<PASSWORD:1>"
    assert found.document == {
        "tool_args": {"password": mark},
        "output": mark,
        "list": [1, mark, [mark]],
        "float": mark,
        "negative": mark,
        "text": f"it is {mark}.",
        "others": [NUMBER + 1, NUMBER * 10, NUMBER / 10, True, None, 5],
    }
    assert found.counts == {"PASSWORD": 7}
    assert ("list", 2, 0) in found.touched
    assert redacted({"text": f"password={NUMBER}", "n": NUMBER}).document["n"] == mark


def test_without_a_find_numbers_stay_as_they_are():
    document = {"n": [NUMBER, 1.5, PIN], "text": "nothing"}
    assert redact(document).document is document


def test_a_known_number_is_replaced_where_it_stands_only_as_a_number():
    known = Known([str(NUMBER), "12.5000001"])
    assert redacted({"n": NUMBER}, known).document == {"n": "<KNOWN:1>"}
    assert redacted([12.5000001, 12.5], known).document == ["<KNOWN:1>", 12.5]
    assert redacted({"n": NUMBER + 1}, known).changed is False


def test_a_decimal_under_a_secret_named_key_is_a_secret_and_a_short_one_is_not():
    found = redacted({"password": 1234.5678, "again": 1234.5678, "text": "1234.5678"})
    assert found.document == {"password": "<PASSWORD:1>", "again": "<PASSWORD:1>", "text": "<PASSWORD:1>"}
    for harmless in (0.95, -1234.5678, 12.5):
        assert redact({"password": harmless}).changed is False
    assert redacted({"passwords": [1234.5678]}).document == {"passwords": ["<PASSWORD:1>"]}


def test_a_contracts_numbers_are_no_secrets_even_where_they_are_equal():
    """A PIN may equal a token id, a count or a time: the trajectory must stay one."""
    document = copy.deepcopy(TRAJECTORY)
    turn = document["turns"][0]
    turn["action"]["sampling"]["token_ids"][0] = PIN
    turn["result"]["execution_time_ms"] = PIN
    turn["result"]["output"] = {"password": PIN, "output": PIN, "list": [PIN], "text": str(PIN)}
    document["metadata"]["total_tokens"] = PIN
    found = redact_trajectory(document)
    clean = found.document
    validate(clean, Trajectory)
    mark = "<PASSWORD:1>"
    assert clean["turns"][0]["result"]["output"] == {
        "password": mark, "output": mark, "list": [mark], "text": mark,
    }  # fmt: skip
    assert clean["turns"][0]["action"]["sampling"]["token_ids"][0] == PIN
    assert clean["turns"][0]["result"]["execution_time_ms"] == PIN
    assert clean["metadata"]["total_tokens"] == PIN
    assert not redact_trajectory(clean).changed


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_an_escaped_letter_hides_nothing_in_json_within_json_which_still_parses(levels):
    text = '{"a": "é \\u003cb\\u003e", "k": "' + ESCAPED + '"}'
    for _ in range(levels - 1):
        text = json.dumps({"inner": text})
    found = redacted({"s": text, "before": "é", "after": "\\u0041 stays"})
    assert found.counts == {"GITHUB_TOKEN": 1}
    assert (found.document["before"], found.document["after"]) == ("é", "\\u0041 stays")
    inner = found.document["s"]
    for _ in range(levels - 1):
        inner = json.loads(inner)["inner"]
    assert inner == '{"a": "é \\u003cb\\u003e", "k": "<GITHUB_TOKEN:1>"}'


def test_an_escaped_letter_hides_no_name_no_known_secret_and_no_second_place():
    named = redacted({"s": '{"\\u0070assword": "tr0ub4dor-and-3", "b": 1}'})
    assert json.loads(named.document["s"]) == {"password": "<PASSWORD:1>", "b": 1}
    query = redacted("see https://h.example/x?a=1\\u0026token\\u003d" + "q1W2e3R4t5Y6u7I8")
    assert query.document.endswith("\\u0026token\\u003d<QUERY_SECRET:1>")
    again = redacted({"password": "tr0ub4dor-and-3", "s": '{"x": "t\\u00720ub4dor\\u002dand-3"}'})
    assert json.loads(again.document["s"]) == {"x": "<PASSWORD:1>"}
    known = redacted({"s": '{"x": "Blue\\u0020Whale 42"}'}, Known(["Blue Whale 42"]))
    assert json.loads(known.document["s"]) == {"x": "<KNOWN:1>"}


def test_every_letter_escaped_is_still_found():
    text = "".join(f"\\u{ord(letter):04X}" for letter in f"key {SECRET} end")
    assert redacted([text, SECRET]).document == [
        "\\u006B\\u0065\\u0079\\u0020<GITHUB_TOKEN:1>\\u0020\\u0065\\u006E\\u0064",
        "<GITHUB_TOKEN:1>",
    ]


def test_unescaped_text_and_its_places_are_those_of_a_slow_reference():
    draw = random.Random(7)
    parts = ["a", "\\", "\\u00", "\\u0067", "\\\\u002B", "\\u00e9", "\\u005c", "\x00", "é", "u0067", "\\u003"]
    for _ in range(500):
        text = "".join(draw.choice(parts) for _ in range(draw.randrange(30)))
        escapes = re.compile(r"\\+u00(?!5[cC]|7[fF])(0[9aAdD]|[2-7][0-9a-fA-F])")
        expected, places, at = [], [], 0
        for piece in text.split("\x00"):
            if escapes.search(piece):
                here = 0
                for match in [*escapes.finditer(piece), None]:
                    first = len(piece) if match is None else match.start()
                    for letter in range(here, first):
                        expected.append(piece[letter])
                        places.append((at + letter, at + letter + 1))
                    if match is not None:
                        expected.append(chr(int(match[1], 16)))
                        places.append((at + match.start(), at + match.end()))
                        here = match.end()
                expected.append("\x00")
                places.append((0, 0))
            at += len(piece) + 1
        buffer = text.encode("latin-1")
        found = decode.unescaped(buffer)
        if found is None:
            assert expected == []
            continue
        assert found.text.decode("latin-1") == "".join(expected[:-1])
        for i, letter in enumerate(expected[:-1]):
            if letter != "\x00":
                assert found.place(i, i + 1) == places[i]
