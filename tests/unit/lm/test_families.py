"""Each family of networks against transformers and peft: log-probs, gradients, sampling, and files."""

from __future__ import annotations

import copy
import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from onward.lm import attention, kernels
from onward.lm.families.table import FAMILIES
from onward.lm.layout import to_transformers
from onward.lm.learner import Learner
from onward.lm.network import Layer, Weights
from onward.lm.policy import Policy
from onward.lm.sampler import Sampler, SampleRequest
from onward.lm.tokens import TokenRow

from .conftest import noisy_adapter, random_rows, with_behaviour
from .family_networks import NETWORKS, ONE_EACH, build, config_of
from .test_learner import ONE_STEP, advantages_for, assert_equal_gradients, gradients, peft_gradients
from .test_policy import furthest, transformers_logprobs
from .test_sampler import finish, row_of
from .test_sharing import groups

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
every = pytest.mark.parametrize("name", list(NETWORKS))
one_each = pytest.mark.parametrize("name", ONE_EACH)
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@pytest.fixture(scope="session")
def networks(tmp_path_factory: pytest.TempPathFactory, small: Path) -> dict[str, Path]:
    """Folder of every network, with the tokenizer of the small Llama network."""
    folders = {}
    for name in NETWORKS:
        folders[name] = build(name, tmp_path_factory.mktemp(name))
        for file in TOKENIZER:
            shutil.copy(small / file, folders[name])
    return folders


_MODELS: dict[Path, Any] = {}


def model_of(folder: Path, adapter: Path | None = None) -> Any:
    """The network in transformers, loaded once; peft changes a model in place, so it gets a copy."""
    from peft import PeftModel

    if folder not in _MODELS:
        _MODELS[folder] = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32
        ).eval()
    if adapter is None:
        return _MODELS[folder]
    return PeftModel.from_pretrained(copy.deepcopy(_MODELS[folder]), adapter).eval()


def test_every_entry_of_the_table_has_a_network_here() -> None:
    assert {config_of(name).model_type for name in NETWORKS} == set(FAMILIES)


@every
def test_log_probs_equal_those_of_transformers(networks: dict[str, Path], name: str) -> None:
    """Rows beyond the window, packed with a prefix of all and a prompt per group, in parts of two sizes."""
    policy, model = Policy.load(networks[name]), model_of(networks[name])
    rows = groups([3, 2, 1], common=4) + random_rows(3, shared=4, temperature=0.7)
    theirs = [transformers_logprobs(model, row) for row in rows]
    assert policy.shape.parameters == sum(p.numel() for p in model.parameters())
    for limit in (4096, 40):
        assert furthest(policy.logprobs(rows, micro_batch_tokens=limit), theirs) < 1e-4


