"""The MCP server with the official client, over stdio and over HTTP, against a real bus and the real api."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from tools_world import ToolsWorld, tools_world

from onward.bus import Bus, NatsServer
from onward.contracts import subjects
from onward.contracts.examples import TRAJECTORY
from onward.tools import TOOLS
from onward.tools.mcp_http import serving_http

SECRET = "sk-ant-" + "api03-" + "Zk3Qv9" * 15 + "AA"
MODEL = "agent-zero-rl-v9"
CALLS: dict[str, dict[str, Any]] = {
    "report": {},
    "job_status": {},
    "validate_trajectory": {"trajectory_data": TRAJECTORY},
    "redact_sensitive_info": {"trajectory_data": {"note": f"my key is {SECRET}"}, "patterns": ["api_key"]},
    "compute_reward": {"trajectory": json.dumps(TRAJECTORY)},
    "subscribe_nats": {"subject": subjects.REPORT, "timeout_seconds": 0.05},
    "publish_nats": {"subject": subjects.TRAJECTORY, "payload": TRAJECTORY},
    "start_training": {"sample_size": 10_000, "days": 30},
    "control_train": {"algorithm": "ppo", "environment": "CartPole-v1", "timesteps": 500},
    "cancel_job": {"job_id": "no-such-job"},
    "download_checkpoint": {"s3_path": "checkpoints/job-1/1"},
    "run_benchmarks": {"model_path": MODEL},
    "deploy_to_tensorzero": {"model_id": MODEL, "checkpoint_path": "s3://bucket/job-1"},
    "release": {"action": "list"},
    "status": {"part": "models"},
}
"""Tool → arguments; those of ``REFUSED`` name something that does not exist here."""
REFUSED = {
    "cancel_job": "There is no job no-such-job",
    "run_benchmarks": f"No stored model has the id or the checkpoint '{MODEL}'",
    "deploy_to_tensorzero": "Nothing runs on",
}


def text_of(result: Any) -> str:
    (content,) = result.content
    return content.text


@asynccontextmanager
async def over_stdio(world: ToolsWorld, *options: str) -> AsyncIterator[Client]:
    data = world.box.settings.data_dir
    command = [
        "-m", "onward.cli", "mcp", "--scope", "read,train,release", "--dir", str(data),
        "--downloads", str(world.folder / "downloads"), *options,
    ]  # fmt: skip
    given = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))
    async with Client(stdio_client(given), read_timeout_seconds=30) as client:
        yield client


@asynccontextmanager
async def over_http(url: str, key: str, *, mode: str = "auto") -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=30) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, read_timeout_seconds=30, mode=mode) as client:
            yield client


async def call_every_tool(client: Client, world: ToolsWorld) -> None:
    """Calls all tools; compares each answer with what this world holds."""
    listed = (await client.list_tools()).tools
    assert [tool.name for tool in listed] == list(TOOLS)
    assert set(CALLS) == set(TOOLS)
    answers: dict[str, str] = {}
    for name, arguments in CALLS.items():
        found = await client.call_tool(name, arguments)
        answers[name] = text_of(found)
        assert len(answers[name].encode()) <= 4096
        if name in REFUSED:
            assert found.is_error and answers[name].startswith(REFUSED[name]), answers[name]
        else:
            assert not found.is_error, (name, answers[name])
            assert isinstance(json.loads(answers[name]), dict)
    started = json.loads(answers["start_training"])
    record, _ = await world.served.trainer.table.get(started["job_id"])
    assert record.request["training_config"]["dataset"]["sample_size"] == 10_000
    assert json.loads(answers["redact_sensitive_info"])["replaced"] == {"api_key": 1}
    assert json.loads(answers["validate_trajectory"])["valid"] is True
    whole = "\n".join(answers.values())
    run_dir = world.box.settings.run_dir
    for secret in (SECRET, world.served.key, (run_dir / "nats.token").read_text()):
        assert secret not in whole


@pytest.fixture
async def world(bus: Bus, nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[ToolsWorld]:
    async with tools_world(bus, nats_server, tmp_path) as made:
        yield made


def served(world: ToolsWorld) -> AbstractAsyncContextManager[str]:
    """No fixture: its task group must end in the task that began it."""
    return serving_http(world.box, "127.0.0.1", 0)


async def test_the_official_client_calls_every_tool_over_stdio(world: ToolsWorld) -> None:
    async with over_stdio(world) as client:
        await call_every_tool(client, world)
        wrong = await client.call_tool("job_status", {"job": "1"})
        assert wrong.is_error
        assert text_of(wrong) == "job_status has no argument 'job': it has job_id, state, offset."
        waiting = {"subject": subjects.ALERT, "timeout_seconds": 50}
        with pytest.raises(MCPError, match=r"[Tt]imed out"):
            await client.call_tool("subscribe_nats", waiting, read_timeout_seconds=0.3)
        given_up = asyncio.create_task(client.call_tool("subscribe_nats", waiting))
        await asyncio.sleep(0.3)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        listed = await client.call_tool("job_status", {})
        assert json.loads(text_of(listed))["total"] == 2
        with pytest.raises(MCPError, match="There is no tool 'drop_tables'"):
            await client.call_tool("drop_tables", {})


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client_calls_every_tool_over_http(world: ToolsWorld, mode: str) -> None:
    async with served(world) as address, over_http(address, world.served.key, mode=mode) as client:
        await call_every_tool(client, world)
        wrong = await client.call_tool("subscribe_nats", {"subject": 7})
        assert wrong.is_error
        assert text_of(wrong).startswith("Argument 'subject' of subscribe_nats is not usable:")
        with pytest.raises(MCPError, match="There is no tool 'drop_tables'"):
            await client.call_tool("drop_tables", {})


async def test_a_call_without_a_key_from_a_page_or_for_another_host_is_refused(
    world: ToolsWorld,
) -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    accept = {"Accept": "application/json, text/event-stream"}
    key = {"Authorization": f"Bearer {world.served.key}"}
    cases = (
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({**key, "Origin": "https://evil.example"}, 403),
        ({**key, "Host": "evil.example"}, 421),
    )
    async with served(world) as address, httpx.AsyncClient() as client:
        for headers, status in cases:
            answer = await client.post(address, json=asked, headers={**accept, **headers})
            assert answer.status_code == status, answer.text
            assert answer.json()["error"]["message"]


async def test_a_key_narrows_the_tools_and_two_clients_work_at_once(
    bus: Bus, nats_server: NatsServer, tmp_path: Path
) -> None:
    reader = "key-of-a-reader-" + "x" * 16
    http = {"keys": {hashlib.sha256(reader.encode()).hexdigest(): ["read"]}}
    async with (
        tools_world(bus, nats_server, tmp_path, http=http) as world,
        served(world) as url,
        over_http(url, reader) as narrow,
        over_http(url, world.served.key) as wide,
    ):
        listed = [tool.name for tool in (await narrow.list_tools()).tools]
        assert listed == [name for name, tool in TOOLS.items() if tool.scope == "read"]
        refused, begun = await asyncio.gather(
            narrow.call_tool("start_training", {}), wide.call_tool("start_training", {"sample_size": 64})
        )
        assert refused.is_error and text_of(refused).startswith("start_training needs the scope 'train'")
        assert not begun.is_error
        many = [
            client.call_tool("validate_trajectory", {"trajectory_data": {"turn": number}})
            for number in range(10)
            for client in (narrow, wide)
        ]
        assert {json.loads(text_of(one))["valid"] for one in await asyncio.gather(*many)} == {False}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_call_that_the_client_gives_up_ends_and_the_next_one_is_answered(
    world: ToolsWorld, mode: str
) -> None:
    """The connection of a call that timed out or was cancelled does not stay open."""
    waiting = {"subject": subjects.ALERT, "timeout_seconds": 50}
    opened = counted(world)
    async with served(world) as address, over_http(address, world.served.key, mode=mode) as client:
        with pytest.raises(MCPError, match=r"[Tt]imed out"):
            await client.call_tool("subscribe_nats", waiting, read_timeout_seconds=0.5)
        await until(lambda: opened == [1, 0])
        call = asyncio.create_task(client.call_tool("subscribe_nats", waiting))
        await until(lambda: opened == [2, 1])
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await until(lambda: opened == [2, 0])
        answer = await client.call_tool("job_status", {})
        assert json.loads(text_of(answer)) == {"total": 0, "items": []}


def counted(world: ToolsWorld) -> list[int]:
    """[connections that tools opened to the bus, those that are open]"""
    counts, real = [0, 0], world.box.service.bus

    @asynccontextmanager
    async def bus() -> AsyncIterator[Bus]:
        async with real() as opened:
            counts[0] += 1
            counts[1] += 1
            try:
                yield opened
            finally:
                counts[1] -= 1

    world.box.service.bus = bus  # type: ignore[method-assign]
    return counts


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not reached():
            await asyncio.sleep(0.02)
