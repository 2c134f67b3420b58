"""The cost of recording for an agent: from the end of a task to the outbox, and on to the server's PubAck.

"outbox" is the time that the agent waits (redaction, checks, one fsync). No one waits for "PubAck". The
server is the real one and fsyncs each message. A busy machine shows in the high percentiles, so the load is
printed with them.

The import has a target, and the verdict is printed, since every agent that embeds the recorder pays for it.

    python benchmarks/recorder.py [--quick] [--json FILE] [--dir FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward import Recorder
from onward.bus import Bus, NatsServer

TEXT = (
    "2026-01-01 12:00:00 INFO worker: step 17 of build finished in 1.25 s, 3 files written to /srv/app/out. "
)


IMPORT_TARGET_MS = 150.0
"""Target for the wall time of the import in a fresh interpreter, as the median of several."""


@dataclass(frozen=True)
class Case:
    """A task of ``turns`` turns, each with an observation of ``size`` bytes."""

    name: str
    turns: int
    size: int
    count: int
    pause: float
    """Seconds between two tasks, as one agent leaves them, so that queueing is not measured."""


CASES = (
    Case("8 KB", 10, 600, 1000, 0.01),
    Case("100 KB", 20, 4_700, 200, 0.03),
    Case("3 MB, claim check", 60, 50_000, 20, 0.3),
)
QUICK = (Case("8 KB", 10, 600, 50, 0.01), Case("3 MB, claim check", 60, 50_000, 3, 0.1))


def measure(recorder: Recorder, case: Case) -> dict[str, Any]:
    text = (TEXT * (case.size // len(TEXT) + 1))[: case.size]
    to_outbox, ended = [], {}
    for number in range(-3, case.count):  # the first three warm up
        task = recorder.task("Build the app", task_type="build")
        for turn in range(case.turns):
            task.turn(
                observation=f"{turn} {text}",
                action={"tool_name": "shell", "tool_args": {"cmd": f"make step-{turn}"}},
                result="ok",
            )
        done, began = time.time(), time.perf_counter()
        task.finish()
        if number >= 0:
            to_outbox.append(time.perf_counter() - began)
            ended[task.trajectory_id] = done
        time.sleep(case.pause)
    assert recorder.flush(60.0), "not everything was acknowledged"
    acked = [
        receipt.acked_at - ended[receipt.msg_id]
        for receipt in recorder._outbox.receipts()
        if receipt.msg_id in ended and receipt.acked_at is not None
    ]
    assert len(acked) == case.count
    return {
        "case": case.name,
        "tasks": case.count,
        "outbox_ms": spread(to_outbox),
        "puback_ms": spread(acked),
    }


def disk(folder: Path, times: int) -> dict[str, float]:
    """Measures the disk alone on the work of ``put``: append 12 KB and wait until it is durable."""
    file = os.open(folder / "fsync.bin", os.O_RDWR | os.O_CREAT)
    block, taken = os.urandom(12 << 10), []
    for number in range(times):
        os.pwrite(file, block, number * len(block))
        began = time.perf_counter()
        os.fdatasync(file)
        taken.append(time.perf_counter() - began)
        time.sleep(0.01)
    os.close(file)
    return spread(taken)


def spread(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)

    return {"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": at(1.0)}


IMPORT = """
import time
wall, cpu = time.perf_counter(), time.process_time()
import onward.capture.recorder
print(time.perf_counter() - wall, time.process_time() - cpu)
wall = time.perf_counter()
onward.capture.recorder.Recorder({path!r}).close()
print(time.perf_counter() - wall)
"""


def importing(folder: Path, times: int) -> dict[str, Any]:
    """Measures in fresh interpreters, in milliseconds: the import alone, and the first Recorder after it."""
    wall, cpu, made = [], [], []
    for number in range(times + 1):
        code = IMPORT.format(path=str(folder / f"import-{number}.db"))
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        first, second = said.stdout.splitlines()
        if number:  # the first run may compile
            wall.append(float(first.split()[0]))
            cpu.append(float(first.split()[1]))
            made.append(float(second))
    return {
        "import_ms": round(1000 * statistics.median(wall), 1),
        "import_target_ms": IMPORT_TARGET_MS,
        "import_met": 1000 * statistics.median(wall) < IMPORT_TARGET_MS,
        "import_cpu_ms": round(1000 * statistics.median(cpu), 1),
        "first_recorder_ms": round(1000 * statistics.median(made), 1),
    }


async def run(folder: Path, cases: tuple[Case, ...], imports: int) -> dict[str, Any]:
    before = os.getloadavg()[0]
    result: dict[str, Any] = {"cores": os.cpu_count(), "load_before": round(before, 2)}
    result |= await asyncio.to_thread(importing, folder, imports)
    result["fdatasync_ms"] = await asyncio.to_thread(disk, folder, cases[0].count)
    server = NatsServer(folder / "nats")
    await server.start()
    try:
        bus = await Bus.connect(server.url, token=server.token)
        await bus.ensure_streams()
        await bus.close()
        recorder = Recorder(
            folder / "outbox.db", nats_url=server.url, nats_token=server.token, objects=folder / "objects"
        )
        # Runs in a thread, because the server's watcher needs the loop.
        result["cases"] = [await asyncio.to_thread(measure, recorder, case) for case in cases]
        await asyncio.to_thread(recorder.close)
    finally:
        await server.stop()
    result["load_after"] = round(os.getloadavg()[0], 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--dir", type=Path, help="where the outbox lies; its disk is part of what is measured"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        result = asyncio.run(run(Path(folder), QUICK if options.quick else CASES, 3 if options.quick else 9))
    text = json.dumps(result, indent=2)
    print(text)
    verdict = "met" if result["import_met"] else "MISSED"
    print(
        f"Import: {result['import_ms']} ms of wall time ({result['import_cpu_ms']} ms of processor time), "
        f"target under {IMPORT_TARGET_MS:.0f} ms: {verdict}."
    )
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
