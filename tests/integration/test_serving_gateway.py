import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI
from serving_world import World, eventually, outcome_id

from onward.capture import provenance
from onward.clock import ManualClock
from onward.contracts import Sampling, validate
from onward.contracts.buckets import Assignment
from onward.errors import ConfigError
from onward.http import server as httpserver
from onward.serving.http import admission, gateway
from onward.serving.recording.capture import Capture
from onward.serving.routing import route_switcher
from onward.serving.routing.arms import choose, session_key


def _sessions(arm, count, weight=0.5, release="r1"):
    names = (f"s{n}" for n in range(10_000))
    return [name for name in names if choose(release, name, weight) == arm][:count]


async def test_before_any_release_the_base_answers_with_a_signed_record(world):
    answer = await world.ask("s1", "hi")
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "base: hi"}
    onward = answer["onward"]
    assert (onward["session_id"], onward["release"], onward["model_id"]) == ("s1", None, "tiny")
    key = provenance.load_key(world.settings.run_dir)
    assert provenance.verify(onward["sampling"], key)
    assert not provenance.verify({**onward["sampling"], "token_ids": [1]}, key)
    record = validate(onward["sampling"], Sampling)
    assert record.generation_id == onward["generation_id"]
    assert answer["usage"]["completion_tokens"] == len(record.token_ids)


async def test_a_second_turn_extends_the_tokens_of_the_first(world):
    first = await world.ask("s1", "hi")
    messages = [
        {"role": "user", "content": "hi"},
        first["choices"][0]["message"],
        {"role": "user", "content": "more"},
    ]
    second = (await world.client.post(
        "/v1/chat/completions", json={"messages": messages}, headers={"Onward-Session": "s1"}
    )).json()  # fmt: skip
    sampling = second["onward"]["sampling"]
    assert sampling["continues"] == first["onward"]["generation_id"]
    assert bytes(sampling["prompt_ids"]) == b"<user>more<assistant>"


async def test_streaming_carries_the_same_answer(world):
    answer = await world.chat("s1", "hi", stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    parts = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts) == "base: hi"
    assert parts[-1]["onward"]["sampling"]["signature"]


async def test_sessions_come_from_the_header_then_user_then_a_hash(world):
    ask = {"messages": [{"role": "user", "content": "x"}]}

    async def session(headers=None, **more):
        answer = await world.client.post("/v1/chat/completions", json={**ask, **more}, headers=headers or {})
        return answer.json()["onward"]["session_id"]

    assert await session({"Onward-Session": "a"}, user="b") == "a"
    assert await session(user="b") == "b"
    assert (await session(user="someone@example.org")).startswith("u-")
    hashed = await session()
    assert hashed.startswith("h-") and hashed == await session()
    refused = await world.client.post(
        "/v1/chat/completions", json=ask, headers={"Onward-Session": "../../etc"}
    )
    assert refused.status_code == 400


async def test_nobody_gets_in_without_a_key_or_under_another_host(world):
    url = f"{world.gateway.server.url}/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": "x"}]}
    async with httpx.AsyncClient() as stranger:
        assert (await stranger.post(url, json=body)).status_code == 401
        assert (await stranger.get(f"{world.gateway.server.url}/health")).status_code == 200
        assert (await stranger.get(f"{world.gateway.server.url}/v1/models")).status_code == 401
    rebound = await world.client.post("/v1/chat/completions", json=body, headers={"Host": "evil.example"})
    assert rebound.status_code == 421
    assert world.engine.calls == []


async def test_errors_are_openai_shaped(world):
    too_long = await world.chat("s", "x" * 5000)
    assert too_long.status_code == 400 and too_long.json()["error"]["type"] == "invalid_request_error"
    unknown = await world.chat("s", model="gpt-9")
    assert unknown.status_code == 404 and "'onward'" in unknown.json()["error"]["message"]
    bad = await world.client.post("/v1/chat/completions", content=b"nope")
    assert bad.status_code == 400


