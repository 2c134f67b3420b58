"""Daily summary and job reports on a real bus: when they are sent, once, and what they say."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from coordinator_world import context, serve

from onward.clock import ManualClock, utc_text
from onward.contracts import subjects
from onward.contracts.buckets import LastRequest
from onward.coordinator import reporting
from onward.coordinator.reporting import Reporter
from onward.release.plan import Plan, State, Step
from onward.release.record import Model, ReleaseRecord
from onward.training.role.job_table import JobRecord

NIGHT = datetime(2025, 12, 8, 7, 59, tzinfo=UTC)
FIGURES = {
    "trajectories": 812, "unscored": 100, "rewarded": 700, "mean": 0.7, "deviation": 0.1, "of_current": 600,
    "current_mean": 0.75,
}  # fmt: skip


PLAN = Plan("canary", (Step(0.1, 3600.0, 50), Step(1.0, 0.0, 0)), 86_400.0, "promote").state()


def model(name: str, job: str) -> Model:
    return Model(model_id=name, adapter_digest=name, object_prefix="p", training_job_id=job)


class World:
    def __init__(self, bus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bus, self.clock, self.asked = bus, ManualClock(NIGHT), list[datetime]()

        async def figures(w: Any, since: datetime, digest: str) -> dict[str, Any]:
            self.asked.append(since)
            return dict(FIGURES)

        monkeypatch.setattr(reporting.queries, "summary_figures", figures)
        self.ctx = context(bus, None, self.clock)

    async def listen(self) -> None:
        self.heard = await self.bus.nc.subscribe(subjects.REPORT)
        await self.bus.nc.flush()

    async def messages(self) -> list[dict[str, Any]]:
        """Returns what was sent since the last call: what comes before a mark of this call's own."""
        await self.bus.nc.publish(subjects.REPORT, b"null")
        found: list[Any] = [json.loads((await self.heard.next_msg(timeout=5)).data)]
        while found[-1] is not None:
            found.append(json.loads((await self.heard.next_msg(timeout=5)).data))
        return found[:-1]

    async def job(self, name: str, state: str = "completed", **fields: Any) -> None:
        record = JobRecord(
            job_id=name, state=state, request={"training_config": {"algorithm": "ppo"}}, request_sha256="0",
            created_at=utc_text(self.clock.now()), updated_at=utc_text(self.clock.now()), **fields,
        )  # fmt: skip
        await self.bus.bucket("rl_jobs").put(f"job.{name}", record.dump())

    async def release(self, job: str, state: State, **fields: Any) -> None:
        now = utc_text(self.clock.now())
        record = ReleaseRecord(
            release_id=f"r-{job}", job_id=job, epoch=1, state=state, created_at=now, updated_at=now,
            candidate=model("v2", job), current=model("v1", "j0"), **fields,
        )  # fmt: skip
        await self.bus.bucket("rl_releases").put(f"release.r-{job}", record.dump())

    def later(self, **passed: float) -> None:
        self.clock._elapsed += timedelta(**passed).total_seconds()


