"""One contract for every engine: it passes, or its capabilities name what it does not offer."""

import asyncio

import pytest
from adapted_policy import PROMPT, adapted, ask
from ollama_fake import FakeOllama
from sglang_fake import FakeSglang
from vllm_fake import FakeVllm

from onward.config import ModelSettings
from onward.errors import ConfigError, EngineError, OnwardError, TamperedError
from onward.lm import probe
from onward.serving.engines.capabilities import ENGINES
from onward.serving.engines.ollama import OllamaHttp, OllamaSampling
from onward.serving.engines.sampling import SamplingThread
from onward.serving.engines.sglang import SglangHttp, SglangSampling
from onward.serving.engines.vllm import VllmSampling, VoidSample
from onward.serving.engines.vllm_http import VllmHttp


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return adapted(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(params=sorted(set(ENGINES) - {"openai"}))
async def engine(request, made):
    """The name of an engine, and its sampling, which has the same interface for all."""
    if request.param == "local":
        thread = SamplingThread(made[0], asyncio.get_running_loop(), device="cpu", dtype="float32", threads=1)
        await thread.start()
        yield request.param, thread
        return
    kinds = {
        "vllm": (FakeVllm, VllmSampling, VllmHttp), "sglang": (FakeSglang, SglangSampling, SglangHttp),
        "ollama": (FakeOllama, OllamaSampling, OllamaHttp),
    }  # fmt: skip
    fake, kind, http = kinds[request.param]
    with fake(made[0]) as server:
        client = kind(made[0], http(server.url, timeout_seconds=20.0))
        await client.start()
        yield request.param, client
        await client._http.close()


def test_every_engine_of_the_settings_has_capabilities():
    assert set(ModelSettings.model_fields["engine"].annotation.__args__) == set(ENGINES)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("adapted", [False, True])
async def test_ids_and_log_probs_are_those_of_the_learner(made, engine, temperature, adapted):
    name, sampling = engine
    _, policy, out, digest = made
    if adapted:
        await sampling.load(digest, out)
    sample = await sampling.sample(ask(temperature=temperature, adapter=digest if adapted else None))
    if not ENGINES[name].trains:
        assert isinstance(sample, VoidSample) and not sample.token_ids and sample.text and sample.used
        return
    assert sample.token_ids
    scored = policy.logprobs([_row(sample, temperature)], "job" if adapted else None)[0][len(PROMPT) :]
    assert sample.logprobs == pytest.approx(scored.tolist(), abs=1e-4)


def _row(sample, temperature):
    from onward.lm.tokens import TokenRow

    n, m = len(PROMPT), len(sample.token_ids)
    return TokenRow([*PROMPT, *sample.token_ids], [False] * n + [True] * m, [0.0] * (n + m), temperature)


async def test_a_truncated_answer_has_log_probs_or_is_void(engine):
    name, sampling = engine
    sample = await sampling.sample(ask(top_p=0.9))
    assert isinstance(sample, VoidSample) is not ENGINES[name].truncated_logprobs
    if isinstance(sample, VoidSample):
        assert sample.token_ids == [] and sample.text


async def test_progress_joins_to_the_answer(engine):
    name, sampling = engine
    parts: list[list[int]] = []
    sample = await sampling.sample(ask(max_new_tokens=8), lambda ids, *_: parts.append(ids))
    assert [token for part in parts for token in part] == sample.token_ids
    if not ENGINES[name].streams:
        assert len(parts) == (1 if ENGINES[name].token_ids else 0)


async def test_an_adapter_is_unloaded_and_an_unknown_one_is_no_error(made, engine):
    _, sampling = engine
    _, _, out, digest = made
    await sampling.load(digest, out)
    await sampling.unload(digest)
    with pytest.raises(OnwardError):
        await sampling.sample(ask(adapter=digest))
    if not isinstance(sampling, SamplingThread):  # the child calls its own sampler only for what it loaded
        await sampling.unload("f" * 64)


async def test_a_prompt_that_is_too_long_is_refused(engine):
    _, sampling = engine
    with pytest.raises(OnwardError):
        await sampling.sample(ask(prompt_ids=[40] * 10_000))


async def test_an_adapter_with_other_expected_log_probs_is_not_served(made, engine, tmp_path):
    """The probe of another policy beside right files: for the check, as if the engine computed wrongly."""
    import shutil

    _, sampling = engine
    _, _, out, _ = made
    changed = tmp_path / "changed"
    shutil.copytree(out, changed)
    stored = probe.Probe.read(out)
    worse = probe.Expected(stored.adapter.token_ids, [value - 0.3 for value in stored.adapter.logprobs])
    probe.Probe(stored.prompt_ids, stored.base, worse).write(changed)
    with pytest.raises(TamperedError, match="engine applies it wrongly"):
        await sampling.load("e" * 64, changed)
    with pytest.raises(OnwardError):
        await sampling.sample(ask(adapter="e" * 64))


async def test_an_sglang_server_that_lost_or_ignores_an_adapter_is_found_out(made):
    folder, _, out, digest = made
    with FakeSglang(folder) as server:
        client = SglangSampling(folder, SglangHttp(server.url, timeout_seconds=20.0))
        await client.start()
        await client.load(digest, out)
        server.adapters.clear()  # a restart
        assert (await client.sample(ask(adapter=digest))).token_ids
        await client.unload(digest)
        server.ignores_adapters = True
        with pytest.raises(EngineError, match=r"SGLang lists adapter .* answers a probe prompt as the base"):
            await client.load(digest, out)
        server.original_logprobs = True
        with pytest.raises(ConfigError, match="start it without SGLANG_RETURN_ORIGINAL_LOGPROB"):
            await client.start()
        await client._http.close()