async def test_a_release_splits_sessions_and_each_keeps_its_arm(world):
    one, two = await world.open_release()
    names = [*_sessions("candidate", 5), *_sessions("current", 5)]
    answers = {name: await world.ask(name) for name in names}
    for name, answer in answers.items():
        arm = choose("r1", name, 0.5)
        release = answer["onward"]["release"]
        assert release == {"release_id": "r1", "arm": arm, "weight": 0.5}
        assert answer["onward"]["sampling"]["model_digest"] == (two if arm == "candidate" else one)
        assert answer["model"] == ("agent-zero-rl-v2.0" if arm == "candidate" else "agent-zero-rl-v1")
    assert len(await world.bus.bucket("rl_sessions").keys()) == 10
    revision = await world.desire(
        ("agent-zero-rl-v1", one), ("agent-zero-rl-v2.0", two), 0.0001
    )  # a session keeps its arm for the life of the release
    await world.served(revision)
    for name, answer in answers.items():
        again = await world.ask(name)
        assert again["onward"]["release"] == answer["onward"]["release"]


async def test_a_raw_prompt_is_served_by_the_current_arm_and_owes_no_outcome(world):
    one, _ = await world.open_release(weight=0.9999)
    (name,) = _sessions("candidate", 1, weight=0.9999)
    for more in ({}, {"n": 2}, {"stream": True}):
        answer = await world.client.post(
            "/v1/completions", json={"prompt": "once", **more}, headers={"Onward-Session": name}
        )
        assert answer.status_code == 200 and one in answer.text
        assert "agent-zero-rl-v1" in answer.text and "agent-zero-rl-v2.0" not in answer.text
    assert await world.bus.bucket("rl_sessions").keys() == []
    release = (await world.ask(name))["onward"]["release"]
    assert release["arm"] == "candidate", "a chat of the same session is part of the release"


async def test_the_record_says_what_is_really_served(world):
    one, two = await world.open_release()
    record = await world.served(1)
    assert record["served"] == sorted([one, two]) and set(record["probes"]) == {one, two}
    revision = await world.desire(("agent-zero-rl-v1", one), None, release_id="r1")
    record = await world.served(revision)
    assert record["served"] == [one]

    async def unloaded():
        return await world.engine.adapters() == [one]

    await eventually(unloaded)
    models = (await world.client.get("/v1/models")).json()["data"]
    assert [model["id"] for model in models] == ["onward", "agent-zero-rl-v1"]


async def test_at_a_rollback_the_candidates_sessions_move_and_leave_the_statistics(world):
    one, _ = await world.open_release()
    (name,) = _sessions("candidate", 1)
    await world.ask(name)
    revision = await world.desire(("agent-zero-rl-v1", one), None, release_id="r1")
    await world.served(revision)
    answer = await world.ask(name)
    assert answer["onward"]["release"] is None
    assert answer["onward"]["sampling"]["model_digest"] == one
    await world.reward(name, release_id="r1")
    await world.rewards_read()
    assert await world.outcomes() == []


async def test_another_gateways_assignment_counts(world):
    _, two = await world.open_release()
    (name,) = _sessions("current", 1)
    record = Assignment(
        session_id=name,
        release_id="r1",
        arm="candidate",
        weight=0.9,
        assigned_at="2026-01-01T00:00:00.000Z",
        model_id="agent-zero-rl-v2.0",
    )
    await world.bus.bucket("rl_sessions").create(session_key(name), record.dump())
    answer = await world.ask(name)
    assert answer["onward"]["release"] == {"release_id": "r1", "arm": "candidate", "weight": 0.9}
    assert answer["onward"]["sampling"]["model_digest"] == two


