"""``/ready`` and ``/status`` answer while a child process hangs, and name it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import httpx
from frozen import freeze

from onward import config, host


async def test_ready_and_status_answer_while_the_warehouse_or_nats_hangs(tmp_path: Path) -> None:
    http = {"api_port": 0, "gateway_port": 0}
    settings = config.load(environ={}, overrides={"data_dir": tmp_path, "nats": {"port": 0}, "http": http})
    async with host.running(settings, roles=("collector", "api")) as loop:
        key = (tmp_path / "run" / "api.key").read_text().strip()
        url, headers = loop.ctx.endpoints["api_url"], {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30.0) as client:

            async def becomes_ready() -> None:
                async with asyncio.timeout(60):
                    while (await client.get("/ready")).status_code != 200:
                        await asyncio.sleep(0.2)

            await becomes_ready()
            answer = (await client.get("/ready")).json()
            assert (answer["ready"], answer["reasons"]) == (True, {})
            whole = (await client.get("/status")).json()
            assert whole["no_answer"] == []
            assert whole["counts"]["trajectories"] == 0 and len(whole["streams"]) == 9
            assert whole["child_restarts"] == {"nats-server": 0, "warehouse": 0}
            expected = {
                "warehouse": ({"warehouse": "hung"}, ["warehouse"]),
                "nats-server": ({"bus": "hung", "streams": "hung", "consumers": "hung"}, ["bus"]),
            }
            for name, (reasons, silent) in expected.items():
                pid = loop.ctx.children[name].pid
                assert pid is not None
                freeze(pid)
                try:
                    ready = await client.get("/ready")
                    assert (ready.status_code, ready.json()["reasons"]) == (503, reasons)
                    status = (await client.get("/status")).json()
                    assert status["no_answer"] == silent
                    assert (status["counts"] is None) is (name == "warehouse")
                    assert (status["streams"] == []) is (name == "nats-server")
                    assert "<h1>Onward</h1>" in (await client.get("/")).text
                finally:
                    os.kill(pid, signal.SIGCONT)
                await becomes_ready()
