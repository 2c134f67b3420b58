"""A saved state comes back with every bit and type, and a file that is not whole is refused."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.control.running import checkpoint
from onward.errors import ControlError, OnwardError


def through(state: dict[str, Any], path: Path) -> dict[str, Any]:
    checkpoint.save(path / "state.safetensors", state)
    return checkpoint.load(path / "state.safetensors")


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64"]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_arrays_of_every_type_and_shape_come_back(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(math.prod(shape)).reshape(shape) % 2).astype(dtype)
    back = through({"a": array}, tmp_path)["a"]
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(back, array)


def test_every_bit_of_a_float_comes_back(tmp_path: Path) -> None:
    values = [0.1, -0.0, 5e-324, math.pi, float("inf"), float("nan")]
    back = through({"floats": values, "array": np.array(values)}, tmp_path)
    assert struct.pack("<6d", *back["floats"]) == struct.pack("<6d", *values)
    assert back["array"].tobytes() == np.array(values).tobytes()


def test_a_generator_goes_on_where_it_was(tmp_path: Path) -> None:
    """Its state holds whole numbers of 128 bits, which no array and no float can hold."""
    generator = np.random.default_rng(5)
    generator.random(7)
    other = np.random.default_rng(0)
    other.bit_generator.state = through({"g": generator.bit_generator.state}, tmp_path)["g"]
    np.testing.assert_array_equal(other.random(20), generator.random(20))


def test_torch_state_comes_back_as_tensors_under_whole_number_keys(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.arange(4.0))
    optimiser = torch.optim.Adam([weight], lr=0.1)
    weight.sum().backward()
    optimiser.step()
    back = through({"optimiser": optimiser.state_dict(), "weight": weight}, tmp_path)
    assert torch.equal(back["weight"], weight.detach())
    other = torch.nn.Parameter(back["weight"])
    again = torch.optim.Adam([other], lr=0.1)
    again.load_state_dict(back["optimiser"])
    for parameter, own in ((weight, optimiser), (other, again)):
        parameter.grad = torch.ones(4)
        own.step()
    assert torch.equal(weight, other)


def test_views_and_scalars_are_stored_by_value(tmp_path: Path) -> None:
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    back = through({"view": base.T[1:3], "scalar": np.float32(0.1), "none": None, "flag": True}, tmp_path)
    np.testing.assert_array_equal(back["view"], base.T[1:3])
    assert type(back["scalar"]) is np.float32
    assert back["scalar"] == np.float32(0.1)
    assert (back["none"], back["flag"]) == (None, True)


def test_the_arrays_read_belong_to_the_caller(tmp_path: Path) -> None:
    back = through({"a": np.zeros(3)}, tmp_path)
    back["a"][0] = 1.0
    assert checkpoint.load(tmp_path / "state.safetensors")["a"][0] == 0


@pytest.mark.parametrize("bad", [object(), np.array(["text"]), {1.5: "key"}, {"set": {1}}, np.array([None])])
def test_what_cannot_be_stored_without_pickle_is_refused(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(TypeError, match="a state"):
        checkpoint.save(tmp_path / "s", {"bad": bad})
    assert not (tmp_path / "s").exists()


def test_there_is_no_pickle_in_the_file(tmp_path: Path) -> None:
    """Eight bytes of length, JSON, then raw numbers: that is all of the format."""
    through({"a": np.arange(3), "b": {"c": [1, "x"]}}, tmp_path)
    data = (tmp_path / "state.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert set(header) == {"__metadata__", "0"}
    assert data[8 + length :] == np.arange(3).tobytes()


@pytest.mark.parametrize("keep", [0, 4, 40, -1])
def test_a_file_that_was_cut_off_is_refused_in_one_sentence(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "state.safetensors"
    checkpoint.save(path, {"a": np.arange(100)})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(
        OnwardError, match=r"state\.safetensors is damaged \(cut off or changed\): restore"
    ) as error:
        checkpoint.load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("change", ["number", "tree"])
def test_a_file_that_was_changed_is_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "state.safetensors"
    checkpoint.save(path, {"a": np.arange(100), "steps": 4711})
    data = bytearray(path.read_bytes())
    if change == "number":
        data[-1] ^= 1
    else:
        at = data.index(b"4711")
        data[at : at + 4] = b"4712"
    path.write_bytes(bytes(data))
    with pytest.raises(OnwardError, match="damaged"):
        checkpoint.load(path)


def test_another_format_and_a_missing_file_are_told_apart(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "s"
    with pytest.raises(ControlError, match="no saved state"):
        checkpoint.load(path)
    save_file({"a": np.zeros(1)}, path, metadata={"format": "onward-control-state-9"})
    with pytest.raises(ControlError, match="of the form 'onward-control-state-9'"):
        checkpoint.load(path)
    save_file({"a": np.zeros(1)}, path)
    with pytest.raises(OnwardError, match="damaged"):
        checkpoint.load(path)


def test_a_save_that_dies_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.safetensors"
    checkpoint.save(path, {"step": 1})

    def die(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", die)
    with pytest.raises(OSError, match="no space"):
        checkpoint.save(path, {"step": 2})
    assert checkpoint.load(path) == {"step": 1}


def test_what_a_killed_save_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """With a replay memory each such file is as large as the state, and nothing else would remove it."""
    path = tmp_path / "state.safetensors"
    (tmp_path / ".state.safetensors.0a1b2c3d.tmp").write_bytes(b"half")
    (tmp_path / ".other.safetensors.0a1b2c3d.tmp").write_bytes(b"another's")
    checkpoint.save(path, {"step": 1})
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        ".other.safetensors.0a1b2c3d.tmp", "state.safetensors",
    ]  # fmt: skip
