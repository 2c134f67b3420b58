"""Measurement for the language-model benchmarks: two sides in turn, the best of each, memory above resting.

Other processes make a step slower and never faster, so the best of several interleaved repetitions is the
least disturbed one. The ratio of the medians and processor seconds are recorded beside it, because on a busy
machine they are steadier.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from onward.errors import NotFoundError
from onward.lm.weight_files import read_header

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Best:
    """Least wall seconds, least processor seconds, and most memory (bytes above resting) over repetitions.
    ``every`` are the wall seconds of each."""

    seconds: float = float("inf")
    cpu_seconds: float = float("inf")
    peak: int = 0
    every: list[float] = field(default_factory=list)

    def add(self, run: Callable[[], Any]) -> None:
        with peak_memory() as peak:
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        self.every.append(wall)
        self.seconds, self.cpu_seconds = min(self.seconds, wall), min(self.cpu_seconds, cpu)
        self.peak = max(self.peak, peak[0])


def resting() -> int:
    """Returns the resident bytes after freed memory was returned to the system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return _resident()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Yields the peak of resident memory above that at the start, sampled every 5 ms."""
    start, most, done = resting(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            most[0] = max(most[0], _resident() - start)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()


def compare(
    ours: Callable[[], Any], theirs: Callable[[], Any], peer: str, tokens: int, repeats: int
) -> dict[str, Any]:
    """Runs both sides ``repeats`` times in turn, ``tokens`` each time; ratios are their time over ours."""
    sides = {"ours": (ours, Best()), peer: (theirs, Best())}
    for _ in range(repeats):
        for run, best in sides.values():
            best.add(run)
    result: dict[str, Any] = {}
    for name, (_, best) in sides.items():
        result[name] = {
            "seconds": round(best.seconds, 3),
            "median_seconds": round(median(best.every), 3),
            "cpu_seconds": round(best.cpu_seconds, 3),
            "tokens_per_second": round(tokens / best.seconds, 1),
            "peak_megabytes": round(best.peak / 1e6),
        }
    mine, other = sides["ours"][1], sides[peer][1]
    result["ratio"] = round(other.seconds / mine.seconds, 2)
    result["median_ratio"] = round(median(other.every) / median(mine.every), 2)
    result["cpu_ratio"] = round(other.cpu_seconds / mine.cpu_seconds, 2)
    return result


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="small cases on a tiny network, under a minute")
    parser.add_argument("--json", type=Path, help="write the result to this file as well")
    parser.add_argument(
        "--model",
        help="smollm2 (the default; `onward models pull smollm2` fetches it), tiny (random, always with "
        "--quick), or a folder in transformers format",
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=2)
    return parser


def model_folder(given: argparse.Namespace, scratch: Path) -> tuple[Path, str]:
    """Returns the folder of the model to measure on, and its name with its number of parameters, which is
    also printed. Exits with a sentence if the model is not on this machine: no other one is measured."""
    from onward.lm.tiny import build_tiny
    from onward.serving.base_models import KNOWN, TINY, resolve

    wanted = given.model or (TINY if given.quick else "smollm2")
    if wanted == TINY:
        corpus = [f"word{i} and number {i} make a line of text" for i in range(200)]
        folder, name = build_tiny(scratch, corpus), TINY
    else:
        try:
            folder = resolve(wanted, scratch)
        except NotFoundError as missing:
            print(missing, file=sys.stderr)
            raise SystemExit(2) from None
        name = wanted if wanted in KNOWN else folder.name
    name = f"{name}, {parameters(folder):,} parameters"
    print(f"Measures {name}.", file=sys.stderr)
    return folder, name


def parameters(folder: Path) -> int:
    """Returns the number of parameters in the safetensors files of ``folder``."""
    headers = [read_header(file)[0] for file in folder.glob("*.safetensors")]
    return sum(math.prod(entry["shape"]) for header in headers for entry in header.values())


def report(name: str, model: str, given: argparse.Namespace, ratio: float, rest: dict[str, Any]) -> None:
    result = {
        "benchmark": name,
        "ratio": ratio,
        "model": model,
        "device": "cpu",
        "torch": torch.__version__,
        "threads": given.threads,
        "load_average": [round(value, 2) for value in os.getloadavg()],
    } | rest
    text = json.dumps(result, indent=2)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")
