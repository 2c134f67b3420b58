"""The time that the plugin takes in Agent Zero's event loop, and whether it holds the loop up elsewhere.

Each hook is timed by the plugin itself (``Runtime.hook``): median and 99th percentile. The host is the one of
the tests, with Agent Zero's event order. "with" and "without" run the same tasks; their difference for each
hook includes the calling of the extension files. "Longest stall" is the longest delay of a coroutine that
wakes up every millisecond while a task with results of 9 MB is handed over; the host's own work for them is
done before. The load is printed, because it shows in the percentiles.

    python benchmarks/agent_zero_hooks.py [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "worlds"))

from agent_zero_host import Agent, Host, Line, say

TARGET_MS = 1.0
"""Target for the median of a hook."""
SYSTEM_BYTES = 40_000
RESULT_BYTES = 4_000
TURNS = 12


def model(agent: Agent, lines: list[Line]) -> str:
    if agent.loop_data.iteration == TURNS - 1:
        return say("response", text="done")
    return say("shell", "Look at it again.", cmd=f"sed -n {agent.loop_data.iteration}p file")


def prepared(root: Path, *, with_plugin: bool, size: int) -> Host:
    host = Host(root, with_plugin=with_plugin)
    host.system = "You are agent 0. " * (SYSTEM_BYTES // 17)
    host.model = model

    async def shell(agent: Agent, args: dict[str, Any]) -> str:
        return "line of a file\n" * (size // 15)

    host.tools["shell"] = shell
    return host


async def timed(root: Path, tasks: int, *, with_plugin: bool) -> tuple[list[float], list[float], Host]:
    """Returns the seconds of each task, and the milliseconds of each hook."""
    host = prepared(root, with_plugin=with_plugin, size=RESULT_BYTES)
    hooks: list[float] = []
    seconds = []
    with host:
        if with_plugin:
            breaker, note = host.runtime.breaker, host.runtime.breaker.note_time
            breaker.note_time = lambda ms: (hooks.append(ms), note(ms))
        for number in range(tasks):
            began = time.perf_counter()
            await host.ask(f"Task {number}")
            seconds.append(time.perf_counter() - began)
            await asyncio.sleep(0.005)
        if with_plugin:
            await stored(host, tasks)
    return seconds, hooks, host


async def stored(host: Host, tasks: int) -> None:
    while host.runtime.status()["recorded"] < tasks:
        await asyncio.sleep(0.02)


async def longest_stall(root: Path, *, with_plugin: bool) -> float:
    """Returns the longest delay in milliseconds while a task with 9 MB is handed over."""
    host = prepared(root, with_plugin=with_plugin, size=3_000_000)
    worst = 0.0

    async def watch() -> None:
        nonlocal worst
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            worst = max(worst, 1000.0 * (time.perf_counter() - began) - 1.0)

    with host:
        host.model = lambda agent, lines: (
            say("response", text="done") if agent.loop_data.iteration == 3 else say("shell", cmd="cat")
        )
        if with_plugin:
            await host.ask("Before")  # starts the worker
            await stored(host, 1)
        waiting = []
        if with_plugin:  # held back until the host's own work is done
            put = host.runtime.feed.put
            host.runtime.recording._send = lambda event, agent: waiting.append((event, agent))
        await host.ask("Task")
        watching = asyncio.ensure_future(watch())
        if with_plugin:
            for event, agent in waiting:
                put(event, agent)
            await stored(host, 2)
        else:
            await asyncio.sleep(2.0)
        watching.cancel()
    return worst


async def measure(quick: bool) -> dict[str, Any]:
    tasks = 40 if quick else 300
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        without, _, _ = await timed(root / "without", tasks, with_plugin=False)
        recorded, hooks, _ = await timed(root / "with", tasks, with_plugin=True)
        stalls = {
            name: await longest_stall(root / f"stall-{name}", with_plugin=name == "with")
            for name in ("without", "with")
        }
    per_task = len(hooks) / tasks
    added = 1000.0 * (statistics.median(recorded) - statistics.median(without))
    ordered = sorted(hooks)
    return {
        "load": os.getloadavg()[0],
        "tasks": tasks,
        "hooks": len(hooks),
        "hook_ms": {
            "median": statistics.median(hooks),
            "p99": ordered[int(0.99 * (len(ordered) - 1))],
            "longest": ordered[-1],
        },
        "added_ms_per_task": added,
        "added_ms_per_hook": added / per_task,
        "longest_stall_ms": stalls,
        "target_ms": TARGET_MS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    result = asyncio.run(measure(given.quick))
    hook = result["hook_ms"]
    print(f"load {result['load']:.1f}; {result['tasks']} tasks, {result['hooks']} hooks")
    print(f"hook: median {hook['median']:.4f} ms, p99 {hook['p99']:.3f} ms, longest {hook['longest']:.2f} ms")
    print(f"added: {result['added_ms_per_task']:.2f} ms a task, {result['added_ms_per_hook']:.4f} ms a hook")
    stalls = result["longest_stall_ms"]
    print(f"longest stall at 9 MB a task: {stalls['with']:.1f} ms with, {stalls['without']:.1f} ms without")
    print(f"target {TARGET_MS} ms at the median: {'met' if hook['median'] <= TARGET_MS else 'missed'}")
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
