"""The probe that a job stores: an engine that applies an adapter wrongly is refused."""

import json
import shutil

import pytest
import torch
from vllm_fake import FakeVllm

from onward.demo.sabotage import damage_adapter
from onward.errors import TamperedError
from onward.lm import probe
from onward.lm.policy import Policy
from onward.lm.tiny import build_tiny
from onward.serving.engines import sampling as sampling_module
from onward.serving.engines.vllm import VllmSampling
from onward.serving.engines.vllm_http import VllmHttp
from onward.training import checkpoints

CORPUS = ["Add 2 and 3.", "What is the capital?", '{"tool_name": "response", "tool_args": {"text": "5"}}']


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A base model and a checkpoint with a probe, and its digest."""
    folder = build_tiny(tmp_path_factory.mktemp("tiny") / "model", CORPUS, vocab=300, hidden=32, layers=2)
    policy = Policy.load(folder)
    adapter = policy.new_adapter("job", rank=4, alpha=8)
    generator = torch.Generator().manual_seed(1)
    for key, tensor in adapter.params.items():
        if ".lora_B." in key:
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
    out = folder.parent / "checkpoint"
    policy.save_adapter("job", out)
    probe.make(policy, "job").write(out)
    manifest = checkpoints.write_manifest(out, job_id="job", epoch=1, base_digest=policy.base_digest)
    return folder, out, manifest.adapter_digest


def half_scaled(real):
    """``add_adapter`` of an engine that forgets a factor of two in the adapter's scaling."""

    def add(self, name, folder):
        found = real(self, name, folder)
        changed = folder.parent / f"half-{name[:8]}"
        shutil.copytree(folder, changed, dirs_exist_ok=True)
        config = json.loads((changed / "adapter_config.json").read_text())
        config["lora_alpha"] /= 2
        (changed / "adapter_config.json").write_text(json.dumps(config))
        self.remove_adapter(name)
        found = real(self, name, changed)
        return found

    return add


def test_the_expected_log_probs_are_those_of_transformers_and_peft(made):
    """An independent source: transformers and peft compute the stored answers and their log-probs."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder, out, _ = made
    stored = probe.Probe.read(out)
    plain, under = (AutoModelForCausalLM.from_pretrained(folder).eval() for _ in range(2))
    for model, expected in (
        (plain, stored.base),
        (PeftModel.from_pretrained(under, out).eval(), stored.adapter),
    ):
        ids = torch.tensor([[*stored.prompt_ids, *expected.token_ids]])
        with torch.no_grad():
            logp = torch.log_softmax(model(ids).logits[0].double(), -1)
        at = len(stored.prompt_ids)
        found = [float(logp[at + i - 1, token]) for i, token in enumerate(expected.token_ids)]
        assert [int(logp[at + i - 1].argmax()) for i in range(8)] == list(expected.token_ids)
        assert found == pytest.approx(list(expected.logprobs), abs=1e-4)


async def _local(folder, dtype="float32"):
    import asyncio

    thread = sampling_module.SamplingThread(
        folder, asyncio.get_running_loop(), device="cpu", dtype=dtype, threads=1, max_context=128
    )
    await thread.start()
    return thread


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_the_local_engine_serves_a_right_adapter_in_either_format(made, dtype):
    folder, out, digest = made
    thread = await _local(folder, dtype)
    await thread.load(digest, out)
    assert digest in thread.policy.adapters


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_the_local_engine_refuses_an_adapter_that_it_scales_wrongly(made, dtype, monkeypatch):
    """The weights in memory equal the file's, tensor by tensor: only the probe finds the scaling."""
    folder, out, digest = made
    thread = await _local(folder, dtype)
    monkeypatch.setattr(Policy, "add_adapter", half_scaled(Policy.add_adapter))
    with pytest.raises(TamperedError, match="nats off the log-probs that its job stored"):
        await thread.load(digest, out)
    assert digest not in thread.policy.adapters


async def test_a_vllm_server_that_scales_an_adapter_wrongly_is_refused_and_unloads_it(made, monkeypatch):
    folder, out, digest = made
    with FakeVllm(folder) as server:
        client = VllmSampling(folder, VllmHttp(server.url, timeout_seconds=20.0))
        await client.start()
        await client.load(digest, out)
        await client.unload(digest)
        server.policy.remove_adapter(digest)
        monkeypatch.setattr(Policy, "add_adapter", half_scaled(Policy.add_adapter))
        with pytest.raises(TamperedError, match="nats off"):
            await client.load(digest, out)
        assert digest not in server.adapters
        await client._http.close()


async def test_the_ruined_adapter_of_the_demonstration_is_loaded_so_that_the_gates_judge_it(made, tmp_path):
    """With the good adapter's probe the engine would refuse it, and no gate would ever see it."""
    folder, out, _ = made
    ruined = shutil.copytree(out, tmp_path / "ruined")
    damage_adapter(ruined)
    assert probe.Probe.read(ruined) is None
    manifest = checkpoints.write_manifest(ruined, job_id="ruined", epoch=1, base_digest="b" * 64)
    assert probe.FILE not in manifest.files
    thread = await _local(folder)
    await thread.load(manifest.adapter_digest, ruined)
    assert manifest.adapter_digest in thread.policy.adapters
    await thread.unload(manifest.adapter_digest)
    shutil.copy(out / probe.FILE, ruined)
    with pytest.raises(TamperedError, match="nats off"):
        await thread.load(manifest.adapter_digest, ruined)


def test_a_base_model_that_is_far_off_is_named_as_the_cause(made):
    stored = probe.Probe.read(made[1])
    with pytest.raises(TamperedError, match=r"base model is 1\.000 nats off"):
        stored.check("a" * 64, [x - 1 for x in stored.base.logprobs], stored.adapter.logprobs)


@pytest.mark.parametrize(
    ("noise", "apart", "served"),
    [(0.0, 0.00099, True), (0.0, 0.00101, False), (0.01, 0.099, True), (0.01, 0.101, False),
     (0.05, 0.199, True), (0.05, 0.201, False), (0.0, float("nan"), False)],
)  # fmt: skip
def test_the_limit_follows_the_rounding_of_the_base_model(noise, apart, served):
    """By hand: 0.001 if the base is exact, else the larger of 0.1 and four times the base's distance."""
    stored = probe.Probe([1], probe.Expected([1], [-1.0]), probe.Expected([2], [-2.0]))
    if served:
        assert stored.check("a", [-1.0 - noise], [-2.0 - apart]) == pytest.approx(apart)
    else:
        with pytest.raises(TamperedError):
            stored.check("a", [-1.0 - noise], [-2.0 - apart])


def test_a_damaged_probe_is_refused_and_a_missing_one_is_none(made, tmp_path):
    assert probe.Probe.read(tmp_path) is None
    for text in ("{", "[]", '{"prompt_ids": [1], "base": {}, "adapter": {}}'):
        (tmp_path / probe.FILE).write_text(text)
        with pytest.raises(TamperedError, match="not readable"):
            probe.Probe.read(tmp_path)
