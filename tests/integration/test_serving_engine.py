import asyncio
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import pytest_asyncio
from any_networks import build

from onward.clock import SystemClock
from onward.config import Settings
from onward.errors import EngineError, TamperedError
from onward.lm.tokens import TokenRow
from onward.serving.engines import RequestRefusedError
from onward.serving.engines.local import EngineProcess, LocalEngine
from onward.training import checkpoints

pytestmark = pytest.mark.asyncio(loop_scope="module")
CORPUS = ["Add 2 and 3.", "What is the capital?", '{"tool_name": "response", "tool_args": {"text": "5"}}']


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A random model, its policy for comparison, and two adapters that are far from the base."""
    import torch

    from onward.lm.policy import Policy
    from onward.lm.tiny import build_tiny

    folder = build_tiny(tmp_path_factory.mktemp("tiny") / "model", CORPUS, vocab=300, hidden=32, layers=2)
    policy = Policy.load(folder)
    adapters = {}
    for number in (1, 2):
        name = f"made{number}"
        adapter = policy.new_adapter(name, rank=4, alpha=8, seed=number)
        with torch.no_grad():
            for key, tensor in adapter.params.items():
                if ".lora_B." in key:
                    generator = torch.Generator().manual_seed(number)
                    tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
        out = folder.parent / name
        policy.save_adapter(name, out)
        manifest = checkpoints.write_manifest(out, job_id=name, epoch=1, base_digest=policy.base_digest)
        policy.remove_adapter(name)
        policy.add_adapter(manifest.adapter_digest, out)
        adapters[manifest.adapter_digest] = out
    return folder, policy, adapters


def _settings(folder, **model):
    return Settings.model_validate(
        {"data_dir": folder, "model": {"threads": 1, "max_context": 512, "base": "tiny", **model}}
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process(tiny, tmp_path_factory):
    """One child for all tests: it takes seconds to import torch."""
    process = EngineProcess(_settings(tmp_path_factory.mktemp("engine")), clock=SystemClock(), folder=tiny[0])
    await process.start()
    yield process
    await process.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def engine(process):
    engine = LocalEngine(process.socket)
    yield engine
    await engine.close()


def _ask(text):
    return [{"role": "system", "content": "You help."}, {"role": "user", "content": text}]


async def _long_call(engine, adapter=None):
    """Arguments of a call whose answer is long for certain: it runs to ``max_tokens`` with this seed."""
    asked = {"messages": _ask("x"), "session_id": "long", "adapter": adapter, "max_tokens": 400}
    for seed in range(50):
        if (await engine.generate(**asked, seed=seed)).sampling["finish_reason"] == "length":
            return {**asked, "seed": seed}
    raise AssertionError("no seed gives a long answer")


async def _is_running(engine):
    async with asyncio.timeout(30):
        while (await engine.health())["running"] == 0:
            await asyncio.sleep(0.002)


async def test_a_network_of_another_family_is_served_with_its_adapter(tmp_path_factory, tiny):
    """Ids and log-probs of the child equal those of plain passes, with the base and an adapter."""
    import torch
    from transformers import AutoModelForCausalLM

    from onward.lm.any_model.policy import AnyPolicy

    folder = build("gpt2", tmp_path_factory.mktemp("gpt2") / "model", tiny[0])
    policy = AnyPolicy.load(folder)
    adapter = policy.new_adapter("made", 4, 8.0)
    with torch.no_grad():
        for number, tensor in enumerate(adapter.params.values()):
            tensor.normal_(0, 0.2, generator=torch.Generator().manual_seed(number))
    out = folder.parent / "adapter"
    policy.save_adapter("made", out)
    manifest = checkpoints.write_manifest(out, job_id="made", epoch=1, base_digest=policy.base_digest)
    process = EngineProcess(_settings(tmp_path_factory.mktemp("any")), clock=SystemClock(), folder=folder)
    await process.start()
    try:
        await process.engine.load_adapter(manifest.adapter_digest, out)
        health = await process.engine.health()
        assert health["path"] == "transformers" and "'gpt2'" in health["path_reason"]
        plain = AutoModelForCausalLM.from_pretrained(folder).eval()
        for name, digest in ((None, None), ("made", manifest.adapter_digest)):
            asked = {"session_id": "a", "adapter": digest, "max_tokens": 8, "seed": 3}
            sampling = (await process.engine.generate(_ask("Add 2 and 3."), **asked)).sampling
            assert sampling["model_digest"] == (digest or policy.base_digest)
            prompt, ids = sampling["prompt_ids"], sampling["token_ids"]
            assert prompt == policy.tokenizer.apply_chat_template(
                _ask("Add 2 and 3."), add_generation_prompt=True, return_dict=False
            )
            row = TokenRow(prompt + ids, [False] * len(prompt) + [True] * len(ids), [0.0] * len(prompt + ids))
            expected = policy.logprobs([row], name)[0][len(prompt) :].tolist()
            assert sampling["logprobs"] == pytest.approx(expected, abs=1e-4)
            if name is None:
                with torch.no_grad():
                    logp = plain(torch.tensor([row.ids])).logits[0].log_softmax(-1)
                alone = [float(logp[t - 1, row.ids[t]]) for t in range(len(prompt), len(row))]
                assert sampling["logprobs"] == pytest.approx(alone, abs=1e-4)
    finally:
        await process.stop()


async def test_the_answer_is_what_was_sampled(engine, tiny):
    _, policy, _ = tiny
    answer = await engine.generate(_ask("Add 2 and 3."), session_id="a", adapter=None, max_tokens=12)
    sampling = answer.sampling
    assert sampling["model_digest"] == policy.base_digest and sampling["continues"] is None
    assert len(sampling["token_ids"]) == len(sampling["logprobs"]) <= 12
    assert answer.text == policy.tokenizer.decode(sampling["token_ids"], skip_special_tokens=True)
    rendered = policy.tokenizer.apply_chat_template(_ask("Add 2 and 3."), add_generation_prompt=True)
    assert sampling["prompt_ids"] == list(getattr(rendered, "input_ids", rendered))
    assert answer.usage["total_tokens"] == len(sampling["prompt_ids"]) + len(sampling["token_ids"])


async def test_the_answer_is_told_while_it_is_sampled(engine):
    told = []
    answer = await engine.generate(
        _ask("Add 2 and 3."), session_id="told", adapter=None, max_tokens=24, seed=3, on_progress=told.append
    )
    record, *pieces = told
    names = ("generation_id", "continues", "prompt_ids", "temperature", "model_digest")
    assert {name: record.record[name] for name in names} == {name: answer.sampling[name] for name in names}
    assert [token for piece in pieces for token in piece.token_ids] == answer.sampling["token_ids"]
    assert [value for piece in pieces for value in piece.logprobs] == answer.sampling["logprobs"]
    assert len(pieces) > 1 and answer.text.startswith("".join(piece.text for piece in pieces))
    silent = await engine.generate(
        _ask("Add 2 and 3."), session_id="silent", adapter=None, max_tokens=24, seed=3
    )
    assert silent.sampling["token_ids"] == answer.sampling["token_ids"]


async def test_a_stream_that_is_cancelled_ends_the_sampling(engine):
    begun = asyncio.Event()
    asked = await _long_call(engine)
    work = asyncio.create_task(engine.generate(**asked, on_progress=lambda p: p.text and begun.set()))
    await asyncio.wait_for(begun.wait(), 20)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    async with asyncio.timeout(20):
        while (await engine.health())["running"]:
            await asyncio.sleep(0.01)


async def test_a_tool_result_extends_the_tokens_of_the_call(engine):
    function = {"name": "add", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    asked = {"session_id": "tools", "adapter": None, "max_tokens": 8, "tools": tools}
    first = await engine.generate(_ask("Add 2 and 3."), **asked)
    said = {"role": "assistant", "content": first.text}
    result = {"role": "tool", "content": "5", "tool_call_id": "c1"}
    second = await engine.generate([*_ask("Add 2 and 3."), said, result], **asked)
    assert second.sampling["continues"] == first.sampling["generation_id"]
    other = await engine.generate([*_ask("Add 2 and 3."), said, result], **{**asked, "tools": []})
    assert other.sampling["continues"] is None  # another prompt: a new row


async def test_a_seed_gives_the_same_answer_and_temperature_zero_is_greedy(engine):
    asked = {"session_id": "a", "adapter": None, "max_tokens": 8}
    one = await engine.generate(_ask("x"), seed=5, **asked)
    two = await engine.generate(_ask("x"), seed=5, **asked)
    assert one.sampling["token_ids"] == two.sampling["token_ids"]
    greedy = [await engine.generate(_ask("x"), temperature=0.0, **asked) for _ in range(2)]
    assert greedy[0].sampling["token_ids"] == greedy[1].sampling["token_ids"]


async def test_turn_two_starts_with_the_tokens_of_turn_one(engine, tiny):
    from onward.lm.tokens import Call, rows_from_calls

    messages, calls = _ask("Add 2 and 3."), []
    for turn in range(4):
        answer = await engine.generate(messages, session_id="prefix", adapter=None, max_tokens=6 + turn)
        record = answer.sampling
        names = ("prompt_ids", "token_ids", "logprobs", "temperature", "generation_id", "continues")
        calls.append(Call(**{name: record[name] for name in names}))
        messages = [
            *messages,
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": f"turn {turn}"},
        ]
    assert calls[0].continues is None
    for before, call in itertools.pairwise(calls):
        assert call.continues == before.generation_id
    (row,) = rows_from_calls(calls)
    assert row.ids == [token for call in calls for token in [*call.prompt_ids, *call.token_ids]]
    _, policy, _ = tiny
    (learner,) = policy.logprobs([row])
    for index, sampled in enumerate(row.sampled):
        if sampled:
            assert abs(float(learner[index]) - row.logprobs[index]) < 1e-4
    again = await engine.generate(messages[:-3], session_id="other", adapter=None, max_tokens=4)
    assert again.sampling["continues"] is None  # another session has no memory of these tokens


async def test_32_mixed_calls_at_once_have_the_learners_log_probs(engine, tiny):
    import torch

    from onward.lm.tokens import Call, rows_from_calls

    _, policy, adapters = tiny
    for digest, folder in adapters.items():
        await engine.load_adapter(digest, folder)
    kinds = [None, *adapters]
    answers = await asyncio.gather(
        *(
            engine.generate(
                _ask(f"Question {number % 5}"),
                session_id=f"mixed{number}",
                adapter=kinds[number % 3],
                max_tokens=10 + number % 7,
                temperature=[1.0, 0.7][number % 2],
            )
            for number in range(32)
        )
    )
    worst, apart = 0.0, []
    for number, answer in enumerate(answers):
        record = answer.sampling
        assert record["model_digest"] == (kinds[number % 3] or policy.base_digest)
        names = ("prompt_ids", "token_ids", "logprobs", "temperature", "generation_id")
        rows = rows_from_calls([Call(**{name: record[name] for name in names})])
        (learner,) = policy.logprobs(rows, kinds[number % 3])
        (other,) = policy.logprobs(rows, kinds[(number + 1) % 3])
        start = len(record["prompt_ids"])
        sampled = torch.tensor(record["logprobs"])
        part = slice(start, start + len(sampled))
        worst = max(worst, float((learner[part] - sampled).abs().max()))
        apart.append(float((other[part] - sampled).abs().max()))
    assert worst < 1e-4
    assert min(apart) > 1e-3, apart  # another adapter would not have given these: the first check can fail


async def test_too_long_is_refused_in_one_sentence(engine):
    with pytest.raises(RequestRefusedError, match="context length is 512 tokens"):
        await engine.generate(_ask("long " * 600), session_id="a", adapter=None, max_tokens=4)
    with pytest.raises(RequestRefusedError, match="reduce the length of the messages or completion"):
        await engine.generate(_ask("x"), session_id="a", adapter=None, max_tokens=512)
    answer = await engine.generate(_ask("x"), session_id="a", adapter=None, max_tokens=None)
    assert answer.usage["total_tokens"] <= 512


async def test_three_huge_texts_are_refused_and_others_are_answered_meanwhile(engine):
    huge = [{"role": "user", "content": "hello world " * 75_000}]
    refused = [
        asyncio.ensure_future(engine.generate(huge, session_id=f"h{n}", adapter=None, max_tokens=2))
        for n in range(3)
    ]
    small = [{"role": "user", "content": "hi"}]
    answer = await engine.generate(small, session_id="s", adapter=None, max_tokens=2)
    assert answer.usage["completion_tokens"] >= 1
    for each in refused:
        with pytest.raises(
            RequestRefusedError, match=r"context length is [0-9]+ tokens.*at least [0-9]+ tokens"
        ):
            await each


async def test_a_tampered_or_foreign_adapter_is_refused_by_the_child_too(engine, tiny, tmp_path):
    _, _, adapters = tiny
    digest, folder = next(iter(adapters.items()))
    await engine.unload_adapter(digest)
    changed = shutil.copytree(folder, tmp_path / "changed")
    weights = changed / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(TamperedError, match="does not match its manifest"):
        await engine.load_adapter(digest, changed)
    pickled = shutil.copytree(folder, tmp_path / "pickled")
    (pickled / "adapter_model.safetensors").write_bytes(b"\x80\x04\x95" + bytes(64))
    other = checkpoints.write_manifest(pickled, job_id="j", epoch=1, base_digest="0" * 64)
    with pytest.raises(TamperedError, match="not safetensors"):
        await engine.load_adapter(other.adapter_digest, pickled)
    foreign = shutil.copytree(folder, tmp_path / "foreign")
    checkpoints.write_manifest(foreign, job_id="j", epoch=1, base_digest="0" * 64)
    with pytest.raises(TamperedError, match="trained on base"):
        await engine.load_adapter(digest, foreign)
    with pytest.raises(EngineError, match="not loaded"):
        await engine.generate(_ask("x"), session_id="a", adapter="a" * 64, max_tokens=2)


async def test_an_adapter_stays_while_any_client_holds_it(engine, tiny):
    _, _, adapters = tiny
    digest, folder = next(iter(adapters.items()))
    other = LocalEngine(engine._socket)
    await engine.load_adapter(digest, folder)
    await other.load_adapter(digest, folder)
    await engine.unload_adapter(digest)
    assert digest in await engine.adapters()
    await other.close()
    async with asyncio.timeout(30):
        while digest in await engine.adapters():
            await asyncio.sleep(0.02)


async def test_a_cancelled_call_leaves_the_batch(engine):
    asked = await _long_call(engine)
    before = (await engine.health())["generations"]
    call = asyncio.create_task(engine.generate(**asked))
    await _is_running(engine)
    call.cancel()
    async with asyncio.timeout(30):
        while (await engine.health())["running"]:
            await asyncio.sleep(0.002)
    assert (await engine.health())["generations"] == before


async def test_throughput_of_32_callers(engine):
    """The figure is printed with -s; only a floor that a broken batch would miss is asserted."""
    count, started = 0, time.perf_counter()

    async def caller(number):
        nonlocal count
        for turn in range(4):
            await engine.generate(
                _ask(f"{number} {turn}"), session_id=f"t{number}", adapter=None, max_tokens=16
            )
            count += 1

    await asyncio.gather(*(caller(number) for number in range(32)))
    rate = count / (time.perf_counter() - started)
    print(f"{rate:.0f} calls/s")
    assert rate > 5


async def test_kill_9_gives_a_new_child_with_the_adapter_loaded_again(process, tiny):
    _, _, adapters = tiny
    digest, folder = next(iter(adapters.items()))
    engine = process.engine
    await engine.load_adapter(digest, folder)
    asked = {"session_id": "a", "adapter": digest, "temperature": 0.0, "max_tokens": 8}
    before = await engine.generate(_ask("x"), **asked)
    running = asyncio.create_task(engine.generate(**await _long_call(engine, digest)))
    await _is_running(engine)
    first = process.pid
    os.kill(first, signal.SIGKILL)
    with pytest.raises(EngineError):
        await running
    async with asyncio.timeout(60):
        while True:
            try:
                after = await engine.generate(_ask("x"), **asked)
                break
            except EngineError:
                await asyncio.sleep(0.1)
    assert process.pid != first and process.restarts == 1
    assert after.sampling["token_ids"] == before.sampling["token_ids"]
    assert after.sampling["continues"] is None  # the memory died with the child: a new row


@pytest.mark.long
async def test_a_model_that_cannot_be_loaded_is_one_sentence(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text("{}")
    process = EngineProcess(_settings(tmp_path), clock=SystemClock(), folder=folder)
    with pytest.raises(EngineError, match="did not start") as caught:
        await process.start()
    assert "\n" not in str(caught.value)


@pytest.mark.long
async def test_the_engine_dies_with_its_parent(tiny, tmp_path):
    code = f"""
import asyncio, json, os, sys
from pathlib import Path
from onward.clock import SystemClock
from onward.config import Settings
from onward.serving.engines.local import EngineProcess
async def main():
    settings = Settings.model_validate({{"data_dir": {str(tmp_path)!r}, "model": {{"threads": 1}}}})
    process = EngineProcess(settings, clock=SystemClock(), folder=Path({str(tiny[0])!r}))
    await process.start()
    assert "torch" not in sys.modules and "transformers" not in sys.modules
    print(process.pid, flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    pid = int(done.stdout)
    for _ in range(200):
        if not _alive(pid):
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("the engine outlived its parent")


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def test_the_control_side_never_imports_torch():
    code = (
        "import sys, json; import onward.serving.http.gateway, onward.serving.engines.local; "
        "import onward.api.service, onward.capture.provenance, onward.serving.base_models; "
        "print(json.dumps([m for m in ('torch', 'transformers', 'chdb', 'safetensors') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
