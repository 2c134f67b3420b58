"""The engine in front of a vLLM server: exact ids, checked log-probs, adapters that are really applied."""

import asyncio
import json
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from vllm_fake import BASE, FakeVllm

from onward.clock import SystemClock
from onward.config import Settings
from onward.errors import ConfigError, EngineError, OnwardError
from onward.lm.constrained import Grammar
from onward.lm.policy import Policy
from onward.lm.request import SampleRequest
from onward.lm.tiny import build_tiny
from onward.lm.tokens import TokenRow
from onward.serving.engines import RequestRefusedError
from onward.serving.engines.local import EngineProcess
from onward.serving.engines.vllm import VllmSampling, VoidSample
from onward.serving.engines.vllm_http import Choice, VllmHttp
from onward.training import checkpoints

CORPUS = ["Add 2 and 3.", "What is the capital?", '{"tool_name": "response", "tool_args": {"text": "5"}}']
PROMPT = [40, 41, 42, 43, 44]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A random base and two adapters by digest: one that changes it, one whose B is zero."""
    folder = build_tiny(tmp_path_factory.mktemp("tiny") / "model", CORPUS, vocab=300, hidden=32, layers=2)
    policy = Policy.load(folder)
    made = {}
    for name, scale in (("moves", 0.3), ("still", 0.0)):
        adapter = policy.new_adapter(name, rank=4, alpha=8)
        generator = torch.Generator().manual_seed(1)
        for key, tensor in adapter.params.items():
            if ".lora_B." in key:
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * scale)
        policy.save_adapter(name, folder.parent / name)
        manifest = checkpoints.write_manifest(
            folder.parent / name, job_id=name, epoch=1, base_digest=policy.base_digest
        )
        policy.remove_adapter(name)
        policy.add_adapter(manifest.adapter_digest, folder.parent / name)
        made[name] = (manifest.adapter_digest, folder.parent / name)
    return folder, policy, made


@pytest.fixture()
def server(tiny):
    with FakeVllm(tiny[0], key="-".join(["made", "up", "key"])) as fake:
        yield fake


@pytest_asyncio.fixture()
async def sampling(tiny, server):
    made = VllmSampling(tiny[0], VllmHttp(server.url + "/v1", server.key, timeout_seconds=20.0))
    await made.start()
    yield made
    await made._http.close()


def ask(**change):
    asked = {"request_id": "r", "prompt_ids": PROMPT, "max_new_tokens": 6, "seed": 3, "stop_ids": [2]}
    return SampleRequest(**(asked | change))


def learners(policy, request, sample):
    n, m = len(request.prompt_ids), len(sample.token_ids)
    row = TokenRow(
        [*request.prompt_ids, *sample.token_ids],
        [False] * n + [True] * m,
        [0.0] * (n + m),
        request.temperature,
    )
    return policy.logprobs([row], request.adapter)[0][n:]


async def test_every_field_that_shapes_the_distribution_is_sent(sampling, server):
    """vLLM fills what is missing from the model's generation_config: temperature .6, top_k 20 …"""
    await sampling.sample(ask(temperature=0.7, top_p=0.9, top_k=20))
    assert server.body("/v1/completions") == {
        "model": BASE, "prompt": PROMPT, "max_tokens": 6, "n": 1, "temperature": 0.7, "top_p": 0.9,
        "top_k": 20, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
        "frequency_penalty": 0.0, "seed": 3,
        "stop_token_ids": [2], "skip_special_tokens": True, "logprobs": 0, "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }  # fmt: skip
    await sampling.sample(ask(seed=None))
    body = server.body("/v1/completions")
    assert "seed" not in body and body["top_k"] == 0 and body["top_p"] == 1.0


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("streamed", [False, True])
async def test_log_probs_equal_the_learners_with_an_adapter(tiny, sampling, temperature, streamed):
    """lm-training case 21, through HTTP; tokens that are streamed are those of the answer."""
    digest, folder = tiny[2]["moves"]
    await sampling.load(digest, folder)
    request = ask(adapter=digest, temperature=temperature, max_new_tokens=12)
    told: list[int] = []
    listener = (lambda ids, *_: told.extend(ids)) if streamed else None
    sample = await sampling.sample(request, listener)
    assert len(sample.token_ids) == len(sample.logprobs) > 0
    assert float((learners(tiny[1], request, sample) - torch.tensor(sample.logprobs)).abs().max()) < 1e-4
    assert told == (sample.token_ids if streamed else [])


async def test_what_few_requests_ask_for_is_passed_on_and_its_log_probs_come_back(tiny, sampling, server):
    schema = {"enum": ["cat", "dog"]}
    request = ask(
        presence_penalty=0.5, frequency_penalty=-0.25, logit_bias={45: 2.0}, alternatives=3, stop_ids=[2],
        grammar=Grammar("json_schema", json.dumps(schema)), max_new_tokens=20,
    )  # fmt: skip
    sample = await sampling.sample(request)
    body = server.body("/v1/completions")
    assert (body["presence_penalty"], body["frequency_penalty"]) == (0.5, -0.25)
    assert body["logit_bias"] == {"45": 2.0} and body["logprobs"] == 3
    assert body["structured_outputs"] == {"json": schema, "disable_any_whitespace": True}
    text = tiny[1].tokenizer.decode(sample.token_ids, skip_special_tokens=True)
    assert json.loads(text) in schema["enum"] and sample.finish_reason == "stop"
    assert len(sample.alternatives) == len(sample.token_ids)
    for (token, value), best in zip(
        zip(sample.token_ids, sample.logprobs, strict=True), sample.alternatives, strict=True
    ):
        assert dict(best).get(token, value) == pytest.approx(value)
        assert [value for _, value in best] == sorted((value for _, value in best), reverse=True)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_stop_text_inside_a_token_leaves_ids_that_are_those_of_the_text(
    tiny, sampling, server, streamed
):
    free = await sampling.sample(ask(max_new_tokens=12))
    text = tiny[1].tokenizer.decode(free.token_ids, skip_special_tokens=True)
    for at in range(2, 6):
        sample = await sampling.sample(
            ask(max_new_tokens=12, stop_texts=[text[at]]), (lambda *_: None) if streamed else None
        )
        body = server.body("/v1/completions")
        assert body["stop"] == [text[at]] and body["include_stop_str_in_output"] is True
        assert not isinstance(sample, VoidSample) and sample.finish_reason == "stop"
        assert sample.token_ids == free.token_ids[: len(sample.token_ids)]
    server.text_wrong = True
    assert isinstance(await sampling.sample(ask(stop_texts=[text[2]])), VoidSample)


async def test_greedy_is_a_point_mass_whatever_the_server_reports(sampling):
    sample = await sampling.sample(ask(temperature=0.0))
    assert sample.logprobs == [0.0] * len(sample.token_ids)


async def test_the_sampled_end_of_turn_token_is_kept(tiny, sampling):
    free = await sampling.sample(ask())
    stop = free.token_ids[2]
    stopped = await sampling.sample(ask(stop_ids=[stop]))
    assert stopped.finish_reason == "stop" and stopped.token_ids[-1] == stop
    assert stopped.logprobs == pytest.approx(free.logprobs[: len(stopped.token_ids)], abs=1e-5)


async def test_ids_that_do_not_spell_the_text_are_void(sampling, server):
    """lm-training case 19 (agent-lightning 326): wrong ids train the policy on what it never said."""
    server.text_wrong = True
    sample = await sampling.sample(ask())
    assert isinstance(sample, VoidSample) and sample.text == "not this" and sample.token_ids == []
    assert sampling.mismatches == 1


async def test_ids_that_are_not_the_tokens_of_the_log_probs_are_refused(sampling, server):
    server.token_ids_wrong = True
    with pytest.raises(EngineError, match="not the tokens"):
        await sampling.sample(ask())


def test_fewer_log_probs_than_tokens_are_refused():
    part = {"text": "ab", "token_ids": [5, 6], "prompt_token_ids": [1], "finish_reason": "stop"}
    tokens = ["token_id:5", "token_id:6"]
    assert Choice().add_part({**part, "logprobs": {"tokens": tokens, "token_logprobs": [-1.0, -2.0]}})[1] == [
        -1,
        -2,
    ]
    with pytest.raises(EngineError, match="2 token ids that are not the tokens of its 1 log-probs"):
        Choice().add_part({**part, "logprobs": {"tokens": tokens, "token_logprobs": [-1.0]}})


async def test_a_server_without_token_ids_is_told_the_version(sampling, server):
    server.without_token_ids = True
    with pytest.raises(EngineError, match=r"0\.10\.2"):
        await sampling.sample(ask())


async def test_raw_log_probs_are_refused_at_the_start(tiny, server):
    """lm-training case 21: raw log-probs are not those of the tokens drawn at a temperature."""
    server.raw_logprobs = True
    with pytest.raises(ConfigError, match="processed_logprobs"):
        await VllmSampling(tiny[0], VllmHttp(server.url, server.key)).start()


async def test_training_refuses_a_truncated_support_before_the_server_is_asked(sampling, server):
    """lm-training case 20."""
    before = len(server.requests)
    for change in ({"top_p": 0.9}, {"top_k": 5}):
        with pytest.raises(OnwardError, match="full support"):
            await sampling.sample(ask(for_training=True, **change))
    assert len(server.requests) == before


async def test_the_context_is_the_servers_where_it_is_shorter(sampling):
    assert sampling.max_context == 256
    with pytest.raises(OnwardError, match="room for 256"):
        await sampling.sample(ask(max_new_tokens=300))


async def test_an_adapter_serves_under_its_digest_once_it_moved_the_probe(tiny, sampling, server):
    digest, folder = tiny[2]["moves"]
    await sampling.load(digest, folder)
    await sampling.load(digest, folder)  # idempotent: vLLM answers 400, already loaded
    assert server.body("/v1/load_lora_adapter") == {"lora_name": digest, "lora_path": str(folder)}
    probes = [b for path, b in server.requests if path == "/v1/completions" and b["temperature"] == 0]
    assert [b["model"] for b in probes][:3] == [BASE, BASE, digest]
    assert not any("prompt_logprobs" in b for b in probes)  # beside another request they end vLLM 0.32
    assert (await sampling.sample(ask(adapter=digest))).token_ids
    await sampling.unload(digest)
    assert digest not in server.adapters
    with pytest.raises(EngineError, match="does not serve"):
        await sampling.sample(ask(adapter=digest))


async def test_an_adapter_that_the_server_lists_but_does_not_apply_is_not_served(tiny, sampling, server):
    """lm-training case 23 (verl 7495): the frozen base was served under the adapter's name for two months."""
    server.ignores_adapters = True
    digest, folder = tiny[2]["moves"]
    with pytest.raises(EngineError, match="did not apply it"):
        await sampling.load(digest, folder)
    assert digest not in server.adapters
    still, folder = tiny[2]["still"]  # an adapter that changes nothing cannot move the probe
    await sampling.load(still, folder)


@pytest.mark.parametrize("mixes", [False, True])
async def test_a_server_that_mixes_policies_of_one_batch_gets_them_one_at_a_time(
    tiny, sampling, server, mixes
):
    """vllm-project/vllm#48421: the base beside an adapter answers with part of it, and alone rightly."""
    server.mixes_policies = mixes
    digest, folder = tiny[2]["moves"]
    await sampling.load(digest, folder)
    assert sampling._turns.separate is mixes
    asked = [ask(adapter=adapter, seed=i) for i, adapter in enumerate([None, digest] * 4)]
    answers = await asyncio.gather(*(sampling.sample(request) for request in asked))
    for request, answer in zip(asked, answers, strict=True):
        assert answer.logprobs == pytest.approx(learners(tiny[1], request, answer).tolist(), abs=1e-4)


async def test_a_server_that_was_started_again_gets_its_adapter_back(tiny, sampling, server):
    digest, folder = tiny[2]["moves"]
    await sampling.load(digest, folder)
    server.adapters.clear()
    assert (await sampling.sample(ask(adapter=digest))).token_ids
    assert digest in server.adapters


async def test_a_server_that_takes_no_adapters_is_told_how(tiny, sampling, server):
    server.runtime_lora = False
    with pytest.raises(EngineError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
        await sampling.load(*tiny[2]["moves"])


async def test_the_servers_view_of_the_folder_is_used(tiny, server):
    made = VllmSampling(tiny[0], VllmHttp(server.url, server.key), adapters_dir="/elsewhere/adapters/")
    digest, folder = tiny[2]["moves"]
    with pytest.raises(EngineError, match="No adapter found"):
        await made.load(digest, folder)
    assert server.body("/v1/load_lora_adapter")["lora_path"] == f"/elsewhere/adapters/{folder.name}"


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        ((400, "bad prompt"), RequestRefusedError, "bad prompt"),
        ((500, "CUDA out of memory"), EngineError, "HTTP 500: CUDA"),
        ((503, "overloaded"), EngineError, "HTTP 503"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_errors_of_the_server_are_one_sentence(sampling, server, answer, error, said, streamed):
    server.fails_with = answer
    with pytest.raises(error, match=said):
        await sampling.sample(ask(), (lambda *_: None) if streamed else None)
    assert sampling.running == 0


async def test_a_wrong_key_an_absent_server_and_a_sleeping_one_are_told_apart(tiny, server):
    key = "another" + "key"
    with pytest.raises(EngineError, match="refuses the key") as caught:
        await VllmSampling(tiny[0], VllmHttp(server.url, key)).start()
    assert key not in str(caught.value) and server.key not in str(caught.value)
    server.asleep = True
    with pytest.raises(EngineError, match="is sleeping"):
        await VllmSampling(tiny[0], VllmHttp(server.url, server.key)).start()
    with pytest.raises(EngineError, match="is away"):
        await VllmSampling(tiny[0], VllmHttp("http://127.0.0.1:9")).start()


async def test_an_aborted_answer_is_no_answer(sampling, server):
    server.finish = "abort"
    with pytest.raises(EngineError, match="'abort'"):
        await sampling.sample(ask())


async def test_cancelling_closes_the_connection_so_that_the_server_aborts(sampling, server):
    server.hang = True
    asked = len(server.requests)
    running = asyncio.create_task(sampling.sample(ask()))
    while len(server.requests) == asked:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(server.disconnected.wait, 30) and sampling.running == 0


async def test_an_answer_that_takes_too_long_is_given_up(tiny, server):
    made = VllmSampling(tiny[0], VllmHttp(server.url, server.key, timeout_seconds=0.2))
    made._base_name, server.hang = BASE, True
    with pytest.raises(EngineError, match=r"within 0\.2 s"):
        await made.sample(ask())


async def test_the_gateways_engine_talks_to_vllm_when_settings_say_so(tiny, server, tmp_path):
    """The whole child: rendering and continuing here, sampling there; void ids are shown and not recorded."""
    settings = Settings.model_validate({
        "data_dir": tmp_path,
        "model": {"engine": "vllm", "base": "tiny"},
        "vllm": {"url": server.url, "key": server.key},
    })  # fmt: skip
    process = EngineProcess(settings, clock=SystemClock(), folder=tiny[0])
    engine = await process.start()
    try:
        digest, folder = tiny[2]["moves"]
        await engine.load_adapter(digest, folder)
        asked = {"session_id": "s", "adapter": digest, "max_tokens": 8, "temperature": 1.0}
        first = await engine.generate([{"role": "user", "content": "Add 2 and 3."}], **asked)
        told = [{"role": "user", "content": "Add 2 and 3."}, {"role": "assistant", "content": first.text}]
        second = await engine.generate([*told, {"role": "user", "content": "And 4?"}], **asked)
        assert second.sampling["continues"] == first.sampling["generation_id"]
        seen = server.body("/v1/completions")["prompt"]
        whole = first.sampling["prompt_ids"] + first.sampling["token_ids"] + second.sampling["prompt_ids"]
        assert seen == whole, "history is extended, never rendered again"
        server.text_wrong = True
        void = await engine.generate([{"role": "user", "content": "x"}], **asked)
        assert void.text == "not this" and void.sampling["tokens_void"] and not void.sampling["token_ids"]
        health = await engine.health()
        assert health["base_digest"] == tiny[1].base_digest and health["adapters"] == [digest]
        assert health["mismatches"] == 1
        command = Path(f"/proc/{process.pid}/cmdline").read_text()
        assert server.url in command and server.key not in command
    finally:
        await process.stop()
