"""Time from a stored trajectory to its published reward on the real path, and trajectories per second.

The loop is that of ``onward up`` with the embedded parts (NATS with fsync, chDB, collector, rewarder); the
agent is a separate process. "Stored" is the return of the collector's insert, "published" that of the
PubAck for the reward. Rates stand beside those of capture alone, measured in the same run by the same agent.

Results of profiling: with code, linting is the main cost. A report on 40 new lines takes pylint and
bandit about 0.06 s of one core, so two cores give some 30 a second at best and 24 beside the rest of the
loop. A steady rate above that only fills the queue. Hence three cases: no code, code in every tenth
trajectory, code in every one. The first code of a service starts the child that lints: a second for its
start, and a few at half speed while it warms up. That is not counted.

    python benchmarks/reward.py [--quick] [--json FILE] [--seconds 20] [--rate 50] [--code-rate 50]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from onward import config, host
from onward.bus import Bus
from onward.contracts import Trajectory, subjects, validate
from onward.reward.role.analysis import code_analyser
from onward.telemetry import logs

CASES = {
    "plain": ("without code", 0, 50.0),
    "tenth": ("fresh code in each tenth", 10, 500.0),
    "code": ("fresh code in each", 1, 500.0),
}
"""Name → (words, n: every n-th trajectory has code, target in ms for 99 of 100 at 50 a second)."""
WARM = 60
"""Uncounted trajectories at the start: baselines need 30."""
CHILD_SECONDS = 8.0
"""Seconds for the linting child to start and warm up; with code, the uncounted part is longer by this."""
PATIENCE_SECONDS = 60.0
TEXT = "2026-01-01 12:00:00 INFO worker: step 17 of build finished in 1.25 s, 3 files written to out. "


def trajectory(number: int, *, code: bool) -> dict[str, Any]:
    """Builds ten turns, about 8 KB; with ``code`` one of them writes a unique Python file."""
    end = datetime.now(UTC)
    turns = []
    for n in range(10):
        args: dict[str, Any] = {"cmd": f"make step-{n}", "note": f"{n} {(TEXT * 7)[:560]}"}
        tool = "shell"
        if code and n == 5:
            tool, args = "write_file", {"path": f"part_{number}.py", "content": python_code(number)}
        turns.append(
            {
                "turn_id": n + 1,
                "timestamp": end.isoformat(),
                "observation": {"type": "tool_result" if n else "user_message", "content": f"step {n}"},
                "action": {"type": "tool_call", "tool_name": tool, "tool_args": args}
                if n < 9
                else {"type": "response", "raw_response": "It is built."},
                "result": {"success": True, "output": f"ok {number} {n}", "error": None},
            }
        )
    return {
        "trajectory_id": str(uuid.uuid4()),
        "session_id": f"s{number}",
        "agent_id": "bench",
        "start_timestamp": (end - timedelta(seconds=5 + number % 7)).isoformat(),
        "end_timestamp": end.isoformat(),
        "turns": turns,
        "task_context": {
            "task_id": f"k{number}",
            "instructions": "Build the app",
            "domain": "coding",
            "task_type": "build",
        },
        "metadata": {
            "model": "v1",
            "total_tokens": 900 + number % 90,
            "outcome": {"status": "completed_successfully" if number % 4 else "failed"},
        },
    }


def python_code(number: int) -> str:
    """Returns about 40 lines of valid Python, with some findings for a linter."""
    tag = f"{number}_{uuid.uuid4().hex[:8]}"
    blocks = [f'"""Part {tag}."""\n\nimport os\nimport json\n\nLIMIT_{number} = {number}\n']
    for n in range(4):
        blocks.append(
            f"\ndef step_{n}_{tag}(rows, limit={number + n}):\n"
            f'    """Sum of the first ``limit`` rows."""\n'
            f"    total_{n} = {n}\n"
            f"    unused_{tag} = {number}\n"
            "    for index, row in enumerate(rows):\n"
            f"        if index > limit and index % {number % 7 + 2} == 0:\n"
            "            break\n"
            f"        total_{n} += len(json.dumps(row))\n"
            f"    return total_{n}\n"
        )
    return "\n".join(blocks)


@dataclass
class Times:
    """Wall-clock times, by trajectory id."""

    stored: dict[str, float] = field(default_factory=dict)
    published: dict[str, float] = field(default_factory=dict)
    components: dict[str, int] = field(default_factory=dict)
    """Component → number of rewards that have it."""

    def watch(self, loop: host.Loop) -> None:
        """Records when the roles' own calls return: the insert of a row and the publish of a reward."""
        insert, publish = loop.ctx.warehouse.insert, loop.ctx.bus.publish

        async def noted_insert(table: str, rows: Any, **options: Any) -> None:
            await insert(table, rows, **options)
            if table == "trajectories":
                now = time.time()
                for row in rows:
                    self.stored.setdefault(row["trajectory_id"], now)

        async def noted_publish(subject: str, data: bytes, *rest: Any, **options: Any) -> Any:
            answer = await publish(subject, data, *rest, **options)
            if subject == subjects.REWARD:
                now, reward = time.time(), json.loads(data)
                self.published.setdefault(reward["trajectory_id"], now)
                for name in reward["reward_components"]:
                    self.components[name] = self.components.get(name, 0) + 1
            return answer

        loop.ctx.warehouse.insert = noted_insert  # type: ignore[method-assign]
        loop.ctx.bus.publish = noted_publish  # type: ignore[method-assign]


