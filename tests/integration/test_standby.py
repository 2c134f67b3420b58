"""While the circuit of a TensorZero is open, the current model answers in its place, marked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from capture_world import close, trajectories
from chat_upstream import chat_upstream
from serving_world import World

from onward.bus import Bus, read_all
from onward.contracts.buckets import Assignment

MODEL = "tensorzero/tensorzero::function_name::agent"


def providers(url: str, standby: str, **more: Any) -> dict[str, Any]:
    far = {"base_url": url, "retries": 0, "breaker_failures": 2, "breaker_seconds": 600, "standby": standby}
    return {"tensorzero": far, **more}


async def ask(world: World, session: str, **more: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **more}
    return await world.client.post("/v1/chat/completions", json=body, headers={"Onward-Session": session})


async def test_current_answers_marked_and_uncounted_until_a_probe_succeeds(bus: Bus, tmp_path: Path) -> None:
    async with (
        chat_upstream() as far,
        World(bus, tmp_path, providers=providers(far.url, "current")) as world,
    ):
        await world.open_release(weight=1.0)
        answer = await ask(world, "s0")
        assert answer.json()["onward"]["provider"] == "tensorzero" and "Onward-Standby" not in answer.headers
        far.broken = {"*"}
        assert (await ask(world, "s1")).status_code == 503, "one failure does not open the circuit"
        for session in ("s2", "s3"):  # the failure that opens it, and a call that is not sent at all
            answer = await ask(world, session)
            assert answer.status_code == 200 and answer.headers["Onward-Standby"] == "tensorzero"
            assert answer.json()["onward"]["model_id"] == "agent-zero-rl-v1"
            assert answer.json()["onward"]["release"] is None
        assert len(far.asked) == 3
        streamed = await ask(world, "s4", stream=True)
        assert streamed.headers["Onward-Standby"] == "tensorzero"
        far.broken = set()
        found = world.gateway.catalog.find(MODEL)
        assert found is not None
        found[0].upstream.breaker._opened_at -= 600  # its pause is over
        answer = await ask(world, "s5")
        assert answer.json()["onward"]["provider"] == "tensorzero" and "Onward-Standby" not in answer.headers
        assert await read_all(bus.bucket("rl_sessions"), Assignment) == []
        for session in ("s0", "s2"):
            await close(world, session, status="failed")
        by_session = {one["session_id"]: one["metadata"] for one in await trajectories(world, 2)}
    assert by_session["s0"].get("standby_for") is None and by_session["s0"]["provider"] == "tensorzero"
    assert by_session["s2"]["standby_for"] == "tensorzero" and by_session["s2"]["model"] == "agent-zero-rl-v1"


async def test_another_provider_answers_with_the_current_model(bus: Bus, tmp_path: Path) -> None:
    async with chat_upstream() as far, chat_upstream() as ollama:
        far.broken = {"*"}
        more = {"ollama": {"base_url": ollama.url}}
        async with World(bus, tmp_path, providers=providers(far.url, "ollama/{current}", **more)) as world:
            await world.open_release(weight=1.0)
            await ask(world, "s1")
            answer = await ask(world, "s2")
            assert answer.headers["Onward-Standby"] == "tensorzero"
            assert answer.json()["choices"][0]["message"]["content"] == "agent-zero-rl-v1 answers"
            assert ollama.asked == ["agent-zero-rl-v1"]


async def test_without_a_standby_an_open_circuit_is_refused(bus: Bus, tmp_path: Path) -> None:
    async with chat_upstream() as far, World(bus, tmp_path, providers=providers(far.url, "")) as world:
        far.broken = {"*"}
        assert [(await ask(world, "s")).status_code for _ in range(3)] == [503, 503, 503]
        assert len(far.asked) == 2
