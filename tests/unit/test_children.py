"""Child processes from the parent's side: events, ends, and a keeper that starts another."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from frozen import freeze

from onward import children, processes
from onward.clock import SystemClock

PRINTS = """
import sys
print("a library says hello")
print('{"step": 1}')
print("[1, 2]")
print('{"step": 2}')
print("trouble", file=sys.stderr)
"""
SLEEPS = """
import signal, subprocess, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = subprocess.Popen(["sleep", "600"]).pid if "parent" in sys.argv else 0
print('{"grandchild": %d}' % grandchild)
time.sleep(600)
"""


class PausesClock(SystemClock):
    """Real time, but pauses are only recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def module(tmp_path: Path) -> Callable[[str, str], dict[str, str]]:
    def write(name: str, program: str) -> dict[str, str]:
        (tmp_path / f"{name}.py").write_text(program)
        return {"PYTHONPATH": str(tmp_path)}

    return write


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or its new parent has only not collected it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def test_events_are_the_json_objects_among_other_lines_and_errors_go_to_the_log(
    tmp_path: Path, module: Callable[[str, str], dict[str, str]]
) -> None:
    log = tmp_path / "logs" / "child.log"
    child = await children.start("prints", log=log, environment=module("prints", PRINTS))
    assert [event async for event in children.events(child)] == [{"step": 1}, {"step": 2}]
    assert await child.wait() == 0
    assert log.read_text() == "trouble\n"


