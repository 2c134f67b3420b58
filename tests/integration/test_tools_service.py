"""The tools against a real bus and the real api: what an agent asks for, and what it is answered."""

from __future__ import annotations

from pathlib import Path

from tools_world import tools_world

from onward.bus import Bus, NatsServer

CONTROL = {"control": {"environments": ["CartPole-v1"]}}


async def test_ten_thousand_samples_of_thirty_days_become_a_job_that_is_reported_and_cancelled(
    bus: Bus, nats_server: NatsServer, tmp_path: Path
) -> None:
    async with tools_world(bus, nats_server, tmp_path) as world:
        started = await world.call("start_training", sample_size=10_000, days=30, reason="S1 asks")
        assert started["state"] == "queued" and started["number"] == 1
        record, _ = await world.served.trainer.table.get(started["job_id"])
        config = record.request["training_config"]
        assert config["dataset"]["sample_size"] == 10_000
        assert set(config["dataset"]["filter"]) == {"date_range"}
        assert record.request["priority"] == "high"
        polled = await world.call("job_status", job_id=started["job_id"])
        assert (polled["state"], polled["position"]) == ("queued", 1)
        told = await world.call("report")
        assert told["items"][0]["message"] == "Initiating RL training job #1 with 10K samples"
        assert (await world.call("cancel_job", job_id=started["job_id"]))["state"] == "cancelled"
        listed = await world.call("job_status", state="cancelled")
        assert [one["job_id"] for one in listed["items"]] == [started["job_id"]]
        told = await world.call("report")
        assert [one["message"] for one in told["items"]] == [
            "Training job #1 was cancelled",
            "Initiating RL training job #1 with 10K samples",
        ]
