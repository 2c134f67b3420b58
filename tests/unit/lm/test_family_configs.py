"""Reading a config.json: transformers' defaults, old and new forms, and what is refused."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from onward.errors import ConfigError
from onward.lm.families.table import FAMILIES
from onward.lm.families.traits import UnsupportedNetworkError, read, supports
from onward.lm.network import Shape
from onward.lm.policy import Policy
from onward.lm.sizes import Sizes
from onward.lm.tokens import TokenRow

from .family_networks import NETWORKS, build, config_of
from .test_policy import transformers_logprobs

every = pytest.mark.parametrize("name", list(NETWORKS))


def plain(name: str) -> dict[str, Any]:
    """The content of the file that transformers writes."""
    return json.loads(config_of(name).to_json_string())


@pytest.mark.parametrize("kind", list(FAMILIES))
def test_omitted_fields_have_the_values_of_transformers(kind: str) -> None:
    theirs = transformers.AutoConfig.for_model(kind)
    for field, value in FAMILIES[kind].defaults.items():
        if field == "sliding_window_pattern":  # it is only in the layer types that follow from it
            assert theirs.layer_types[:7].count("full_attention") == 1 and value == 6
        elif field == "sliding_window" and kind in ("qwen2", "qwen3"):
            assert theirs.sliding_window is None and not FAMILIES[kind].defaults["use_sliding_window"]
        else:
            assert getattr(theirs, field) == value, field


@pytest.mark.parametrize("kind", list(FAMILIES))
def test_a_config_without_optional_fields_is_read_as_the_whole_one(kind: str) -> None:
    whole = json.loads(transformers.AutoConfig.for_model(kind).to_json_string())
    needed = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    few = {"model_type": kind, **{field: whole[field] for field in needed}}
    assert supports(few) is None and supports(whole) is None
    assert read(few) == read(whole)
    assert Sizes.from_config(few) == Sizes.from_config(whole)


@every
def test_the_form_of_transformers_4_is_read_as_that_of_5(name: str) -> None:
    new = plain(name)
    old = {**new, "torch_dtype": "float32"}
    parameters = old.pop("rope_parameters")
    if "full_attention" in parameters:
        full, local = parameters["full_attention"], parameters["sliding_attention"]
        old["rope_local_base_freq"] = local["rope_theta"]
    else:
        full = parameters
    old["rope_theta"] = full["rope_theta"]
    rest = {key: value for key, value in full.items() if key != "rope_theta"}
    if "partial_rotary_factor" in rest:
        old["partial_rotary_factor"] = rest.pop("partial_rotary_factor")
    if rest["rope_type"] != "default":
        rest["type"] = rest.pop("rope_type")
        old["rope_scaling"] = rest
    assert supports(old) is None
    ours, theirs = read(old), read(new)
    assert ours.ropes == theirs.ropes and ours == theirs


WRONG = [
    ("llama", {"model_type": "mixtral"}, "model_type is 'mixtral', not one of llama, qwen2"),
    ("llama", {"model_type": None}, "model_type is None"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu', not 'silu' or"),
    ("gemma3", {"hidden_activation": "relu"}, "hidden_activation is 'relu'"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0, not None"),
    ("qwen2", {"quantization_config": {"quant_method": "awq"}}, "quantization_config is set"),
    ("qwen2", {"layer_types": ["full_attention", "chunked_attention"] * 2}, "layer_types has 'chunked_att"),
    ("qwen2", {"layer_types": ["full_attention"]}, "layer_types has 1 entries for 3 layers"),
    ("qwen2", {"layer_types": ["sliding_attention"] * 3}, "sliding_window is None where"),
    ("mistral", {"sliding_window": 0}, "sliding_window is 0"),
    ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers has 1 entries for 3 layers"),
    ("llama", {"num_key_value_heads": 3}, "num_attention_heads is 4, not a multiple"),
    ("llama", {"head_dim": 5}, "applies to 5 places of a head"),
    ("phi3", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_type is 'linear', not"),
    ("llama", {"rope_parameters": {"rope_type": "longrope"}}, "rope_type is 'longrope'"),
    ("llama", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn' without factor"),
    ("llama", {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 2]}}, r"mrope_section is \["),
    ("qwen3", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "an entry per kind"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, not 1.0"),
    ("phi3-longrope", {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0],
                                           "long_factor": [1.0] * 3}}, "short_factor has 1 entries, not 3"),
    ("llama", {"model_type": []}, r"model_type is \[\], not one of"),
    ("llama", {"rope_scaling": "x"}, "rope_scaling is 'x', not an object"),
    ("llama", {"rope_parameters": "x"}, "rope_parameters is 'x', not an object"),
    ("gemma3", {"rope_parameters": {"full_attention": "x"}}, "config.json is incomplete or not valid"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": "a"}}, "factor is 'a', not a finite pos"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 0}}, "factor is 0, not a finite"),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": math.inf}}, "factor is inf, not a finite"),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta_fast": -1}}, "beta_fast is -1"),
    ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4.0,
                                   "high_freq_factor": 4.0}}, "low_freq_factor is 4.0, not less than"),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": -1}}, "rope_theta is -1.0, not a"),
    ("phi3-longrope", {"rope_parameters": {"rope_type": "longrope", "short_factor": [0.0] * 3,
                                           "long_factor": [1.0] * 3}}, "short_factor is .*, not a list of"),
    ("llama", {"rms_norm_eps": "x"}, "config.json is incomplete or not valid"),
    ("llama", {"num_attention_heads": "many"}, r"incomplete or not valid \(ValueError"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "words"), WRONG)
def test_what_the_loop_would_compute_wrongly_is_refused_by_field_and_value(
    tmp_path: Path, name: str, change: dict[str, Any], words: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**plain(name), **change}))
    with pytest.raises(UnsupportedNetworkError, match=words) as caught:
        Shape.read(tmp_path)
    assert len(str(caught.value).split(". ")) == 1


def test_a_field_that_is_missing_is_named(tmp_path: Path) -> None:
    config = plain("llama")
    del config["hidden_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedNetworkError, match="hidden_size is missing"):
        Shape.read(tmp_path)


def row(length: int) -> TokenRow:
    ids = [3 + 7 * i % 200 for i in range(length)]
    return TokenRow(ids, [False] + [True] * (length - 1), [0.0] * length)


@pytest.mark.parametrize(("name", "longest"), [("llama-dynamic", 128), ("phi3-longrope", 64)])
def test_rotary_embedding_that_depends_on_the_length_is_exact_up_to_its_limit_and_refused_beyond(
    tmp_path: Path, name: str, longest: int
) -> None:
    policy = Policy.load(build(name, tmp_path))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert policy.shape.max_positions == longest
    ours, theirs = policy.logprobs([row(longest)])[0], transformers_logprobs(model, row(longest))
    assert float((ours - theirs).abs().max()) < 1e-4
    with pytest.raises(ConfigError, match=f"{longest + 1} tokens is longer than the {longest}"):
        policy.logprobs([row(longest + 1)])
    # and transformers changes the embedding of every token there, so that no table could be right
    longer = transformers_logprobs(model, row(longest + 1))[:longest]
    assert float((longer - theirs).abs().max()) > 0.01


@pytest.mark.parametrize("name", ["llama-yarn", "llama-llama3", "llama-linear", "gemma3"])
def test_other_scalings_stay_exact_beyond_the_original_length(tmp_path: Path, name: str) -> None:
    policy, model = (
        Policy.load(build(name, tmp_path)),
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path),
    )
    ours, theirs = policy.logprobs([row(100)])[0], transformers_logprobs(model, row(100))
    assert float((ours - theirs).abs().max()) < 1e-4


def test_scaled_embeddings_are_rounded_as_in_transformers(tmp_path: Path) -> None:
    """√24 is 4.8990 in float32 and 4.90625 in bfloat16."""
    build("gemma", tmp_path)
    for dtype in ("float32", "bfloat16"):
        ids = torch.arange(300)
        ours = Policy.load(tmp_path, dtype=dtype).embed(ids)
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=getattr(torch, dtype))
        assert torch.equal(ours, model.get_input_embeddings()(ids))


def test_wrong_weights_are_named_before_anything_is_computed(tmp_path: Path) -> None:
    build("qwen2", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())

    def load(change: dict[str, Any]) -> None:
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        Policy.load(tmp_path)

    with pytest.raises(ConfigError, match=r"'model.layers.3.self_attn.q_proj.weight'"):
        load({"num_hidden_layers": 4, "layer_types": None})
    with pytest.raises(ConfigError, match=r"shape \(300, 24\), not \(301, 24\)"):
        load({"vocab_size": 301})
    with pytest.raises(ConfigError, match=r"'model.layers.0.self_attn.q_norm.weight'"):
        load({"model_type": "qwen3", "head_dim": 6})
    (tmp_path / "model.safetensors").write_bytes(b"<html>not found</html>")
    with pytest.raises(ConfigError, match="no readable safetensors file"):
        load({})
    (tmp_path / "model.safetensors").unlink()
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=r"lacks model-00001-of-00001.safetensors"):
        load({})


def test_the_page_names_the_release_of_transformers_that_is_compared_with() -> None:
    root = Path(__file__).parents[3]
    pinned = re.search(r"^transformers==(\S+)", (root / "constraints.txt").read_text(), re.M)
    assert pinned is not None
    assert f"transformers {pinned[1]}" in (root / "docs" / "model-families.md").read_text()
