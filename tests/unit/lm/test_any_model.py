"""The any-model path against transformers and peft themselves, and against our own forward."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from any_networks import KINDS, build
from model_folders import with_config
from torch import Tensor

from onward.errors import ConfigError, NotFoundError
from onward.lm import paths
from onward.lm.any_model.loading import load_module
from onward.lm.any_model.network import Network
from onward.lm.any_model.policy import AnyPolicy
from onward.lm.any_model.probe import try_out
from onward.lm.any_model.sampler import AnySampler
from onward.lm.learner import LearnerConfig
from onward.lm.model import LanguageModel, TokenSampler
from onward.lm.pairs import Pair
from onward.lm.policy import Policy
from onward.lm.preference import DpoConfig, PreferenceLearner
from onward.lm.request import Sample, SampleRequest
from onward.lm.sft import fit
from onward.lm.tokens import TokenRow

from .conftest import noisy_adapter, random_rows
from .test_learner import ONE_STEP, advantages_for, assert_equal_gradients, gradients

Made = Callable[[str], Path]


@pytest.fixture(scope="session")
def made(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Returns the folder of a network by its kind; each is made once."""
    found: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in found:
            found[kind] = build(kind, tmp_path_factory.mktemp(kind), small)
        return found[kind]

    return folder


def plain(model: Any, row: TokenRow) -> list[float]:
    """Log-probs of the sampled tokens of one row, by one pass of ``model`` over that row alone."""
    with torch.no_grad():
        logp = (model(torch.tensor([row.ids])).logits[0].float() / row.temperature).log_softmax(-1)
    return [float(logp[t - 1, row.ids[t]]) for t in range(1, len(row)) if row.sampled[t]]


def of_sampled(values: Tensor, row: TokenRow) -> list[float]:
    return [float(values[t]) for t in range(1, len(row)) if row.sampled[t]]


def drawn(sampler: TokenSampler, requests: list[SampleRequest]) -> dict[str, Sample]:
    for request in requests:
        sampler.submit(request)
    found: dict[str, Sample] = {}
    while sampler.busy:
        found |= {sample.request_id: sample for sample in sampler.step()}
    return found


def row_of(request: SampleRequest, sample: Sample) -> TokenRow:
    start, count = list(request.prompt_ids), len(sample.token_ids)
    return TokenRow(
        start + sample.token_ids,
        [False] * len(start) + [True] * count,
        [0.0] * len(start) + sample.logprobs,
        request.temperature,
    )


