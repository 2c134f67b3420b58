"""The token-id rule: ids and log-probs of what may hold redacted text are gone, and of nothing else."""

import base64
import copy
import json

import pytest

from onward.contracts import Trajectory, encode, validate
from onward.errors import RedactionError
from onward.redaction import redact, redact_trajectory

SECRET = "ghp_" + "aB3dE5fG7hJ9" * 3
MAIL = "jo" + "@corp-mail.io"


def voided(document) -> list[bool]:
    """Per turn: whether ids are gone. Asserts that they are gone or there as a whole."""
    flags = []
    for i, turn in enumerate(document["turns"], start=1):
        record = turn["action"]["sampling"]
        gone = record.get("tokens_void") is True
        expected = ([], [], []) if gone else ([i, 11, 12], [i, 21], [-0.5, -0.25])
        assert (record["prompt_ids"], record["token_ids"], record["logprobs"]) == expected
        flags.append(gone)
    return flags


def put(document, path, value):
    for step in path[:-1]:
        document = document[step]
    document[path[-1]] = value


def test_without_secrets_nothing_changes(trajectory):
    redacted = redact_trajectory(trajectory)
    assert redacted.document == trajectory
    assert not redacted.changed


@pytest.mark.parametrize(
    "path,expected",
    [
        (("turns", 1, "observation", "content"), [False, True, True, True]),
        (("turns", 1, "thought_process", 0), [False, True, True, True]),
        (("turns", 1, "action", "raw_response"), [False, True, True, True]),
        (("turns", 1, "action", "tool_args"), [False, True, True, True]),
        (("turns", 1, "result", "output"), [False, False, True, True]),
        (("turns", 1, "result", "error"), [False, False, True, True]),
        (("turns", 3, "result", "output"), [False, False, False, False]),
        (("turns", 0, "observation", "content"), [True, True, True, True]),
        (("task_context", "instructions"), [True, True, True, True]),
        (("metadata", "note"), [True, True, True, True]),
    ],
)
def test_from_the_first_affected_token_on(trajectory, path, expected):
    value = {"key": f"use {SECRET}"} if path[-1] == "tool_args" else f"use {SECRET}"
    put(trajectory, path, value)
    redacted = redact_trajectory(trajectory)
    assert voided(redacted.document) == expected
    assert SECRET not in json.dumps(redacted.document)


def test_a_secret_named_late_and_seen_early_voids_from_where_it_was_seen(trajectory):
    trajectory["turns"][3]["action"]["tool_args"] = {"password": "hunter2-long"}
    trajectory["turns"][1]["observation"]["content"] = "the word is hunter2-long"
    redacted = redact_trajectory(trajectory)
    assert voided(redacted.document) == [False, True, True, True]
    assert redacted.document["turns"][1]["observation"]["content"] == "the word is <PASSWORD:1>"


def test_the_chain_is_followed_where_turns_are_out_of_order(trajectory):
    """Turn 2 says that it continues the generation of turn 4, which is affected; turn 1 continues turn 2."""
    trajectory["turns"][1]["action"]["sampling"]["continues"] = "g4"
    trajectory["turns"][0]["action"]["sampling"]["continues"] = "g2"
    trajectory["turns"][2]["action"]["sampling"]["continues"] = None
    trajectory["turns"][3]["observation"]["content"] = MAIL
    assert voided(redact_trajectory(trajectory).document) == [True, True, False, True]


def test_a_new_row_after_the_secret_is_void_too(trajectory):
    """Turn 4 has a whole prompt of its own (continues None): it repeats the history."""
    trajectory["turns"][2]["result"]["output"] = SECRET
    assert voided(redact_trajectory(trajectory).document) == [False, False, False, True]


def test_records_in_other_places_of_a_void_turn_go_too(trajectory):
    trajectory["turns"][0]["action"]["calls"] = [{"token_ids": [1, 2], "logprobs": [-1.0, -1.0]}]
    trajectory["metadata"]["last"] = {"prompt_ids": [5, 6]}
    trajectory["turns"][0]["observation"]["content"] = SECRET
    document = redact_trajectory(trajectory).document
    assert document["turns"][0]["action"]["calls"][0]["token_ids"] == []
    assert document["metadata"]["last"]["prompt_ids"] == []


def test_a_void_record_has_no_signature(trajectory):
    trajectory["turns"][0]["action"]["sampling"]["signature"] = "f" * 64
    trajectory["turns"][0]["observation"]["content"] = MAIL
    assert "signature" not in redact_trajectory(trajectory).document["turns"][0]["action"]["sampling"]


HIDDEN = {
    "plain": f"the key is {SECRET}.",
    "escaped": json.dumps(json.dumps({"api_key": SECRET})),
    "base64": "blob " + base64.b64encode(f"token={SECRET}, and so on".encode()).decode(),
    "password": "log in with hunter2-long, please",
}
PLACES = [
    ("task_context", "instructions"),
    *[("turns", i, "observation", "content") for i in range(4)],
    *[("turns", i, "action", "raw_response") for i in range(4)],
    *[("turns", i, "result", "output") for i in range(4)],
]


