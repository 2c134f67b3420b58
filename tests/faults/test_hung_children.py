"""A child that hangs (SIGSTOP) is killed and replaced, and what it did goes on. Long work is no hang."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from frozen import freeze

from onward import children
from onward.bus import Bus, NatsServer
from onward.clock import SystemClock
from onward.config import Settings
from onward.errors import EngineError
from onward.lm.tiny import build_tiny
from onward.serving.engines import sampling
from onward.serving.engines.local import EngineProcess
from onward.warehouse import EmbeddedWarehouse
from onward.warehouse import child as warehouse_child

TRAJECTORY = "agent.rl.trajectory.v1"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the seconds between two probes. A child that works gets more: a busy machine keeps it waiting."""

    def probe_each(seconds: float) -> None:
        monkeypatch.setattr(children, "PROBE_SECONDS", seconds)

    probe_each(0.3)
    return probe_each


async def replaced(keeper: children.Keeper, pid: int | None) -> None:
    async with asyncio.timeout(60):
        while keeper.pid in (None, pid) or not keeper.restarts:
            await asyncio.sleep(0.02)
    assert keeper.cause == "it did not answer 4 times in a row"


async def busy(work: Coroutine[Any, Any, Any], probe: Callable[[], Awaitable[object]]) -> None:
    """Runs a child's long ``work``, during which it answers: a blocked child does so after the end alone."""
    working, answers = asyncio.create_task(work), 0
    while not working.done():
        answering = asyncio.ensure_future(probe())
        await asyncio.wait({working, answering}, return_when=asyncio.FIRST_COMPLETED)
        answers += answering.done() and answering.exception() is None and not working.done()
        await asyncio.gather(answering, return_exceptions=True)
        await asyncio.sleep(0.02)
    await working
    assert answers


async def test_a_hung_nats_server_comes_back_with_what_it_had_stored(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    await server.start()
    bus = await Bus.connect(server.url, token=server.token, name="test")
    try:
        await bus.ensure_streams()
        await bus.publish(TRAJECTORY, b"before", msg_id="before")
        pid = server.pid
        assert pid is not None
        freeze(pid)
        ack = await bus.publish(TRAJECTORY, b"while", msg_id="while", deadline=60.0)
        assert ack.seq == 2
        await replaced(server.keeper, pid)
    finally:
        await bus.close()
        await server.stop()


async def test_a_hung_warehouse_comes_back_and_a_long_query_is_no_hang(
    tmp_path: Path, impatient: Callable[[float], None]
) -> None:
    impatient(1.0)
    embedded = EmbeddedWarehouse(tmp_path)
    warehouse = await embedded.start()
    try:
        pid = embedded.pid
        assert pid is not None
        # chDB sleeps at most 3 s in one call: two blocks of one row make it 6 s.
        asleep = warehouse.query("SELECT sleepEachRow(3) FROM numbers(2) SETTINGS max_block_size = 1")
        await busy(asleep, warehouse.check_alive)
        assert (embedded.pid, embedded.keeper.ends) == (pid, 0)
        impatient(0.3)
        warehouse._query_patience = 60.0  # a busy machine may need more than 10 s for a start of chDB
        freeze(pid)
        assert await warehouse.query("SELECT 1 AS n") == [{"n": 1}]
        await replaced(embedded.keeper, pid)
    finally:
        await embedded.stop()


async def test_a_statement_that_never_ends_makes_the_ping_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = object.__new__(warehouse_child.Engine)
    engine._since = None
    assert engine.stuck is False
    engine._since = 100.0
    for now, stuck in ((1899.0, False), (1901.0, True)):
        monkeypatch.setattr(warehouse_child.time, "monotonic", lambda now=now: now)
        assert engine.stuck is stuck


async def test_a_step_of_the_engine_that_never_ends_makes_the_ping_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thread = object.__new__(sampling.SamplingThread)
    thread._step_began = None
    thread.check_moving()
    thread._step_began = 100.0
    monkeypatch.setattr(sampling.time, "monotonic", lambda: 699.0)
    thread.check_moving()
    monkeypatch.setattr(sampling.time, "monotonic", lambda: 701.0)
    with pytest.raises(EngineError, match="more than 600 s"):
        thread.check_moving()


@pytest.mark.slow
async def test_a_hung_engine_comes_back_and_a_long_answer_is_no_hang(
    tmp_path: Path, impatient: Callable[[float], None]
) -> None:
    impatient(1.0)
    text = ["user\nassistant\nsystem\n", "task 0123456789 hi x"] * 20
    folder = tmp_path / "tiny"
    build_tiny(folder, text, 0, vocab=300, hidden=32, layers=1, heads=2, kv_heads=1, intermediate=64)
    model = {"threads": 1, "max_context": 2048, "base": "tiny"}
    settings = Settings.model_validate({"data_dir": tmp_path / "data", "model": model})
    process = EngineProcess(settings, clock=SystemClock(), folder=folder)
    engine = await process.start()
    ask = {"session_id": "s", "adapter": None, "messages": [{"role": "user", "content": "task 1"}]}
    try:
        pid = process.pid
        assert pid is not None
        await busy(engine.generate(**ask, max_tokens=1500, seed=1), engine.check_alive)
        assert (process.pid, process.keeper.ends) == (pid, 0)
        impatient(0.3)
        freeze(pid)
        with pytest.raises(EngineError, match="ended during the call"):
            await engine.generate(**ask, max_tokens=4)
        await replaced(process.keeper, pid)
        assert (await engine.generate(**ask, max_tokens=4)).sampling["token_ids"]
    finally:
        await process.stop()
