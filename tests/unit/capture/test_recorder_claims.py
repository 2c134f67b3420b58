"""The claim check itself: what stands for a body, what is refused, what is cleaned up."""

import hashlib
import json
from datetime import UTC, datetime, timedelta

import pytest

from onward.bus import PublishRejectedError
from onward.bus.outbox import Waiting
from onward.capture import attachments, claim_check
from onward.clock import ManualClock
from onward.contracts import Trajectory, canonical_json, decode
from onward.errors import ContractError, ObjectError
from onward.warehouse import Objects

NOW = datetime(2026, 3, 5, 23, 59, tzinfo=UTC)
DIGEST = "ab" * 32


def document(size: int = 2_000_000) -> dict:
    turn = {
        "timestamp": "2026-03-05T10:00:00.000Z",
        "observation": {"type": "user_message", "content": "x" * 50_000},
        "action": {"type": "response", "raw_response": "y"},
        "result": {"success": False, "output": None},
    }
    return {
        "trajectory_id": "t-1",
        "session_id": "s",
        "agent_id": "a",
        "start_timestamp": "2026-03-05T10:00:00.000Z",
        "end_timestamp": "2026-03-05T10:05:00.000Z",
        "turns": [{**turn, "turn_id": n + 1} for n in range(size // 50_000)],
        "task_context": {"task_id": "t", "instructions": "z" * 5000, "domain": "coding", "extra": {"a": 1}},
        "metadata": {"model": "m", "outcome": {"status": "failed"}, "notes": "n" * 5000},
    }


class RecordingBus:
    def __init__(self, max_payload: int = 1 << 20) -> None:
        self.max_payload = max_payload
        self.got: list[tuple[bytes, str, dict]] = []

    async def publish(self, subject, data, *, msg_id, headers=None, deadline=None):
        self.got.append((data, msg_id, dict(headers or {})))


def waiting(body: bytes) -> Waiting:
    return Waiting(1, "t-1", "agent.rl.trajectory.v1", {"Rl-Schema": "v1"}, body)


async def test_a_large_body_goes_to_the_store_and_a_valid_small_trajectory_to_the_bus(tmp_path):
    objects, bus, body = Objects.open(tmp_path), RecordingBus(), canonical_json(document())
    await claim_check.outbox_sender(bus, objects, ManualClock(NOW))(waiting(body))
    ((data, msg_id, headers),) = bus.got
    small = decode(data, Trajectory)
    assert (msg_id, headers["Rl-Schema"], len(data) < 4096) == ("t-1", "v1", True)
    assert (small.trajectory_id, small.session_id, len(small.turns)) == ("t-1", "s", 1)
    assert small.metadata.outcome is not None and small.metadata.outcome.status == "failed"
    assert small.turns[0].result.success is False
    claim = claim_check.parse(headers[claim_check.HEADER])
    digest = hashlib.sha256(body).hexdigest()
    assert claim == claim_check.Claim(f"claims/20260305/t-1.{digest[:16]}", digest, len(body))
    assert json.loads(data)["metadata"]["claim"] == {"uri": claim.uri, "sha256": digest, "size": len(body)}
    assert await claim_check.fetch(objects, claim) == body


async def test_a_small_body_and_one_at_the_limit_go_as_they_are(tmp_path):
    bus, objects = RecordingBus(), Objects.open(tmp_path)
    for size in (10, claim_check.DIRECT_BYTES):
        await claim_check.outbox_sender(bus, objects, ManualClock(NOW))(waiting(b"x" * size))
    assert [(len(data), claim_check.HEADER in headers) for data, _, headers in bus.got] == [
        (10, False),
        (claim_check.DIRECT_BYTES, False),
    ]


async def test_a_server_that_takes_less_gets_less(tmp_path):
    bus, objects = RecordingBus(max_payload=64 << 10), Objects.open(tmp_path)
    await claim_check.outbox_sender(bus, objects, ManualClock(NOW))(
        waiting(canonical_json(document(100_000)))
    )
    assert claim_check.HEADER in bus.got[0][2]


async def test_without_a_store_a_large_body_is_refused_with_what_to_do():
    with pytest.raises(PublishRejectedError, match="objects="):
        await claim_check.outbox_sender(RecordingBus(), None, ManualClock(NOW))(
            waiting(canonical_json(document()))
        )


async def test_storing_the_same_body_again_changes_nothing(tmp_path):
    objects = Objects.open(tmp_path)
    first = await claim_check.store(objects, "t-1", b"body", NOW)
    assert await claim_check.store(objects, "t-1", b"body", NOW) == first
    assert len(await objects.list("claims")) == 1


@pytest.mark.parametrize(
    "header",
    [
        "", "[]", "nonsense", "{}", "null",
        json.dumps({"uri": "claims/20260305/t-1.abababababababab", "sha256": DIGEST}),
        json.dumps({"uri": "claims/20260305/t-1.abababababababab", "sha256": DIGEST, "size": 1, "more": 1}),
        json.dumps({"uri": "claims/20260305/t-1.abababababababab", "sha256": DIGEST, "size": True}),
        json.dumps({"uri": "claims/20260305/t-1.abababababababab", "sha256": DIGEST, "size": 0}),
        json.dumps({"uri": "claims/20260305/t-1.abababababababab", "sha256": DIGEST, "size": (64 << 20) + 1}),
        json.dumps({"uri": "claims/20260305/t-1.cdcdcdcdcdcdcdcd", "sha256": DIGEST, "size": 1}),
        json.dumps({"uri": "claims/../quarantine/x.abababababababab", "sha256": DIGEST, "size": 1}),
        json.dumps({"uri": "quarantine/20260305/t.abababababababab", "sha256": DIGEST, "size": 1}),
        json.dumps({"uri": "http://169.254.169.254/x.abababababababab", "sha256": DIGEST, "size": 1}),
        json.dumps({"uri": "/claims/20260305/t.abababababababab", "sha256": DIGEST, "size": 1}),
        json.dumps({"uri": "claims/20260305/a/b.abababababababab", "sha256": DIGEST, "size": 1}),
        "[" * 100_000,
    ],
)  # fmt: skip
def test_a_claim_of_another_form_is_refused_before_anything_is_read(header):
    with pytest.raises(ContractError, match="Rl-Claim") as caught:
        claim_check.parse(header)
    assert caught.value.reason == "claim"


async def test_a_missing_and_a_changed_body_are_told_apart(tmp_path):
    objects = Objects.open(tmp_path)
    claim = await claim_check.store(objects, "t-1", b"body", NOW)
    (tmp_path / claim.uri).write_bytes(b"bodx")
    with pytest.raises(claim_check.ClaimBrokenError) as caught:
        await claim_check.fetch(objects, claim)
    assert caught.value.reason == "claim_mismatch"
    (tmp_path / claim.uri).unlink()
    with pytest.raises(claim_check.ClaimBrokenError, match="same object store") as caught:
        await claim_check.fetch(objects, claim)
    assert caught.value.reason == "claim_missing"


async def test_old_bodies_are_deleted_and_those_that_a_message_may_still_name_are_not(tmp_path):
    objects = Objects.open(tmp_path)
    for days in (0, 30, 31, 32, 400):
        await claim_check.store(objects, f"t-{days}", b"body", NOW - timedelta(days=days))
    await objects.put("quarantine/x", b"not ours")
    await objects.put("claims/notaday/t-9.abababababababab", b"not ours either")
    assert await claim_check.delete_old(objects, NOW) == 2
    left = await objects.list("")
    assert [key.split("/")[-1].split(".")[0] for key in left] == ["t-31", "t-30", "t-0", "t-9", "x"]


async def test_a_store_that_is_away_is_an_object_error(tmp_path):
    class Away:
        where = "s3://user:" + "secret" + "@bucket"

        async def put(self, *_, **__):
            raise ObjectError("away")

    with pytest.raises(ObjectError):
        await claim_check.outbox_sender(RecordingBus(), Away(), ManualClock(NOW))(
            waiting(canonical_json(document()))
        )


async def test_an_attachment_goes_to_the_store_alone_and_is_deleted_by_age(tmp_path):
    bus, objects = RecordingBus(), Objects.open(tmp_path)
    key = f"attachments/20260305/{DIGEST}"
    picture = Waiting(1, key, attachments.SUBJECT, {}, b"picture")
    assert claim_check.needs_store(bus, attachments.SUBJECT, b"picture")
    for _ in range(2):  # a repeat changes nothing
        await claim_check.outbox_sender(bus, objects, ManualClock(NOW))(picture)
    assert bus.got == [] and await objects.get(key) == b"picture"
    assert await claim_check.delete_old(objects, datetime(2026, 4, 5, tzinfo=UTC)) == 0
    assert await claim_check.delete_old(objects, datetime(2026, 4, 6, tzinfo=UTC)) == 1
    with pytest.raises(PublishRejectedError, match="objects="):
        await claim_check.outbox_sender(bus, None, ManualClock(NOW))(picture)
