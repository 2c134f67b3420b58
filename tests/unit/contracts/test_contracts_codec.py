"""The codec: canonical bytes out, and each way in which bytes from anybody are refused."""

from __future__ import annotations

import copy
import hashlib
import json
import traceback
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.contracts import (
    DatasetSpec,
    Feedback,
    Reward,
    Trajectory,
    canonical_json,
    decode,
    decode_document,
    encode,
    examples,
    sha256_hex,
    validate,
)
from onward.contracts.codec import _within_depth
from onward.errors import ContractError

SECRET = "sk-" + "a" * 40


def refused(data: bytes, **limits: int) -> ContractError:
    with pytest.raises(ContractError) as caught:
        decode(data, Trajectory, **limits)
    assert caught.value.__cause__ is None
    return caught.value


def open_part(text: str) -> bytes:
    """A valid trajectory whose open metadata holds the given piece of JSON text."""
    document = copy.deepcopy(examples.TRAJECTORY)
    document["metadata"]["x"] = "HERE"
    return canonical_json(document).replace(b'"HERE"', text.encode())


def test_canonical_json_is_sorted_compact_and_utf8() -> None:
    assert (
        canonical_json({"b": [1, 2.5, None, True], "a": "ü\n"})
        == '{"a":"ü\\n","b":[1,2.5,null,true]}'.encode()
    )


def test_sha256_hex_is_the_usual_digest() -> None:
    assert sha256_hex(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256_hex(b"") == hashlib.sha256().hexdigest()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("-inf")]])
def test_canonical_json_refuses_what_is_not_finite(value: Any) -> None:
    with pytest.raises(ContractError) as caught:
        canonical_json({"a": value})
    assert caught.value.reason == "not_finite"


@pytest.mark.parametrize("value", [b"x", {1, 2}, object(), "\ud800", {1: "a", "b": 2}])
def test_canonical_json_refuses_what_json_cannot_hold(value: Any) -> None:
    with pytest.raises(ContractError) as caught:
        canonical_json({"a": value})
    assert caught.value.reason == "not_json"


def test_canonical_json_refuses_what_contains_itself() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ContractError):
        canonical_json(loop)


def test_a_valid_message_comes_back_as_it_was() -> None:
    data = canonical_json(examples.TRAJECTORY)
    assert encode(decode(data, Trajectory)) == data


def test_size_is_checked_first() -> None:
    data = b"[" * 101
    assert refused(data, max_bytes=100).reason == "too_large"
    assert refused(data, max_bytes=101).reason == "too_deep"


def test_the_last_byte_and_the_last_level_allowed_are_allowed() -> None:
    data = canonical_json(examples.TRAJECTORY)
    decode(data, Trajectory, max_bytes=len(data), max_depth=6)
    assert refused(data, max_bytes=len(data) - 1).reason == "too_large"
    assert refused(data, max_depth=5).reason == "too_deep"


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'["\\\\",' + b"[" * 40,
        b'["\\"]",' + b"[" * 40,
        b"[" * 33 + b"]" * 33,
    ],
)
def test_depth_is_refused_before_parsing(data: bytes) -> None:
    assert refused(data).reason == "too_deep"


def test_brackets_inside_strings_are_no_depth() -> None:
    for inside in ("[" * 100, '\\"' + "[{" * 50, "\\\\\\\\" + "[" * 40, '\\\\\\"' + "{" * 40):
        text = decode(open_part(f'"{inside}"'), Trajectory).metadata.model_dump()["x"]
        assert text == json.loads(f'"{inside}"')


