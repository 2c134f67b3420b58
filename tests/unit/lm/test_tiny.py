"""The small network is the one that transformers would make of its configuration, weight by weight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from onward.lm.tiny import build_tiny


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_weights_and_configuration_are_those_of_transformers(
    tmp_path: Path, family: Literal["llama", "qwen2"]
) -> None:
    folder = build_tiny(
        tmp_path / "tiny", ["a b c"], seed=7, vocab=300, hidden=32, layers=2, heads=4, kv_heads=2,
        intermediate=48, max_positions=99, rope_theta=500.0, family=family,
    )  # fmt: skip
    config = AutoConfig.for_model(
        family, vocab_size=261, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, intermediate_size=48, max_position_embeddings=99,
        initializer_range=0.02, rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, pad_token_id=0, dtype="float32",
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(config)
    expected = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    found = load_file(folder / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name
    model.save_pretrained(tmp_path / "saved")
    for name in ("config.json", "generation_config.json"):
        ours, theirs = (json.loads((tmp_path / at / name).read_text()) for at in ("tiny", "saved"))
        assert ours.items() <= theirs.items()
    read = [AutoConfig.from_pretrained(tmp_path / at).to_dict() for at in ("tiny", "saved")]
    assert len({one.pop("_name_or_path") for one in read}) == 2 and read[0] == read[1]