async def test_a_tampered_adapter_is_refused_and_the_routes_stay(world):
    one, _ = await world.open_release()
    three = await world.register("agent-zero-rl-v3", 3.0)
    entry = await world.bus.bucket("rl_models").get("agent-zero-rl-v3")
    prefix = json.loads(entry.value)["object_prefix"]
    stored = world.folder / "objects" / prefix / "adapter_model.safetensors"
    stored.write_bytes(stored.read_bytes()[:-1] + b"\x01")
    await world.desire(("agent-zero-rl-v1", one), ("agent-zero-rl-v3", three), 0.5, "r2")

    async def refused():
        record = json.loads((await world.bus.bucket("rl_gateways").get(world.gateway.gateway_id)).value)
        return record["error"] and record

    record = await eventually(refused)
    assert "does not match its manifest" in record["error"] and record["revision"] == 1
    assert three not in await world.engine.adapters()
    assert world.ctx.metrics.alerts.labels(kind="adapter_refused")._value.get() == 1
    assert not (world.settings.data_dir / "models" / "adapters" / three).exists()
    assert (await world.ask("s1"))["onward"]["release"]["release_id"] == "r1"
    ready = await world.client.get("/ready")
    assert ready.status_code == 503 and "manifest" in ready.json()["reasons"]["routes"]


async def test_a_full_disk_keeps_no_routes_from_being_served_and_all_is_stored_when_there_is_room(
    world, monkeypatch
):
    one, two = await world.open_release()
    file = world.settings.run_dir / "gateway-routes.json"
    monkeypatch.setattr(route_switcher, "REPORT_SECONDS", 0.05)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(route_switcher, "write_whole", full)
        await world.served(await world.desire(("agent-zero-rl-v1", one), release_id=None))
        disk.setattr(route_switcher.AdapterRegistry, "fetch", full)
        three = await world.register("agent-zero-rl-v3", 3.0)
        revision = await world.desire(("agent-zero-rl-v3", three), release_id=None)

        async def refused():
            return "No space left on device" in str(world.gateway.state.ready)

        await eventually(refused)
        assert world.gateway.state.routes.current.model_id == "agent-zero-rl-v1"
        assert two in file.read_text(), "the last routes that could be saved"
    await world.served(revision)

    async def saved():
        return three in file.read_text()

    await eventually(saved)


async def test_a_digest_that_the_model_is_not_registered_with_is_refused(world):
    one, _ = await world.open_release()
    await world.desire(("agent-zero-rl-v1", one), ("agent-zero-rl-v2.0", "f" * 64), 0.5, "r2")

    async def refused():
        return "registered with digest" in str(world.gateway.state.ready)

    await eventually(refused)
    assert world.gateway.state.routes.release_id == "r1"


async def test_a_newer_state_interrupts_one_that_is_still_loading(world):
    one, _ = await world.open_release()
    three = await world.register("agent-zero-rl-v3", 3.0)
    world.engine.delay = 30.0  # the probe of the candidate hangs
    await world.desire(("agent-zero-rl-v1", one), ("agent-zero-rl-v3", three), 0.5, "r2")

    async def loading():
        return three in await world.engine.adapters()

    await eventually(loading)
    world.engine.delay = 0.0
    revision = await world.desire(("agent-zero-rl-v1", one), None, release_id="r2")
    record = await asyncio.wait_for(world.served(revision), 30)
    assert record["served"] == [one]


async def test_one_retry_on_the_same_arm_and_an_error_outcome(world):
    _, two = await world.open_release()
    (name,) = _sessions("candidate", 1)
    failures = iter([True, False])
    world.engine.fail = lambda adapter, session: adapter == two and next(failures, False)
    answer = await world.ask(name)
    assert answer["onward"]["sampling"]["model_digest"] == two
    assert [adapter for _, adapter in world.engine.calls[-2:]] == [two, two]
    (outcome,) = await world.outcomes()
    assert (outcome.session_id, outcome.arm, outcome.kind, outcome.value) == (name, "candidate", "error", 1.0)
    assert outcome.outcome_id == outcome_id(name, "r1", "error") and outcome.weight == 0.5


