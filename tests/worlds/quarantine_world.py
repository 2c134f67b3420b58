"""What the tests of the quarantine share: one data folder that holds everything Onward writes (stream,
warehouse, objects, keys, logs) and is searched for the secret, and a redactor that repeats the whole document
in its message, as a careless one would.

A test module takes the fixtures by importing them: ``from quarantine_world import ctx_fixture, …``.
"""

import asyncio
import contextlib
import io
import os
import subprocess
import sys
from datetime import datetime, timedelta
from unittest import mock

import httpx
import pytest_asyncio
from collector_world import document, on_disk
from scripted_engine import ScriptedEngine

from onward.bus import Bus, NatsServer
from onward.capture.collecting.quarantine import Quarantine, QuarantineKeys
from onward.cli import main
from onward.clock import SystemClock, utc_text
from onward.config import load
from onward.context import Context
from onward.serving.http.gateway import Gateway
from onward.telemetry import Alerts, Metrics
from onward.warehouse import EmbeddedWarehouse, Objects

SECRET = "ghp_" + "aB3dE5fG7hJ9" * 3

CHILD = """
import asyncio, sys
from onward.bus import Bus
from onward.capture.collecting import collector
from onward.redaction import redactor
from onward.clock import SystemClock, utc_text
from onward.config import load
from onward.context import Context
from onward.telemetry import Alerts, Metrics, logs
from onward.warehouse import Objects, connect

def fault(document, **_):
    raise RuntimeError(f"cannot redact {document}")

async def main():
    collector.ACK_WAIT_SECONDS = 1.0
    redactor.redact_trajectory = fault
    logs.setup("debug")
    settings = load(environ={}, overrides={"data_dir": sys.argv[1]})
    clock, metrics = SystemClock(), Metrics()
    bus = await Bus.connect(sys.argv[2], token=sys.argv[3])
    alerts, warehouse = Alerts(bus, clock, metrics), await connect(settings)
    objects = Objects.open(settings.objects_at)
    await collector.run(Context(settings, clock, bus, warehouse, objects, metrics, alerts))

asyncio.run(main())
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="warehouse")
async def warehouse_fixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    embedded = EmbeddedWarehouse(folder)
    yield await embedded.start(), folder
    await embedded.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="server")
async def server_fixture(warehouse):
    server = NatsServer(warehouse[1])
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture(loop_scope="module", name="ctx")
async def ctx_fixture(server, warehouse):
    await warehouse[0].command("TRUNCATE TABLE trajectories")
    bus = await Bus.connect(server.url, token=server.token)
    for info in await bus.js.streams_info():
        await bus.js.delete_stream(str(info.config.name))
    await bus.ensure_streams(migrate=True)
    yield make(bus, warehouse)
    for key in await Objects.open(str(warehouse[1] / "objects")).list():
        await Objects.open(str(warehouse[1] / "objects")).delete(key)
    await bus.close()


def make(bus, warehouse, **capture):
    clock, metrics = SystemClock(), Metrics()
    folder = {"data_dir": str(warehouse[1]), "http": {"gateway_port": 0}, "model": {"base": "tiny"}}
    settings = load(environ={}, overrides={**folder, "capture": capture})
    objects = Objects.open(settings.objects_at)
    return Context(settings, clock, bus, warehouse[0], objects, metrics, Alerts(bus, clock, metrics))


def quarantine(ctx) -> Quarantine:
    return Quarantine(ctx.objects, QuarantineKeys.from_settings(ctx.settings), ctx.clock)


def old_document(now) -> tuple[dict, datetime]:
    """A trajectory that began 45 days ago, and when it came: 20 days ago, since when it was held."""
    days = timedelta(days=1)
    body = document(1, text=f"use {SECRET}", start_timestamp=utc_text(now - 45 * days))
    return body, now - 20 * days


def break_redaction(monkeypatch) -> None:
    def fault(document, **_):
        raise RuntimeError(f"cannot redact {document}")

    monkeypatch.setattr("onward.redaction.redactor.redact_trajectory", fault)


async def crash(server, folder, point: str) -> None:
    """A collector whose redactor is broken, killed at ``point``; its log goes into the data folder."""
    command = [sys.executable, "-c", CHILD, str(folder), server.url, server.token]
    environment = {**os.environ, "ONWARD_CRASHPOINT": point}
    with open(folder / "collector.log", "ab") as log:
        died = await asyncio.to_thread(
            subprocess.run, command, env=environment, stdout=log, stderr=log, timeout=60
        )
    assert died.returncode == 137, (folder / "collector.log").read_text()


async def onward(ctx, server, *words: str, group: str = "quarantine") -> tuple[int, str]:
    """``onward quarantine …`` on this data folder: exit code and what it wrote."""
    out = io.StringIO()

    def run() -> int:
        environment = {"NATS_URL": server.url, "NATS_TOKEN": server.token, "COLUMNS": "120"}
        patch = mock.patch.dict(os.environ, environment)
        with patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                main([group, *words, "--dir", str(ctx.settings.data_dir)])
            except SystemExit as end:
                return int(end.code or 0)
        return 0

    code = await asyncio.to_thread(run)
    assert SECRET not in out.getvalue()
    return code, out.getvalue()


async def retry_and_die(ctx, server, point: str) -> None:
    environment = {"NATS_URL": server.url, "NATS_TOKEN": server.token, "ONWARD_CRASHPOINT": point}
    command = [sys.executable, "-m", "onward.cli", "quarantine", "retry", "--all"]
    died = await asyncio.to_thread(
        subprocess.run,
        [*command, "--dir", str(ctx.settings.data_dir)],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=60,
    )
    assert died.returncode == 137, died.stderr
    assert SECRET.encode() not in died.stdout + died.stderr


async def assert_nowhere(server, folder) -> None:
    await server.stop()
    assert on_disk(folder, SECRET.encode()) == []
    await server.start()


@contextlib.asynccontextmanager
async def gateway(ctx):
    """A gateway on this data folder, and a client that holds its key."""
    running = Gateway(ctx, ScriptedEngine())
    await running.start()
    headers = {"Authorization": f"Bearer {(ctx.settings.run_dir / 'api.key').read_text()}"}
    async with httpx.AsyncClient(base_url=running.server.url, headers=headers, timeout=30) as client:
        try:
            yield running, client
        finally:
            await running.stop()


async def ask_and_close(client, text: str, session: str = "s1") -> str:
    """One answered question, recorded; its trajectory id."""
    body = {"model": "onward", "messages": [{"role": "user", "content": text}]}
    answer = await client.post("/v1/chat/completions", json=body, headers={"Onward-Session": session})
    assert answer.status_code == 200, answer.text
    closed = await client.post(f"/v1/sessions/{session}/close", json={"status": "failed"})
    assert closed.status_code == 200, closed.text
    return answer.json()["onward"]["trajectory_id"]
