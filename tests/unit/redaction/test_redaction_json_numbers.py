"""A secret that is a bare number in JSON within a text: the text still parses, to what the object holds."""

import copy
import json
import random

import pytest

from onward.contracts import Trajectory, validate
from onward.contracts.examples import TRAJECTORY
from onward.redaction import Known, redact, redact_trajectory

NUMBER = 83726154
CARD = int("4111" + "1" * 12)
MARK = "<PASSWORD:1>"
ARGS = {
    "password": NUMBER,
    "list": [NUMBER, 7, [-NUMBER], {"a": 1}, NUMBER],
    "float": float(NUMBER),
    "text": f"it is {NUMBER}",
    "words": ["a", 'say "hi"', NUMBER, None],
    "others": [NUMBER + 1, NUMBER * 10, 1.83726154, True],
}
CLEAN = {
    "password": MARK,
    "list": [MARK, 7, [MARK], {"a": 1}, MARK],
    "float": MARK,
    "text": f"it is {MARK}",
    "words": ["a", 'say "hi"', MARK, None],
    "others": [NUMBER + 1, NUMBER * 10, 1.83726154, True],
}


def clean(text, known: Known | None = None):
    """The text redacted, and unchanged by a second run."""
    first = redact({"s": text}, known=known or Known())
    assert not redact(first.document, known=known or Known()).changed
    return first.document["s"]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("levels", [0, 1, 2, 3])
def test_json_within_json_still_parses_where_a_bare_number_was_a_secret(levels, indent):
    text = json.dumps(ARGS, indent=indent)
    for _ in range(levels):
        text = json.dumps({"before": [1], "inner": text}, indent=indent)
    inner = clean(text)
    for _ in range(levels):
        inner = json.loads(inner)["inner"]
    assert json.loads(inner) == CLEAN


@pytest.mark.parametrize("levels", [0, 1, 2, 3])
def test_an_array_alone_in_its_text_has_the_quotes_of_its_level(levels):
    text = json.dumps([CARD, 7, CARD])
    for _ in range(levels):
        text = json.dumps([text])
    inner = clean(text)
    for _ in range(levels):
        (inner,) = json.loads(inner)
    assert json.loads(inner) == ["<CARD:1>", 7, "<CARD:1>"]


@pytest.mark.parametrize(
    "args",
    [ARGS, {"password": -NUMBER, "x": [NUMBER, -NUMBER]}, {"passcode": 128009, "n": 128009},
     {"password": 12345, "n": 12345}, {"password": 1234.5678, "n": [1234.5678, -1234.5678]},
     {"card": CARD, "cards": [CARD]}],
)  # fmt: skip
def test_raw_response_still_parses_to_the_arguments_of_the_tool(args):
    document = copy.deepcopy(TRAJECTORY)
    action = document["turns"][0]["action"]
    action |= {"tool_args": args, "raw_response": json.dumps({"tool_name": "t", "tool_args": args})}
    document["turns"][0]["result"]["output"] = json.dumps({"echo": args})
    found = redact_trajectory(document)
    validate(found.document, Trajectory)
    turn = found.document["turns"][0]
    assert turn["action"]["tool_args"] != args
    assert json.loads(turn["action"]["raw_response"])["tool_args"] == turn["action"]["tool_args"]
    assert json.loads(turn["result"]["output"])["echo"] == turn["action"]["tool_args"]
    assert not redact_trajectory(found.document).changed


def test_thoughts_before_the_json_do_not_change_its_quotes():
    text = f'The 5" disk [1, see below\n[\n  {CARD},\n  2]'
    assert clean(text) == 'The 5" disk [1, see below\n[\n  "<CARD:1>",\n  2]'


def test_json_that_is_cut_off_has_quotes_too():
    assert clean(f'{{"password": {NUMBER}') == f'{{"password": "{MARK}"'


@pytest.mark.parametrize(
    "text",
    [f"password={NUMBER}", f"password: {NUMBER}\nother: {NUMBER}", f"{{'password': {NUMBER}}}",
     f'{{"password": "{NUMBER}", "note": "is {NUMBER}, yes"}}',
     f"password={NUMBER}; see [{NUMBER}] (a, {NUMBER})"],
)  # fmt: skip
def test_what_is_no_bare_number_of_json_gets_no_quotes(text):
    assert clean(text) == text.replace(str(NUMBER), MARK)


def test_a_known_number_keeps_json_whole():
    assert clean(f'{{"n": {NUMBER}}}', Known([str(NUMBER)])) == '{"n": "<KNOWN:1>"}'


def test_any_json_with_the_number_in_it_parses_to_what_the_object_becomes():
    draw = random.Random(11)

    def value(depth: int):
        kind = draw.randrange(9 if depth else 6)
        if kind < 6:
            simple = (NUMBER, "a", 'q"uo\\te', None, 5, f"x {NUMBER}")
            return simple[kind]
        if kind == 6:
            return {draw.choice("abcd"): value(depth - 1) for _ in range(draw.randrange(4))}
        if kind == 7:
            return [value(depth - 1) for _ in range(draw.randrange(5))]
        return json.dumps(value(depth - 1))

    for _ in range(300):
        content = {"password": NUMBER, "v": value(4)}
        document = {"object": content, "text": json.dumps(content, indent=draw.choice((None, 1)))}
        found = redact(document).document
        assert json.loads(found["text"]) == found["object"]
        assert not redact(found).changed