@pytest.mark.parametrize("hidden", HIDDEN, ids=HIDDEN.keys())
@pytest.mark.parametrize("path", PLACES, ids=lambda path: "-".join(map(str, path)))
def test_all_stored_ids_decode_to_no_secret(trajectory, path, hidden):
    """Ids here are bytes: each prompt holds all that was said before, as a delta under the prefix rule."""
    put(trajectory, path, HIDDEN[hidden])
    trajectory["turns"][3]["action"]["tool_args"] = {"password": "hunter2-long"}
    said = trajectory["task_context"]["instructions"]
    for turn in trajectory["turns"]:
        prompt, answer = f"{said} {turn['observation']['content']} ", turn["action"]["raw_response"]
        if turn["turn_id"] == 4:
            answer += json.dumps(turn["action"]["tool_args"])
        turn["action"]["sampling"] |= {
            "prompt_ids": list(prompt.encode()),
            "token_ids": list(answer.encode()),
            "logprobs": [-0.5] * len(answer.encode()),
        }
        said = str(turn["result"]["output"])
    document = redact_trajectory(trajectory).document
    rows = [turn["action"]["sampling"] for turn in document["turns"]]
    ids = [row["prompt_ids"] + row["token_ids"] for row in rows]
    stored = bytes(number for row in ids for number in row)
    for secret in (SECRET, "hunter2-long", base64.b64encode(f"token={SECRET}".encode()).decode()[:40]):
        assert secret.encode() not in stored
        assert secret not in json.dumps(document)
    for row in rows:
        assert len(row["logprobs"]) == len(row["token_ids"])
    kept = [row.get("tokens_void") is not True for row in rows]
    assert kept == sorted(kept, reverse=True)  # from the first affected token to the end of the row
    assert not redact(bytes(stored).decode()).changed
    first = path[1] + (path[2] == "result") if path[0] == "turns" else 0
    assert sum(kept) == min(first, 3)


def test_a_second_run_changes_nothing_and_the_contract_holds(trajectory):
    trajectory["turns"][1]["observation"]["content"] = f"{MAIL} password: hunter2!x"
    once = redact_trajectory(trajectory).document
    again = redact_trajectory(copy.deepcopy(once))
    assert again.document == once
    assert not again.changed
    encode(validate(once, Trajectory))


def test_contract_words_survive_a_password_that_equals_them(trajectory):
    trajectory["turns"][0]["action"]["tool_args"] = {"password": "tool_call", "secret": "raw_response-9"}
    trajectory["metadata"]["api_key"] = "agent"
    document = redact_trajectory(trajectory).document
    assert document["turns"][0]["action"]["type"] == "tool_call"
    encode(validate(document, Trajectory))


def test_ids_with_a_secret_become_usable_ids_that_tell_nothing(trajectory):
    trajectory["session_id"] = MAIL
    document = redact_trajectory(trajectory).document
    assert document["session_id"] == f"redacted-EMAIL-1-{trajectory['trajectory_id']}"
    assert voided(document) == [False] * 4
    assert redact_trajectory(document).document == document
    trajectory["turns"][0]["action"]["sampling"]["generation_id"] = SECRET
    trajectory["turns"][1]["action"]["sampling"]["continues"] = SECRET
    document = redact_trajectory(trajectory).document
    first, second = (document["turns"][i]["action"]["sampling"] for i in (0, 1))
    assert first["generation_id"] == second["continues"] != SECRET
    encode(validate(document, Trajectory))


def test_a_timestamp_within_tool_output_is_plain_text(trajectory):
    trajectory["turns"][0]["result"]["output"] = {"timestamp": MAIL}
    assert redact_trajectory(trajectory).document["turns"][0]["result"]["output"] == {
        "timestamp": "<EMAIL:1>"
    }


def test_a_trajectory_id_that_is_a_secret_is_refused(trajectory):
    trajectory["trajectory_id"] = SECRET
    with pytest.raises(RedactionError):
        redact_trajectory(trajectory)


def test_ids_and_numbers_of_the_contract_stay(trajectory):
    trajectory["metadata"]["total_tokens"] = 123456789012
    assert redact_trajectory(trajectory).document == trajectory


@pytest.mark.parametrize(
    "wrong",
    [
        {"turns": [{"action": {"sampling": {"generation_id": ["x"], "token_ids": [1]}}}], "note": SECRET},
        {"turns": {"a": SECRET}},
        {"turns": [SECRET, None, 3]},
        [SECRET],
    ],
)
def test_what_is_no_trajectory_is_redacted_or_refused(wrong):
    try:
        redacted = redact_trajectory(wrong)
    except RedactionError as error:
        assert SECRET not in str(error)
    else:
        assert SECRET not in json.dumps(redacted.document)
        assert "[1]" not in json.dumps(redacted.document)