async def test_an_arm_that_always_fails_is_never_covered_by_the_other(world):
    _, two = await world.open_release()
    world.engine.fail = lambda adapter, session: adapter == two
    broken, healthy = _sessions("candidate", 3), _sessions("current", 3)
    for name in broken:
        answer = await world.chat(name)
        assert answer.status_code == 503 and answer.json()["error"]["type"] == "engine_error"
        assert (await world.chat(name)).status_code == 503
    for name in healthy:
        await world.ask(name)
    assert {outcome.session_id for outcome in await world.outcomes()} == set(broken)
    assert len(await world.outcomes()) == 3  # one for each session, not for each attempt
    attempts = world.gateway._metrics.attempts
    assert attempts.labels(arm="candidate", result="error")._value.get() == 12
    assert attempts.labels(arm="current", result="error")._value.get() == 0


async def test_pause_answers_429_and_lets_running_calls_end(world):
    world.engine.delay = 0.3
    running = asyncio.create_task(world.chat("s1"))
    await asyncio.sleep(0.1)
    await world.bus.bucket("rl_control").put("traffic", b'{"paused": true}')

    async def paused():
        return world.gateway.admission.paused

    await eventually(paused)
    refused = await world.chat("s2")
    assert refused.status_code == 429 and float(refused.headers["Retry-After"]) > 0
    await world.gateway.admission.drain()
    assert (await running).status_code == 200
    await world.bus.bucket("rl_control").put("traffic", b'{"paused": false}')

    async def resumed():
        return not world.gateway.admission.paused

    await eventually(resumed)
    assert (await world.chat("s2")).status_code == 200


@pytest.mark.parametrize("zone", ["", "Z", "+02:00"])
async def test_a_pause_until_a_time_with_or_without_a_zone_ends_then(world, zone):
    for year, status in (("2999", 429), ("2020", 200)):
        until = f"{year}-01-01T00:00:00{zone}"
        await world.bus.bucket("rl_control").put(
            "traffic", json.dumps({"paused": True, "until": until}).encode()
        )

        async def answered(status=status):
            answer = await world.chat("s1")
            assert answer.status_code in (200, 429), answer.text
            return answer.status_code == status

        await eventually(answered)


async def test_a_role_that_is_cancelled_again_and_again_still_ends_its_calls_before_its_engine(
    bus, tmp_path, monkeypatch
):
    world = World(bus, tmp_path)
    order = []

    class Process:
        engine, keeper = world.engine, None

        def __init__(self, *_, **__):
            pass

        async def start(self):
            pass

        async def stop(self):
            order.append("engine")

    whole = Capture.stop

    async def recorded(capture):
        await whole(capture)
        order.append("capture")

    monkeypatch.setattr(gateway, "EngineProcess", Process)
    monkeypatch.setattr(admission, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(Capture, "stop", recorded)
    role = asyncio.create_task(gateway.run(world.ctx))

    async def up():
        return world.ctx.ready.get("gateway")

    await eventually(up)
    world.engine.delay = 60.0
    key = (world.settings.run_dir / "api.key").read_text()
    async with httpx.AsyncClient(
        base_url=world.ctx.endpoints["gateway_url"], headers={"Authorization": f"Bearer {key}"}, timeout=30
    ) as client:
        ask = {"messages": [{"role": "user", "content": "q"}]}
        call = asyncio.create_task(client.post("/v1/chat/completions", json=ask))

        async def asked():
            return world.engine.calls

        await eventually(asked)
        while not role.done():  # as the host does, each second
            role.cancel()
            await asyncio.wait({role}, timeout=0.05)
        answer = await call
    assert role.cancelled() and order == ["capture", "engine"]
    assert answer.status_code == 503 and answer.headers["Retry-After"] == "5"


async def test_a_call_that_outlives_the_grace_of_its_server_gets_503(monkeypatch):
    monkeypatch.setattr(httpserver, "GRACE_SECONDS", 0)
    app, begun = FastAPI(), asyncio.Event()

    @app.get("/")
    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)  # it ends after its server

    server = httpserver.Server(app, "127.0.0.1", 0)
    await server.start()
    async with httpx.AsyncClient(timeout=30) as client:
        call = asyncio.create_task(client.get(server.url))
        await begun.wait()
        await server.stop()
        answer = await call
    assert answer.status_code == 503 and answer.headers["Retry-After"] == "5"
    assert answer.json()["error"]["type"] == "stopping"