@asynccontextmanager
async def service(folder: Path, roles: tuple[str, ...]) -> AsyncIterator[tuple[host.Loop, Times]]:
    settings = config.load(environ={}, overrides={"data_dir": folder, "nats": {"port": 0}})
    async with host.running(settings, roles=roles) as loop:
        times = Times()
        times.watch(loop)
        yield loop, times


@asynccontextmanager
async def agent(loop: host.Loop, count: int, rate: float, every: int) -> AsyncIterator[None]:
    """Runs a process that publishes ``count`` trajectories, ``rate`` a second (0: as fast as it can).

    Every ``every``-th trajectory has code (0: none).
    """
    words = ("--agent", loop.endpoints["nats_url"], str(count), str(rate), str(every))
    token = (loop.ctx.settings.run_dir / "nats.token").read_text().strip()
    child = await asyncio.create_subprocess_exec(
        sys.executable, __file__, *words, env={**os.environ, "BENCH_TOKEN": token}
    )
    try:
        yield
        assert await asyncio.wait_for(child.wait(), PATIENCE_SECONDS) == 0, "the publishing process failed"
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def publish_all(url: str, count: int, rate: float, every: int) -> None:
    bus = await Bus.connect(url, token=os.environ["BENCH_TOKEN"], name="bench-agent")
    sending: set[asyncio.Task[Any]] = set()
    began = time.perf_counter()
    for number in range(count):
        document = trajectory(number, code=every > 0 and number % every == 0)
        if rate:
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        elif len(sending) >= 200:
            await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
        call = bus.publish(
            subjects.TRAJECTORY, json.dumps(document).encode(), msg_id=document["trajectory_id"]
        )
        task = asyncio.create_task(call)
        sending.add(task)
        task.add_done_callback(sending.discard)
    await asyncio.gather(*sending)
    await bus.close()


async def reports(count: int) -> dict[str, Any]:
    """Measures the analyser alone: ms per report on fresh code, and reports a second; empty without it."""
    analyser = code_analyser(config.load(environ={}).reward)
    if analyser is None:
        return {}
    items = [validate(trajectory(10_000 + number, code=True), Trajectory) for number in range(2 * count + 1)]
    await analyser.start()
    try:
        await analyser.report(items.pop())  # starts the child
        taken = []
        for _ in range(count):
            began = time.perf_counter()
            await analyser.report(items.pop())
            taken.append(time.perf_counter() - began)
        began = time.perf_counter()
        await asyncio.gather(*(analyser.report(item) for item in items))
        return {"ms": spread(taken), "a_second": round(count / (time.perf_counter() - began), 1)}
    finally:
        await analyser.stop()


async def until(done: Any, seconds: float) -> bool:
    limit = time.monotonic() + seconds
    while not done():
        if time.monotonic() > limit:
            return False
        await asyncio.sleep(0.02)
    return True


