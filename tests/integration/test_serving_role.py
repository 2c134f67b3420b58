"""The gateway role as it runs in the service: real bus, real engine child, a random tiny model."""

import asyncio
import os
import signal

import httpx
import pytest

from onward.clock import SystemClock
from onward.config import Settings
from onward.context import Context
from onward.errors import NotFoundError, PortBusyError
from onward.serving.http import gateway
from onward.telemetry.alerts import Alerts
from onward.telemetry.metrics import Metrics
from onward.warehouse import Objects


def _context(bus, folder, port=0):
    metrics = Metrics()
    settings = Settings.model_validate(
        {"data_dir": folder, "http": {"gateway_port": port}, "model": {"base": "tiny", "threads": 1}}
    )
    return Context(
        settings=settings,
        clock=SystemClock(),
        bus=bus,
        warehouse=None,  # type: ignore[arg-type]
        objects=Objects.open(folder / "objects"),
        metrics=metrics,
        alerts=Alerts(bus, SystemClock(), metrics),
    )


def _child_pid(folder):
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if b"engines.child" in (line := file.read()) and str(folder).encode() in line:
                        return int(entry)
            except OSError:
                continue
    return None


async def test_a_missing_model_is_one_sentence(bus, tmp_path):
    with pytest.raises(NotFoundError, match="onward demo"):
        await gateway.run(_context(bus, tmp_path))


@pytest.mark.long
async def test_the_role_serves_survives_its_engine_and_stops_cleanly(bus, tmp_path):
    from onward.lm.tiny import build_tiny

    build_tiny(tmp_path / "models" / "tiny", ["Add 2 and 3."], vocab=300)
    ctx = _context(bus, tmp_path)
    role = asyncio.create_task(gateway.run(ctx))
    async with asyncio.timeout(60):
        while "gateway_url" not in ctx.endpoints:
            assert not role.done(), role
            await asyncio.sleep(0.05)
    key = (tmp_path / "run" / "api.key").read_text()
    async with httpx.AsyncClient(
        base_url=ctx.endpoints["gateway_url"], headers={"Authorization": f"Bearer {key}"}, timeout=60
    ) as client:
        ask = {"messages": [{"role": "user", "content": "Add 2 and 3."}], "max_tokens": 8}
        answers = await asyncio.gather(*(client.post("/v1/chat/completions", json=ask) for _ in range(32)))
        assert {answer.status_code for answer in answers} == {200}
        assert (await client.get("/ready")).status_code == 200
        os.kill(_child_pid(tmp_path), signal.SIGKILL)
        answer = await client.post("/v1/chat/completions", json=ask)  # waits for the new engine
        assert answer.status_code == 200
    with pytest.raises(PortBusyError, match="The gateway"):
        await gateway.run(_context(bus, tmp_path, _port(ctx)))
    role.cancel()
    with pytest.raises(asyncio.CancelledError):
        await role
    assert _child_pid(tmp_path) is None
    assert ctx.ready["gateway"] is False


def _port(ctx):
    return int(ctx.endpoints["gateway_url"].rsplit(":", 1)[1])
