"""Which feedback is about which trajectory, and how much of it a reward takes into account."""

from datetime import UTC, datetime, timedelta

import pytest

from onward.clock import utc_text
from onward.contracts import Feedback, encode, validate
from onward.reward import stored_feedback as module
from onward.reward.stored_feedback import MOST, StoredFeedback, is_about

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def feedback(name, minutes=0, trajectory_id="", session_id="s", kind="explicit", signal="thumbs_up"):
    at = utc_text(NOON + timedelta(minutes=minutes))
    document = {
        "feedback_id": name, "session_id": session_id, "kind": kind, "signal": signal, "timestamp": at,
    }  # fmt: skip
    if trajectory_id:
        document["trajectory_id"] = trajectory_id
    item = validate(document, Feedback)
    return {
        "feedback_id": name, "trajectory_id": trajectory_id, "session_id": session_id, "kind": kind,
        "received_at": at, "stream_seq": 0, "payload": encode(item).decode(),
    }  # fmt: skip


def row(name="t", session_id="s", minutes=0):
    began = utc_text(NOON + timedelta(minutes=minutes))
    return {"trajectory_id": name, "session_id": session_id, "start_ts": began}


@pytest.mark.parametrize(
    ("given", "trajectory", "about"),
    [
        (feedback("f", trajectory_id="t"), row("t"), True),
        (feedback("f", trajectory_id="t"), row("u"), False),
        (feedback("f", minutes=-90, trajectory_id="t"), row("t"), True),  # named: whenever it came
        (feedback("f", minutes=60), row("t"), True),
        (feedback("f", session_id="other"), row("t"), False),
        (feedback("f", minutes=-5), row("t"), True),  # an agent's clock may be ahead
        (feedback("f", minutes=-6), row("t"), False),  # the work began after it was given
    ],
)
def test_what_feedback_is_about(given, trajectory, about):
    assert is_about(given, trajectory) is about


def test_later_feedback_waits_for_its_own_turn_unless_the_replaced_reward_knew_it():
    stored = [feedback("a", 0), feedback("b", 1), feedback("c", 2)]
    names = [item.feedback_id for item in StoredFeedback.select(stored, NOON + timedelta(minutes=1))]
    assert names == ["a", "b"]
    names = [item.feedback_id for item in StoredFeedback.select(stored, NOON, {"c"})]
    assert names == ["a", "c"]
    assert [item.feedback_id for item in StoredFeedback.select(stored)] == ["a", "b", "c"]


def test_a_flood_of_implicit_signals_does_not_push_a_vote_out():
    stored = [feedback("vote", 0)]
    stored += [feedback(f"i{n}", n + 1, kind="implicit", signal="abandoned") for n in range(3 * MOST)]
    chosen = [item.feedback_id for item in StoredFeedback.select(stored)]
    assert len(chosen) == MOST + 1 and chosen[0] == "vote" and chosen[-1] == f"i{3 * MOST - 1}"


class Asked:
    """A warehouse that says what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    async def query(self, sql, **params):
        self.asked.append(sorted(params.get("ids", [])))
        return []


async def test_nobody_is_asked_about_work_that_nobody_spoke_of():
    warehouse = Asked()
    stored = StoredFeedback(warehouse)
    stored.register([feedback("f", trajectory_id="t1"), feedback("g", session_id="s2")])
    assert await stored.for_trajectories([row("t9", "s9")]) == {} and warehouse.asked == []
    await stored.for_trajectories([row("t1", "s1"), row("t2", "s2"), row("t3", "s3")])
    assert warehouse.asked == [["t1", "t2"], ["s1", "s2"]]


async def test_with_too_many_keys_to_remember_the_warehouse_is_always_asked(monkeypatch):
    monkeypatch.setattr(module, "KEYS", 3)
    warehouse = Asked()
    stored = StoredFeedback(warehouse)
    stored.register(feedback(f"f{n}", trajectory_id=f"t{n}") for n in range(4))
    await stored.for_trajectories([row("t9", "s9")])
    assert warehouse.asked == [["t9"], ["s9"]]
