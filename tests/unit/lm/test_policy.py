"""The forward loop against transformers, adapters against peft, and what must never change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from onward.errors import ConfigError, ConflictError, NotFoundError
from onward.lm.policy import Policy
from onward.lm.tiny import build_tiny
from onward.lm.tokens import TokenRow

from .conftest import CORPUS, noisy_adapter, random_rows


def transformers_logprobs(model: torch.nn.Module, row: TokenRow) -> torch.Tensor:
    with torch.no_grad():
        logits = model(torch.tensor([row.ids])).logits[0].float() / row.temperature
    logp = logits.log_softmax(-1)
    picked = [logp[t - 1, row.ids[t]] if row.sampled[t] else torch.tensor(0.0) for t in range(len(row))]
    return torch.stack(picked)


def furthest(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))


def test_the_loop_equals_transformers(policy: Policy, small: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(small)
    rows = random_rows(9, temperature=0.7)
    assert furthest(policy.logprobs(rows), [transformers_logprobs(model, r) for r in rows]) < 1e-4


def test_an_untied_head_is_used(tmp_path: Path) -> None:
    folder = build_tiny(tmp_path, CORPUS, vocab=300, hidden=32, layers=1, heads=2, kv_heads=1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    raw = load_file(folder / "model.safetensors")
    head = torch.randn(raw["model.embed_tokens.weight"].shape) * 0.1
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(head)
    model.save_pretrained(folder)
    rows = random_rows(3)
    ours = Policy.load(folder).logprobs(rows)
    assert furthest(ours, [transformers_logprobs(model, r) for r in rows]) < 1e-4


@pytest.mark.parametrize("equal", [True, False])
def test_a_stored_head_is_tied_if_it_equals_the_embedding_and_never_ignored(
    small: Path, tmp_path: Path, equal: bool
) -> None:
    folder = shutil.copytree(small, tmp_path / "stored")
    raw = load_file(folder / "model.safetensors")
    raw["lm_head.weight"] = raw["model.embed_tokens.weight"] + (0.0 if equal else 1.0)
    save_file(raw, folder / "model.safetensors", metadata={"format": "pt"})
    if equal:
        weights = Policy.load(folder).weights
        assert weights.head is weights.embedding
        return
    with pytest.raises(ConfigError, match="set tie_word_embeddings to false") as caught:
        Policy.load(folder)
    assert str(caught.value).count(". ") == 0
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    rows = random_rows(3)
    theirs = [transformers_logprobs(model, r) for r in rows]
    assert furthest(Policy.load(folder).logprobs(rows), theirs) < 1e-4


@pytest.mark.parametrize("layers", [None, [1, 2]])
def test_peft_loads_a_saved_adapter_and_agrees(
    policy: Policy, small: Path, tmp_path: Path, layers: list[int] | None
) -> None:
    from peft import PeftModel

    noisy_adapter(policy, "x", layers)
    policy.save_adapter("x", tmp_path)
    rows = random_rows(5)
    ours = policy.logprobs(rows, "x")
    assert furthest(ours, policy.logprobs(rows)) > 0.05, (
        "the adapter must matter for this test to say anything"
    )
    model = PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(small), tmp_path)
    assert furthest(ours, [transformers_logprobs(model, r) for r in rows]) < 1e-4


def test_an_adapter_made_by_peft_is_read(policy: Policy, small: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj", "v_proj", "down_proj"], lora_dropout=0.0)
    model = get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(small), config)
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, 0, 0.3)
    model.save_pretrained(str(tmp_path))
    policy.add_adapter("theirs", tmp_path)
    rows = random_rows(4)
    model.eval()
    assert furthest(policy.logprobs(rows, "theirs"), [transformers_logprobs(model, r) for r in rows]) < 1e-4


@pytest.mark.parametrize("rslora", [True, False])
def test_the_scale_of_an_adapter_is_peft_s(policy: Policy, small: Path, tmp_path: Path, rslora: bool) -> None:
    """Rank 4, alpha 8: 4 with rsLoRA (2312.03732), 2 without. Ours in peft, and peft's again in ours."""
    from peft import PeftModel

    adapter = policy.new_adapter("x", 4, 8.0, rslora=rslora)
    generator = torch.Generator().manual_seed(1)
    for parameter in adapter.params.values():
        parameter.normal_(0, 0.1, generator=generator)
    policy.save_adapter("x", tmp_path)
    model = PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(small), tmp_path)
    assert model.base_model.model.model.layers[0].mlp.down_proj.scaling == {"default": 4.0 if rslora else 2.0}
    rows = random_rows(4)
    wanted = [transformers_logprobs(model, r) for r in rows]
    assert furthest(policy.logprobs(rows, "x"), wanted) < 1e-4
    model.save_pretrained(str(tmp_path / "again"))
    assert policy.add_adapter("y", tmp_path / "again").rslora is rslora
    assert furthest(policy.logprobs(rows, "y"), wanted) < 1e-4


