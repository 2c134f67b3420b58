"""Late and early feedback on real JetStream and the real warehouse: nothing lost, nothing counted twice."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from reward_world import (
    feedback_read,
    handled,
    history,
    messages,
    publish,
    published,
    reward_ctx,  # noqa: F401 - the fixture ctx
    reward_warehouse,  # noqa: F401 - the fixture embedded
    rewarded,
    rewards_of,
    running,
    said,
    say,
    trajectory,
    until,
)

from onward.bus.deadletter import dead_letters
from onward.capture.collecting import collector
from onward.capture.collecting.quarantine import Quarantine, QuarantineKeys
from onward.capture.opt_out import OptOut
from onward.clock import utc_text
from onward.contracts import Reward, decode, encode, subjects
from onward.errors import RedactionError
from onward.reward import State, reward_id
from onward.reward.role import rewarder
from onward.reward.role.rewarder import Rewarder
from onward.warehouse import queries, reward_queries

pytestmark = pytest.mark.asyncio(loop_scope="module")


def extra(reward: Reward) -> dict:
    return reward.metadata.model_extra or {}


async def scored(ctx, *items) -> Rewarder:
    """An active rewarder after the first rewards of ``items``, without tasks of its own."""
    async with running(collector.run(ctx), rewarder.run(ctx)):
        await publish(ctx.bus, *items)
        await until(rewarded(ctx, len(items)))
    active = await Rewarder.load(ctx)
    await active.start()
    return active


async def test_late_feedback_supersedes_and_moves_no_window(ctx):
    async with running(collector.run(ctx), rewarder.run(ctx)):
        await publish(ctx.bus, *(trajectory(i) for i in range(1, 4)))
        await until(rewarded(ctx, 3))
        await say(ctx.bus, said("f1", trajectory_id="t1"))
        await until(rewards_of(ctx, "t1", 2))
        await until(feedback_read(ctx))
    first, second = await history(ctx, "t1")
    assert (first.reward_id, second.reward_id) == (reward_id("t1"), reward_id("t1", "f1"))
    assert second.metadata.supersedes == first.reward_id
    assert extra(second)["cause"] == {"kind": "feedback", "id": "f1"} and extra(second)["revision"] == 1
    assert extra(second)["feedback_ids"] == ["f1"]
    # Weights .40 and .25 of .65; the neutral .5 becomes the 0 of a thumb down.
    assert second.reward_components["user_feedback"].score == 0.0
    assert second.metadata.raw_total == pytest.approx(0.40 / 0.65)
    kept = [reward.reward_components["task_completion"] for reward in (first, second)]
    assert kept[0].score == kept[1].score and kept[0].reasoning == kept[1].reasoning
    assert [row["reward_id"] for row in (await queries.reward_for(ctx.warehouse, ["t1"])).values()] == [
        second.reward_id
    ]
    assert encode(second) in await published(ctx.bus)
    state = json.loads((await ctx.bus.bucket("rl_rewarder").get("state")).value)
    assert state["windows"]["user_feedback"] == [0.5, 0.5, 0.5] and state["stream_seq"] == 3


async def test_feedback_that_comes_first_counts_at_the_first_scoring(ctx):
    async with running(collector.run(ctx), rewarder.run(ctx)):
        await say(ctx.bus, said("f1", trajectory_id="t1"), said("f2", session_id="s2", signal="thumbs_up"))
        await until(feedback_read(ctx))
        await publish(ctx.bus, trajectory(1), trajectory(2))
        await until(rewarded(ctx, 2))
    assert (await ctx.bus.js.stream_info("RL_REWARDS")).state.messages == 2
    rewards = {r.trajectory_id: r for r in (decode(d, Reward) for d in await published(ctx.bus))}
    assert rewards["t1"].reward_components["user_feedback"].score == 0.0
    assert rewards["t2"].reward_components["user_feedback"].score == 1.0
    assert extra(rewards["t1"])["feedback_ids"] == ["f1"] and rewards["t1"].metadata.supersedes is None
    # The feedback again, as after a lost acknowledgement: it is in the first reward already.
    active = await Rewarder.load(ctx)
    await active.start()
    await active.feedback.handle(await messages(ctx.bus, "RL_FEEDBACK"))
    assert len(await history(ctx, "t1")) == 1


async def test_feedback_between_storing_and_scoring_is_left_to_the_first_scoring(ctx):
    async with running(collector.run(ctx)):
        await publish(ctx.bus, trajectory(1))
        await say(ctx.bus, said("f1", trajectory_id="t1"))
        active = Rewarder(ctx, State(40), None)

        async def stored() -> bool:
            return "t1" in await queries.stored_identities(ctx.warehouse, ["t1"])

        await until(stored)
        await active.feedback.handle(await messages(ctx.bus, "RL_FEEDBACK"))
        assert await published(ctx.bus) == []
        await handled(active, await messages(ctx.bus))
    (only,) = await history(ctx, "t1")
    assert only.reward_components["user_feedback"].score == 0.0


async def test_feedback_about_a_session_is_about_its_work_so_far(ctx):
    later = datetime.now(UTC) + timedelta(hours=2)
    items = [trajectory(i, session_id="one") for i in (1, 2)]
    items.append(
        trajectory(4, session_id="one", start_timestamp=utc_text(later), end_timestamp=utc_text(later))
    )
    active = await scored(ctx, *items, trajectory(5))
    await say(ctx.bus, said("f1", session_id="one"))
    await active.feedback.handle(await messages(ctx.bus, "RL_FEEDBACK"))
    assert [len(await history(ctx, name)) for name in ("t1", "t2", "t4", "t5")] == [2, 2, 1, 1]


async def test_every_piece_counts_and_the_last_explicit_wins(ctx):
    active = await scored(ctx, trajectory(1))
    at = datetime.now(UTC)
    later, earlier = (utc_text(at + timedelta(seconds=s)) for s in (2, -2))
    for piece in (
        said("f1", trajectory_id="t1", timestamp=utc_text(at)),
        said("f2", trajectory_id="t1", signal="rating", value=0.8, timestamp=later),
        said("f3", trajectory_id="t1", signal="thumbs_up", timestamp=earlier),
        said("f4", trajectory_id="t1", kind="implicit", signal="abandoned"),
    ):
        await say(ctx.bus, piece)
        await asyncio.sleep(0.005)  # what arrives within one millisecond is looked at together
    await active.feedback.handle(await messages(ctx.bus, "RL_FEEDBACK"))
    rewards = await history(ctx, "t1")
    # f3 was given before f2 and f4 is implicit: they change nothing, so nothing is said.
    assert [r.reward_components["user_feedback"].score for r in rewards] == [0.5, 0.0, 0.8]
    assert [r.metadata.supersedes for r in rewards[1:]] == [r.reward_id for r in rewards[:-1]]


async def test_the_same_messages_in_other_batches_give_the_same_bytes(ctx):
    active = await scored(ctx, *(trajectory(i) for i in range(1, 40)))
    at = datetime.now(UTC)
    for i in range(30):
        given = {"signal": "rating", "value": i / 40, "timestamp": utc_text(at + timedelta(seconds=i))}
        await say(ctx.bus, said(f"f{i}", trajectory_id=f"t{i % 7 + 1}", **given))
    stream = await messages(ctx.bus, "RL_FEEDBACK")
    await active.feedback.handle(stream)
    whole = {row["reward_id"]: row["payload"] for row in await _rewards(ctx)}
    assert len(whole) == 39 + 30
    await ctx.warehouse.command("ALTER TABLE rewards DELETE WHERE revision > 0 SETTINGS mutations_sync = 1")
    for start in range(0, 30, 4):
        await active.feedback.handle(stream[start : start + 4])
    assert {row["reward_id"]: row["payload"] for row in await _rewards(ctx)} == whole


async def test_a_redelivery_publishes_the_stored_bytes_under_the_same_id(ctx):
    active = await scored(ctx, *(trajectory(i) for i in range(1, 4)))
    await say(ctx.bus, said("f1", trajectory_id="t2"))
    (message,) = await messages(ctx.bus, "RL_FEEDBACK")
    await active.feedback.handle([message])
    before = await published(ctx.bus)
    active.state.window_of("user_feedback").append(1.0)  # windows move on; what was stored does not
    await active.feedback.handle([message])
    await active.feedback.handle([message])
    assert await published(ctx.bus) == before and len(await history(ctx, "t2")) == 2


async def test_late_feedback_works_after_the_trajectory_left_the_stream(ctx):
    active = await scored(ctx, trajectory(1))
    await ctx.bus.js.purge_stream("RL_TRAJECTORIES")
    await ctx.bus.js.purge_stream("RL_REWARDS")
    await say(ctx.bus, said("f1", trajectory_id="t1"))
    await active.feedback.handle(await messages(ctx.bus, "RL_FEEDBACK"))
    assert (await history(ctx, "t1"))[-1].reward_id == reward_id("t1", "f1")


async def test_a_secret_in_a_comment_does_not_stay(ctx):
    secret = "sk-" + "a1B2" * 12
    async with running(collector.run(ctx), rewarder.run(ctx)):
        await publish(ctx.bus, trajectory(1))
        await until(rewarded(ctx, 1))
        await say(ctx.bus, said("f1", trajectory_id="t1", comment=f"it printed {secret}"))
        await until(rewards_of(ctx, "t1", 2))
        await until(feedback_read(ctx))
    (row,) = (await reward_queries.feedback_by_id(ctx.warehouse, ["f1"])).values()
    assert secret not in json.dumps(row) and row["comment"].startswith("it printed <")
    info = (await ctx.bus.js.stream_info("RL_FEEDBACK")).state
    assert (info.messages, info.last_seq) == (1, 2), "the raw message was not replaced"
    raw = await ctx.bus.js.get_msg("RL_FEEDBACK", seq=2)
    assert secret not in raw.data.decode() and len(await history(ctx, "t1")) == 2


async def test_a_vote_counts_even_where_its_comment_cannot_be_redacted(ctx):
    """The raw message is sealed and erased; what is kept of it is the vote."""
    active = await scored(ctx, trajectory(1))

    class Broken:
        policy_version = "1"

        def document(self, _):
            raise RedactionError("The redactor failed.")

    reader = active.feedback
    reader._inspector = SimpleNamespace(opt_out=reader._inspector.opt_out, redactor=Broken())
    await say(ctx.bus, said("f1", trajectory_id="t1", comment="private words"))
    await reader.handle(await messages(ctx.bus, "RL_FEEDBACK"))
    (row,) = (await reward_queries.feedback_by_id(ctx.warehouse, ["f1"])).values()
    assert "private" not in json.dumps(row) and row["signal"] == "thumbs_down"
    assert (await history(ctx, "t1"))[-1].reward_components["user_feedback"].score == 0.0
    (left,) = await messages(ctx.bus, "RL_FEEDBACK")
    assert "private" not in left.data.decode()
    (held,) = await Quarantine(ctx.objects, QuarantineKeys.from_settings(ctx.settings), ctx.clock).list_held()
    assert (held.stream, held.error) == ("RL_FEEDBACK", "RedactionError")


async def test_a_session_that_opted_out_leaves_no_feedback(ctx):
    active = await scored(ctx, trajectory(1))
    active.feedback._inspector = SimpleNamespace(
        opt_out=OptOut.parse("session:s1"), redactor=active.feedback._inspector.redactor
    )
    await say(ctx.bus, said("f1", trajectory_id="t1"))
    await active.feedback.handle(await messages(ctx.bus, "RL_FEEDBACK"))
    assert await messages(ctx.bus, "RL_FEEDBACK") == []
    assert await reward_queries.feedback_by_id(ctx.warehouse, ["f1"]) == {}
    assert len(await history(ctx, "t1")) == 1


async def test_bad_feedback_is_put_aside_with_a_reason(ctx):
    active = await scored(ctx, trajectory(1))
    await say(ctx.bus, said("f1", trajectory_id="t1"))
    other = said("f1", trajectory_id="t1", signal="thumbs_up")
    await ctx.bus.publish(subjects.FEEDBACK, encode(other), msg_id="other")
    await ctx.bus.publish(subjects.FEEDBACK, b"{not json", msg_id="garbage")
    for name, odd in (("half", rb'{"comment": "\ud800"}'), ("nan", b'{"value": NaN}')):
        await ctx.bus.publish(subjects.FEEDBACK, odd, msg_id=name, headers={"X": "\u00e9[/no]"})
    secret = "sk-" + "c3D4" * 12
    await ctx.bus.publish(subjects.FEEDBACK, json.dumps({"comment": secret}).encode(), msg_id="schema")
    answers = await active.feedback.handle(await messages(ctx.bus, "RL_FEEDBACK"))
    assert len(answers) == 6
    letters = await dead_letters(ctx.bus, stream="RL_FEEDBACK")
    assert [letter.reason for letter in letters] == [
        "conflict",
        "not_json",
        "not_json",
        "not_finite",
        "schema",
    ]
    assert secret not in letters[-1].body.decode() and letters[1].body == b"{not json"
    assert (await ctx.bus.js.stream_info("RL_FEEDBACK")).state.messages == 5, "a secret stayed on the stream"
    assert (await history(ctx, "t1"))[-1].reward_components["user_feedback"].score == 0.0


async def test_a_superseding_reward_reaches_the_dataset_and_counts_once(ctx):
    """Each reader of rewards: learner, threshold, status."""
    active = await scored(ctx, *(trajectory(i) for i in range(1, 5)))
    await say(ctx.bus, said("f1", trajectory_id="t1"), said("f2", trajectory_id="t2"))
    await active.feedback.handle(await messages(ctx.bus, "RL_FEEDBACK"))
    rows = await queries.trajectories_for_training(ctx.warehouse, [""])
    totals = {row["trajectory_id"]: row["raw_total"] for row in rows}
    assert len(rows) == 4 and totals["t1"] == pytest.approx(0.40 / 0.65)
    assert json.loads(next(r for r in rows if r["trajectory_id"] == "t1")["reward_payload"])["metadata"][
        "supersedes"
    ] == reward_id("t1")
    assert await queries.rewarded_count(ctx.warehouse, "") == 4
    assert (await queries.counts(ctx.warehouse))["rewarded"] == 4


async def _rewards(ctx):
    return await ctx.warehouse.query("SELECT reward_id, payload FROM reward_history_v")
