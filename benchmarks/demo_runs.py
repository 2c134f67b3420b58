"""The demonstration over many seeds, on an idle machine and beside load: the results a new user may expect.

One run shows little: the same seed gives another result on another machine, since the timing of the real
parts differs. This program runs ``onward demo`` once per seed and per load, each in a folder of its own,
and reports the rise of test success with median and range, the candidates that were rejected for their
form, and the time. Finished runs are stored in the JSON file, so that an interrupted program continues
where it stopped.

    python benchmarks/demo_runs.py --json demo.json
    python benchmarks/demo_runs.py --model smollm2 --seeds 0,1,2 --loads quiet --json smollm2.json

``load`` means one spinning process per core, at normal priority, like a build or a test run beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from machine import machine
from onward.files import write_whole

RISE = 0.25
SPIN = "while True: pass"


@contextlib.contextmanager
def load(count: int) -> Iterator[None]:
    """Runs ``count`` processes that spin until the block ends."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def run(model: str, seed: int, loaded: bool, cycles: int | None) -> dict[str, Any]:
    """Runs one demonstration; returns its figures. Raises RuntimeError with its last output if it fails."""
    folder = Path(tempfile.mkdtemp(prefix="onward-demo-"))
    figures = folder / "figures.json"
    command = [sys.executable, "-m", "onward.cli", "demo", "--model", model, "--seed", str(seed)]
    command += ["--dir", str(folder), "--json", str(figures)]
    command += ["--cycles", str(cycles)] if cycles else []
    started = time.monotonic()
    try:
        with load((os.cpu_count() or 1) if loaded else 0):
            ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if ran.returncode != 0:
            raise RuntimeError(f"seed {seed} ended with code {ran.returncode}: {ran.stdout[-800:]}")
        found = json.loads(figures.read_text(encoding="utf-8"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "model": model,
        "seed": seed,
        "load": "load" if loaded else "quiet",
        "seconds": round(time.monotonic() - started, 1),
        "load_average": round(os.getloadavg()[0], 2),
        "result": found,
    }


def rise(one: dict[str, Any]) -> float:
    return one["result"]["final_success"] - one["result"]["base_success"]


def rejected_for_form(one: dict[str, Any]) -> int:
    """Counts the candidates of a run that validation rejected because they lost their form."""
    cycles = one["result"]["cycles"]
    return sum(cycle["decision"] == "rejected" and "in the right form" in cycle["reason"] for cycle in cycles)


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns median and range over ``runs``."""
    rises, seconds = [rise(one) for one in runs], [one["seconds"] for one in runs]
    return {
        "runs": len(runs),
        "rise": {"median": statistics.median(rises), "least": min(rises), "most": max(rises)},
        f"rise_of_{RISE}_or_more": sum(value >= RISE - 1e-9 for value in rises),
        "without_rejection_for_form": sum(rejected_for_form(one) == 0 for one in runs),
        "seconds": {
            "median": statistics.median(seconds),
            "least": min(seconds),
            "most": max(seconds),
        },
    }


def row(one: dict[str, Any]) -> str:
    result = one["result"]
    decisions = ", ".join(cycle["decision"] for cycle in result["cycles"])
    return (
        f"| {one['seed']} | {one['load']} | {result['base_success']:.2f} | {result['final_success']:.2f} "
        f"| {rise(one):+.2f} | {decisions} | {rejected_for_form(one)} | {one['seconds']:.0f} s |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="numbers, separated by commas")
    parser.add_argument("--loads", default="quiet,load", help="quiet, load, or both")
    parser.add_argument("--cycles", type=int)
    parser.add_argument("--json", type=Path, help="results; runs that it holds already are kept")
    parser.add_argument("--quick", action="store_true", help="one seed, one cycle: its figures mean nothing")
    given = parser.parse_args()
    seeds = [0] if given.quick else [int(text) for text in given.seeds.split(",")]
    loads = ["quiet"] if given.quick else given.loads.split(",")
    cycles = 1 if given.quick else given.cycles
    runs: list[dict[str, Any]] = []
    if given.json and given.json.exists():
        runs = json.loads(given.json.read_text(encoding="utf-8"))["runs"]
    done = {(one["model"], one["seed"], one["load"]) for one in runs}
    print("| seed | machine | v0 | at the end | rise | decisions | rejected for form | time |")
    print("|---|---|---|---|---|---|---|---|")
    for one in runs:
        print(row(one), flush=True)
    for name in loads:
        for seed in seeds:
            if (given.model, seed, name) in done:
                continue
            runs.append(run(given.model, seed, name == "load", cycles))
            print(row(runs[-1]), flush=True)
            _write(given.json, runs)
    found = _write(given.json, runs)
    print(json.dumps(found["summary"], indent=1))
    return 0


def _write(path: Path | None, runs: list[dict[str, Any]]) -> dict[str, Any]:
    found = {"benchmark": "demo_runs", "machine": machine(), "summary": summary(runs), "runs": runs}
    if path is not None:
        write_whole(path, (json.dumps(found, indent=1) + "\n").encode())
    return found


if __name__ == "__main__":
    sys.exit(main())
