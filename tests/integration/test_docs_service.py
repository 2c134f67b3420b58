"""The examples that need a running Onward: those of the pages, of the README, and the programs.

Everything is real but the language model: the gateway runs on the scripted engine, so no torch is loaded.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from docs_blocks import PAGES, ROOT, blocks, run_blocks
from scripted_engine import ScriptedEngine

from onward import config, host
from onward.clock import utc_text
from onward.serving.http.gateway import Gateway
from onward.warehouse import queries


@asynccontextmanager
async def service(folder: Path, engine: ScriptedEngine) -> AsyncIterator[host.Loop]:
    """What ``onward up`` in ``folder`` gives, with ``engine`` behind the gateway."""
    settings = config.load(
        environ={},
        overrides={
            "data_dir": folder / "onward-data",
            "nats": {"port": 0},
            "http": {"gateway_port": 0, "api_port": 0},
            "model": {"base": "tiny"},
        },
    )
    async with host.running(settings, roles=("collector", "rewarder", "api")) as loop:
        gateway = Gateway(loop.ctx, engine)
        await gateway.start()
        endpoints = {**loop.endpoints, "gateway_url": gateway.server.url}
        (settings.run_dir / host.ENDPOINTS).write_text(json.dumps(endpoints))
        try:
            yield loop
        finally:
            await gateway.stop()


async def rewarded(loop: host.Loop, count: int) -> None:
    async with asyncio.timeout(20):
        while (await queries.counts(loop.ctx.warehouse))["rewarded"] < count:
            await asyncio.sleep(0.05)


def answer(messages: list[dict[str, str]], adapter: str | None) -> str:
    """JSON for the page that asks for JSON: a scripted engine has no grammar."""
    return '{"colour": "green"}' if "colour" in messages[-1]["content"] else "It is 42."


async def test_pages_and_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "220")
    pages = [page for page in PAGES if blocks(page, "service")]
    assert [page.stem for page in pages] == [
        "commands",
        "connect",
        "export",
        "feedback",
        "first-agent",
        "frameworks",
        "gateway",
        "logins",
        "operations",
        "quarantine",
        "recovery",
        "rescoring",
        "streams",
        "structured-output",
        "tools",
        "triggers",
    ]
    async with service(tmp_path, ScriptedEngine(answer)) as loop:
        for page in pages:
            await asyncio.to_thread(run_blocks, blocks(page, "service"), None, 10.0)
        pasted = blocks(ROOT / "README.md", languages=("python",))
        pasted += blocks(ROOT / "docs" / "first-agent.md", "pasted")
        assert [block.text.count("max_tokens=40") for block in pasted] == [1, 1]
        for block in pasted:  # each in a process of its own, as somebody copies it
            text = block.text.replace("http://127.0.0.1:3000", loop.ctx.endpoints["gateway_url"])
            (tmp_path / "pasted.py").write_text(text)
            assert await run_program(tmp_path, tmp_path / "pasted.py") == "It is 42.\n"
        key = (tmp_path / "onward-data" / "run" / "api.key").read_text().strip()
        by_key = "key-" + hashlib.sha256(key.encode()).hexdigest()[:8]
        await rewarded(loop, 7)
        rows = await loop.ctx.warehouse.query(
            "SELECT agent_id, success, completion FROM trajectories_v ORDER BY start_ts"
        )
        assert [(row["agent_id"], row["success"], row["completion"]) for row in rows] == [
            (by_key, 1, 1.0),  # nothing but a base URL
            ("my-agent", 1, 1.0),  # a wrapped client
            ("my-agent", 0, 0.0),  # the same within a task of the recorder
            ("my-agent", 0, 0.5),  # plain HTTP
            (by_key, 1, 1.0),  # a session of a framework
            (by_key, 1, 1.0),  # README: nothing but a base URL
            ("agent", 1, 1.0),  # first-agent.md: with a recorder
        ]
        payloads = await loop.ctx.warehouse.query("SELECT payload FROM trajectories_v")
        assert all('"signature"' in row["payload"] for row in payloads)


async def run_example(folder: Path, name: str, *words: str) -> str:
    return await run_program(folder, ROOT / "examples" / name, *words)


async def run_program(folder: Path, program: Path, *words: str) -> str:
    """What it printed; it must end well."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(program), *words,
        cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(60):
        out, errors = await child.communicate()
    assert child.returncode == 0, errors.decode()
    return out.decode()


async def test_programs(tmp_path: Path) -> None:
    """Both at once, with traffic paused when they start: the agent waits and sends its call again."""
    engine = ScriptedEngine(lambda messages, adapter: "6 times 7 is 42.")
    async with service(tmp_path, engine) as loop:
        until = utc_text(loop.ctx.clock.now() + timedelta(seconds=2))
        pause = json.dumps({"paused": True, "until": until}).encode()
        await loop.ctx.bus.bucket("rl_control").put("traffic", pause)
        by_http, by_hand = await asyncio.gather(
            run_example(tmp_path, "agent_http.py", "What is 6 times 7?", "42"),
            run_example(tmp_path, "publish_by_hand.py"),
        )
        await rewarded(loop, 2)
    assert "tiny said: 6 times 7 is 42." in by_http
    assert "right: True" in by_http and "delivered: True" in by_http
    assert len(engine.calls) == 1
    assert "stored in RL_TRAJECTORIES as number" in by_hand
    assert "task_completion: 1.00 x 0.62  Score 1.000" in by_hand
    assert "raw_total 0.808, total_reward 0.808" in by_hand


async def test_the_wrapped_agent(tmp_path: Path) -> None:
    """Question, tool call, answer: one trajectory of two turns, delivered when the program ends."""
    asked = json.dumps({"tool_name": "multiply", "tool_args": {"x": 6, "y": 7}})
    engine = ScriptedEngine(
        lambda messages, adapter: "It is 42." if messages[-1]["role"] == "tool" else asked
    )
    async with service(tmp_path, engine) as loop:
        output = await run_example(tmp_path, "agent_wrapped.py", "What is 6 times 7?")
        await rewarded(loop, 1)
        (row,) = await loop.ctx.warehouse.query("SELECT agent_id, payload FROM trajectories_v")
    lines = ['multiply({"x": 6, "y": 7}) = 42', "It is 42.", "recorded: 1; delivered: True"]
    assert output.splitlines() == lines
    first, last = json.loads(row["payload"])["turns"]
    assert row["agent_id"] == "agent-wrapped"
    assert (first["action"]["tool_name"], first["result"]["output"]) == ("multiply", "42")
    assert last["action"]["raw_response"] == "It is 42."
    assert all(turn["action"]["sampling"]["signature"] for turn in (first, last))
