"""The time from a training request to its running job, while nothing else runs.

"accepted" is the HTTP answer 202: the request is stored and in the job table. "running" is the published
status: a trainer has claimed the job. The job is then cancelled, before it computes anything.
The trainer looks for new jobs twice a second, so the requests come at drawn moments.

    python benchmarks/training_start.py [--quick] [--json FILE] [--dir FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from onward import config, host
from onward.contracts import subjects
from onward.lm.tiny import build_tiny

TARGET_SECONDS = 2.0
"""Target for the 99th percentile from accepted to running."""
CONFIG = {
    "algorithm": "reinforce",
    "base_model": "tiny",
    "dataset": {"source": "clickhouse", "sample_size": 10},
    "hyperparameters": {"learning_rate": 1e-3, "batch_size": 8, "epochs": 1},
}


async def measure(folder: Path, count: int) -> dict[str, Any]:
    build_tiny(folder / "models" / "tiny", ["a short text"], 0)
    settings = config.load(
        environ={},
        overrides={
            "data_dir": folder,
            "nats": {"port": 0},
            "http": {"api_port": 0},
            "model": {"base": "tiny"},
        },
    )
    accepted, running = [], []
    async with (
        host.running(settings, roles=("trainer", "api")) as loop,
        httpx.AsyncClient(base_url=loop.endpoints["api_url"], timeout=60) as client,
    ):
        heard = await loop.ctx.bus.nc.subscribe(subjects.TRAINING_STATUS)
        draw = random.Random(0)
        for _ in range(count):
            await asyncio.sleep(0.5 + draw.random())
            began = time.perf_counter()
            answer = await client.post("/training/start", json=CONFIG)
            answer.raise_for_status()
            stored = time.perf_counter()
            accepted.append(stored - began)
            job_id = answer.json()["training_job_id"]
            while (status := json.loads((await heard.next_msg(timeout=60)).data))["status"] != "cancelled":
                assert status["training_job_id"] == job_id
                if status["status"] == "running":
                    running.append(max(0.0, time.perf_counter() - stored))
                    (await client.post(f"/training/{job_id}/cancel")).raise_for_status()
    return {"accepted": percentiles(accepted), "running": percentiles(running), "requests": count}


def percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    last = ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))]
    return {"p50": round(statistics.median(ordered), 4), "p99": round(last, 4), "most": round(ordered[-1], 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="5 requests instead of 200")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dir", type=Path, help="folder of the data; by default a temporary one")
    given = parser.parse_args()
    before = os.getloadavg()
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        found = asyncio.run(measure(Path(folder), 5 if given.quick else 200))
    found |= {"cores": os.cpu_count(), "load_average": [round(one, 2) for one in before]}
    for name in ("accepted", "running"):
        after = "POST" if name == "accepted" else "accepted"
        shown = found[name]
        times = ", ".join(f"{what} {seconds:.3f} s" for what, seconds in shown.items())
        print(f"{after} → {name}: {times}")
    met = found["running"]["p99"] < TARGET_SECONDS
    print(f"target: p99 under {TARGET_SECONDS:g} s: {'met' if met else 'missed'}; load {before[0]:.1f}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
