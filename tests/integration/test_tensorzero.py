"""TensorZero follows the releases: the real embedded gateway on a stub, a file, a fake apply endpoint."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from chat_upstream import Upstream, chat_upstream
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from release_stream import context

from onward.bus import Bus, read_document
from onward.clock import SystemClock
from onward.config import TensorZeroSettings
from onward.contracts.buckets import Desired, DesiredArm, GatewayReport
from onward.errors import ConfigError, ConflictError, EngineError
from onward.http.server import Server
from onward.release.routes import Gateways
from onward.release.tensorzero.configuration import read_back, render, spliced
from onward.release.tensorzero.following import Follower
from onward.release.tensorzero.targets import ConfigFile, Embedded, Endpoint

SETTINGS = TensorZeroSettings.model_validate({})
SPLIT = {"current": ("agent-zero-rl-v1", 0.75), "candidate": ("agent-zero-rl-v2.3", 0.25)}
MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with chat_upstream() as found:
        yield found


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Embedded]:
    pytest.importorskip("tensorzero", reason="the extra tensorzero is not installed (make install brings it)")
    gateway = Embedded(folder / "tensorzero.toml", "agent")
    try:
        yield gateway
    finally:
        await gateway.close()


async def ask(gateway: Embedded, function: str = "agent") -> str:
    answer = await gateway.inference(function_name=function, input=MESSAGES)
    assert answer.content[0].text == f"{SPLIT[answer.variant_name][0]} answers"
    return str(answer.variant_name)


async def test_weights_are_read_back_equal_and_split_the_traffic(tmp_path: Path, upstream: Upstream) -> None:
    async with embedded(tmp_path) as gateway:
        assert await gateway.serves() == {}
        await gateway.apply(render(SPLIT, SETTINGS, upstream.url))
        assert await gateway.serves() == SPLIT
        counts = Counter([await ask(gateway) for _ in range(300)])
        assert 40 <= counts["candidate"] <= 110  # 75 expected, sd 7.5
        assert await ask(gateway, "agent_candidate") == "candidate"
        assert await ask(gateway, "agent_current") == "current"


async def test_a_rebuild_during_traffic_drops_no_request(tmp_path: Path, upstream: Upstream) -> None:
    upstream.seconds = 0.02
    async with embedded(tmp_path) as gateway:
        await gateway.apply(render(SPLIT, SETTINGS, upstream.url))
        done, stop = [], asyncio.Event()

        async def client() -> None:
            while not stop.is_set():
                done.append(await ask(gateway))

        clients = [asyncio.create_task(client()) for _ in range(8)]
        for share in (0.5, 0.0, 1.0, 0.1, 0.25):
            split = {"current": (SPLIT["current"][0], 1 - share), "candidate": (SPLIT["candidate"][0], share)}
            await asyncio.sleep(0.1)
            await gateway.apply(render(split, SETTINGS, upstream.url))
            assert await gateway.serves() == split
        stop.set()
        await asyncio.gather(*clients)  # an error of any request would be raised here
        assert len(done) == len(upstream.asked) > 50


async def test_a_broken_candidate_is_hidden_by_the_split_and_not_by_its_own_function(
    tmp_path: Path, upstream: Upstream
) -> None:
    upstream.broken = {"agent-zero-rl-v2.3"}
    async with embedded(tmp_path) as gateway:
        await gateway.apply(render(SPLIT, SETTINGS, upstream.url))
        assert {await ask(gateway) for _ in range(40)} == {"current"}
        with pytest.raises(Exception, match="broken"):
            await ask(gateway, "agent_candidate")


async def test_a_refused_configuration_leaves_the_old_gateway_serving(
    tmp_path: Path, upstream: Upstream
) -> None:
    async with embedded(tmp_path) as gateway:
        await gateway.apply(render(SPLIT, SETTINGS, upstream.url))
        with pytest.raises(EngineError, match="TensorZero refuses"):
            await gateway.apply(
                render(SPLIT, SETTINGS, upstream.url).replace('type = "static"', 'type = "no"')
            )
        await ask(gateway)


async def test_other_parts_of_the_file_stay(tmp_path: Path) -> None:
    file = tmp_path / "tensorzero.toml"
    file.write_text('[gateway]\nbind_address = "0.0.0.0:3001"\n')
    target = ConfigFile(file, "agent", ["touch", str(tmp_path / "reloaded")])
    await target.apply(render(SPLIT, SETTINGS, "http://engine/v1"))
    file.write_text(file.read_text() + "\n[metrics.mine]\n")
    one = {"current": ("agent-zero-rl-v1", 1.0)}
    await target.apply(render(one, SETTINGS, "http://engine/v1"))
    assert await target.serves() == one and (tmp_path / "reloaded").exists()
    text = file.read_text()
    assert "bind_address" in text and "[metrics.mine]" in text and "v2.3" not in text


async def test_a_reload_command_that_fails_is_named(tmp_path: Path) -> None:
    for command, words in ((["false"], "ended with 1"), (["/no/such"], "cannot be run")):
        target = ConfigFile(tmp_path / "t.toml", "agent", command)
        with pytest.raises((EngineError, ConfigError), match=words):
            await target.apply(render(SPLIT, SETTINGS, "http://engine/v1"))


@asynccontextmanager
async def replica(start: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """TensorZero's apply endpoint in its documented form: it compares the signature of what was read."""
    state: dict[str, Any] = {"toml": start, "applied": 0, "keys": set(), "race": False}
    app = FastAPI()

    def signature() -> str:
        return hashlib.sha256(state["toml"].encode()).hexdigest()

    @app.get("/internal/config_toml")
    async def read(request: Request) -> dict[str, Any]:
        state["keys"].add(request.headers.get("authorization"))
        found = {"toml": state["toml"], "path_contents": {}, "base_signature": signature()}
        if state["race"]:
            state["toml"] += "\n# changed elsewhere\n"
        return found

    @app.post("/internal/config_toml/apply")
    async def write(request: Request) -> Response:
        body = await request.json()
        if body["base_signature"] != signature():
            return JSONResponse({"error": "stale base_signature"}, 409)
        state["toml"], state["applied"] = body["toml"], state["applied"] + 1
        return JSONResponse({})

    server = Server(app, "127.0.0.1", 0, what="The fake")
    await server.start()
    try:
        yield server.url, state
    finally:
        await server.stop()


