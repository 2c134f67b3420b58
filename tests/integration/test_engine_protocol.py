"""The ``Engine`` protocol as the gateway uses it: each engine keeps it, or its capabilities differ."""

import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest
from adapted_policy import adapted
from capture_world import TOOLS, close, records, told, trajectories
from capture_world import client as agent_of
from chat_server import ChatServer, calls, text
from ollama_fake import FakeOllama
from serving_world import World
from sglang_fake import FakeSglang
from vllm_fake import FakeVllm

from onward.config import Settings
from onward.errors import ConfigError, EngineError
from onward.lm.probe import Probe
from onward.serving.engines import AnswerOptions, RequestRefusedError
from onward.serving.engines.capabilities import ENGINES
from onward.serving.engines.child import SERVERS, EngineServer
from onward.serving.engines.closed import ChatHttp, ClosedEngine, ClosedProcess
from onward.serving.engines.local import LocalEngine
from onward.serving.engines.sampling import SamplingThread
from onward.training.data.admission import AdmissionRules, ScoredTrajectory, line

ASKED = [{"role": "user", "content": "Add 2 and 3."}]
FAKES = {"vllm": FakeVllm, "sglang": FakeSglang, "ollama": FakeOllama}


def closed_settings(url: str, model: str = "closed-1") -> Settings:
    given = {"model": {"engine": "openai", "base": "tiny"}}
    return Settings.model_validate({**given, "openai": {"url": url, "key": "k" * 20, "model": model}})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return adapted(tmp_path_factory.mktemp("tiny"))


@asynccontextmanager
async def engine_of(name, folder, socket):
    """The engine as the gateway has it: for four of them a client of the child's server."""
    if name == "openai":
        with ChatServer(lambda _: text("It is 5."), "closed-1").running() as api:
            api.fetched += [404] * 100  # it lists no models
            process = ClosedProcess(closed_settings(api.url))
            yield await process.start()
            await process.stop()
        return
    with FAKES[name](folder) if name in FAKES else ChatServer(lambda _: text("")).running() as server:
        if name == "local":
            loop = asyncio.get_running_loop()
            sampling = SamplingThread(folder, loop, device="cpu", dtype="float32", threads=1)
        else:
            kind, http = SERVERS[name]
            sampling = kind(folder, http(server.url, timeout_seconds=20.0))
        await sampling.start()
        listening = await asyncio.start_unix_server(EngineServer(sampling).serve, path=str(socket))
        engine = LocalEngine(socket)
        try:
            yield engine
        finally:
            await engine.close()
            listening.close()
            if name != "local":
                await sampling._http.close()


@pytest.fixture(params=sorted(ENGINES))
async def engine(request, made, tmp_path):
    async with engine_of(request.param, made[0], tmp_path / "e.sock") as one:
        yield request.param, one


async def answer(engine, **change):
    asked = {"session_id": "s", "adapter": None, "max_tokens": 6, "seed": 3, **change}
    return await engine.generate(ASKED, **asked)


async def test_what_an_answer_has_is_what_its_capabilities_say(engine):
    name, one = engine
    offered = ENGINES[name]
    found = await answer(one)
    assert found.text and found.usage["completion_tokens"] > 0
    record = found.sampling
    assert bool(record["token_ids"]) == bool(record["prompt_ids"]) == offered.token_ids
    assert len(record["logprobs"]) == len(record["token_ids"])
    assert (record.get("tokens_void") is True) is not offered.trains
    assert (offered.record(record) is not None) is offered.trains
    assert len(record["model_digest"]) == 64 and record["finish_reason"] in ("stop", "length")


async def test_a_cut_distribution_leaves_no_tokens_where_its_log_probs_are_not_of_it(engine):
    name, one = engine
    offered = ENGINES[name]
    stored = offered.record((await answer(one, top_p=0.9)).sampling)
    assert bool(stored and stored["token_ids"]) is offered.truncated_logprobs


async def test_progress_comes_in_pieces_only_from_an_engine_that_streams(engine):
    name, one = engine
    parts = []
    found = await answer(one, on_progress=parts.append)
    assert found.text.startswith("".join(part.text for part in parts))
    tokens = [token for part in parts for token in part.token_ids]
    assert tokens == found.sampling["token_ids"]
    assert (sum(bool(part.token_ids) for part in parts) > 1) is ENGINES[name].streams


async def test_an_adapter_is_loaded_used_and_unloaded_or_refused(engine, made):
    name, one = engine
    _, _, out, digest = made
    if not ENGINES[name].adapters:
        with pytest.raises(EngineError, match="a closed model takes none"):
            await one.load_adapter(digest, out)
        with pytest.raises(EngineError):
            await answer(one, adapter=digest)
        return
    assert Probe.read(out) is not None, "so the load compared its log-probs"
    await one.load_adapter(digest, out)
    assert await one.adapters() == [digest] == (await one.health())["adapters"]
    assert (await answer(one, adapter=digest)).sampling["model_digest"] == digest
    await one.unload_adapter(digest)
    assert await one.adapters() == []
    with pytest.raises(EngineError):
        await answer(one, adapter=digest)