JSON = st.recursive(
    st.none() | st.text(st.sampled_from('[]{}"\\,a'), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('[{"\\', max_size=3), inner, max_size=3)
    ),
)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(JSON)
def test_the_depth_scan_agrees_with_a_walk_of_the_parsed_value(value: Any) -> None:
    def depth(part: Any) -> int:
        if isinstance(part, dict):
            return 1 + max((depth(inner) for inner in part.values()), default=0)
        return 1 + max((depth(inner) for inner in part), default=0) if isinstance(part, list) else 0

    data = json.dumps(value).encode()
    assert _within_depth(data, depth(value))
    assert depth(value) == 0 or not _within_depth(data, depth(value) - 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not json",
        b"{",
        b"{} {}",
        b"{'a': 1}",
        b'{"a": 1,}',
        b'"\xff"',
        '{"a": 1}'.encode("utf-16"),
        '{"a": 1}'.encode("utf-32"),
        b"\xef\xbb\xbf{}",
        b'{"a": "\n"}',
        b"\x00",
    ],
)
def test_what_is_not_json_is_refused(data: bytes) -> None:
    assert refused(data).reason == "not_json"


def test_a_key_given_twice_is_refused_at_any_level() -> None:
    assert refused(b'{"a": 1, "a": 2}').reason == "not_json"
    assert refused(open_part('[{"a": 1, "\\u0061": 2}]')).reason == "not_json"


def test_half_of_a_surrogate_pair_is_refused_and_a_whole_pair_is_read() -> None:
    assert refused(open_part('"\\ud83d"')).reason == "not_json"
    assert refused(open_part('{"\\uD83D": 1}')).reason == "not_json"
    assert decode(open_part('"\\ud83d\\ude00"'), Trajectory).metadata.model_dump()["x"] == "😀"


@pytest.mark.parametrize(
    "number",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-1E+999",
        "1e0999",
        "99e307",
        "1" * 400,
        "-" + "1" * 400,
        "1" * 5000,
        "1" * 250 + "e99",
        "1" * 250 + ".5e+99",
    ],
)
def test_numbers_beyond_a_double_are_refused_even_in_open_parts(number: str) -> None:
    assert refused(open_part(number)).reason == "not_finite"


@pytest.mark.parametrize("number", ["1e308", "-1.5E+300", "1e-999", "9" * 300, "0.0000001", str(2**64)])
def test_large_and_small_finite_numbers_are_read(number: str) -> None:
    assert decode(open_part(number), Trajectory).metadata.model_dump()["x"] == json.loads(number)


def test_digits_inside_strings_are_no_numbers() -> None:
    text = "1e999 NaN " + "7" * 400
    assert decode(open_part(json.dumps(text)), Trajectory).metadata.model_dump()["x"] == text


@pytest.mark.parametrize("data", [b"null", b"[]", b"5", b'"x"', b"true"])
def test_json_that_is_no_object_fails_the_schema(data: bytes) -> None:
    assert refused(data).reason == "schema"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("turns",), [], "Trajectory.turns should have at least 1 item after validation, not 0."),
        (("turns", 0, "turn_id"), 0, "Trajectory.turns[0].turn_id should be greater than or equal to 1."),
        (("turns", 1, "result"), {}, "Trajectory.turns[1].result.success is required."),
        (
            ("turns", 1, "action", "type"),
            SECRET,
            "Trajectory.turns[1].action.type should be 'tool_call', 'subordinate_call', 'response' or "
            "'memory_update'.",
        ),
        (
            ("trajectory_id",),
            "a b",
            "Trajectory.trajectory_id should be 1 to 128 letters, digits, '_' or '-'.",
        ),
        (
            ("end_timestamp",),
            "yesterday",
            "Trajectory.end_timestamp should be an RFC 3339 date-time with an offset.",
        ),
        (
            ("turns", 0, "observation", "content"),
            5,
            "Trajectory.turns[0].observation.content should be a valid string or a valid dictionary.",
        ),
    ],
)
def test_a_schema_error_is_one_sentence_with_the_path(
    path: tuple[Any, ...], value: Any, message: str
) -> None:
    document = copy.deepcopy(examples.TRAJECTORY)
    holder: Any = document
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    error = refused(canonical_json(document))
    assert (error.reason, str(error)) == ("schema", message)


