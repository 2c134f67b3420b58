"""A rubric that a trained writer writes in the scoring process, and in the writer's own process.

Both write for the same tasks by turns, on one thread. ``first``: seconds from nothing to the first rubric.
``memory``: resident MiB of a fresh process that has had its first rubric, with the writer in it, and with the
writer in a process of its own. The network has the form of the preset of rubrics-training.md; its weights are
random, which changes neither the work nor the memory.

Results (200 tasks, two cores, load 6; results/rubric_process.json): 101 ms and 105 ms; 319 MiB, and 64 MiB
beside a child of 317 MiB.

    python benchmarks/rubric_process.py [--quick] [--json FILE] [--tasks N]
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
from pathlib import Path
from typing import Any

from machine import machine
from onward.rubrics.tasks import TRAINING_FAMILIES, RubricTask, make_task
from onward.rubrics.writer_process import WriterProcess
from onward.rubrics.writers import open_writer, rubric_by

HERE, CHILD = "in this process", "in its own process"


def tasks_of(count: int) -> list[RubricTask]:
    families = TRAINING_FAMILIES
    return [make_task(families[n % len(families)], 100 + n // len(families)) for n in range(count)]


def make_writer(folder: Path) -> None:
    """Writes an untrained writer of the preset's form to ``folder``."""
    from onward.rubrics.policy.episodes import Player
    from onward.rubrics.policy.plan import Plan
    from onward.rubrics.policy.splits import training_tasks
    from onward.rubrics.policy.warm_start import untrained
    from onward.rubrics.policy.writer import save_writer

    plan = Plan()
    policy, adapter = untrained(plan, training_tasks((), 8), folder.with_name("raw"))
    save_writer(Player(policy, adapter, questions=plan.questions, notes=plan.notes), folder)


def resident(pid: int) -> int:
    """Returns the MiB of a process that are in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024


async def first(how: str, folder: Path) -> dict[str, Any]:
    """Returns the time and the memory of the first rubric in a fresh process."""
    (task,), started = tasks_of(1), time.perf_counter()
    process = WriterProcess("rubric-writer", Path(os.devnull))
    if how == HERE:
        rubric_by(open_writer(str(folder)).player, task)
    else:
        await process.write(str(folder), task)
    seconds = time.perf_counter() - started
    memory = {"scorer": resident(os.getpid())}
    if process.keeper.pid is not None:
        memory["writer"] = resident(process.keeper.pid)
    await process.stop()
    return {"first_seconds": round(seconds, 2), "memory_mib": memory}


async def by_turns(folder: Path, tasks: list[RubricTask]) -> dict[str, list[float]]:
    """Returns the milliseconds of each rubric."""
    process, player = WriterProcess("rubric-writer", Path(os.devnull)), open_writer(str(folder)).player
    found: dict[str, list[float]] = {HERE: [], CHILD: []}
    for task in tasks:
        started = time.perf_counter()
        here = rubric_by(player, task)
        between = time.perf_counter()
        if await process.write(str(folder), task) != here:
            raise SystemExit(f"The two rubrics of {task.family}/{task.seed} differ.")
        found[HERE].append(1000 * (between - started))
        found[CHILD].append(1000 * (time.perf_counter() - between))
    await process.stop()
    return {how: times[1:] for how, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="a few tasks; the figures mean nothing")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--first", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.first:
        print(json.dumps(asyncio.run(first(given.first[0], Path(given.first[1])))))
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "writer"
        make_writer(folder)
        times = asyncio.run(by_turns(folder, tasks_of(4 if given.quick else given.tasks)))
        report: dict[str, Any] = {"machine": machine(), "tasks": len(times[HERE])}
        for how, some in times.items():
            words = [sys.executable, __file__, "--first", how, str(folder)]
            fresh = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
            report[how] = {
                "median_ms": round(statistics.median(some), 1),
                "p90_ms": round(statistics.quantiles(some, n=10)[-1], 1),
                **fresh,
            }
            print(f"{how}: {report[how]}")
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