async def test_each_replica_gets_its_own_apply_and_a_stale_one_is_refused() -> None:
    async with replica("[gateway]\n") as (one, first), replica("[gateway]\n") as (two, second):
        target = Endpoint([one, two], "sk-" + "t0", "agent")
        await target.apply(render(SPLIT, SETTINGS, "http://engine/v1"))
        assert await target.serves() == SPLIT
        assert first["applied"] == second["applied"] == 1
        assert first["keys"] == {"Bearer sk-" + "t0"}
        second["toml"] = second["toml"].replace("0.75", "0.5")
        with pytest.raises(ConflictError, match="different routes"):
            await target.serves()
        first["race"] = True
        with pytest.raises(ConflictError, match="changed meanwhile"):
            await target.apply(render(SPLIT, SETTINGS, "http://engine/v1"))
        await target.close()


async def test_a_tensorzero_without_the_endpoint_is_named(upstream: Upstream) -> None:
    target = Endpoint([upstream.url.removesuffix("/v1")], None, "agent")
    with pytest.raises(EngineError, match="needs Postgres"):
        await target.serves()
    await target.close()


async def test_verification_waits_for_tensorzero_and_its_error_is_reported(bus: Bus, tmp_path: Path) -> None:
    clock = SystemClock()
    ctx = context(bus, clock, tmp_path)
    arms = [DesiredArm(arm=name, model_id=model, weight=share) for name, (model, share) in SPLIT.items()]
    desired = Desired(revision=3, release_id="r1", step=0, arms=arms, previous=None)
    await bus.bucket(Desired.BUCKET).put(Desired.KEY, desired.dump())
    gateways = Gateways(bus.bucket(GatewayReport.BUCKET), clock)
    failing = Follower(ctx, ConfigFile(tmp_path / "t.toml", "agent", ["false"]))
    await failing.follow()
    found = await gateways.check(3, arms)
    assert found.late == {"tensorzero"} and "ended with 1" in found.refused["tensorzero"]
    (tmp_path / "t.toml").unlink()
    follower = Follower(ctx, ConfigFile(tmp_path / "t.toml", "agent", []))
    await follower.follow()
    assert (await gateways.check(3, arms)).verified
    assert read_back((tmp_path / "t.toml").read_text(), "agent") == SPLIT
    await follower.close()
    assert await read_document(bus, GatewayReport, "tensorzero") is None


def test_a_configuration_without_the_routes_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="no static weights of function 'agent'"):
        read_back("[gateway]\n", "agent")
    with pytest.raises(ConfigError, match="without its end"):
        spliced(render(SPLIT, SETTINGS, "http://e").rpartition("# onward: end")[0], "x")