def test_keys_that_come_from_the_input_are_not_shown() -> None:
    document = copy.deepcopy(examples.REWARD)
    document["reward_components"] = {SECRET: {"score": "x", "weight": 1, "source": "human"}}
    with pytest.raises(ContractError) as caught:
        decode(canonical_json(document), Reward)
    assert str(caught.value) == "Reward.reward_components.*.score should be a valid number."


def _everything_secret() -> list[bytes]:
    quoted = json.dumps(SECRET)
    bodies = [
        SECRET,
        quoted,
        f"[{quoted}]",
        f"{{{quoted}: {quoted}}}",
        f"{{{quoted}: 1, {quoted}: 2}}",
        f"{{{quoted}: NaN}}",
        f"{{{quoted}: {'[' * 50}}}",
        f'{{"a": "\\ud800{SECRET}"}}',
    ]
    for place in _every_place(examples.TRAJECTORY):
        document = copy.deepcopy(examples.TRAJECTORY)
        holder: Any = document
        for step in place[:-1]:
            holder = holder[step]
        holder[place[-1]] = {SECRET: [SECRET]}
        bodies.append(json.dumps(document))
    bodies.append(json.dumps({**examples.TRAJECTORY, SECRET: SECRET}))
    return [body.encode() for body in bodies] + [SECRET.encode() + b"\xff", SECRET.encode("utf-16")]


def _every_place(value: Any, path: tuple[Any, ...] = ()) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    for key, inner in items:
        yield (*path, key)
        yield from _every_place(inner, (*path, key))


def test_nothing_of_the_input_is_echoed_by_any_refusal() -> None:
    refusals = 0
    for data in _everything_secret():
        try:
            decode(data, Trajectory)
        except ContractError as error:
            refusals += 1
            assert SECRET[:8] not in "".join(traceback.format_exception(error))
            assert error.__cause__ is None
    assert refusals >= 30


def test_encode_refuses_a_message_that_was_changed_into_nonsense() -> None:
    message = validate(examples.TRAJECTORY, Trajectory)
    message.turns.clear()
    with pytest.raises(ContractError) as caught:
        encode(message)
    assert caught.value.reason == "schema"
    broken = validate(examples.FEEDBACK, Feedback).model_copy(update={"value": float("nan")})
    with pytest.raises(ContractError) as caught:
        encode(broken)
    assert caught.value.reason == "not_finite"


def test_encode_refuses_bytes_and_infinity_in_open_parts() -> None:
    for value, reason in ((b"x", "not_json"), (float("inf"), "not_finite"), ("\ud800", "not_json")):
        with pytest.raises(ContractError) as caught:
            encode(DatasetSpec(source="local", sample_size=1, environment={"a": value}))
        assert caught.value.reason == reason


def test_decode_document_reads_what_has_no_contract() -> None:
    assert decode_document(b'{"job_id": "x"}') == {"job_id": "x"}
    with pytest.raises(ContractError):
        decode_document(b"[[1]]", max_depth=1)


def test_a_message_with_a_hundred_thousand_faults_is_refused_without_listing_them() -> None:
    many = b",".join([b"{}"] * 100_000)
    few = refused(b'{"turns":[' + many + b"]}")
    assert str(few) == (
        "Trajectory.trajectory_id is required; also wrong: .session_id, .agent_id, .start_timestamp, "
        ".end_timestamp, .turns[0].turn_id, .turns[0].timestamp, .turns[0].observation, .turns[0].action "
        "and 3 more."
    )
    names = "trajectory_id session_id agent_id start_timestamp end_timestamp task_context metadata"
    missing = [f".{name} is required" for name in names.split()]
    assert [fault for fault in few.faults if "turns" not in fault] == missing
    document = {**examples.REWARD, "reward_components": {str(i): 5 for i in range(50_000)}}
    with pytest.raises(ContractError, match=r"^Reward does not fit its schema in 50000 places\.$"):
        decode(canonical_json(document), Reward)
    unknown = canonical_json({**examples.REWARD, **{str(i): i for i in range(50_000)}})
    with pytest.raises(ContractError, match=r"^Reward has 50000 unknown field\(s\) at the top level"):
        decode(unknown, Reward)
