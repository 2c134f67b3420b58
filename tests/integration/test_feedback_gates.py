"""Votes and the gates: one observation of a session, on the gateway's own record of who is on which arm."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from consumed import is_consumed
from serving_world import World, eventually

from onward.bus import Ack, Message, Retry
from onward.clock import ManualClock, utc_text
from onward.config import ReleaseSettings
from onward.contracts import Feedback, encode, subjects, validate
from onward.feedback.tokens import Subject, TokenKeys, TokenRefusedError
from onward.ids import new_id
from onward.release.evidence.event import parse
from onward.release.evidence.evidence import Evidence, GateRules
from onward.reward.components.user_feedback import UserFeedback
from onward.serving.recording.outcome_publisher import OutcomePublisher
from onward.serving.routing.assignments import Assignments

OFF = {"gateway": False}


@pytest.fixture
async def world(bus, tmp_path):
    async with World(bus, tmp_path, clock=ManualClock(), capture=OFF) as world:
        yield world


async def _open_release(world):
    await world.open_release()

    async def ready():
        return world.gateway.outcomes._caught_up

    await eventually(ready)


def _vote(world, session, signal="thumbs_down", **more) -> Feedback:
    document = {
        "feedback_id": new_id(),
        "session_id": session,
        "kind": "explicit",
        "signal": signal,
        "timestamp": utc_text(world.clock.now()),
        **more,
    }
    return validate(document, Feedback)


async def _publish(world, *votes):
    for vote in votes:
        await world.bus.publish(subjects.FEEDBACK, encode(vote), msg_id=vote.feedback_id)
    await _votes_read(world)


async def _votes_read(world):
    await eventually(lambda: is_consumed(world.bus, "RL_FEEDBACK", "gateway-votes"))


def _messages(world, votes):
    return [
        Message(encode(vote), {}, subjects.FEEDBACK, number, 1, world.clock.now())
        for number, vote in enumerate(votes, start=1)
    ]


async def _told(world):
    return [(o.session_id, o.value) for o in await world.outcomes() if o.kind == "feedback"]


async def test_a_vote_is_told_on_the_arm_that_the_gateway_gave_the_session(world):
    await _open_release(world)
    release = (await world.ask("s1"))["onward"]["release"]
    vote = _vote(world, "s1")
    await _publish(world, vote, _vote(world, "never-seen"))
    (outcome,) = await world.outcomes()
    assert (outcome.session_id, outcome.kind, outcome.value) == ("s1", "feedback", 1.0)
    assert (outcome.arm, outcome.weight, outcome.release_id) == (release["arm"], 0.5, "r1")
    assert outcome.timestamp == vote.timestamp
    assert world.gateway._metrics.model_errors.labels(model_version=outcome.model_id)._value.get() == 0


async def test_what_is_no_vote_is_not_told(world):
    await _open_release(world)
    await world.ask("s1")
    early = utc_text(world.clock.now() - timedelta(seconds=5))
    await _publish(
        world,
        _vote(world, "s1", "abandoned", kind="implicit"),
        _vote(world, "s1", "shared"),
        _vote(world, "s1", timestamp=early),  # before the session was assigned: of an earlier release
    )
    await world.bus.publish(subjects.FEEDBACK, b"{", msg_id="unreadable")
    await _votes_read(world)
    assert await world.outcomes() == []


async def test_only_a_change_of_mind_is_told_again(world):
    await _open_release(world)
    await world.ask("s1")
    votes = []
    for signal in ("thumbs_up", "thumbs_up", "thumbs_down", "correction", "thumbs_up"):
        votes.append(_vote(world, "s1", signal))
        await world.clock.advance(1)
    await _publish(world, *votes)
    assert await _told(world) == [("s1", 0.0), ("s1", 1.0), ("s1", 0.0)]
    late = _vote(world, "s1", "thumbs_down", timestamp=votes[2].model_dump(mode="json")["timestamp"])
    await _publish(world, late)  # an older vote that arrives later replaces nothing
    assert len(await _told(world)) == 3


async def test_redelivery_and_a_restart_tell_a_vote_once(world):
    await _open_release(world)
    await world.ask("s1")
    votes = [_vote(world, "s1", "thumbs_down")]
    await world.clock.advance(1)
    votes.append(_vote(world, "s1", "thumbs_up"))
    await _publish(world, *votes)
    await world.gateway.outcomes.on_feedback(_messages(world, votes))
    assert await _told(world) == [("s1", 1.0), ("s1", 0.0)]
    again = OutcomePublisher(
        world.bus,
        world.clock,
        Assignments(world.bus, world.clock),
        world.gateway._metrics,
        lambda: world.gateway.state.routes,
        lost_after_seconds=600,
        signing_key=world.gateway._signing_key,
    )
    early = await again.on_feedback(_messages(world, votes))  # what was told before is not known yet
    assert [type(answer) for answer in early] == [Retry, Retry]
    running = asyncio.create_task(again.run())

    async def ready():
        return again._caught_up

    await eventually(ready)
    late = await again.on_feedback(_messages(world, votes))
    assert [type(answer) for answer in late] == [Ack, Ack]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await _told(world) == [("s1", 1.0), ("s1", 0.0)]


async def test_ten_thousand_votes_of_one_session_move_the_gates_by_one_and_the_reward_by_one_value(world):
    await _open_release(world)
    names = [f"s{n}" for n in range(12)]
    arms = {name: (await world.ask(name))["onward"]["release"]["arm"] for name in names}
    hostile = next(name for name in names if arms[name] == "candidate")
    start = world.clock.now()
    votes = [
        _vote(
            world,
            hostile,
            "thumbs_down" if number % 1000 else "thumbs_up",
            timestamp=utc_text(start + timedelta(milliseconds=number)),
        )
        for number in range(10_000)
    ]
    await world.clock.advance(60)
    for first in range(0, len(votes), 500):
        await world.gateway.outcomes.on_feedback(_messages(world, votes[first : first + 500]))
    await _publish(world, *(_vote(world, name, "thumbs_up") for name in names if name != hostile))
    told = await _told(world)
    assert sum(session == hostile for session, _ in told) == 20  # each change of mind, 10 up and 10 down
    for name in names:
        await world.reward(name, release_id="r1")
    await world.rewards_read()

    evidence = await _evidence(world)
    assert evidence.arms["candidate"]["feedback"] == sum(arm == "candidate" for arm in arms.values())
    assert evidence.arms["current"]["feedback"] == sum(arm == "current" for arm in arms.values())
    assert evidence.arms["candidate"]["negative"] == 1.0  # the last vote of the session, once
    assert evidence.arms["current"]["negative"] == 0.0
    # One failing session of the candidate, at weight w: the sum over ratios of theta(2r)/theta(2), by hand.
    ratios = [1.25 * (40 / 1.25) ** (k / 15) for k in range(16)]
    theta = [0.5 * 2 * r / (0.5 * 2 * r + 0.5) for r in (1.0, *ratios)]
    expected = sum(t / theta[0] for t in theta[1:]) / 16
    from math import exp

    assert exp(evidence.gates.feedback.log_e) == pytest.approx(expected, rel=1e-9)

    component = UserFeedback()

    class _Said:
        feedback = tuple(votes)
        judgement = None

    scored = component.score(None, _Said())  # type: ignore[arg-type]
    assert scored.score == 0.0  # type: ignore[union-attr]
    assert scored.raw_data["feedback_id"] == votes[-1].feedback_id  # type: ignore[union-attr]


async def _evidence(world) -> Evidence:
    """What the gates know after the votes' time, from the stream itself; the clock of maturity is moved by
    two sessions, one of each arm, that were assigned after all others."""
    info = await world.bus.js.stream_info("RL_OUTCOMES")
    rules = GateRules.from_settings(ReleaseSettings())
    evidence = Evidence("r1", rules)
    last, arms = None, {}
    for sequence in range(1, info.state.last_seq + 1):
        message = await world.bus.js.get_msg("RL_OUTCOMES", seq=sequence)
        event = parse(sequence, message.data or b"")
        evidence.apply(event)
        arms[event.candidate] = last = event
    from dataclasses import replace

    later = last.at + rules.maturity["feedback"] + 1
    for number, event in enumerate(arms.values(), start=1):
        for at in (later, later + rules.maturity["feedback"]):
            evidence.apply(
                replace(
                    event,
                    sequence=evidence.cursor + 1,
                    session_id=f"later-{number}-{at}",
                    kind="reward",
                    assigned_at=later,
                    at=at,
                )
            )
    return evidence


async def test_the_gateway_hands_out_no_tokens_unless_it_is_told_to(world):
    assert "onward-feedback-token" not in (await world.chat("s1")).headers


async def test_the_gateway_hands_out_a_token_for_the_conversation(bus, tmp_path):
    capture = {"opt_out": "session:private-*"}
    told = {"hand_out_tokens": True, "token_days": 1}
    async with World(bus, tmp_path, clock=ManualClock(), capture=capture, feedback=told) as world:
        keys = TokenKeys(world.settings.run_dir)
        answer = await world.chat("s1")
        token = answer.headers["onward-feedback-token"]
        assert keys.verify(token, world.clock.now()) == Subject(
            "s1", answer.json()["onward"]["trajectory_id"]
        )
        with pytest.raises(TokenRefusedError, match="ended"):
            keys.verify(token, world.clock.now() + timedelta(days=1))
        stream = await world.chat("s2", stream=True)
        assert keys.verify(stream.headers["onward-feedback-token"], world.clock.now()).session_id == "s2"
        off = await world.client.post(
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "x"}]},
            headers={"Onward-Session": "s3", "Onward-Capture": "off"},
        )
        assert keys.verify(off.headers["onward-feedback-token"], world.clock.now()) == Subject("s3")
        assert "onward-feedback-token" not in (await world.chat("private-1")).headers


async def test_feedback_at_the_close_of_a_session_counts_as_its_vote(bus, tmp_path):
    async with World(bus, tmp_path, clock=ManualClock()) as world:
        await _open_release(world)
        await world.ask("s1")
        await world.client.post(
            "/sessions/s1/close", json={"status": "failed", "feedback": {"signal": "thumbs_down"}}
        )

        async def told():
            return await _told(world)

        assert await eventually(told) == [("s1", 1.0)]
