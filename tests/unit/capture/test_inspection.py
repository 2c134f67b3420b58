"""What becomes of a message, without servers. The faults repeat the document in their text, as careless
code does: none of it may come out."""

import copy
import json
from datetime import UTC, datetime, timedelta

import pytest

from onward.bus import Message
from onward.capture.collecting import inspection as module
from onward.capture.collecting.inspection import Fate, Inspector, Item, conflict_item
from onward.capture.opt_out import OptOut
from onward.clock import utc_text
from onward.contracts import MAX_BYTES, MAX_DEPTH, canonical_json, subjects
from onward.contracts.examples import TRAJECTORY
from onward.errors import ContractError, RedactionError
from onward.redaction import POLICY_VERSION, redact_trajectory, redactor

SECRET = "ghp_" + "aB3dE5fG7hJ9" * 3
NOW = datetime.fromisoformat(TRAJECTORY["end_timestamp"])


def document(text: str = "hello") -> dict:
    body = copy.deepcopy(TRAJECTORY)
    body["turns"][0]["observation"]["content"] = text
    return body


def judged(body, headers: dict[str, str] | None = None, opt_out: str = "") -> Item:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    message = Message(data, headers or {}, subjects.TRAJECTORY, 1, 1, datetime.now(UTC))
    return Inspector(opt_out=OptOut.parse(opt_out)).inspect(message, NOW)


def test_clean_is_stored_and_stays_on_the_stream():
    item = judged(document(), {"Nats-Msg-Id": TRAJECTORY["trajectory_id"]})
    assert (item.fate, item.secret, item.must_erase) == (Fate.STORE, False, False)


def test_a_secret_in_the_body_or_in_a_header_must_go():
    item = judged(document(f"use {SECRET}"))
    assert (item.fate, item.secret, item.counts) == (Fate.STORE, True, {"GITHUB_TOKEN": 1})
    item = judged(document(), {"X-Note": SECRET})
    assert (item.fate, item.secret, item.message.headers) == (
        Fate.STORE, True, {"X-Note": "<GITHUB_TOKEN:1>"},
    )  # fmt: skip


def test_what_the_collector_published_again_is_not_published_a_third_time():
    item = judged(document())
    headers = {
        "Nats-Msg-Id": f"{TRAJECTORY['trajectory_id']}.redacted.{item.identity[-16:]}",
        module.REDACTED: POLICY_VERSION,
    }
    assert judged(document(), headers).secret is False


@pytest.mark.parametrize("name", ["redact_trajectory", "redact", "validate", "decode"])
def test_any_fault_is_tried_once_more_and_then_holds_the_raw_message(monkeypatch, name):
    calls = []

    def fault(first, *_, **__):
        calls.append(1)
        raise ZeroDivisionError(f"cannot do {first}")

    monkeypatch.setattr(redactor if name.startswith("redact") else module, name, fault)
    body = document(f"use {SECRET}")
    item = judged(body, {"X-Note": SECRET})
    assert (item.fate, item.reason, item.detail) == (Fate.HOLD, "redaction", "ZeroDivisionError")
    assert item.message.data == json.dumps(body).encode()
    assert item.message.headers == {"X-Note": SECRET}
    assert item.must_erase
    assert len(calls) == (1 if name == "validate" else 2)
    assert SECRET not in repr((item.reason, item.detail, item.body, item.trajectory_id))


def test_a_fault_that_passes_is_not_held(monkeypatch):
    calls = []

    def once(value, **_):
        calls.append(1)
        if len(calls) == 1:
            raise RedactionError("busy")
        return redact_trajectory(value)

    monkeypatch.setattr(redactor, "redact_trajectory", once)
    assert judged(document(f"use {SECRET}")).fate is Fate.STORE


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[" * (MAX_DEPTH + 1) + SECRET.encode() + b"]" * (MAX_DEPTH + 1), "too_deep"),
        (b"[" * 100_000, "too_deep"),
        (json.dumps({"a": "x" * MAX_BYTES}).encode(), "too_large"),
        (f'{{"password": "{SECRET}", '.encode(), "not_json"),
        (b'{"turns": [{"token_ids": [1, 2', "not_json"),
        (b'{"a": "\\u0067', "not_json"),
        ("plain words".encode("utf-16"), "not_json"),
        (b"words and \xff bytes", "not_json"),
        (json.dumps(document(SECRET)).replace('"turn_id": 1', '"turn_id": NaN').encode(), "not_finite"),
    ],
)
def test_what_cannot_be_read_as_json_is_held_unless_it_is_spotless_text(body, reason):
    item = judged(body)
    assert (item.fate, item.reason, item.detail) == (Fate.HOLD, reason, "ContractError")
    assert item.message.data == body