@every
def test_sampled_log_probs_equal_a_full_pass_with_two_adapters_in_a_batch(
    networks: dict[str, Path], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts share a prefix, and a second call continues the first: every key comes from the cache."""
    policy = Policy.load(networks[name])
    models = {None: model_of(networks[name])}
    for number, adapter in enumerate(("a", "b")):
        noisy_adapter(policy, adapter, [1, 2] if number else None, seed=number)
        policy.save_adapter(adapter, tmp_path / adapter)
        models[adapter] = model_of(networks[name], tmp_path / adapter)
    for least_saved in (0, attention.MIN_SAVED):  # with a common prefix read once, and each row its own
        monkeypatch.setattr(attention, "MIN_SAVED", least_saved)
        sampler = Sampler(policy, 6)
        prompts = {str(i): [*range(7, 17), 20 + i, *range(40, 40 + i % 3)] for i in range(6)}
        for turn in range(2):
            asked = [
                SampleRequest(key, ids, 6, temperature=0.8, adapter=(None, "a", "b")[int(key) % 3], seed=turn)
                for key, ids in prompts.items()
            ]
            for request in asked:
                sampler.submit(request)
            samples = finish(sampler)
            for request in asked:
                row = row_of(request, samples[request.request_id])
                theirs = transformers_logprobs(models[request.adapter], row)
                assert furthest([torch.tensor(row.logprobs)], [theirs]) < 1e-4
                prompts[request.request_id] = [*row.ids, 50, 51, 52]
        assert sampler.computed_prompt_tokens < 6 * 30, "prefixes are computed once"


@pytest.mark.parametrize("name", ["llama-bias", "gemma3"])
def test_the_products_of_large_matrices_are_right_too(
    networks: dict[str, Path], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matrices of real size take another library, with biases and packed copies of the weights."""
    monkeypatch.setattr(kernels, "MIN_SIZE", 0)
    test_log_probs_equal_those_of_transformers(networks, name)
    test_sampled_log_probs_equal_a_full_pass_with_two_adapters_in_a_batch(
        networks, name, tmp_path, monkeypatch
    )
    test_gradients_of_lora_equal_those_of_peft(networks, name, tmp_path / "lora")


@one_each
def test_gradients_of_lora_equal_those_of_peft(networks: dict[str, Path], name: str, tmp_path: Path) -> None:
    policy = Policy.load(networks[name])
    noisy_adapter(policy, "x", scale=0.1)
    policy.save_adapter("x", tmp_path)
    rows = with_behaviour(policy, "x", groups([2, 1], common=4, prompt=10))
    advantages = advantages_for(rows)
    ours, _ = gradients(policy, rows, advantages, ONE_STEP)
    weights = [1 / sum(row.sampled_count for row in rows)] * len(rows)
    assert_equal_gradients(ours, peft_gradients(networks[name], tmp_path, rows, advantages, weights), 1e-3)


def full_gradients(policy: Policy, rows: list[TokenRow], advantages: list[float]) -> dict[str, Tensor]:
    """Gradients of all weights under transformers' names."""
    learner = Learner(policy, None, ONE_STEP)
    found: dict[str, Tensor] = {}

    def keep() -> None:
        weights = policy.weights

        def grad(tensor: Tensor | None) -> Any:
            return None if tensor is None else tensor.grad

        layers = [
            Layer(**{f.name: grad(getattr(layer, f.name)) for f in dataclasses.fields(Layer)})
            for layer in weights.layers
        ]
        both = grad(weights.embedding), grad(weights.head)
        found.update(to_transformers(policy.shape, Weights(both[0], layers, grad(weights.norm), both[1])))
        found.update({key: value.clone() for key, value in found.items()})

    learner.stepper.optimizer.step = keep  # type: ignore[method-assign, assignment]
    next(learner.update(rows, advantages))
    return found


@one_each
def test_gradients_of_all_weights_equal_those_of_transformers(networks: dict[str, Path], name: str) -> None:
    policy, model = Policy.load(networks[name]), copy.deepcopy(model_of(networks[name]))
    rows = with_behaviour(policy, None, groups([2, 1], common=4, prompt=10))
    advantages = advantages_for(rows)
    ours = full_gradients(policy, rows, advantages)
    total = torch.tensor(0.0)
    for row, advantage in zip(rows, advantages, strict=True):
        logp = model(torch.tensor([row.ids])).logits[0].log_softmax(-1)
        for t in row.trained:  # at the first step the ratio to the behaviour is 1: a plain policy gradient
            total = total - advantage * logp[t - 1, row.ids[t]]
    (total / sum(row.sampled_count for row in rows)).backward()
    theirs = {key: p.grad for key, p in model.named_parameters()}
    assert_equal_gradients(ours, theirs, 1e-3)


@one_each
def test_an_adapter_of_peft_and_its_merged_model_are_read(
    networks: dict[str, Path], name: str, tmp_path: Path
) -> None:
    from peft import LoraConfig, get_peft_model

    policy = Policy.load(networks[name])
    config = LoraConfig(r=3, lora_alpha=6, target_modules=list(policy.shape.projections()))
    model: Any = get_peft_model(copy.deepcopy(model_of(networks[name])), config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_" in key:
                parameter.normal_(0, 0.2, generator=generator)
    model.eval().save_pretrained(str(tmp_path / "adapter"))
    policy.add_adapter("theirs", tmp_path / "adapter")
    rows = random_rows(3, shared=9)
    ours = policy.logprobs(rows, "theirs")
    assert furthest(ours, [transformers_logprobs(model, row) for row in rows]) < 1e-4
    assert furthest(ours, policy.logprobs(rows)) > 0.02, "the adapter must matter"
    model.merge_and_unload().save_pretrained(tmp_path / "merged")
    assert furthest(ours, Policy.load(tmp_path / "merged").logprobs(rows)) < 1e-4


@one_each
def test_a_saved_model_is_read_by_transformers_and_holds_the_same_tensors(
    networks: dict[str, Path], name: str, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    policy = Policy.load(networks[name])
    policy.save(tmp_path)
    before, after = (load_file(f / "model.safetensors") for f in (networks[name], tmp_path))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    rows = random_rows(2, shared=9)
    model = model_of(tmp_path)
    assert furthest(policy.logprobs(rows), [transformers_logprobs(model, row) for row in rows]) < 1e-4


@one_each
def test_sharded_files_in_half_precision_are_read(
    networks: dict[str, Path], name: str, tmp_path: Path
) -> None:
    half = transformers.AutoModelForCausalLM.from_pretrained(networks[name], dtype=torch.bfloat16)
    half.save_pretrained(tmp_path, max_shard_size="15KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    (tmp_path / "consolidated.safetensors").write_bytes(b"the same weights under other names")
    rows = random_rows(2, shared=9)
    model = model_of(tmp_path)
    ours = Policy.load(tmp_path).logprobs(rows)
    assert furthest(ours, [transformers_logprobs(model, row) for row in rows]) < 1e-4


@one_each
def test_bfloat16_stays_near_float32(networks: dict[str, Path], name: str) -> None:
    """As near as transformers' own bfloat16 does, times three."""
    rows = random_rows(4, shared=9)
    exact = Policy.load(networks[name]).logprobs(rows)
    ours = Policy.load(networks[name], dtype="bfloat16").logprobs(rows)
    model = transformers.AutoModelForCausalLM.from_pretrained(networks[name], dtype=torch.bfloat16)
    theirs = [transformers_logprobs(model, row) for row in rows]

    def off(found: list[Tensor]) -> float:
        return float((torch.cat(found) - torch.cat(exact)).abs().mean())

    assert off(ours) < 3 * off(theirs)
