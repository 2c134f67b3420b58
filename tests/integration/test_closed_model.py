"""docs/closed-models.md from its first step, a closed API, to its last, an open model behind the gateway."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from chat_server import ChatServer, calls, text
from docs_blocks import ROOT, Block, blocks, run_blocks, run_command
from scripted_engine import ScriptedEngine

from onward import config, host
from onward.clock import SystemClock
from onward.export.demonstrations import openai_line
from onward.serving.engines.local import EngineProcess
from onward.serving.engines.registry import verify_adapter
from onward.serving.http.gateway import Gateway
from onward.training import checkpoints
from onward.warehouse import queries

PAGE = ROOT / "docs" / "closed-models.md"


def closed(body: dict[str, Any]) -> dict[str, Any]:
    """The closed model: it calls the calculator, then says what it got; of 6 times 5 it is wrong."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return text(f"It is {'31' if last['content'] == '30' else last['content']}.")
    number = last["content"].rstrip("?").split()[-1]
    return calls((f"call_{number}", "calculator", {"expression": f"6*{number}"}))


def settings(folder: Path, **overrides: Any) -> config.Settings:
    given = {
        "data_dir": folder / "onward-data",
        "nats": {"port": 0},
        "http": {"gateway_port": 0, "api_port": 0},
    }
    return config.load(environ={}, overrides={**given, **overrides})