@pytest.mark.parametrize("body", [b"not json", b'{"a": 1, "a": 2}', b""])
def test_spotless_text_is_a_dead_letter_as_it_is(body):
    item = judged(body)
    assert (item.fate, item.reason, item.body, item.must_erase) == (Fate.DEAD_LETTER, "not_json", body, False)


def test_a_body_without_its_contract_is_a_clean_dead_letter():
    body = document(f"use {SECRET}")
    del body["metadata"]
    item = judged(body)
    assert (item.fate, item.reason, item.secret) == (Fate.DEAD_LETTER, "schema", True)
    assert json.loads(item.body)["turns"][0]["observation"]["content"] == "use <GITHUB_TOKEN:1>"


def test_limits_beyond_the_contract_give_clean_dead_letters():
    old = document(f"use {SECRET}")
    data = json.dumps(old).encode()
    message = Message(data, {}, subjects.TRAJECTORY, 1, 1, datetime.now(UTC))
    item = Inspector().inspect(message, NOW + timedelta(days=31))
    assert (item.fate, item.reason) == (Fate.DEAD_LETTER, "expired")
    assert SECRET.encode() not in item.body


def test_only_a_uuid_is_kept_as_the_id_of_what_is_held():
    deep = "[" * 60 + "]" * 60
    uuid = TRAJECTORY["trajectory_id"]
    assert judged(f'{{"trajectory_id": "{uuid}", "a": {deep}}}'.encode()).trajectory_id == uuid
    assert judged(f'{{"trajectory_id": "{SECRET}", "a": {deep}}}'.encode()).trajectory_id == ""
    assert judged(f'{{"trajectory_id": 5, "a": {deep}}}'.encode()).trajectory_id == ""


@pytest.mark.parametrize("pattern", ["session:s-*", "agent:a-*", "user:a1*"])
def test_opted_out_is_dropped_whether_or_not_it_is_valid(pattern):
    body = document(SECRET) | {"session_id": "s-1", "agent_id": "a-1"}
    body["metadata"]["user_hash"] = "a1b2"
    too_deep = {**body, "extra": json.loads("[" * 60 + "]" * 60)}
    too_large = {**body, "extra": "x" * MAX_BYTES}
    for one in (body, {**body, "turns": []}, too_deep, too_large):
        item = judged(one, opt_out=pattern)
        assert (item.fate, item.must_erase, item.document, item.body) == (Fate.DROP, True, None, b"")
    assert judged(document(), opt_out=pattern).fate is Fate.STORE


def test_a_conflict_keeps_the_redacted_document():
    item = judged(document(f"use {SECRET}"))
    buried = conflict_item(item)
    assert (buried.fate, buried.reason, buried.document, buried.secret) == (
        Fate.DEAD_LETTER,
        "conflict",
        None,
        True,
    )
    assert buried.body == canonical_json(item.document)


def test_the_text_of_a_contract_error_is_the_only_detail_of_a_dead_letter():
    item = judged(b"not json")
    assert item.detail == str(ContractError("not_json", "The message is not JSON."))


def aged(start: timedelta, came: datetime, headers: dict[str, str] | None = None) -> Item:
    """A trajectory that began ``start`` before NOW, came at ``came`` and is judged at NOW."""
    body = document()
    body["start_timestamp"] = utc_text(NOW - start)
    message = Message(json.dumps(body).encode(), headers or {}, subjects.TRAJECTORY, 1, 1, came)
    return Inspector().inspect(message, NOW)


def test_age_is_that_of_the_arrival_however_long_it_was_held():
    old = timedelta(days=45)
    assert aged(old, NOW).reason == "expired"
    assert aged(old, NOW - timedelta(days=14)).reason == "expired"
    assert aged(old, NOW - timedelta(days=16)).fate is Fate.STORE
    marked = {module.ARRIVED: utc_text(NOW - timedelta(days=16))}
    item = aged(old, NOW, marked)
    assert (item.fate, item.secret, item.message.headers) == (Fate.STORE, False, marked)
    assert aged(old, NOW, {module.ARRIVED: "yesterday"}).reason == "expired"
    assert aged(old, NOW, {module.ARRIVED: utc_text(NOW + timedelta(days=900))}).reason == "expired"


def test_a_secret_in_place_of_the_arrival_must_go():
    item = judged(document(), {module.ARRIVED: SECRET})
    assert (item.secret, item.message.headers) == (True, {module.ARRIVED: "<GITHUB_TOKEN:1>"})
