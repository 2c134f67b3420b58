"""``onward rescore`` beside a running rewarder: new weights reach old trajectories, windows stay."""

import json
from types import SimpleNamespace

import pytest
from reward_world import (
    history,
    publish,
    published,
    reward_ctx,  # noqa: F401 - the fixture ctx
    reward_warehouse,  # noqa: F401 - the fixture embedded
    rewarded,
    running,
    said,
    say,
    trajectory,
    until,
)

from onward.capture.collecting import collector
from onward.errors import ConflictError, NotFoundError, WarehouseError
from onward.reward import Scored, reward_id
from onward.reward.code.report import CodeReport
from onward.reward.components import UserFeedback
from onward.reward.role import rewarder
from onward.reward.role.rescoring import read_progress, request_run, stop_run
from onward.reward.role.rewarder import Rewarder
from onward.warehouse import queries

pytestmark = pytest.mark.asyncio(loop_scope="module")


def with_weights(ctx, **weights):
    reward = ctx.settings.reward.model_copy(update=weights)
    return SimpleNamespace(**{**vars(ctx), "settings": ctx.settings.model_copy(update={"reward": reward})})


async def first_rewards(ctx, count):
    async with running(collector.run(ctx), rewarder.run(ctx)):
        await publish(ctx.bus, *(trajectory(i) for i in range(count)))
        await until(rewarded(ctx, count))
    return (await ctx.bus.bucket("rl_rewarder").get("state")).value


async def active(ctx) -> Rewarder:
    found = await Rewarder.load(ctx)
    await found.start()
    return found


async def done(ctx, request) -> dict:
    found = await read_progress(ctx.bus, request.run_id)
    assert found is not None and found.finished
    return {"seen": found.seen, **found.counts}


async def test_new_weights_reach_stored_trajectories_and_the_windows_stay(ctx):
    state = await first_rewards(ctx, 12)
    other = with_weights(ctx, task_completion=0.25, user_feedback=0.40)
    request, running_already = await request_run(ctx.bus, ctx.clock)
    assert not running_already
    async with running(rewarder.run(other)):
        await until(lambda: _finished(ctx, request))
    assert await done(ctx, request) == {"seen": 12, "changed": 12}
    first, second = await history(ctx, "t1")
    assert (second.reward_id, second.metadata.supersedes) == (
        reward_id("t1", request.run_id),
        first.reward_id,
    )
    # Weights .25 and .40 of .65; scores 1 and the neutral .5.
    assert second.metadata.raw_total == pytest.approx((0.25 + 0.40 * 0.5) / 0.65)
    assert (await ctx.bus.bucket("rl_rewarder").get("state")).value == state
    assert (await ctx.bus.js.stream_info("RL_REWARDS")).state.messages == 24
    again, running_already = await request_run(ctx.bus, ctx.clock)
    assert not running_already and again.run_id != request.run_id
    await (await active(other)).rescore_runs.run_newest()
    assert await done(ctx, again) == {"seen": 12, "unchanged": 12}


async def test_one_component_is_computed_anew_and_the_others_keep_their_scores(ctx, monkeypatch):
    await first_rewards(ctx, 3)
    monkeypatch.setattr(
        UserFeedback, "score", lambda self, trajectory, context: Scored(1.0, "human", "new rule")
    )
    changed = with_weights(ctx)
    request, _ = await request_run(ctx.bus, ctx.clock, component="user_feedback")
    await (await active(changed)).rescore_runs.run_newest()
    assert await done(ctx, request) == {"seen": 3, "changed": 3}
    first, second = await history(ctx, "t1")
    assert second.reward_components["user_feedback"].score == 1.0
    old, new = first.reward_components["task_completion"], second.reward_components["task_completion"]
    assert (old.score, old.reasoning, old.weight) == (new.score, new.reasoning, new.weight)


async def test_a_component_that_came_later_is_added_by_its_name(ctx):
    """Code is analysed by a fake: what counts here is that the report reaches the scoring."""

    class Fake:
        async def start(self): ...
        async def stop_run(self): ...
        async def report(self, trajectory):
            return (
                CodeReport(linter=0.5, tools=("fake 1",), snippets=1)
                if trajectory.trajectory_id == "t1"
                else None
            )

    async def no_code(self, trajectories):
        return {}

    from onward.reward.role.analysis import Analysis

    original, Analysis.reports = Analysis.reports, no_code
    try:
        await first_rewards(ctx, 3)
    finally:
        Analysis.reports = original
    late = Rewarder(ctx, (await active(ctx)).state, None, analyser=Fake())
    await late.start()
    request, _ = await request_run(ctx.bus, ctx.clock, component="code_quality")
    await late.rescore_runs.run_newest()
    assert (await done(ctx, request))["changed"] == 1
    (first, second) = await history(ctx, "t1")
    assert "code_quality" not in first.reward_components
    assert second.reward_components["code_quality"].score == pytest.approx(0.5)
    assert len(await history(ctx, "t2")) == 1


