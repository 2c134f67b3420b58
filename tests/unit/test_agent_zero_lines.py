"""Events as lines: the same as one call of the encoder, for texts of every length."""

import json
from typing import Any

import pytest

from onward.integrations.agent_zero.plugin.helpers.lines import PIECE, line


@pytest.mark.parametrize(
    "value",
    [
        "short",
        "x" * PIECE,
        "x" * (PIECE + 1),
        'ü\U0001f600\ud800"\\\n' * PIECE,
        "\x00onward-text-0",
        {"a": ["y" * 2 * PIECE, {"b": "\x00onward-text-1" * PIECE}], "c": "z" * PIECE * 3},
    ],
)
def test_a_line_is_what_json_makes_of_the_event(value: Any) -> None:
    event = {"op": "turn", "first": "q" * 2 * PIECE, "value": value, "last": [1, 2.5, None, True]}
    written = line(event)
    assert written.endswith(b"\n") and written.count(b"\n") == 1
    assert json.loads(written) == event
    assert written[:-1].decode() == json.dumps(event, separators=(",", ":"))