async def latency(folder: Path, *, rate: float, seconds: float, every: int) -> dict[str, Any]:
    """Returns percentiles of stored → published, in ms, after the warm-up.

    ``cpu_ms_each`` is processor time of collector and rewarder together, which a busy machine changes least.
    """
    warm = WARM + (round(rate * CHILD_SECONDS) if every else 0)
    count = warm + round(rate * seconds)
    async with service(folder, ("collector", "rewarder")) as (loop, times):
        spent = time.process_time()
        async with agent(loop, count, rate, every):
            await until(lambda: len(times.stored) >= count, count / rate + PATIENCE_SECONDS)
        await until(lambda: len(times.published) >= count, PATIENCE_SECONDS)
        spent = time.process_time() - spent
        counted = sorted(times.stored, key=times.stored.__getitem__)[warm:]
        taken = [times.published[name] - times.stored[name] for name in counted if name in times.published]
    return {
        "rate": rate,
        "warm": warm,
        "trajectories": len(counted),
        "published": len(taken),
        "published_a_second": steady(times.published.values()),
        "cpu_ms_each": round(1000 * spent / count, 2),
        "with_code_quality": times.components.get("code_quality", 0),
        "ms": spread(taken),
    }


async def throughput(folder: Path, *, count: int, roles: tuple[str, ...]) -> dict[str, float]:
    """Returns trajectories a second stored and, with the rewarder among ``roles``, rewarded."""
    async with service(folder, roles) as (loop, times):
        async with agent(loop, count, 0.0, 0):
            await until(lambda: len(times.stored) >= count, PATIENCE_SECONDS)
        rates = {"stored_a_second": steady(times.stored.values())}
        if "rewarder" in roles:
            await until(lambda: len(times.published) >= count, PATIENCE_SECONDS)
            rates["rewarded_a_second"] = steady(times.published.values())
    return rates


def steady(moments: Iterable[float]) -> float:
    """Returns the rate a second after the first batch."""
    ordered = sorted(moments)
    later = sum(moment > ordered[0] for moment in ordered)
    return round(later / (ordered[-1] - ordered[0]), 1) if later else 0.0


def spread(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    if not ordered:
        raise SystemExit(
            f"Nothing was published within {PATIENCE_SECONDS} s: the machine is too busy to measure."
        )
    return {
        name: round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))
    }


async def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = {
        "benchmark": "reward",
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
    }
    result["report"] = await reports(10 if options.quick else 60)
    for name in options.cases:
        _, every, target = CASES[name]
        rate = options.code_rate if every else options.rate
        case = await latency(folder / name, rate=rate, seconds=options.seconds, every=every)
        met = case["ms"]["p99"] < target and case["published"] == case["trajectories"]
        result[name] = {**case, "target_ms": target, "met": met}
    result["capture"] = await throughput(folder / "capture", count=options.count, roles=("collector",))
    result["both"] = await throughput(folder / "both", count=options.count, roles=("collector", "rewarder"))
    result["load_after"] = round(os.getloadavg()[0], 2)
    return result


def show(result: dict[str, Any]) -> None:
    report = result["report"]
    if report:
        print(
            f"One report on fresh code alone: p50 {report['ms']['p50']} ms; as many as possible: "
            f"{report['a_second']}/s."
        )
    for name in (name for name in CASES if name in result):
        what, _, target = CASES[name]
        case, ms = result[name], result[name]["ms"]
        print(
            f"Stored → published, {what}, {case['rate']:g}/s: p50 {ms['p50']} ms, p99 {ms['p99']} ms, "
            f"max {ms['max']} ms. Target p99 < {target:g} ms: {'met' if case['met'] else 'MISSED'}."
        )
        print(
            f"  {case['published']} of {case['trajectories']} published, {case['published_a_second']}/s, "
            f"{case['cpu_ms_each']} ms of processor time each; code quality scored in "
            f"{case['with_code_quality']} of {case['published'] + case['warm']}."
        )
    capture, both = result["capture"]["stored_a_second"], result["both"]
    print(
        f"Capture alone stores {capture}/s; with the rewarder beside it {both['stored_a_second']}/s are "
        f"stored and {both['rewarded_a_second']}/s rewarded."
    )
    print(f"Load average {result['load_before']}, then {result['load_after']}; {result['cores']} cores.")


def main() -> None:
    if sys.argv[1:2] == ["--agent"]:
        url, count, rate, every = sys.argv[2:6]
        asyncio.run(publish_all(url, int(count), float(rate), int(every)))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="to see that it works; its figures mean nothing")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=50.0, help="trajectories a second, without code")
    parser.add_argument("--code-rate", type=float, default=50.0, help="trajectories a second, with code")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--count", type=int, default=2000, help="trajectories of each throughput run")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.count = 1.0, 400
    logs.setup("error")
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(run(options, Path(folder)))
    show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