def noisy(policy: LanguageModel, name: str, seed: int = 1) -> None:
    """An adapter whose two matrices are both random."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in policy.new_adapter(name, 4, 8.0).params.values():
        parameter.normal_(0, 0.2, generator=generator)


REQUESTS = [
    SampleRequest("a", [5, 6, 7, 8, 9], 6, seed=1),
    SampleRequest("b", [40], 5, temperature=0.7, adapter="x", seed=2),
    SampleRequest("c", [5, 6, 7, 8, 9], 6, adapter="x", seed=3),
    SampleRequest("d", [30, 31], 3, adapter="x", seed=4),
    SampleRequest("e", [40], 5, temperature=0.7, adapter="x", seed=5),
]


@pytest.mark.parametrize("kind", KINDS)
def test_log_probs_and_samples_equal_plain_passes(made: Made, kind: str, tmp_path: Path) -> None:
    """Scored rows and sampled tokens, mixed in length and adapter, against one row at a time; peft itself
    loads the adapter from our file."""
    policy = AnyPolicy.load(made(kind))
    noisy(policy, "x")
    policy.save_adapter("x", tmp_path)
    models = {None: transformers.AutoModelForCausalLM.from_pretrained(made(kind)).eval()}
    other = transformers.AutoModelForCausalLM.from_pretrained(made(kind))
    from peft import PeftModel  # seconds of imports

    models["x"] = PeftModel.from_pretrained(other, tmp_path).eval()  # type: ignore[index]
    rows = random_rows(3, temperature=0.8)
    apart = []
    for name, model in models.items():
        for row, values in zip(rows, policy.logprobs(rows, name), strict=True):
            assert of_sampled(values, row) == pytest.approx(plain(model, row), abs=1e-4)
            apart.append(of_sampled(values, row))
    assert apart[0] != pytest.approx(apart[3], abs=0.01), "the adapter must change something"
    samples = drawn(AnySampler(policy), REQUESTS)
    for request in REQUESTS:
        row = row_of(request, samples[request.request_id])
        expected = plain(models[request.adapter], row)  # type: ignore[index]
        assert samples[request.request_id].logprobs == pytest.approx(expected, abs=1e-4)


def test_no_draw_depends_on_the_other_requests(made: Made) -> None:
    policy = AnyPolicy.load(made("mixtral"))
    noisy(policy, "x")
    together = drawn(AnySampler(policy), REQUESTS)
    for request in REQUESTS:
        alone = drawn(AnySampler(policy), [request])[request.request_id]
        assert alone.token_ids == together[request.request_id].token_ids
        assert alone.logprobs == pytest.approx(together[request.request_id].logprobs, abs=1e-4)


def test_both_paths_agree_on_a_llama_network(small: Path, tmp_path: Path) -> None:
    """The same log-probs, gradients of one step, and tokens from the same seeds, with an adapter each."""
    own, other = paths.load(small), paths.load(small, path="transformers")
    assert (own.path, other.path) == ("fast", "transformers")
    assert isinstance(own, Policy)
    noisy_adapter(own, "x")
    own.save_adapter("x", tmp_path)
    other.add_adapter("x", tmp_path)
    rows = random_rows(5)
    for name in (None, "x"):
        for a, b in zip(own.logprobs(rows, name), other.logprobs(rows, name), strict=True):
            assert a.tolist() == pytest.approx(b.tolist(), abs=1e-4)
    behaved = [
        TokenRow(r.ids, r.sampled, v.tolist()) for r, v in zip(rows, own.logprobs(rows, "x"), strict=True)
    ]
    pushes = advantages_for(behaved)
    expected, said = gradients(own, behaved, pushes, ONE_STEP)
    found, heard = gradients(other, behaved, pushes, ONE_STEP)  # type: ignore[arg-type]
    assert_equal_gradients(found, expected, 1e-4)
    assert heard.loss == pytest.approx(said.loss, abs=1e-5)
    a, b = (drawn(paths.sampler(policy), REQUESTS) for policy in (own, other))
    for name in a:
        assert a[name].token_ids == b[name].token_ids
        assert a[name].logprobs == pytest.approx(b[name].logprobs, abs=1e-4)


def test_entropy_and_micro_batches_give_the_gradients_of_our_own_forward(small: Path, tmp_path: Path) -> None:
    own, other = Policy.load(small), AnyPolicy.load(small)
    noisy_adapter(own, "x", layers=[1, 2])
    own.save_adapter("x", tmp_path)
    other.add_adapter("x", tmp_path)
    rows = [
        TokenRow(r.ids, r.sampled, v.tolist(), r.temperature)
        for r, v in zip(
            random_rows(4, temperature=0.9), own.logprobs(random_rows(4, temperature=0.9), "x"), strict=True
        )
    ]
    config = LearnerConfig(
        learning_rate=1e-3, epochs=1, max_grad_norm=1e9, entropy_coef=0.1, micro_batch_tokens=16,
        gradient_checkpointing=True,
    )  # fmt: skip
    expected, _ = gradients(own, rows, advantages_for(rows), config)
    found, _ = gradients(other, rows, advantages_for(rows), config)  # type: ignore[arg-type]
    assert_equal_gradients(found, expected, 1e-4)


def test_an_adapter_trained_on_either_path_loads_on_the_other(small: Path, tmp_path: Path) -> None:
    rows = random_rows(6)
    for first, second in (("auto", "transformers"), ("transformers", "auto")):
        trained = paths.load(small, path=first)  # type: ignore[arg-type]
        trained.new_adapter("x", 4, 8.0, layers=[1, 2])
        losses = [m.loss for m in fit(trained, "x", rows, learning_rate=1e-2, batch_rows=6, epochs=3)]
        assert losses[-1] < losses[0]
        trained.save_adapter("x", tmp_path / second)
        loaded = paths.load(small, path=second)  # type: ignore[arg-type]
        loaded.add_adapter("x", tmp_path / second)
        for a, b in zip(trained.logprobs(rows, "x"), loaded.logprobs(rows, "x"), strict=True):
            assert a.tolist() == pytest.approx(b.tolist(), abs=1e-4)


@pytest.mark.parametrize("kind", ["mixtral", "gpt2", "mamba"])
def test_preference_learning_starts_at_ln_2_and_falls(made: Made, kind: str) -> None:
    policy = AnyPolicy.load(made(kind))
    policy.new_adapter("x", 4, 8.0)
    pairs = [
        Pair(
            [TokenRow([5, 6, 10 + i], [False, False, True], [0.0] * 3)],
            [TokenRow([5, 6, 20 + i, 21], [False, False, True, True], [0.0] * 4)],
        )
        for i in range(3)
    ]
    learner = PreferenceLearner(policy, "x", DpoConfig(learning_rate=1e-2, epochs=4, minibatch_pairs=3))
    losses = [metrics.loss for metrics in learner.update(pairs)]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-5)
    assert losses[-1] < 0.6


def test_full_training_saves_a_folder_that_transformers_loads(made: Made, tmp_path: Path) -> None:
    """Dropout was off in training and is as before in the saved configuration."""
    policy = AnyPolicy.load(made("mixtral"))
    rows = random_rows(4)
    losses = [m.loss for m in fit(policy, None, rows, learning_rate=1e-2, batch_rows=4, epochs=3)]
    assert losses[-1] < losses[0]
    policy.save(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    for row, values in zip(rows, policy.logprobs(rows), strict=True):
        assert of_sampled(values, row) == pytest.approx(plain(model, row), abs=1e-4)
    before, after = (json.loads((p / "config.json").read_text()) for p in (made("mixtral"), tmp_path))
    assert before == after


def test_dropout_and_noise_of_routers_are_off_in_training(made: Made) -> None:
    config = json.loads((made("gpt2") / "config.json").read_text())
    assert config["resid_pdrop"] == 0.1
    policy = AnyPolicy.load(made("gpt2"))
    noisy(policy, "x")
    rows = random_rows(4)
    found = [
        gradients(policy, rows, [1.0, -1.0, 2.0, 0.5], LearnerConfig(  # type: ignore[arg-type]
            epochs=1, max_grad_norm=1e9, behaviour="recompute", gradient_checkpointing=recompute,
        ))[0]
        for recompute in (False, True, True)
    ]  # fmt: skip
    assert_equal_gradients(found[0], found[1], 1e-4)
    assert_equal_gradients(found[1], found[2], 1e-6)


def test_rows_begin_again_when_their_adapter_changes(made: Made) -> None:
    policy = AnyPolicy.load(made("gpt2"))
    noisy(policy, "x")
    sampler = AnySampler(policy)
    request = SampleRequest("a", [5, 6], 4, adapter="x", seed=1)
    sampler.submit(request)
    sampler.step()
    first = sampler.drawn("a")[1][0]
    for parameter in policy.adapter("x").params.values():
        parameter.mul_(1.5)
    found: list[Sample] = []
    while sampler.busy:
        found += sampler.step()
    again = drawn(AnySampler(policy), [request])["a"]
    assert found[0].logprobs == pytest.approx(again.logprobs, abs=1e-5)
    assert found[0].logprobs[0] != pytest.approx(first, abs=1e-4)


def test_rows_of_a_removed_adapter_end_with_an_error_and_the_others_go_on(made: Made) -> None:
    """Both of those that run and the one that waits behind them."""
    policy = AnyPolicy.load(made("gpt2"))
    noisy(policy, "x")
    noisy(policy, "y", seed=2)
    asked = [
        SampleRequest("x", [5, 6], 6, adapter="x", seed=1),
        SampleRequest("y", [5, 6], 6, adapter="y", seed=2),
        SampleRequest("base", [5, 6], 6, seed=3),
        SampleRequest("late", [5, 6], 6, adapter="x", seed=4),
    ]
    expected = drawn(AnySampler(policy), asked)
    sampler = AnySampler(policy, max_batch=3)
    for request in asked:
        sampler.submit(request)
    assert sampler.step() + sampler.step() == []
    policy.remove_adapter("x")
    found = drawn(sampler, [])
    for name, tokens in (("x", 2), ("late", 0), ("y", 6), ("base", 6)):
        assert found[name].token_ids == expected[name].token_ids[:tokens]
        assert found[name].logprobs == pytest.approx(expected[name].logprobs[:tokens], abs=1e-5)
        lost = name in ("x", "late")
        assert found[name].finish_reason == ("error" if lost else "length")
        assert ("Adapter 'x' was removed" in found[name].error) is lost


def test_a_cancelled_request_leaves_the_others_as_they_were(made: Made) -> None:
    policy = AnyPolicy.load(made("gpt2"))
    noisy(policy, "x")
    expected = drawn(AnySampler(policy), REQUESTS)
    sampler = AnySampler(policy, max_batch=4)
    for request in REQUESTS:
        sampler.submit(request)
    found: dict[str, Sample] = {}
    found |= {one.request_id: one for one in sampler.step()}
    assert sampler.running == 4
    assert sampler.cancel("b")
    assert not sampler.cancel("nothing")
    while sampler.busy:
        found |= {one.request_id: one for one in sampler.step()}
    assert sorted(found) == ["a", "c", "d", "e"]
    for name, sample in found.items():
        assert sample.token_ids == expected[name].token_ids
        assert sample.logprobs == pytest.approx(expected[name].logprobs, abs=1e-4)


# --- the probe ---------------------------------------------------------------------------------------


def _without_mask(module: Any) -> None:
    """Makes a module ignore padding, as one does that computes positions by itself."""

    def forget(_: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**kwargs, "attention_mask": None, "position_ids": None}

    module.register_forward_pre_hook(forget, with_kwargs=True)


def _by_batch(module: Any) -> None:
    """Makes logits depend on the size of the batch, as a router with a capacity does."""

    def sharper(_: Any, __: Any, output: Any) -> None:
        output.logits *= 1 + 0.1 * (len(output.logits) - 1)

    module.register_forward_hook(sharper)


@pytest.mark.parametrize(
    ("fault", "bad"), [(_without_mask, {"padded_cache"}), (_by_batch, {"batches", "padding", "padded_cache"})]
)
def test_a_way_of_running_that_changes_log_probs_is_found_and_avoided(
    made: Made, fault: Callable[[Any], None], bad: set[str]
) -> None:
    policy = AnyPolicy.load(made("gpt2"))
    assert policy.notes == []
    fault(policy.module)
    policy.network = Network(policy.module)
    policy.trust = trust = try_out(policy.network, 300)
    ways = {"batches", "padding", "cache", "padded_cache"}
    assert {name for name in ways if not getattr(trust, name)} == bad
    assert len(trust.notes) == len(bad) and "GPT2LMHeadModel gives other log-probs" in trust.notes[0]
    model = transformers.AutoModelForCausalLM.from_pretrained(made("gpt2")).eval()
    rows = random_rows(3)
    for row, values in zip(rows, policy.logprobs(rows), strict=True):
        assert of_sampled(values, row) == pytest.approx(plain(model, row), abs=1e-4)
    requests = [SampleRequest(r.request_id, r.prompt_ids, 3, seed=r.seed) for r in REQUESTS]
    for name, sample in drawn(AnySampler(policy), requests).items():
        request = next(one for one in requests if one.request_id == name)
        assert sample.logprobs == pytest.approx(plain(model, row_of(request, sample)), abs=1e-4)


def test_without_a_trusted_cache_each_token_computes_its_row_again(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onward.lm.any_model import cached

    expected = drawn(AnySampler(AnyPolicy.load(made("granite"))), [REQUESTS[0]])["a"]
    monkeypatch.setattr(cached.CachedRows, "advance", lambda self, tokens: self.begin([tokens.tolist()]))
    policy = AnyPolicy.load(made("granite"))
    assert not policy.trust.cache and "its cache" in policy.notes[0]
    found = drawn(AnySampler(policy), [REQUESTS[0]])["a"]
    assert found.token_ids == expected.token_ids
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


# --- the choice, and refusals --------------------------------------------------------------------------


def test_the_path_is_chosen_by_the_configuration_with_its_reason(made: Made, small: Path) -> None:
    assert paths.choose(small).name == "fast"
    assert paths.choose(small, "transformers") == ("transformers", "it was asked for")
    found = paths.choose(made("gpt2"))
    assert found.name == "transformers" and "gpt2" in found.reason
    said = paths.described(AnyPolicy.load(made("gpt2"), reason=found.reason))
    assert said.startswith("The model runs by the modules of transformers") and said.endswith(".")


def _folder(path: Path, config: dict[str, Any], source: Path) -> Path:
    for file in source.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model_type": "mine", "auto_map": {"AutoModelForCausalLM": "mine.Model"}}, "code of its own"),
        ({"model_type": "t5"}, "no causal language model"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "is quantised"),
        ({"n_layer": 3}, "lack"),
        ({"n_embd": 64}, "cannot load"),
    ],
)
def test_folders_that_would_run_wrongly_are_refused_in_a_sentence(
    made: Made, tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    config = json.loads((made("gpt2") / "config.json").read_text())
    folder = _folder(tmp_path, {**config, **changed}, made("gpt2"))
    with pytest.raises(ConfigError, match=words) as caught:
        paths.load(folder, path="transformers")
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_no_code_of_a_model_runs(made: Made, tmp_path: Path) -> None:
    config = json.loads((made("gpt2") / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
    folder = _folder(tmp_path, config, made("gpt2"))
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    policy = paths.load(folder)
    assert type(policy.module).__name__ == "GPT2LMHeadModel"  # type: ignore[attr-defined]
    assert not (tmp_path / "ran").exists()


def test_a_network_that_looks_ahead_is_refused(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=300, hidden_size=48, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64
    )
    transformers.BertLMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="looks ahead"):
        AnyPolicy.load(tmp_path)


def test_adapters_of_another_network_are_refused(made: Made, small: Path, tmp_path: Path) -> None:
    own = Policy.load(small)
    noisy_adapter(own, "x")
    own.save_adapter("x", tmp_path)
    policy = AnyPolicy.load(made("mixtral"))
    with pytest.raises(ConfigError, match="another base model"):
        policy.add_adapter("x", tmp_path)
    with pytest.raises(ConfigError, match="choose targets among"):
        policy.new_adapter("y", targets=["nothing"])
    with pytest.raises(ConfigError, match="layers among 0 to 1"):
        policy.new_adapter("y", layers=[1, 2])
    with pytest.raises(NotFoundError):
        policy.adapter("x")
    assert dict(policy.adapters) == {}
    noisy(policy, "z")  # and the network is still whole
    assert policy.logprobs(random_rows(1), "z")[0].isfinite().all()


def test_routers_and_unused_projections_are_no_default_targets(made: Made) -> None:
    """A projection whose weight a state-space layer reads by itself would be adapted without effect."""
    for kind, expected in (
        ("mixtral", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ("gpt2", {"c_attn", "c_proj", "c_fc"}),
        ("mamba", {"in_proj", "x_proj"}),
    ):
        policy = AnyPolicy.load(made(kind))
        names = policy.new_adapter("x", 2, 4.0).params
        assert {name.split(".")[-3] for name in names} == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_embd": "32"}, "n_embd"),
        ({"n_head": 0}, "zero"),
        ({"n_positions": "x"}, "n_positions"),
        ({"model_type": []}, r"is of type \[\]"),
    ],
)
def test_a_config_that_transformers_cannot_use_is_refused_in_one_sentence(
    made: Made, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    folder = shutil.copytree(made("gpt2"), tmp_path / "gpt2")
    with_config(**change)(folder)
    with pytest.raises(ConfigError, match=words) as caught:
        load_module(folder, torch.device("cpu"), torch.float32)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
