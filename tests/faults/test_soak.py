"""Half an hour of work with a fault every minute: nothing lost, nothing stored twice, memory flat.

``ONWARD_SOAK_MINUTES`` shortens a trial run; ``-s`` prints what was done and what came of it.
"""

import asyncio
import itertools
import os
import signal
import statistics
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest
from onward_up import Service, children, free_port, start

from onward import Recorder, config, warehouse
from onward.errors import OnwardError

MINUTES = float(os.environ.get("ONWARD_SOAK_MINUTES", "30"))
FAULTS = ("nats-server", "warehouse", "engine", "hung nats-server", "hung warehouse", "hung engine")
"""What is killed, or stopped for 20 s, one a minute, after the service itself was killed twice."""
WORDS = {
    "nats-server": "nats-server",
    "warehouse": "onward.warehouse.child",
    "engine": "onward.serving.engines",
}
SETTINGS = """
[nats]
port = {nats}
[http]
gateway_port = {gateway}
api_port = {api}
[model]
base = "tiny"
threads = 1
[capture]
grace_seconds = 1
idle_seconds = 20
[training]
threshold = 1000000
"""


@dataclass
class Work:
    """What producers were promised: ids that a recorder took and ids that the gateway named."""

    accepted: set[str] = field(default_factory=set)
    refused: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[float, str, int]] = field(default_factory=list)
    """Seconds since the start, part, bytes."""


async def _record(recorder: Recorder, work: Work) -> None:
    for number in itertools.count():
        with recorder.task(f"Say {number}", session_id=f"r{uuid.uuid4().hex[:12]}", task_type="say") as task:
            task.turn(observation=f"Say {number}", action="word " * 200, result={"success": True})
            task.outcome("completed_successfully")
        work.accepted.add(task.trajectory_id)
        await asyncio.sleep(0.1)


async def _call(folder: Path, ports: dict[str, int], work: Work) -> None:
    key_file = folder / "onward-data" / "run" / "api.key"
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports['gateway']}", timeout=60) as client:
        for number in itertools.count():
            session = f"g{uuid.uuid4().hex[:12]}"
            body = {"messages": [{"role": "user", "content": f"Say {number}"}], "max_tokens": 4}
            headers = {"Authorization": f"Bearer {key_file.read_text().strip()}", "Onward-Session": session}
            try:
                answer = await client.post("/v1/chat/completions", json=body, headers=headers)
                if answer.status_code == 200:
                    work.accepted.add(answer.json()["onward"]["trajectory_id"])
                    await client.post(
                        f"/sessions/{session}/close",
                        json={"status": "completed_successfully"},
                        headers=headers,
                    )
                else:
                    work.refused[str(answer.status_code)] += 1
            except httpx.HTTPError as error:
                work.refused[type(error).__name__] += 1
            await asyncio.sleep(0.5)


async def _measure(service: list[Service], work: Work, began: float) -> None:
    while True:
        pid = service[0].process.pid
        parts = {"service": psutil.Process(pid)} if psutil.pid_exists(pid) else {}
        for child in children(pid):
            with suppress(psutil.Error):
                line = " ".join(child.cmdline())
                parts.update({name: child for name, words in WORDS.items() if words in line})
        for name, process in parts.items():
            with suppress(psutil.Error):
                work.memory.append((time.monotonic() - began, name, process.memory_info().rss))
        await asyncio.sleep(5)


async def _break(fault: str, service: Service) -> None:
    child = service.child(WORDS[fault.removeprefix("hung ")])
    if child is None:
        print(f"  {fault}: not there", flush=True)
    elif fault.startswith("hung "):
        child.send_signal(signal.SIGSTOP)
        await asyncio.sleep(20)
        with suppress(psutil.Error):  # it may have been replaced
            child.send_signal(signal.SIGCONT)
    else:
        child.kill()


async def _faults(service: list[Service], folder: Path, end: float) -> Counter[str]:
    done: Counter[str] = Counter()
    plan: Iterator[str] = itertools.chain(["everything", "everything"], itertools.cycle(FAULTS))
    pause = min(60.0, MINUTES * 60 / 6)
    while time.monotonic() + pause < end:
        await asyncio.sleep(pause)
        fault = next(plan)
        print(f"{(end - time.monotonic()) / 60:5.1f} minutes left: {fault}", flush=True)
        if fault == "everything":
            service[0].kill()
            service[0] = await asyncio.to_thread(start, folder)
        else:
            await _break(fault, service[0])
        done[fault] += 1
    return done


async def _stored(folder: Path, wanted: set[str], seconds: float) -> Counter[str]:
    settings = config.load(folder / "onward.toml", environ={}, overrides={"data_dir": folder / "onward-data"})
    deadline, found = time.monotonic() + seconds, Counter[str]()
    while time.monotonic() < deadline:
        with suppress(OnwardError):
            view = await warehouse.connect(settings)
            try:
                rows = await view.query("SELECT trajectory_id FROM trajectories_v")
            finally:
                await view.close()
            found = Counter(row["trajectory_id"] for row in rows)
            if wanted <= found.keys():
                break
        await asyncio.sleep(1)
    return found


def _growth(work: Work, part: str, since: float) -> float:
    """Median of the last fifth of the sizes over that of the first fifth, from ``since`` on."""
    sizes = [size for at, name, size in work.memory if name == part and at >= since]
    fifth = max(1, len(sizes) // 5)
    return statistics.median(sizes[-fifth:]) / statistics.median(sizes[:fifth]) if sizes else 1.0


@pytest.mark.long
@pytest.mark.timeout(MINUTES * 60 + 900)
async def test_nothing_is_lost_or_doubled_and_memory_stays_flat(
    tmp_path: Path,
) -> None:
    from onward.lm.tiny import build_tiny

    build_tiny(tmp_path / "onward-data" / "models" / "tiny", ["Say 1 2 3 4 5 6 7 8 9 0"] * 20)
    ports = {"nats": free_port(), "gateway": free_port(), "api": free_port()}
    (tmp_path / "onward.toml").write_text(SETTINGS.format(**ports))
    service, work, began = [await asyncio.to_thread(start, tmp_path)], Work(), time.monotonic()
    token = (tmp_path / "onward-data" / "run" / "nats.token").read_text().strip()
    recorder = Recorder(
        tmp_path / "outbox.db", nats_url=f"nats://127.0.0.1:{ports['nats']}", nats_token=token
    )
    try:
        load = [
            asyncio.create_task(_record(recorder, work)),
            asyncio.create_task(_call(tmp_path, ports, work)),
            asyncio.create_task(_measure(service, work, began)),
        ]
        faults = await _faults(service, tmp_path, began + MINUTES * 60)
        quiet_since = time.monotonic() - began
        await asyncio.sleep(30)
        for task in load:
            task.cancel()
        ended = await asyncio.gather(*load, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended
        assert await asyncio.to_thread(recorder.flush, 60.0)
        found = await _stored(tmp_path, work.accepted, 180)
    finally:
        recorder.close()
        service[0].kill()
    growth = _growth(work, "service", min(quiet_since, 3 * 60.0))
    print(f"accepted {len(work.accepted)}, stored {len(found)}, refused {dict(work.refused)}")
    print(f"faults: {dict(faults)}")
    print(f"memory of the service, last fifth to first fifth after both restarts: {growth:.3f}")
    assert sum(faults.values()) >= min(MINUTES - 1, 4)
    assert sorted(work.accepted - found.keys()) == []
    assert [name for name, count in found.items() if count > 1] == []
    assert growth < 1.15