async def test_an_unscored_trajectory_gets_its_first_reward(ctx, monkeypatch):
    original = UserFeedback.score

    def broken(self, trajectory, context):
        if trajectory.trajectory_id == "t1":
            raise ZeroDivisionError
        return original(self, trajectory, context)

    with monkeypatch.context() as patch:
        patch.setattr(UserFeedback, "score", broken)
        async with running(collector.run(ctx), rewarder.run(ctx)):
            await publish(ctx.bus, trajectory(1), trajectory(2))
            await until(rewarded(ctx, 1))
            await until(lambda: _unscored(ctx))
    request, _ = await request_run(ctx.bus, ctx.clock)
    await (await active(ctx)).rescore_runs.run_newest()
    (only,) = await history(ctx, "t1")
    assert only.reward_id == reward_id("t1", request.run_id) and only.metadata.supersedes is None
    assert await queries.unscored_count(ctx.warehouse) == {}


async def test_a_dry_run_writes_nothing_and_a_limit_takes_the_oldest(ctx):
    await first_rewards(ctx, 6)
    other = with_weights(ctx, task_completion=0.25, user_feedback=0.40)
    request, _ = await request_run(ctx.bus, ctx.clock, dry_run=True, limit=4)
    await (await active(other)).rescore_runs.run_newest()
    assert await done(ctx, request) == {"seen": 4, "changed": 4}
    assert len(await published(ctx.bus)) == 6


async def test_a_run_goes_on_after_a_restart_and_repeats_nothing(ctx, monkeypatch):
    from onward.reward.role import rescoring

    monkeypatch.setattr(rescoring, "PORTION", 4)
    await first_rewards(ctx, 10)
    other = with_weights(ctx, task_completion=0.25, user_feedback=0.40)
    request, _ = await request_run(ctx.bus, ctx.clock)
    dying = await active(other)
    work, calls = dying.rescore_runs._rescorer.rescore, 0

    async def dies(tasks, *, dry=False):
        nonlocal calls
        calls += 1
        found = await work(tasks, dry=dry)
        if calls == 2:
            raise WarehouseError("killed after the portion was stored and published")
        return found

    dying.rescore_runs._rescorer.rescore = dies
    with pytest.raises(WarehouseError):
        await dying.rescore_runs.run_newest()
    assert (await read_progress(ctx.bus, request.run_id)).seen == 4
    before = {json.loads(data)["reward_id"]: data for data in await published(ctx.bus)}
    await (await active(other)).rescore_runs.run_newest()
    assert await done(ctx, request) == {"seen": 10, "changed": 10}
    after = await published(ctx.bus)
    assert len(after) == 20, "a reward was published twice"
    assert all(data in after for data in before.values())
    assert [len(await history(ctx, f"t{i}")) for i in range(10)] == [2] * 10


async def test_one_run_at_a_time_and_the_same_request_joins_it(ctx):
    request, _ = await request_run(ctx.bus, ctx.clock, component="efficiency")
    assert await request_run(ctx.bus, ctx.clock, component="efficiency") == (request, True)
    with pytest.raises(ConflictError, match=request.run_id):
        await request_run(ctx.bus, ctx.clock)
    assert await stop_run(ctx.bus) == request
    with pytest.raises(NotFoundError):
        await stop_run(ctx.bus)
    _, joined = await request_run(ctx.bus, ctx.clock)
    assert not joined


async def test_feedback_during_a_run_is_not_undone_by_it(ctx):
    await first_rewards(ctx, 2)
    other = with_weights(ctx, task_completion=0.25, user_feedback=0.40)
    late = await active(other)
    await say(ctx.bus, said("f1", trajectory_id="t1"))
    from reward_world import messages

    await late.feedback.handle(await messages(ctx.bus, "RL_FEEDBACK"))
    await request_run(ctx.bus, ctx.clock)
    await late.rescore_runs.run_newest()
    newest = (await history(ctx, "t1"))[-1]
    assert newest.reward_components["user_feedback"].score == 0.0
    assert newest.metadata.raw_total == pytest.approx(0.25 / 0.65)


async def _finished(ctx, request) -> bool:
    found = await read_progress(ctx.bus, request.run_id)
    return found is not None and found.finished


async def _unscored(ctx) -> bool:
    return bool(await queries.unscored_count(ctx.warehouse))
