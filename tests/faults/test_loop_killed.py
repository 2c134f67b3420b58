"""kill -9 of everything while a job trains: one committed checkpoint, nothing lost or stored twice."""

import asyncio
import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from onward_up import start

from onward import Recorder, config, host, warehouse
from onward.clock import SystemClock, utc_text
from onward.contracts import subjects
from onward.demo import audit
from onward.training.role.job_table import JobRecord, JobTable

SETTINGS = """
[nats]
port = 0
[http]
gateway_port = 0
api_port = 0
[model]
base = "tiny"
threads = 1
[training]
lease_seconds = 3
[validation]
suites = ["desk"]
size = 10
regression = "point"
"""


@contextmanager
def onward_up(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    service = start(folder)
    try:
        yield service.process, service.endpoints
    finally:
        service.kill()


async def _work(endpoints: dict[str, Any], folder: Path, tasks: int) -> None:
    """Agents: a few short tasks through the gateway, recorded."""
    run_dir = folder / "onward-data" / "run"
    recorder = Recorder(
        folder / "outbox.db",
        nats_url=endpoints["nats_url"],
        nats_token=(run_dir / "nats.token").read_text().strip(),
    )
    key = (run_dir / "api.key").read_text().strip()
    async with httpx.AsyncClient(
        base_url=endpoints["gateway_url"], headers={"Authorization": f"Bearer {key}"}, timeout=60
    ) as client:

        async def one(number: int) -> None:
            session = f"s{number}"
            with recorder.task(f"Say {number}", session_id=session, task_type="say") as task:
                answer = await client.post(
                    "/v1/chat/completions",
                    json={
                        "model": "onward",
                        "messages": [{"role": "user", "content": f"Say {number}"}],
                        "max_tokens": 12,
                    },
                    headers={"Onward-Session": session},
                )
                answer.raise_for_status()
                task.turn(
                    observation=f"Say {number}",
                    action=task.from_completion(answer.json()),
                    result={"success": number % 2 == 0},
                )
                task.outcome("completed_successfully" if number % 2 == 0 else "failed")

        await asyncio.gather(*(one(number) for number in range(tasks)))
    assert await asyncio.to_thread(recorder.flush, 30.0)
    recorder.close()


async def _stored(settings: config.Settings, tasks: int) -> None:
    view = await warehouse.connect(settings)
    try:
        for _ in range(600):
            found = await view.query("SELECT count() AS n FROM rewards_v")
            if found[0]["n"] >= tasks:
                return
            await asyncio.sleep(0.1)
        pytest.fail("the trajectories were not all rewarded in a minute")
    finally:
        await view.close()


async def _until(settings: config.Settings, job_id: str, wanted: Any, seconds: float) -> JobRecord:
    async with host.attached(settings) as (bus, _):
        table = JobTable(bus.bucket("rl_jobs"), SystemClock())
        deadline = time.monotonic() + seconds
        record: JobRecord | None = None
        while time.monotonic() < deadline:
            known = [job for job, _ in await table.all() if job.job_id == job_id]
            if known and wanted(known[0]):
                return known[0]
            record = known[0] if known else None
            await asyncio.sleep(0.05)
        pytest.fail(f"the job never got there: {record}")


@pytest.mark.timeout(280)
async def test_kill_9_of_everything_during_training_costs_nothing(tmp_path: Path) -> None:
    from onward.lm.tiny import build_tiny

    tasks = 16
    build_tiny(tmp_path / "onward-data" / "models" / "tiny", ["Say 1 2 3 4 5 6 7 8 9 0"] * 20)
    (tmp_path / "onward.toml").write_text(SETTINGS)
    settings = config.load(
        tmp_path / "onward.toml", environ={}, overrides={"data_dir": tmp_path / "onward-data"}
    )
    job_id = f"manual-{uuid.uuid4()}"
    with onward_up(tmp_path) as (process, endpoints):
        await _work(endpoints, tmp_path, tasks)
        await _stored(settings, tasks)
        async with host.attached(settings) as (bus, _):
            await bus.publish(subjects.TRAINING_REQUEST, _request(job_id, tasks), msg_id=job_id)
        running = await _until(
            settings,
            job_id,
            lambda job: job.state == "running" and job.progress.get("current_step", 0) > 0,
            90,
        )
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert running.attempt == 1

    with onward_up(tmp_path):
        done = await _until(settings, job_id, lambda job: job.state in ("completed", "failed"), 120)
        assert (done.state, done.attempt) == ("completed", 2)
        assert done.commit is not None and done.commit.epoch == 2
        commits = list((tmp_path / "onward-data" / "objects").rglob("COMMIT"))
        assert [path.parent.name for path in commits if path.parent.name == job_id] == [job_id]
        verdict = await audit.audit([tmp_path / "outbox.db"], tmp_path / "onward-data", 30)
        assert (verdict.accepted, verdict.lost, verdict.duplicates) == (tasks, [], [])
        await _release_follows(settings, job_id)


async def test_ctrl_c_stops_cleanly_and_leaves_no_child(tmp_path: Path) -> None:
    from onward.lm.tiny import build_tiny

    build_tiny(tmp_path / "onward-data" / "models" / "tiny", ["Say 1 2 3"] * 20)
    (tmp_path / "onward.toml").write_text(SETTINGS)
    with onward_up(tmp_path) as (process, _):
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 3, "nats-server, the warehouse and the engine"
        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, 60) == 0
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []


async def _release_follows(settings: config.Settings, job_id: str) -> None:
    """The loop goes on: the releaser takes the committed checkpoint up."""
    async with host.attached(settings) as (bus, _):
        for _ in range(600):
            for key in await bus.bucket("rl_releases").keys("release."):
                entry = await bus.bucket("rl_releases").get(key)
                if entry and json.loads(entry.value)["job_id"] == job_id:
                    return
            await asyncio.sleep(0.1)
    pytest.fail("no release followed the job")


def _request(job_id: str, samples: int) -> bytes:
    """As the seed's own command sends it, with an algorithm that runs and enough epochs to be killed in."""
    return json.dumps(
        {
            "training_job_id": job_id,
            "timestamp": utc_text(SystemClock().now()),
            "requester": "admin-manual",
            "trigger_reason": "manual",
            "training_config": {
                "algorithm": "reinforce",
                "base_model": "tiny",
                "dataset": {
                    "source": "nats_stream",
                    "stream_name": "RL_TRAJECTORIES",
                    "sample_size": samples,
                },
                "hyperparameters": {"learning_rate": 1e-5, "batch_size": 4, "epochs": 60},
            },
        }
    ).encode()
