"""From publish to a stored row: trajectories a second that raw publishers get through the collector.

Publishers are plain NATS clients, `--publishers` of them, each with one message in flight. The collector,
the warehouse and nats-server run in processes of their own, as with `onward up`. "stored" counts from the
first publish until the last row is in the warehouse. CPU time per message (user and system time of each
process) says more than the rate on a machine with other work: the load is printed with the results.

Learnt here (at a load of 16 on two cores, where 55 to 114 a second were stored): a message costs the
collector 1.0 ms of CPU time, nats-server 0.3 and the warehouse 0.4, so the rate is bound by waits for disk
and processor, not by work: two idle cores could hold several hundred a second. To inspect a message takes
0.5 ms of that. An acknowledgement was a request of its own; one confirms a batch now.

At rest (a load of 1.3 and 1.5, 2,000 messages, two runs): 678 and 707 a second were stored, 887 and 794
published; 1.04 ms of the collector's CPU time a message.

    python benchmarks/capture.py [--quick] [--publishers 16] [--messages 2000] [--json FILE] [--profile FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gateway import cpu_seconds, say
from machine import until_told
from onward import config, host
from onward.bus import Bus
from onward.clock import SystemClock, utc_text
from onward.contracts import subjects
from onward.contracts.examples import TRAJECTORY
from onward.ids import new_id
from onward.telemetry import logs
from onward.warehouse import connect

TEXT = "word " * 400


def document() -> dict[str, Any]:
    """Returns a trajectory of about 3 KB without generation records, as an agent of its own publishes it."""
    made, now = copy.deepcopy(TRAJECTORY), utc_text(SystemClock().now())
    made |= {"trajectory_id": new_id(), "start_timestamp": now, "end_timestamp": now}
    for turn in made["turns"]:
        turn["timestamp"] = now
        turn["action"].pop("sampling", None)
    made["metadata"].pop("release", None)
    made["turns"][0]["observation"]["content"] = TEXT
    return made


def settings(folder: Path) -> config.Settings:
    return config.load(environ={}, overrides={"data_dir": str(folder), "nats": {"port": 0}})


async def serve(folder: Path, profile: str) -> None:
    logs.setup("warning")
    async with host.running(settings(folder), roles=("collector",)) as loop:
        print(loop.endpoints["nats_url"], flush=True)
        await until_told(profile)


async def publish(url: str, folder: Path, publishers: int, messages: int) -> dict[str, Any]:
    token = (folder / "run" / "nats.token").read_text().strip()
    bus = await Bus.connect(url, token=token, name="publisher")
    warehouse = await connect(settings(folder))
    bodies = [document() for _ in range(messages)]
    waiting = iter([(body["trajectory_id"], json.dumps(body).encode()) for body in bodies])
    taken: list[float] = []

    async def publisher() -> None:
        for name, body in waiting:
            started = time.monotonic()
            await bus.publish(subjects.TRAJECTORY, body, msg_id=name)
            taken.append(time.monotonic() - started)

    started = time.monotonic()
    await asyncio.gather(*(publisher() for _ in range(publishers)))
    published = time.monotonic() - started
    while True:
        (row,) = await warehouse.query("SELECT count() AS n FROM trajectories_v")
        if row["n"] >= messages:
            break
        await asyncio.sleep(0.1)
    stored = time.monotonic() - started
    await warehouse.close()
    await bus.close()
    return {
        "publishers": publishers,
        "messages": messages,
        "published_per_second": messages / published,
        "stored_per_second": messages / stored,
        "pub_ack_p50_ms": 1e3 * statistics.median(taken),
    }


def children_of(pid: int) -> dict[str, int]:
    """Returns the child processes by what they are: nats-server, warehouse."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            found["nats" if b"nats-server" in command else "warehouse"] = int(child)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--publishers", type=int, default=16)
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="200 messages: only to see that it works")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", default="")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.messages = 200 if options.quick else options.messages
    if options.serve:
        asyncio.run(serve(options.serve, options.profile))
        return 0
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, __file__, "--serve", name, "--profile", options.profile]
        served = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        try:
            url = say(served)
            pids = {"collector": served.pid, **children_of(served.pid)}
            before = {what: cpu_seconds(pid) for what, pid in pids.items()}
            result = asyncio.run(publish(url, Path(name), options.publishers, options.messages))
            for what, pid in pids.items():
                result[f"{what}_cpu_ms"] = 1e3 * (cpu_seconds(pid) - before[what]) / options.messages
            assert served.stdin is not None
            served.stdin.write("stop\n")
            served.stdin.flush()
            served.wait(60)
        finally:
            if served.poll() is None:
                served.kill()
                served.wait()
    load = os.getloadavg()[0]
    print("  ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in result.items()))
    print(f"load average {load:.1f} of {os.cpu_count()} cores")
    if options.json:
        options.json.write_text(json.dumps({**result, "load": load}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