async def test_what_an_engine_cannot_do_is_refused_by_the_name_of_the_parameter(engine):
    name, one = engine
    if name == "openai":
        for change, param in (({"top_k": 3}, "top_k"), ({"options": AnswerOptions(prompt="x")}, "prompt")):
            with pytest.raises(RequestRefusedError) as refused:
                await answer(one, **change)
            assert refused.value.param == param
    elif name == "ollama":
        with pytest.raises(RequestRefusedError) as refused:
            await answer(one, options=AnswerOptions(logit_bias={"5": 1.0}))
        assert refused.value.param == "logit_bias"
    else:
        assert (await answer(one, top_k=3, options=AnswerOptions(logit_bias={"5": 1.0}))).text


async def test_work_on_a_closed_engine_is_recorded_without_tokens_and_trains_by_text_alone(bus, tmp_path):
    def script(body):
        if body["messages"][-1]["role"] == "tool":
            return text("Rain.")
        return calls(("call_1", "weather", {"of": "Oslo"}))

    with ChatServer(script, "closed-1").running() as api:
        api.fetched += [{"object": "list", "data": []}] * 100
        process = ClosedProcess(closed_settings(api.url))
        options = {"model": {"engine": "openai"}, "openai": {"url": api.url, "model": "closed-1"}}
        async with World(bus, tmp_path, engine=await process.start(), **options) as world:
            messages = [{"role": "user", "content": "Weather in Oslo?"}]
            agent = agent_of(world)
            first = await agent.chat.completions.create(model="onward", messages=messages, tools=TOOLS)
            (wanted,) = first.choices[0].message.tool_calls
            messages += [first.choices[0].message]
            messages += [{"role": "tool", "tool_call_id": wanted.id, "content": "rain"}]
            last = await agent.chat.completions.create(model="onward", messages=messages, tools=TOOLS)
            await close(world, next(iter(world.gateway.capture._open)).session_id)
            (found,) = await trajectories(world, 1)
        await process.stop()
    assert last.choices[0].message.content == "Rain."
    assert first.model_extra["onward"]["sampling"] is None
    assert found["metadata"]["model"] == "closed-1"
    sent = api.requests[1]["messages"]
    assert sent[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"of": "Oslo"}'}
    assert sent[2]["tool_call_id"] == sent[1]["tool_calls"][0]["id"]
    assert [turn[3] for turn in told(found)] == ["tool_call", "response"] and records(found) == []
    assert found["metadata"]["engine"] == {"name": "openai", "token_ids": False, "logprobs": False}
    outcome = {"completion": 1.0, "success": True}
    reward = {
        "total_reward": 1.0,
        "metadata": {"outcome": outcome, "raw_total": 1.0},
        "reward_components": {},
    }
    scored = ScoredTrajectory(found, reward)
    on_policy, by_text = AdmissionRules(None, None), AdmissionRules(None, None, text_is_enough=True)
    assert line(scored, on_policy) == "engine_without_tokens"
    assert line(scored, by_text)["messages"][-1] == {"role": "assistant", "content": "Rain."}


@pytest.mark.parametrize(("url", "model", "missing"), [("", "m", "url"), ("http://127.0.0.1:1", "", "model")])
def test_a_closed_engine_needs_an_address_and_a_model(url, model, missing):
    with pytest.raises(ConfigError, match=rf"openai\.{missing} is empty"):
        ClosedProcess(closed_settings(url, model))


async def test_a_server_that_answers_with_a_page_or_refuses_the_key_is_one_sentence():
    page = httpx.Response(501, text="<html><body>\n<h1>Error response</h1>\n</body></html>")
    key = httpx.Response(401, json={"error": {"message": "Incorrect API key"}})
    said = []
    for answer in (page, key):
        http = ChatHttp("http://127.0.0.1:1/v1")
        http._client = httpx.AsyncClient(
            base_url=http.url, transport=httpx.MockTransport(lambda _, answer=answer: answer)
        )
        with pytest.raises(EngineError) as caught:
            await ClosedEngine(http, "closed-1").health()
        said.append(str(caught.value))
    assert said == [
        "The server of [openai] failed with HTTP 501: Not Implemented",
        "The server of [openai] at http://127.0.0.1:1 refuses the key: "
        "set openai.key to a key of that server.",
    ]


async def test_a_closed_engine_that_is_away_is_no_start():
    process = ClosedProcess(closed_settings("http://127.0.0.1:1"))
    with pytest.raises(EngineError, match=r"The server of \[openai\] at http://127.0.0.1:1 is away"):
        await process.start()
