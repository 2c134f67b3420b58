"""ONNX equals ``Policy.act``, with the normaliser inside, for every kind of action and for images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from gymnasium import spaces

from onward.control.algorithms.registry import ALGORITHMS, algorithm_class
from onward.control.core.config import CONFIGS
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import ActionSpec, Layout, action_spec, layout_of
from onward.control.environments import make
from onward.control.policies import export as exports
from onward.control.policies.export import export, write_onnx
from onward.control.policies.policy import Layer, Policy, PolicyParts
from onward.errors import ControlError

runtime = pytest.importorskip("onnxruntime")

BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([6.0, 0.5], np.float32))
CASES: dict[str, tuple[str, spaces.Space[Any], int]] = {
    "q": ("q", spaces.Discrete(4), 4),
    "logits from 3": ("logits", spaces.Discrete(4, start=3), 4),
    "several": ("logits", spaces.MultiDiscrete([2, 3, 2], start=[0, 1, -1]), 7),
    "several in two axes": ("logits", spaces.MultiDiscrete(np.array([[2, 3], [4, 2]])), 11),
    "bits": ("logits", spaces.MultiBinary(3), 3),
    "mean": ("gaussian", BOX, 2),
    "tanh of the mean beside log-stds": ("tanh", BOX, 4),
    "box of two axes": ("tanh", spaces.Box(-3, 1, (2, 2)), 4),
}


def policy_of(head: str, space: spaces.Space[Any], out: int, norm: bool = True) -> Policy:
    rnd = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray[Any, Any]:
        return rnd.standard_normal(shape).astype(np.float32)

    layers = [
        Layer(array(8, 5), array(8), "tanh", (array(8), array(8))),
        Layer(array(8, 8), array(8), "relu"),
        Layer(array(out, 8), array(out)),
    ]
    stats = (np.linspace(-900, 900, 5), np.geomspace(1e-3, 1e4, 5), 4.0) if norm else None
    parts = PolicyParts(Layout(5), action_spec(space), head, layers, norm=stats)  # pyright: ignore
    return Policy(parts, "Test-v0")


def run(file: Path, inputs: dict[str, Any]) -> tuple[Any, Any]:
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    action, output = session.run(["action", "output"], inputs)
    return action, output


def observations(policy: Policy, rows: int) -> np.ndarray[Any, Any]:
    rnd = np.random.default_rng(1)
    obs = rnd.standard_normal((rows, 5)) * 3
    if policy.parts.norm is not None:
        obs = policy.parts.norm[0] + obs * np.sqrt(policy.parts.norm[1])
    return obs.astype(np.float32)


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_onnx_equals_act(case: str, norm: bool, tmp_path: Path) -> None:
    policy = policy_of(*CASES[case], norm)
    file = write_onnx(policy, tmp_path / "policy.onnx")
    onnx.checker.check_model(str(file), full_check=True)
    for rows in (1, 64):
        obs = observations(policy, rows)
        action, output = run(file, {"obs": obs})
        assert output == pytest.approx(policy.outputs(obs), abs=1e-5)
        expected = policy.act(obs)
        assert action.shape == expected.shape
        if policy.parts.actions.kind == "box":
            assert action == pytest.approx(expected, abs=1e-5)
        else:
            assert action.tolist() == expected.tolist()


def test_the_normaliser_is_inside(tmp_path: Path) -> None:
    """By hand: (14 − 10) / √4 = 2, clipped to 1.5, in an action space of −10 … 10 with mean 0.5 · x."""
    actions = ActionSpec("box", low=(-10.0,), high=(10.0,), shape=(1,))
    layer = Layer(np.array([[0.5]], np.float32), np.zeros(1, np.float32))
    norm = np.array([10.0]), np.array([4.0]), 1.5
    policy = Policy(PolicyParts(Layout(1), actions, "gaussian", [layer], norm=norm))
    action, _ = run(write_onnx(policy, tmp_path / "p.onnx"), {"obs": np.array([[14.0]], np.float32)})
    assert action == pytest.approx(np.array([[7.5]]))


@pytest.mark.parametrize("shape", [(10, 10), (36, 40, 3)])
def test_images_beside_numbers(shape: tuple[int, ...], tmp_path: Path) -> None:
    import torch

    from onward.control.core.spaces import ObsFlattener
    from onward.control.networks.nets import Encoder

    space = spaces.Dict({"eye": spaces.Box(0, 255, shape, np.uint8), "n": spaces.Box(-1, 1, (2,))})
    space.seed(0)
    layout = layout_of(space)
    encoder = Encoder(layout, 6, torch.Generator().manual_seed(0))
    state = {key: value.numpy().copy() for key, value in encoder.state_dict().items()}
    weight = np.random.default_rng(0).standard_normal((3, encoder.width)).astype(np.float32)
    layers = [Layer(weight, np.zeros(3, np.float32))]
    norm = np.array([0.1, 0.2]), np.array([0.3, 0.4]), 5.0
    parts = PolicyParts(layout, action_spec(spaces.Discrete(3)), "q", layers, norm=norm, images=state)
    policy = Policy(parts)
    file = write_onnx(policy, tmp_path / "p.onnx")
    for _ in range(3):
        raw = space.sample()
        flat = ObsFlattener(space).single(raw)
        assert isinstance(flat, dict)
        action, output = run(file, flat)
        assert output == pytest.approx(policy.outputs(flat), abs=1e-4, rel=1e-5)
        assert action.tolist() == [policy.act(raw)]


def test_export_writes_all_three_files(tmp_path: Path) -> None:
    policy = policy_of(*CASES["q"])
    files = export(policy, tmp_path / "out")
    assert [file.name for file in files] == ["policy.json", "policy.onnx", "policy.safetensors"]
    obs = observations(policy, 5)
    assert Policy.load(tmp_path / "out").act(obs).tolist() == policy.act(obs).tolist()
    without = export(policy, tmp_path / "other", onnx=False)
    assert [file.name for file in without] == ["policy.json", "policy.safetensors"]


def test_a_graph_at_fault_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = onnx.helper.make_graph([onnx.helper.make_node("Nothing", ["a"], ["b"])], "x", [], [])
    monkeypatch.setattr(exports, "build", lambda parts: onnx.helper.make_model(empty))
    with pytest.raises(ControlError) as caught:
        write_onnx(policy_of(*CASES["q"]), tmp_path / "p.onnx")
    assert "cannot be written as ONNX" in str(caught.value) and "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "q_learning"])
def test_every_algorithms_policy_survives_the_files(name: str, env: str, tmp_path: Path) -> None:
    kind, made = algorithm_class(name), make(env, 2)
    if made.spec.actions.kind not in kind.action_kinds:
        pytest.skip(f"{name} cannot learn {env}")
    small = {"buffer_size": 1000} if hasattr(CONFIGS[name], "buffer_size") else {}
    algorithm = kind(made.spec, 2, CONFIGS[name](normalise_obs=True, **small), Seeds(0))  # pyright: ignore
    policy = Policy(algorithm.networks(), env)
    obs = np.random.default_rng(0).standard_normal((50, made.spec.layout.width)).astype(np.float32)
    loaded = Policy.load(policy.save(tmp_path))
    action, _ = run(write_onnx(policy, tmp_path / "policy.onnx"), {"obs": obs})
    assert (loaded.act(obs) == policy.act(obs)).all()
    assert action == pytest.approx(policy.act(obs), abs=1e-5)
    algorithm.close()