def test_an_open_model_learns_from_a_closed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    program, look, export, train = blocks(PAGE, "closed")
    with ChatServer(closed, "closed-1").running() as api:
        monkeypatch.setenv("OPENAI_BASE_URL", api.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none-needed")
        asyncio.run(_recorded(tmp_path, program, look))

    run_blocks([export])  # nothing serves any more
    lines = [json.loads(line) for line in Path("demonstrations.jsonl").read_text().splitlines()]
    asked = {line["messages"][1]["content"]: line["messages"][-1]["content"] for line in lines}
    assert asked == {f"What is 6 times {n}?": f"It is {6 * n}." for n in range(2, 10) if n != 5}
    sent = api.requests[-1]
    whole = next(line for line in lines if line["messages"][1] == sent["messages"][1])
    assert (whole["messages"][:-1], whole["tools"]) == (_plain(sent["messages"]), sent["tools"])

    run_blocks([train])
    called, answer = asyncio.run(_served(tmp_path))
    assert called and called.startswith("6*"), "it calls the calculator, as it was shown"
    assert re.fullmatch(r"It is \d+\.", answer)


def test_the_same_work_is_recorded_scored_and_exported_by_base_url_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    key = "sk-" + "closed" * 6
    monkeypatch.setenv("OPENAI_API_KEY", key)
    program, look, export, _ = blocks(PAGE, "closed")
    with ChatServer(closed, "closed-1").running() as api:
        asyncio.run(_recorded_by_gateway(tmp_path, api.url, program, look))
    assert {given["authorization"] for given in api.headers} == {f"Bearer {key}"}
    run_blocks([export])
    lines = [json.loads(line) for line in Path("demonstrations.jsonl").read_text().splitlines()]
    asked = {line["messages"][1]["content"]: line["messages"][-1]["content"] for line in lines}
    assert asked == {f"What is 6 times {n}?": f"It is {6 * n}." for n in range(2, 10) if n != 5}
    sent = next(r for r in api.requests if r["messages"][-1]["content"] == "42")
    whole = next(line for line in lines if line["messages"][1] == sent["messages"][1])
    assert (whole["messages"][:-1], whole["tools"]) == (_plain(sent["messages"]), sent["tools"])


async def _recorded_by_gateway(folder: Path, url: str, program: Block, look: Block) -> None:
    """The agent of the page works through a gateway whose provider is the closed model."""
    (toml,) = blocks(PAGE, "by_address", ("toml",))
    (alone,) = blocks(PAGE, "by_address")
    named = tomllib.loads(toml.text)
    named["providers"]["closed"]["base_url"] = url
    async with host.running(settings(folder, **named), roles=("collector", "rewarder")) as loop:
        gateway = Gateway(loop.ctx, ScriptedEngine())
        await gateway.start()
        try:
            first = replace(program, text=program.text.partition("\nrun = ")[0])
            address = alone.text.replace("http://127.0.0.1:3000", gateway.server.url)
            await asyncio.to_thread(run_blocks, [first, replace(alone, text=address)])
            async with asyncio.timeout(60):
                while (await queries.counts(loop.ctx.warehouse))["rewarded"] < 8:
                    await asyncio.sleep(0.05)
            await asyncio.to_thread(run_blocks, [look])
        finally:
            await gateway.stop()


@pytest.mark.long
def test_an_adapter_trained_on_demonstrations_is_one_that_the_engine_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [openai_line(*_talk(n)) for n in range(2, 9)]
    Path("demonstrations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, output = run_command(
        "onward train --algorithm sft --model tiny --data demonstrations.jsonl --steps 2 --out warm"
    )
    assert code == 0, output
    folder = Path("warm/checkpoint")
    digest = checkpoints.verify(folder).adapter_digest
    verify_adapter(folder, digest)
    assert asyncio.run(_loaded(tmp_path, folder, digest)) == digest


def _talk(number: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    asked = {"role": "user", "content": f"What is 6 times {number}?"}
    return [asked, {"role": "assistant", "content": f"It is {6 * number}."}], []


async def _loaded(folder: Path, adapter: Path, digest: str) -> str:
    base = settings(folder, model={"base": "warm/base", "threads": 1})
    base.run_dir.mkdir(parents=True)
    process = EngineProcess(base, clock=SystemClock())
    try:
        engine = await process.start()
        await engine.load_adapter(digest, adapter)
        asked = [{"role": "user", "content": "What is 6 times 7?"}]
        said = await engine.generate(asked, session_id="s", adapter=digest, max_tokens=4)
    finally:
        await process.stop()
    return said.sampling["model_digest"]


async def _recorded(folder: Path, program: Block, look: Block) -> None:
    """The agent of the page works for the closed model beside a service."""
    async with host.running(settings(folder), roles=("collector", "rewarder")) as loop:
        await asyncio.to_thread(run_blocks, [program])
        async with asyncio.timeout(60):
            while (await queries.counts(loop.ctx.warehouse))["rewarded"] < 8:
                await asyncio.sleep(0.05)
        await asyncio.to_thread(run_blocks, [look])


async def _served(folder: Path) -> tuple[str | None, str]:
    """Runs the page's agent on the gateway with the trained model; its first expression and its answer."""
    (base,) = (block.text for block in blocks(PAGE, "", ("toml",)))
    (folder / "onward.toml").write_text(base)
    named = config.load(folder / "onward.toml", environ={}).model.base
    async with host.parts(settings(folder, model={"base": named, "threads": 1}), roles=()) as ctx:
        process = EngineProcess(ctx.settings, clock=ctx.clock)
        gateway = Gateway(ctx, await process.start())
        try:
            await gateway.start()
            key = (ctx.settings.run_dir / "api.key").read_text().strip()
            return await asyncio.to_thread(_ask, f"{gateway.server.url}/v1", key)
        finally:
            await gateway.stop()
            await process.stop()


def _ask(url: str, key: str) -> tuple[str | None, str]:
    names: dict[str, Any] = {}
    exec(blocks(PAGE, "closed")[0].text.partition("\nrun = ")[0], names)
    client = openai.OpenAI(base_url=url, api_key=key)
    create, seen = client.chat.completions.create, []

    def greedy(**given: Any) -> Any:
        answer = create(**(given | {"model": "onward", "temperature": 0, "max_tokens": 60}))
        seen.append(answer.choices[0].message)
        return answer

    client.chat.completions.create = greedy  # type: ignore[method-assign]
    answer = names["work"](client, "What is 6 times 7?")
    (call,) = seen[0].tool_calls or [None]
    return None if call is None else json.loads(call.function.arguments)["expression"], answer


def _plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the fields that are null, but for the content, which the export names."""
    return [{n: v for n, v in one.items() if v is not None or n == "content"} for one in messages]
