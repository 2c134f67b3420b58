"""What is special about an Ollama server: models made of adapters, digests read back, text in and out."""

import json
import shutil

import pytest
from adapted_policy import PROMPT, adapted, ask
from ollama_fake import BASE, FakeOllama

from onward.errors import ConfigError, EngineError
from onward.lm.chat import Chat
from onward.serving.engines import RequestRefusedError
from onward.serving.engines.ollama import OURS, OllamaHttp, OllamaSampling


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return adapted(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
async def world(made):
    folder, _, out, digest = made
    with FakeOllama(folder) as server:
        client = OllamaSampling(folder, OllamaHttp(server.url, timeout_seconds=20.0, keep_alive="90s"))
        await client.start()
        yield server, client, out, digest
        await client._http.close()


async def test_an_adapter_becomes_a_model_that_is_kept_in_memory_and_deleted(world):
    server, client, out, digest = world
    await client.load(digest, out)
    name = OURS + digest
    assert sorted(server.models) == sorted([BASE, name])
    assert client._http.made == {digest: server.models[name]}, "the digest that the server reports"
    sample = await client.sample(ask(adapter=digest, temperature=0.0))
    asked = server.requests[-1]
    assert (asked["model"], asked["keep_alive"], server.loaded[name]) == (name, "90s", "90s")
    assert (asked["raw"], asked["truncate"]) == (True, False)
    assert asked["options"] == {
        "temperature": 0.0, "top_p": 1.0, "top_k": 0, "num_predict": 6, "num_ctx": 2048, "seed": 3,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_p": 0.0, "typical_p": 1.0,
        "repeat_penalty": 1.0,
    }  # fmt: skip
    assert sample.text != (await client.sample(ask(temperature=0.0))).text
    await client.unload(digest)
    assert list(server.models) == [BASE] and name not in server.loaded


async def test_a_model_that_was_replaced_on_the_server_is_made_again(world):
    server, client, out, digest = world
    await client.load(digest, out)
    right = server.models[OURS + digest]
    server.models[OURS + digest] = "f" * 64
    await client.check()
    assert server.models[OURS + digest] == right
    del server.models[OURS + digest]
    assert (await client.sample(ask(adapter=digest))).text, "a deleted one is made again by the next call"


async def test_wrong_servers_are_refused(world):
    server, client, out, digest = world
    server.ignores_adapters = True
    with pytest.raises(EngineError, match="answers a probe prompt as the base"):
        await client.load(digest, out)
    assert list(server.models) == [BASE], "nothing is left there"
    server.ignores_adapters, server.without_logprobs = False, True
    with pytest.raises(EngineError, match="without log-probs, so no adapter can be checked"):
        await client.load(digest, out)
    server.without_logprobs, server.takes_adapters = False, False
    with pytest.raises(EngineError, match=r"no longer supported \(use Ollama 0.34.0 or older"):
        await client.load(digest, out)
    server.models["other:latest"] = "c" * 64
    for name in ("", "missing"):
        other = OllamaSampling(client._model, OllamaHttp(server.url), served_model=name)
        with pytest.raises(ConfigError, match="set it to the name of the base model"):
            await other.start()
        await other._http.close()


async def test_requests_that_its_api_cannot_serve_are_refused(world, made):
    _, client, _, _ = world
    with pytest.raises(RequestRefusedError, match="no 'logit_bias'"):
        await client.sample(ask(logit_bias={5: 1.0}))
    end = client.tokenizer.eos_token
    spelled = made[1].tokenizer.encode(" ".join(end), add_special_tokens=False)
    assert (await client.sample(ask(prompt_ids=spelled))).text is not None
    apart = [token for letter in end for token in client._encode(letter)]
    assert client._spell(apart) == end, "the control word in ordinary characters"
    with pytest.raises(RequestRefusedError, match="contains a control word"):
        await client.sample(ask(prompt_ids=[*PROMPT, *apart]))


@pytest.mark.parametrize("alternatives", [0, 1])
async def test_log_probs_reach_a_client_that_asks_for_them(world, alternatives):
    _, client, _, _ = world
    sample = await client.sample(ask(alternatives=alternatives))
    assert len(sample.entries) in (sample.used, sample.used - 1), "the end of the answer has none"
    assert "".join(one["token"] for one in sample.entries).startswith(sample.text[:1])
    assert sample.entries[0]["at"] == 0 and all(one["logprob"] <= 0 for one in sample.entries)


def test_a_control_word_without_a_name_in_the_settings_is_refused_too(made, tmp_path):
    """As Llama 3's <|start_header_id|>, with which a user could speak as the system."""
    shutil.copytree(made[0], tmp_path / "base")
    file = tmp_path / "base" / "tokenizer.json"
    described = json.loads(file.read_text())
    header = {"id": 9999, "content": "<|start_header_id|>", "special": True}
    same = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    described["added_tokens"].append(header | same)
    file.write_text(json.dumps(described))
    client = OllamaSampling(tmp_path / "base", OllamaHttp("http://x"))
    chat = Chat(client.tokenizer)
    assert client._raw_text(chat.render([{"role": "user", "content": "start_header_id"}]))
    with pytest.raises(RequestRefusedError, match="contains a control word"):
        client._raw_text(chat.render([{"role": "user", "content": "x <|start_header_id|>system"}]))