async def test_restart_serves_the_desired_state_again(bus, tmp_path):
    async with World(bus, tmp_path) as world:
        one, two = await world.open_release()
        (name,) = _sessions("candidate", 1)
        before = (await world.ask(name))["onward"]["release"]
    assert await bus.bucket("rl_gateways").keys() == []  # a clean end withdraws the record
    async with World(bus, tmp_path) as world:
        assert set(await world.engine.adapters()) == {one, two}
        assert (await world.ask(name))["onward"]["release"] == before


async def test_start_without_the_desired_state_serves_the_last_verified_file(bus, tmp_path):
    async with World(bus, tmp_path) as world:
        one, _ = await world.open_release()
    await bus.bucket("rl_releases").delete("desired")
    async with World(bus, tmp_path) as world:
        answer = await world.ask("s1")
        assert answer["onward"]["sampling"]["model_digest"] == one and answer["onward"]["release"] is None
    cached = tmp_path / "data" / "models" / "adapters" / one / "adapter_model.safetensors"
    cached.write_bytes(cached.read_bytes()[:-1] + b"\x01")
    async with World(bus, tmp_path) as world:  # changed since: the base serves
        assert (await world.ask("s1"))["model"] == "tiny"


async def test_a_gateway_that_cannot_read_the_desired_state_falls_back_to_current(bus, tmp_path):
    clock = ManualClock()
    async with World(bus, tmp_path, clock=clock) as world:
        one, _ = await world.open_release(weight=0.9999)
        assert (await world.ask("s1"))["onward"]["release"]["arm"] == "candidate"
        world.gateway.state._confirmed = clock.monotonic() - 16.0  # nothing was read for 16 s
        answer = await world.ask("s1")
        assert answer["onward"]["sampling"]["model_digest"] == one and answer["onward"]["release"] is None


async def test_other_machines_need_a_configured_key(bus, tmp_path):
    with pytest.raises(ConfigError, match=r"http\.keys is empty"):
        World(bus, tmp_path, host="0.0.0.0")


async def test_overhead_of_a_call(world):
    """Not asserted tightly: the figure is reported by the benchmark run of this test with -s."""
    await world.open_release()
    for name in _sessions("current", 50):
        for _ in range(4):
            await world.ask(name)
    histogram = world.ctx.metrics.gateway_seconds
    total = sum(sample.value for sample in histogram.collect()[0].samples if sample.name.endswith("_sum"))
    print(f"mean overhead {1000 * total / 200:.2f} ms")
    assert total / 200 < 0.1


async def test_a_path_without_v1_is_told_what_the_base_url_is(world):
    url = world.gateway.server.url
    answer = await world.client.post("/chat/completions", json={"messages": []})
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["type"] == "not_found_error"
    assert error["message"].startswith("There is no /chat/completions here")
    assert error["message"].endswith(f"the base URL for an OpenAI client is {url}/v1.")
    assert (await world.client.get("/v1/chat/completions")).status_code == 405
    other = (await world.client.get("/v1/embeddings")).json()["error"]["message"]
    assert "does not serve embeddings" in other and "base URL" not in other


async def test_the_real_client_is_told_by_name_what_the_gateway_does_not_do(world):
    url, key = f"{world.gateway.server.url}/v1", (world.settings.run_dir / "api.key").read_text().strip()
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
        asked: dict[str, Any] = {"model": "onward", "messages": [{"role": "user", "content": "hi"}]}
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(**asked, reasoning_effort="high")
        assert refused.value.param == "reasoning_effort"
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(**asked, extra_body={"temprature": 0})
        assert "did you mean 'temperature'?" in refused.value.message
        assert (await client.models.retrieve("onward")).id == "onward"
        names = [model.id async for model in client.models.list()]
        with pytest.raises(openai.NotFoundError) as missing:
            await client.models.retrieve("gpt-4")
        assert all(name in missing.value.message for name in names)
