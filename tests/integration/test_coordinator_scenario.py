"""Scenario 2 of the RL trainer profile, "Training Threshold Reached", replayed with its numbers."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from coordinator_world import context, requests, serve
from counted_warehouse import CountedWarehouse

from onward.bus import read_document
from onward.clock import ManualClock, utc_text
from onward.contracts import TrainingRequest, decode, subjects
from onward.contracts.buckets import JobNumber, LastRequest
from onward.coordinator import reports
from onward.coordinator.coordinator import Coordinator
from onward.coordinator.triggers import Train, Wait
from onward.training.role.job_table import JobTable

COUNT, THRESHOLD, SAMPLES, LAST_JOB = 5127, 5000, 10_000, 46
NOW = datetime(2025, 12, 8, 13, tzinfo=UTC)


async def test_scenario_2_publishes_the_request_and_reports_the_job(bus, monkeypatch):
    warehouse, clock = CountedWarehouse.installed(monkeypatch), ManualClock(NOW)
    table = JobTable(bus.bucket("rl_jobs"), clock)
    await bus.bucket("rl_jobs").put("number", JobNumber(last=LAST_JOB, job_id="job-46").dump())
    warehouse.add("d1", 800)
    last = LastRequest(
        phase="published",
        snapshot=800,
        job_id="job-46",
        published_at=utc_text(NOW - timedelta(days=3)),
        reported=True,
    )
    await bus.bucket("rl_coordinator").put(LastRequest.KEY, last.dump())
    await bus.bucket("rl_jobs").put("job.job-46", b'{"job_id": "job-46", "state": "failed"}')
    await serve(bus, "d1")
    heard = await bus.nc.subscribe(subjects.REPORT)
    c = Coordinator(context(bus, warehouse, clock, threshold=THRESHOLD, preset="seed"))

    warehouse.add("d1", THRESHOLD - 1)
    assert await c.tick() == Wait("4999 of 5000 rewarded trajectories")
    warehouse.add("d1", COUNT - THRESHOLD + 1)
    assert await c.tick() == Train("threshold_reached", "normal")

    (published,) = await requests(bus)
    config = published["training_config"]
    assert published["requester"] == "rl-trainer-subordinate"
    assert (published["trigger_reason"], published["priority"]) == ("threshold_reached", "normal")
    assert (config["algorithm"], config["dataset"]["sample_size"]) == ("ppo", SAMPLES)
    assert config["dataset"]["filter"] == {
        "min_reward": 0.5,
        "max_trajectory_length": 50,
        "date_range": {"start": "2025-11-08T13:00:00.000Z", "end": "2025-12-08T13:00:00.000Z"},
    }
    assert config["dataset"]["sampling"] == "balanced"
    assert config["compute"] == {"gpu_count": 2, "gpu_type": "a100", "mixed_precision": "bf16"}
    assert config["hyperparameters"] == {"learning_rate": 1e-5, "batch_size": 32, "epochs": 3}
    assert published["metadata"]["rewarded"] == COUNT

    request = decode(json.dumps(published).encode(), TrainingRequest)
    await table.register(request)  # as the trainer does
    assert await c.tick() == Wait(f"job {request.training_job_id} is not finished")
    report = json.loads((await heard.next_msg(timeout=30)).data)
    assert report["message"] == "Initiating RL training job #47 with 10K samples"
    assert report["timestamp"] == "2025-12-08T13:00:00.000Z"

    again = Coordinator(context(bus, warehouse, clock, threshold=THRESHOLD))
    assert isinstance(await again.tick(), Wait)  # a restart reports nothing again
    stored = await read_document(bus, LastRequest)
    assert stored is not None and stored.reported
    with pytest.raises(TimeoutError):
        await heard.next_msg(timeout=0.2)


@pytest.mark.parametrize(
    ("number", "shown"),
    [(10_000, "10K"), (2500, "2.5K"), (999, "999"), (5127, "5,127"), (1000, "1K"), (1_250_000, "1,250K")],
)
def test_samples_are_shown_as_the_profile_writes_them(number, shown):
    assert reports.job_begins(47, "j1", number) == f"Initiating RL training job #47 with {shown} samples"


def test_a_job_without_a_number_is_named_by_its_id():
    assert reports.job_begins(None, "j1", 640) == "Initiating RL training job j1 with 640 samples"