async def test_a_child_gets_the_variables_that_it_needs_and_writes_for_its_owner_alone(
    tmp_path: Path, module: Callable[[str, str], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = {
        "AWS_SECRET_ACCESS_KEY": "x", "ONWARD_HTTP__KEYS": "x", "NATS_TOKEN": "x", "OPENAI_API_KEY": "x",
        "HTTPS_PROXY": "http://u:p@proxy", "CUDA_VISIBLE_DEVICES": "1", "LD_LIBRARY_PATH": "/opt/lib",
        "MY_SIMULATOR": "here", "HIS_SIMULATOR": "there", "ONWARD_CHILD_VARIABLES": "MY_SIMULATOR, THE_OTHER",
    }  # fmt: skip
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    program = "import json, os\nprint(json.dumps({'umask': os.umask(0), 'given': dict(os.environ)}))"
    where = {**module("shows", program), "OMP_NUM_THREADS": "3"}
    child = await children.start("shows", log=tmp_path / "log", environment=where, passed=processes.COMPUTING)
    told = await anext(children.events(child))
    await child.wait()
    given = told["given"]
    assert {name: given[name] for name in ours if name in given} == {
        "CUDA_VISIBLE_DEVICES": "1", "LD_LIBRARY_PATH": "/opt/lib", "MY_SIMULATOR": "here",
    }  # fmt: skip
    assert given["OMP_NUM_THREADS"] == "3" and given["ONWARD_PARENT_PID"] == str(os.getpid())
    assert given["PATH"] == os.environ["PATH"]
    assert told["umask"] == 0o077


async def test_a_child_that_ignores_sigterm_is_killed_and_another_is_asked_first(
    tmp_path: Path, module: Callable[[str, str], dict[str, str]]
) -> None:
    where = module("sleeps", SLEEPS)
    for words, clean, code in (((), True, -signal.SIGTERM), (("deaf",), False, -signal.SIGKILL)):
        child = await children.start("sleeps", *words, log=tmp_path / "log", environment=where)
        await anext(children.events(child))
        assert await children.end(child, 60.0 if clean else 0.2) is clean
        assert child.returncode == code
        assert await children.end(child) is True, "it has ended already"
    assert await children.end(None) is True


async def test_the_children_of_a_child_with_a_group_end_with_it(
    tmp_path: Path, module: Callable[[str, str], dict[str, str]]
) -> None:
    where = module("sleeps", SLEEPS)
    child = await children.start("sleeps", "parent", log=tmp_path / "log", group=True, environment=where)
    grandchild = (await anext(children.events(child)))["grandchild"]
    await children.end(child)
    async with asyncio.timeout(30):
        while not has_ended(grandchild):
            await asyncio.sleep(0.02)


async def test_a_program_that_is_not_python_ends_with_its_parent_and_keeps_its_pid() -> None:
    """The parent starts ``sleep``, prints its pid and is killed."""
    program = (
        "import subprocess, sys, time; from onward.processes import ends_with_parent as command; "
        "child = subprocess.Popen(command(sys.argv[1], '600')); print(child.pid, flush=True); time.sleep(600)"
    )
    sleep = shutil.which("sleep")
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(sleep)), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    async with asyncio.timeout(30):
        while Path(f"/proc/{pid}/comm").read_text() != "sleep\n":
            await asyncio.sleep(0.02)
        parent.kill()
        await parent.wait()
        while not has_ended(pid):
            await asyncio.sleep(0.02)


async def test_a_keeper_starts_another_child_and_waits_twice_as_long_each_time_it_dies_young(
    tmp_path: Path, module: Callable[[str, str], dict[str, str]]
) -> None:
    where = module("sleeps", SLEEPS)
    deaths: list[int] = []
    starts = 0

    async def spawn() -> asyncio.subprocess.Process:
        nonlocal starts
        starts += 1
        if starts == 3:
            raise OSError("no memory for a child")
        return await children.start("sleeps", log=tmp_path / "log", environment=where)

    clock = PausesClock()
    keeper = children.Keeper("sleeper", spawn, clock=clock, on_death=lambda: deaths.append(1))
    assert keeper.pid is None
    await keeper.start()
    seen = []
    async with asyncio.timeout(60):
        for count in (1, 2):
            assert keeper.pid is not None
            seen.append(keeper.pid)
            os.kill(keeper.pid, signal.SIGKILL)
            while keeper.restarts < count:
                await asyncio.sleep(0.01)
    assert keeper.pid not in seen and len(set(seen)) == 2
    assert (len(deaths), starts) == (2, 4)
    assert clock.pauses == [0.1, 0.2, 0.4], "the failed start counts as well"
    await keeper.stop(30.0)
    assert keeper.pid is None


async def test_a_child_that_does_not_answer_is_killed_and_replaced_and_one_miss_is_forgiven(
    tmp_path: Path, module: Callable[[str, str], dict[str, str]]
) -> None:
    where = module("sleeps", SLEEPS)
    answers = [True, False, True, False, False]

    async def probe() -> None:
        if answers and not answers.pop(0):
            raise ConnectionError("no answer")

    async def spawn() -> asyncio.subprocess.Process:
        return await children.start("sleeps", log=tmp_path / "log", environment=where)

    keeper = children.Keeper("sleeper", spawn, clock=PausesClock(), probe=probe, misses=2)
    await keeper.start()
    first = keeper.child
    assert first is not None
    async with asyncio.timeout(60):
        while not keeper.restarts:
            await asyncio.sleep(0.01)
    assert first.returncode == -signal.SIGKILL and answers == []
    assert (keeper.ends, keeper.cause) == (1, "it did not answer 2 times in a row")
    await keeper.stop(0.0)


async def test_a_probe_that_hangs_is_a_miss_and_a_stopped_child_is_killed(
    tmp_path: Path, module: Callable[[str, str], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "PROBE_SECONDS", 0.05)
    where = module("sleeps", SLEEPS)

    async def probe() -> None:
        pid = keeper.pid
        while pid is None or Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T":
            await asyncio.sleep(0.01)

    async def spawn() -> asyncio.subprocess.Process:
        return await children.start("sleeps", log=tmp_path / "log", environment=where)

    keeper = children.Keeper("sleeper", spawn, clock=SystemClock(), probe=probe, misses=3)
    await keeper.start()
    first = keeper.pid
    assert first is not None
    freeze(first)
    async with asyncio.timeout(60):
        while not keeper.restarts:
            await asyncio.sleep(0.01)
    assert keeper.pid not in (None, first)
    await keeper.stop(0.0)


async def test_a_restart_that_is_asked_for_names_its_cause(
    tmp_path: Path, module: Callable[[str, str], dict[str, str]]
) -> None:
    where = module("sleeps", SLEEPS)

    async def spawn() -> asyncio.subprocess.Process:
        return await children.start("sleeps", log=tmp_path / "log", environment=where)

    keeper = children.Keeper("sleeper", spawn, clock=PausesClock())
    await keeper.start()
    first = keeper.pid
    await keeper.restart("its store refuses to write", 10.0)
    async with asyncio.timeout(60):
        while not keeper.restarts:
            await asyncio.sleep(0.01)
    assert keeper.cause == "its store refuses to write"
    assert keeper.pid not in (None, first)
    await keeper.stop(10.0)
