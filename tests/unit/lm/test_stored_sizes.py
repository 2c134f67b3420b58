"""Sizes of a network and fit of an adapter, read from headers, beside the network that transformers loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import any_networks
import pytest
from safetensors.torch import load_file, save_file

from onward.errors import ConfigError
from onward.lm import adapter_files
from onward.lm.any_model.policy import AnyPolicy
from onward.lm.any_model.stored_sizes import StoredSizes, refuse_misfit
from onward.lm.model_folder import ModelFolder, inspect

Loaded = tuple[ModelFolder, AnyPolicy]


@pytest.fixture(scope="module", params=list(any_networks.KINDS))
def loaded(request: pytest.FixtureRequest, small: Path, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder = any_networks.build(request.param, tmp_path_factory.mktemp("any") / request.param, small)
    return inspect(folder), AnyPolicy.load(folder)


def test_sizes_are_those_of_the_loaded_network(loaded: Loaded) -> None:
    folder, policy = loaded
    sizes = folder.sizes()
    assert isinstance(sizes, StoredSizes)
    assert sizes.parameters == sum(tensor.numel() for tensor in policy.tensors())
    assert (sizes.vocab, sizes.hidden, sizes.layers) == (policy.shape.vocab, 48, 2)


def test_the_parameters_of_an_adapter_are_counted_as_they_are(loaded: Loaded) -> None:
    """Mamba reads the weight of ``dt_proj`` and never calls it: counted in headers, not adapted."""
    folder, policy = loaded
    sizes = folder.sizes()
    names = None
    if folder.family == "mamba":
        names = ["in_proj", "x_proj"]
        policy.new_adapter("all", 4, targets=names)
        names_of_headers = {name for _, name, _, _ in sizes.linear}  # type: ignore[attr-defined]
        assert names_of_headers == {"in_proj", "x_proj", "dt_proj"}
    else:
        policy.new_adapter("all", 4)
    real = sum(tensor.numel() for tensor in policy.adapter("all").params.values())
    assert sizes.lora_parameters(4, range(2), names) == real
    policy.remove_adapter("all")
    with pytest.raises(ConfigError, match=r"An adapter on \['w9'\] is not possible: choose targets among"):
        sizes.refuse_other_targets(["w9"])


def test_experts_count_as_many_times_as_a_token_uses_them(small: Path, tmp_path: Path) -> None:
    """Mixtral: q and o 48 × 48, k and v 24 × 48; of 4 experts a token uses 2, each of 3 matrices 64 × 48."""
    sizes = inspect(any_networks.build("mixtral", tmp_path, small)).sizes()
    assert sizes.block == 2 * 48 * 48 + 2 * 24 * 48 + 2 * 3 * 64 * 48
    ends = 2 * (48 + 48) + 2 * (24 + 48) + 2 * 3 * (64 + 48)
    assert sizes.kept_values(0) == ends + 6 * 48


@pytest.fixture
def saved(loaded: Loaded, tmp_path: Path) -> Path:
    folder, policy = loaded
    policy.new_adapter("x", 4, targets=["in_proj", "x_proj"] if folder.family == "mamba" else None)
    policy.save_adapter("x", tmp_path / "x")
    policy.remove_adapter("x")
    return tmp_path / "x"


def _misfit(folder: ModelFolder, adapter: Path, tensors: dict[str, Any]) -> str:
    """Returns the sentence that refuses the adapter with these tensors, or an empty text."""
    config = adapter_files.read_config(adapter, adapter_files.BY_PEFT)
    try:
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        refuse_misfit(config, shapes, folder.tensors, adapter)
    except ConfigError as error:
        return str(error)
    return ""


def test_an_adapter_that_transformers_made_fits_and_a_changed_one_does_not(
    loaded: Loaded, saved: Path
) -> None:
    folder = loaded[0]
    tensors = load_file(saved / "adapter_model.safetensors")
    assert _misfit(folder, saved, tensors) == ""
    name = next(name for name in tensors if ".lora_A." in name)
    assert "has a bad tensor" in _misfit(folder, saved, {**tensors, name: tensors[name][:, :-1]})
    assert "has a bad tensor" in _misfit(folder, saved, {**tensors, name: tensors[name][:-1]})
    other = name.replace(".0.", ".7.")
    assert f"changes {other!r}, which is not a linear" in _misfit(folder, saved, {other: tensors[name]})
    norm = "base_model.model.norm.lora_A.weight"
    assert f"changes {norm!r}" in _misfit(folder, saved, {norm: tensors[name]})


def test_two_ranks_in_one_layer_are_refused(small: Path, tmp_path: Path) -> None:
    folder = inspect(any_networks.build("granite", tmp_path / "m", small))
    policy = AnyPolicy.load(folder.folder)
    policy.new_adapter("x", 4, targets=["q_proj"])
    policy.save_adapter("x", tmp_path / "x")
    path = tmp_path / "x" / adapter_files.CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), "rank_pattern": {"q_proj": 3}}))
    tensors = load_file(tmp_path / "x" / adapter_files.TENSORS)
    name = next(name for name in tensors if ".lora_A." in name)
    torn = {**tensors, name: tensors[name][:3].clone()}
    save_file(torn, tmp_path / "x" / adapter_files.TENSORS)
    said = _misfit(folder, tmp_path / "x", torn)
    assert "has two ranks for model.layers.0.self_attn.q_proj, 3 and 4" in said
