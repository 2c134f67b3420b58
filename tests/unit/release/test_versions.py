"""Lineage, differences and the norms of what adapters add to each layer."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from onward.errors import NotFoundError
from onward.release import versions
from onward.release.record import Model


def model(name, parent=None, **more):
    return Model(
        model_id=name, adapter_digest="d" + name, object_prefix="", training_job_id="j", parent=parent, **more
    )


def test_the_tree_puts_each_version_under_its_parent_and_survives_a_circle():
    models = [model("a"), model("b", "a"), model("c", "b"), model("d", "a"), model("x", "y"), model("y", "x")]
    assert [(depth, one.model_id) for depth, one in versions.tree(models)] == [
        (0, "a"), (1, "b"), (2, "c"), (1, "d"), (0, "x"), (1, "y"),
    ]  # fmt: skip
    assert versions.ancestors(models, "c") == ["b", "a"]
    assert versions.ancestors(models, "x") == ["y"]
    assert versions.tree([model("a", "gone")])[0][0] == 0


def test_an_id_comes_before_a_tag_of_the_same_name():
    models = [model("a", tags=["b"]), model("b"), model("c", tags=["good"])]
    assert versions.resolve(models, "b").model_id == "b"
    assert versions.resolve(models, "good").model_id == "c"
    with pytest.raises(NotFoundError, match="known are a, b, c"):
        versions.resolve(models, "bad")


def test_differences_are_named_by_dotted_fields():
    a, b = {"x": 1, "m": {"lr": 0.1, "rank": 4}}, {"x": 1, "m": {"lr": 0.2, "rank": 4}, "new": [1]}
    assert list(versions.differences(a, b)) == [
        {"name": "m.lr", "a": 0.1, "b": 0.2},
        {"name": "new", "a": None, "b": [1]},
    ]


def adapter(folder, seed, alpha, rslora=False):
    random = np.random.default_rng(seed)
    folder.mkdir()
    tensors, dense = {}, {}
    for layer in (0, 10):
        for name in ("q_proj", "v_proj"):
            a, b = random.normal(size=(4, 6)), random.normal(size=(5, 4))
            module = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{module}.lora_A.weight"] = a.astype("f4")
            tensors[f"{module}.lora_B.weight"] = b.astype("f4")
            dense[layer, name] = alpha / (2 if rslora else 4) * (b @ a)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(
        json.dumps({"r": 4, "lora_alpha": alpha, "use_rslora": rslora})
    )
    return dense


def test_norms_by_layer_equal_those_of_the_dense_products(tmp_path):
    """The reference multiplies the matrices out; the code never makes a product of the full size."""
    one, two = adapter(tmp_path / "a", 1, 8.0), adapter(tmp_path / "b", 2, 3.0, rslora=True)
    found = versions.layer_norms(tmp_path / "a", tmp_path / "b")
    assert [row["layer"] for row in found] == ["0", "10"]
    for row, layer in zip(found, (0, 10), strict=True):
        for name, parts in (
            ("a", [one[layer, n] for n in ("q_proj", "v_proj")]),
            ("b", [two[layer, n] for n in ("q_proj", "v_proj")]),
            ("difference", [one[layer, n] - two[layer, n] for n in ("q_proj", "v_proj")]),
        ):
            assert row[name] == pytest.approx(np.sqrt(sum((part**2).sum() for part in parts)), rel=1e-5)
    same = versions.layer_norms(tmp_path / "a", tmp_path / "a")
    assert all(row["difference"] == pytest.approx(0, abs=1e-5) for row in same)
    assert versions.layer_norms(None, tmp_path / "a")[0]["a"] == 0.0
