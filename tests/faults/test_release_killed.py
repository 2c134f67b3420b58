"""Fault 20 for real: a releaser dies at a named crash point; the next one finishes the release."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from onward.bus import Bus, NatsServer
from onward.contracts import subjects

WRITES = ("create", "record", "model", "desired", "event")
POINTS = [f"release.{what}.{when}" for what in WRITES for when in ("before", "after")]
WORLDS = Path(__file__).parents[1] / "worlds"
IN_DEFAULT = ("release.record.after", "release.event.after")

CHILD = """
import asyncio, json, sys
sys.path[:0] = sys.argv[3:]
from pathlib import Path
from onward.bus import Bus
from onward.clock import ManualClock, SystemClock
from onward.release.releaser import Releaser
from onward.release.evidence.outcome_source import OutcomeStream
from onward.release.record import Releases
from release_world import FakeSuite, unknown_traffic
from release_stream import SIGNING_KEY, context, gateway_follows, publish

async def main():
    bus = await Bus.connect(sys.argv[1], token=sys.stdin.readline().strip())
    clock = ManualClock(start=SystemClock().now())
    ctx = context(bus, clock, Path(sys.argv[2]))
    releases = Releases(bus, clock)
    suite = FakeSuite({"d1": 0.6}, {})
    releaser = Releaser(ctx, OutcomeStream(bus, SIGNING_KEY), suite, traffic=unknown_traffic)
    count = (await bus.js.stream_info("RL_OUTCOMES")).state.last_seq
    for _ in range(80):
        desired = await gateway_follows(bus, clock)
        if desired and len(desired["arms"]) == 2:
            for i in range(12):
                count += 1
                bad = i % 4 == 0
                await publish(bus, clock, count, desired["release_id"], "candidate" if bad else "current",
                              "error", float(bad), desired["arms"][1]["weight"])
        await releaser.tick()
        await clock.advance(1.0)
        newest = [record for record in await releases.all() if record.epoch > 0]
        if newest and newest[-1].settled:
            print(newest[-1].model_dump_json())
            return

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "point",
    [point if point in IN_DEFAULT else pytest.param(point, marks=pytest.mark.long) for point in POINTS],
)
async def test_a_killed_releaser_is_taken_up_where_it_was(point: str, tmp_path: Path):
    server = NatsServer(tmp_path / "data")
    await server.start()
    try:
        bus = await Bus.connect(server.url, token=server.token)
        await bus.ensure_streams()
        await _first_model_and_job(bus)

        def child(crash: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-c", CHILD, server.url, str(tmp_path), str(WORLDS)],
                input=server.token + "\n", text=True, capture_output=True, timeout=60,
                env={"ONWARD_CRASHPOINT": crash, "OMP_NUM_THREADS": "1", "PATH": ""}, check=False,
            )  # fmt: skip

        died = child(point)
        assert died.returncode == 137, died.stderr[-2000:]
        lived = child("")
        assert lived.returncode == 0, lived.stderr[-2000:]
        record = json.loads(lived.stdout.splitlines()[-1])
        assert record["decision"] == "rolled_back" and record["verified_zero_at"]
        events = []
        for sequence in range(1, (await bus.js.stream_info("RL_DEPLOY")).state.last_seq + 1):
            message = await bus.js.get_msg("RL_DEPLOY", seq=sequence)
            assert message.subject == subjects.MODEL_DEPLOYED
            events.append(json.loads(message.data or b"")["metadata"]["event"])
        assert [event for event in events if event != "ramp"] == ["candidate", "rollback"]
        await bus.close()
    finally:
        await server.stop()


async def _first_model_and_job(bus: Bus) -> None:
    """Current is v0; a candidate is waiting. Written as the records that earlier runs left."""
    model = {
        "model_id": "agent-zero-rl-v0",
        "adapter_digest": "d0",
        "object_prefix": "p",
        "training_job_id": "w",
        "state": "current",
    }
    await bus.bucket("rl_models").put("agent-zero-rl-v0", json.dumps(model).encode())
    commit = {"epoch": 1, "manifest_sha256": "m", "object_prefix": "checkpoints/j/1", "adapter_digest": "d1"}
    job = {"job_id": "job-1", "state": "completed", "commit": commit, "start_digest": "d0"}
    await bus.bucket("rl_jobs").put("job.job-1", json.dumps(job).encode())