def test_an_adapter_survives_a_round_trip_bit_for_bit(policy: Policy, tmp_path: Path) -> None:
    noisy_adapter(policy, "x", [2])
    policy.save_adapter("x", tmp_path)
    again = policy.add_adapter("y", tmp_path)
    assert again.layers == [2] and (again.rank, again.alpha) == (4, 8.0)
    for name, parameter in policy.adapter("x").params.items():
        assert torch.equal(parameter, again.params[name])


def test_a_new_adapter_changes_nothing(policy: Policy) -> None:
    policy.new_adapter("new", 4, 8.0)
    rows = random_rows(3)
    assert furthest(policy.logprobs(rows), policy.logprobs(rows, "new")) == 0.0


def test_a_full_save_is_read_by_transformers_and_by_us(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path)
    rows = random_rows(3)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert furthest(policy.logprobs(rows), [transformers_logprobs(model, r) for r in rows]) < 1e-4
    again = Policy.load(tmp_path)
    assert furthest(policy.logprobs(rows), again.logprobs(rows)) == 0.0
    assert again.tokenizer.chat_template == policy.tokenizer.chat_template


def test_log_probs_do_not_depend_on_batch_mates_or_padding(policy: Policy) -> None:
    """Acceptance (b), forward part: one row alone, all together, small micro-batches."""
    rows = random_rows(9)
    together = policy.logprobs(rows)
    assert furthest(together, [policy.logprobs([r])[0] for r in rows]) < 1e-5
    assert furthest(together, policy.logprobs(rows, micro_batch_tokens=20)) < 1e-5


def test_a_damaged_or_foreign_adapter_is_refused(policy: Policy, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    noisy_adapter(policy, "x")
    policy.save_adapter("x", tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    tensors = load_file(file)
    name = next(iter(tensors))
    save_file({**tensors, name: tensors[name] * float("nan")}, file)
    with pytest.raises(ConfigError, match="damaged"):
        policy.add_adapter("bad", tmp_path)
    save_file({**tensors, name: tensors[name][:, :5].contiguous()}, file)
    with pytest.raises(ConfigError, match="expected"):
        policy.add_adapter("bad", tmp_path)
    save_file({**tensors, "base_model.model.lm_head.lora_A.weight": torch.zeros(4, 48)}, file)
    with pytest.raises(ConfigError, match="lm_head"):
        policy.add_adapter("bad", tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    with pytest.raises(ConfigError, match="use_dora"):
        policy.add_adapter("bad", tmp_path)
    assert "bad" not in policy.adapters


def test_bad_folders_and_names_give_one_sentence(policy: Policy, small: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no config"):
        Policy.load(tmp_path)
    with pytest.raises(ConfigError, match="holds no adapter"):
        policy.add_adapter("x", tmp_path)
    config = json.loads((small / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu"}))
    with pytest.raises(ConfigError, match="hidden_act is 'gelu'"):
        Policy.load(tmp_path)
    policy.new_adapter("x", 2, 4.0)
    with pytest.raises(ConflictError, match="loaded already"):
        policy.new_adapter("x", 2, 4.0)
    with pytest.raises(NotFoundError, match="No adapter 'y'"):
        policy.logprobs(random_rows(1), "y")
    with pytest.raises(ConfigError, match="layers among 0 to 2"):
        policy.new_adapter("z", 2, 4.0, [7])


def test_the_digest_names_the_files(policy: Policy, small: Path, tmp_path: Path) -> None:
    assert policy.base_digest == Policy.load(small).base_digest
    policy.weights.norm.add_(0.5)
    policy.save(tmp_path)
    assert Policy.load(tmp_path).base_digest != policy.base_digest