@pytest.fixture
async def world(bus: Any, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(bus, monkeypatch)
    await made.listen()
    return made


async def test_the_daily_summary_is_sent_once_at_eight_also_after_a_restart(world: World) -> None:
    await serve(world.bus, "d1")
    await Reporter(world.ctx).look()
    assert await world.messages() == []
    world.later(minutes=2)
    await Reporter(world.ctx).look()
    (sent,) = await world.messages()
    assert sent["kind"] == "daily_summary" and sent["timestamp"] == "2025-12-08T08:01:00.000Z"
    assert world.asked == [datetime(2025, 12, 7, 8, 1, tzinfo=UTC)]
    lines = sent["message"].split("\n")
    assert lines[1:3] == ["- Trajectories collected: 812 (last 24h)", "- Average reward: 0.70 ± 0.10"]
    assert lines[4:6] == ["- Current model: m", "- Model performance: 0.75 (no baseline yet)"]
    assert "100 of 800 trajectories are unscored" in lines[6] and "'onward status'" in lines[7]
    assert sent["facts"]["trajectories"] == 812
    await Reporter(world.ctx).look()
    world.later(hours=23)
    await Reporter(world.ctx).look()
    assert await world.messages() == []
    world.later(hours=1)
    await Reporter(world.ctx).look()
    assert [one["kind"] for one in await world.messages()] == ["daily_summary"]


async def test_a_summary_without_a_model_that_serves_names_no_performance(world: World) -> None:
    await Reporter(world.ctx).look()
    world.later(minutes=2)
    await Reporter(world.ctx).look()
    (sent,) = await world.messages()
    assert sent["message"].split("\n")[4:6] == [
        "- Current model: none",
        "- Model performance: no reward in the last 24h",
    ]


async def test_a_completed_job_is_reported_once_its_validation_is_decided(world: World) -> None:
    await world.job("old")
    reporter = Reporter(world.ctx)
    await reporter.look()
    await world.job(
        "j47", samples=10_000, progress={"metrics": {"reward_mean": 0.8312}},
        resource_usage={"total_training_time_seconds": 7560.0, "cost_usd": 50.0},
    )  # fmt: skip
    await world.release("j47", State.VALIDATING)
    await reporter.look()
    assert await world.messages() == []
    found = {"verdict": "passed", "current": 0.80, "improvement": 0.03}
    await world.release("j47", State.RAMPING, validation=found, plan=PLAN)
    await reporter.look()
    await reporter.look()
    (sent,) = await world.messages()
    assert sent["kind"] == "training_job"
    assert sent["message"].split("\n")[1:] == [
        "- Training job ID: j47",
        "- Duration: 2.10h",
        "- Samples used: 10,000",
        "- Final reward: 0.831",
        "- Improvement: +3.8%",
        "- Validation: passed",
        "- Deployment: scheduled (canary)",
        "- Cost: $50.00",
    ]


async def test_no_old_job_is_reported_however_many_the_table_has(world: World) -> None:
    for number in range(510):
        await world.job(f"old{number}")
    reporter = Reporter(world.ctx)
    await reporter.look()
    world.clock._elapsed += 30 * 60
    await reporter.look()
    assert [one["kind"] for one in await world.messages()] == ["daily_summary"]


async def test_a_job_without_a_release_is_reported_after_ten_minutes(world: World) -> None:
    reporter = Reporter(world.ctx)
    await reporter.look()
    await world.job("j1")
    await reporter.look()
    assert await world.messages() == []
    world.clock._elapsed += 30 * 60 - 1  # before 08:30: the summary of 08:00 is due as well
    await reporter.look()
    assert [one["kind"] for one in await world.messages()] == ["training_job", "daily_summary"]


async def test_a_request_that_no_trainer_accepts_is_an_alert_and_its_acceptance_ends_it(world: World) -> None:
    heard = await world.bus.nc.subscribe(subjects.ALERT)
    record = LastRequest(phase="published", job_id="j9", published_at=utc_text(world.clock.now()))
    await world.bus.bucket("rl_coordinator").put(LastRequest.KEY, record.dump())
    reporter = Reporter(world.ctx)
    await reporter.look()
    world.clock._elapsed += 599
    await reporter.look()
    assert heard.pending_msgs == 0
    world.clock._elapsed += 1
    await reporter.look()
    await reporter.look()
    alert = json.loads((await heard.next_msg(timeout=10)).data)
    assert (alert["kind"], alert["severity"]) == ("trainer_unreachable", "critical")
    assert "training job j9 for 10 minutes" in alert["message"]
    await world.job("j9", "queued")
    await reporter.look()
    ended = json.loads((await heard.next_msg(timeout=10)).data)
    assert (ended["kind"], ended["severity"]) == ("trainer_unreachable", "resolved")
