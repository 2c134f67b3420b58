"""A real gateway and the releaser's role: from the passed validation to the first answer of the candidate."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from release_stream import context
from release_world import FakeSuite
from serving_world import World

from onward.bus import Bus
from onward.clock import SystemClock, read_time
from onward.release import releaser
from onward.release.record import ReleaseRecord, Releases
from onward.release.releaser import install_initial

SESSIONS = 2_000
"""Sessions at 10 %: the chance that none of them is the candidate's is below 1e-90."""


async def stored(bus: Bus, name: str) -> dict[str, Any]:
    entry = await bus.bucket("rl_models").get(name)
    assert entry is not None
    return json.loads(entry.value)


async def begun(releases: Releases, role: asyncio.Task[None]) -> ReleaseRecord:
    while not (record := (await releases.all())[-1]).serving:
        assert not role.done()
        await asyncio.sleep(0.01)
    return record


async def test_the_first_request_reaches_the_candidate_after_its_validation_passed(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clock = SystemClock()
    ctx = context(bus, clock, tmp_path)
    async with World(bus, tmp_path) as world, asyncio.timeout(90):
        old, new = await world.register("old", 1.0), await world.register("new", 2.0)
        suite = FakeSuite({new: 0.6}, {})
        monkeypatch.setattr("onward.release.validation.suite.EngineSuite", lambda ctx: suite)
        role = asyncio.create_task(releaser.run(ctx))
        try:
            while not ctx.ready.get("releaser"):
                await asyncio.sleep(0.01)
            await install_initial(ctx, old, (await stored(bus, "old"))["object_prefix"])
            prefix = (await stored(bus, "new"))["object_prefix"]
            commit = {"epoch": 1, "manifest_sha256": None, "object_prefix": prefix, "adapter_digest": new}
            job = {"job_id": "job-1", "state": "completed", "commit": commit, "start_digest": old}
            await bus.bucket("rl_jobs").put("job.job-1", json.dumps(job).encode())
            record = await begun(Releases(bus, clock), role)
            answer: dict[str, Any] = {}
            for number in range(SESSIONS):
                answer = await world.ask(f"s{number}")
                release = (answer.get("onward") or {}).get("release") or {}
                if release.get("arm") == "candidate":
                    break
            answered = clock.now()
        finally:
            role.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await role
    assert answer["model"] == record.candidate.model_id
    assert answer["onward"]["release"]["release_id"] == record.release_id
    states = {line["state"]: read_time(line["at"]) for line in record.history}
    passed = states["ramping"]  # the decision that reads the verdict
    assert states["validating"] <= passed <= answered
    seconds = (answered - passed).total_seconds()
    print(
        f"validation passed to the first answer of the candidate: {seconds:.2f} s, "
        f"{number + 1} sessions at {record.schedule.steps[0].share:.0%}"
    )
