"""A policy from its file: numpy alone, raw observations of every space, a frozen normaliser, foreign ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from onward.control.core.spaces import ActionSpec, Layout, action_spec, layout_of
from onward.control.policies.policy import Layer, Policy, PolicyParts
from onward.errors import ControlError, TamperedError

TWO = ActionSpec("discrete", (2,), start=(0,))
LEFT_IF_NEGATIVE = Layer(np.array([[-1.0, 0.0], [1.0, 0.0]], np.float32), np.zeros(2, np.float32))


def box_parts(head: str = "gaussian", weight: float = 1.0, **more: Any) -> PolicyParts:
    """One number in, one action out of −2 … 6: mean = weight · x."""
    layer = Layer(np.array([[weight]], np.float32), np.zeros(1, np.float32))
    actions = ActionSpec("box", low=(-2.0,), high=(6.0,), shape=(1,))
    return PolicyParts(Layout(1), actions, head, [layer], **more)  # pyright: ignore[reportArgumentType]


def linear(space: spaces.Space[Any], actions: spaces.Space[Any], out: int, seed: int = 0) -> PolicyParts:
    layout = layout_of(space)
    weight = np.random.default_rng(seed).standard_normal((out, layout.width)).astype(np.float32)
    return PolicyParts(layout, action_spec(actions), "logits", [Layer(weight, np.zeros(out, np.float32))])


# Acting.


def test_greedy_action_by_hand() -> None:
    policy = Policy(PolicyParts(Layout(2), TWO, "q", [LEFT_IF_NEGATIVE]))
    assert policy.act(np.array([-3.0, 9.0])) == 0
    assert policy.act([0.5, 0.0], deterministic=True) == 1
    assert isinstance(policy.act([0.5, 0.0]), int)
    assert policy.act(np.array([[-1, 0], [1, 0], [2, 0]])).tolist() == [0, 1, 1]


def test_the_start_of_a_discrete_space_is_added() -> None:
    actions = action_spec(spaces.Discrete(2, start=5))
    assert Policy(PolicyParts(Layout(2), actions, "q", [LEFT_IF_NEGATIVE])).act([1.0, 0.0]) == 6


def test_a_box_action_is_scaled_to_its_bounds_and_clipped() -> None:
    policy = Policy(box_parts())
    assert policy.act([0.0]) == pytest.approx([2.0])
    assert policy.act([0.5]) == pytest.approx([4.0])
    assert policy.act([[7.0], [-7.0]]) == pytest.approx(np.array([[6.0], [-2.0]]))
    assert Policy(box_parts("tanh")).act([0.5])[0] == pytest.approx(2 + 4 * np.tanh(0.5), abs=1e-6)


def test_hidden_layers_norm_and_activation_against_a_slow_reference() -> None:
    rnd = np.random.default_rng(1)
    w1, b1, w2, b2 = (rnd.standard_normal(s).astype(np.float32) for s in ((5, 3), (5,), (2, 5), (2,)))
    gain, shift = rnd.standard_normal(5).astype(np.float32), rnd.standard_normal(5).astype(np.float32)
    mean, variance, clip = np.array([1.0, 2.0, 3.0]), np.array([4.0, 0.25, 1.0]), 1.5
    layers = [Layer(w1, b1, "relu", (gain, shift)), Layer(w2, b2)]
    policy = Policy(PolicyParts(Layout(3), TWO, "logits", layers, norm=(mean, variance, clip)))
    x = np.array([2.0, 5.0, 2.5])
    seen = [0.5, 1.5, -0.5]  # (2−1)/2; (5−2)/0.5 = 6, clipped; (2.5−3)/1
    hidden = [sum(w1[j, i] * seen[i] for i in range(3)) + b1[j] for j in range(5)]
    centre, spread = np.mean(hidden), np.sqrt(np.var(hidden) + 1e-5)
    hidden = [max(0.0, (h - centre) / spread * gain[j] + shift[j]) for j, h in enumerate(hidden)]
    expected = [sum(w2[k, j] * hidden[j] for j in range(5)) + b2[k] for k in range(2)]
    assert policy.outputs(x[None].astype(np.float32))[0] == pytest.approx(expected, abs=1e-5)


def test_the_normaliser_is_frozen() -> None:
    norm = np.array([10.0]), np.array([4.0]), 10.0
    policy = Policy(box_parts(norm=norm))
    first = policy.act([11.0])
    for far in range(100):
        policy.act([1000.0 + far])
    assert policy.act([11.0]) == first == pytest.approx([4.0])  # (11 − 10) / 2 = 0.5
    assert norm[0] == [10.0] and norm[1] == [4.0]


def test_illegal_actions_are_never_chosen() -> None:
    policy = Policy(PolicyParts(Layout(2), TWO, "logits", [LEFT_IF_NEGATIVE]))
    assert policy.act([5.0, 0.0], mask=np.array([True, False])) == 0
    batch = policy.act([[5.0, 0.0], [5.0, 0.0]], mask=np.array([[True, False], [True, True]]))
    assert batch.tolist() == [0, 1]
    drawn = policy.act(np.zeros((500, 2)), deterministic=False, mask=np.array([[False, True]] * 500))
    assert set(drawn.tolist()) == {1}


def test_components_are_chosen_apart() -> None:
    eye = Layer(np.eye(5, dtype=np.float32), np.zeros(5, np.float32))
    several = PolicyParts(Layout(5), action_spec(spaces.MultiDiscrete([2, 3])), "logits", [eye])
    assert Policy(several).act([0.1, 0.9, 0.0, 0.2, 0.1]).tolist() == [1, 1]
    bits = PolicyParts(Layout(5), action_spec(spaces.MultiBinary(5)), "logits", [eye])
    assert Policy(bits).act([1.0, -1.0, 0.0, 2.0, -0.1]).tolist() == [1, 0, 0, 1, 0]


def test_sampling_follows_the_distribution_and_repeats_with_a_seed() -> None:
    logits = np.log(np.array([0.2, 0.8], np.float32))
    fixed = [Layer(np.zeros((2, 1), np.float32), logits)]
    policy = Policy(PolicyParts(Layout(1), TWO, "logits", fixed))
    policy.seed(3)
    drawn = policy.act(np.zeros((20_000, 1)), deterministic=False)
    assert drawn.mean() == pytest.approx(0.8, abs=0.01)
    policy.seed(3)
    assert (policy.act(np.zeros((20_000, 1)), deterministic=False) == drawn).all()

    bits = Policy(PolicyParts(Layout(1), action_spec(spaces.MultiBinary(2)), "logits", fixed))
    bits.seed(4)
    shares = bits.act(np.zeros((20_000, 1)), deterministic=False).mean(axis=0)
    assert shares == pytest.approx([0.2 / 1.2, 0.8 / 1.8], abs=0.01)  # sigmoid(log p)

    gaussian = Policy(box_parts(log_std=np.log(np.array([0.1]))))
    gaussian.seed(5)
    actions = gaussian.act_flat(np.zeros((20_000, 1), np.float32), deterministic=False)
    assert (actions.mean(), actions.std()) == pytest.approx((0.0, 0.1), abs=0.003)


def test_log_stds_of_the_head_are_limited() -> None:
    layer = Layer(np.zeros((2, 1), np.float32), np.array([0.0, 50.0], np.float32))
    actions = ActionSpec("box", low=(-1.0,), high=(1.0,), shape=(1,))
    limit = {"log_std_range": (-5.0, -3.0)}
    policy = Policy(PolicyParts(Layout(1), actions, "tanh", [layer], extra=limit))
    policy.seed(0)
    drawn = policy.act_flat(np.zeros((20_000, 1), np.float32), deterministic=False)
    assert drawn.std() == pytest.approx(np.exp(-3), rel=0.03)


# Raw observations.

SPACES = {
    "box of two axes": spaces.Box(-1, 1, (2, 3), np.float64),
    "discrete from 3": spaces.Discrete(4, start=3),
    "several choices": spaces.MultiDiscrete([2, 3]),
    "bits": spaces.MultiBinary(3),
    "dict": spaces.Dict({"speed": spaces.Box(-1, 1, (2,)), "gear": spaces.Discrete(3)}),
    "tuple in dict": spaces.Dict(
        {"a": spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (2,)))), "b": spaces.Box(0, 9, ())}
    ),
}


@pytest.mark.parametrize("name", SPACES)
def test_one_and_several_raw_observations_give_the_same_actions(name: str) -> None:
    space = SPACES[name]
    space.seed(0)
    policy = Policy(linear(space, spaces.Discrete(4), 4))
    single = [space.sample() for _ in range(20)]
    batch = gymnasium.vector.utils.concatenate(
        space, single, gymnasium.vector.utils.create_empty_array(space, n=20)
    )
    one_by_one = [policy.act(obs) for obs in single]
    assert policy.act(batch).tolist() == one_by_one
    assert len(set(one_by_one)) > 1


def test_dict_in_any_order_of_keys() -> None:
    policy = Policy(linear(SPACES["dict"], spaces.Discrete(4), 4))
    obs = SPACES["dict"].sample()
    assert policy.act(dict(reversed(obs.items()))) == policy.act(obs)


def image_parts(space: spaces.Space[Any], features: int = 6) -> tuple[PolicyParts, Any]:
    import torch

    from onward.control.networks.nets import Encoder

    layout = layout_of(space)
    encoder = Encoder(layout, features, torch.Generator().manual_seed(0))
    state = {key: value.numpy().copy() for key, value in encoder.state_dict().items()}
    weight = np.random.default_rng(0).standard_normal((3, encoder.width)).astype(np.float32)
    actions = action_spec(spaces.Discrete(3))
    layers = [Layer(weight, np.zeros(3, np.float32))]
    return PolicyParts(layout, actions, "logits", layers, images=state), encoder


IMAGES = {
    "small": spaces.Box(0, 255, (5, 6, 3), np.uint8),
    "ten by ten": spaces.Box(0, 255, (10, 10), np.uint8),
    "large": spaces.Box(0, 255, (36, 40, 4), np.uint8),
    "channels first": spaces.Box(0, 255, (3, 36, 36), np.uint8),
    "in a dict": spaces.Dict({"eye": spaces.Box(0, 255, (10, 10, 1), np.uint8), "n": spaces.Discrete(3)}),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images_are_encoded_as_by_the_torch_encoder(name: str) -> None:
    import torch

    from onward.control.core.spaces import ObsFlattener
    from onward.control.networks.nets import to_tensor

    space = IMAGES[name]
    space.seed(1)
    parts, encoder = image_parts(space)
    policy = Policy(parts)
    samples = [space.sample() for _ in range(4)]
    flattener = ObsFlattener(space)
    for raw in samples:
        flat = flattener.single(raw)
        with torch.no_grad():
            expected = encoder(to_tensor(flat)).numpy() @ parts.layers[0][0].T
        assert policy.outputs(flat) == pytest.approx(expected, abs=1e-4)
        assert policy.act(raw) == expected.argmax()


@pytest.mark.parametrize(
    "obs", [np.zeros(3), np.zeros((2, 3)), np.zeros((1, 2, 2)), {"a": 1}, None, "up", [[1, 2], [3]]]
)
def test_an_observation_of_another_shape_is_one_sentence(obs: Any) -> None:
    policy = Policy(PolicyParts(Layout(2), TWO, "q", [LEFT_IF_NEGATIVE]))
    with pytest.raises(ControlError) as caught:
        policy.act(obs)
    assert "\n" not in str(caught.value)


def test_a_dict_without_a_key_is_one_sentence() -> None:
    policy = Policy(linear(SPACES["dict"], spaces.Discrete(4), 4))
    with pytest.raises(ControlError, match="'gear'"):
        policy.act({"speed": np.zeros(2)})


# Parts that do not fit.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": []}, "no layers"),
        ({"head": "tanh"}, "cannot give actions of kind 'discrete'"),
        ({"layout": Layout(3)}, "behind 3 features"),
        ({"actions": ActionSpec("discrete", (3,), start=(0,))}, "ends in 2 numbers where its actions need 3"),
        ({"norm": (np.zeros(3), np.ones(3), 5.0)}, "normaliser has shape"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"layout": Layout(2), "actions": TWO, "head": "q", "layers": [LEFT_IF_NEGATIVE]}
    with pytest.raises(ControlError, match=words):
        Policy(PolicyParts(**(given | change)))


def test_finite_sees_every_array() -> None:
    assert box_parts().finite()
    assert not box_parts(weight=float("nan")).finite()
    assert not box_parts(norm=(np.array([np.inf]), np.ones(1), 5.0)).finite()


# The file.


def saved(folder: Path) -> Path:
    parts = linear(SPACES["dict"], spaces.Discrete(4, start=2), 4)
    norm = (np.arange(5.0), np.arange(1.0, 6.0), 5.0)
    whole = PolicyParts(parts.layout, parts.actions, "logits", parts.layers, norm=norm, extra={"steps": 7})
    return Policy(whole, "Gears-v0").save(folder / "policy")


def test_loaded_is_what_was_saved(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    space = SPACES["dict"]
    for path in (folder, tmp_path, folder / "policy.json"):
        policy = Policy.load(path)
        assert policy.env_id == "Gears-v0"
        assert policy.parts.extra == {"steps": 7}
        assert policy.parts.norm is not None and policy.parts.norm[0].dtype == np.float64
        again = Policy(policy.parts)
        assert [policy.act(space.sample()) in (2, 3, 4, 5) for _ in range(3)] == [True] * 3
        assert again.parts.layout == policy.parts.layout
    assert sorted(file.name for file in folder.iterdir()) == ["policy.json", "policy.safetensors"]


def test_images_survive_the_file(tmp_path: Path) -> None:
    parts, _ = image_parts(IMAGES["in a dict"])
    policy = Policy(parts)
    loaded = Policy.load(policy.save(tmp_path))
    obs = IMAGES["in a dict"].sample()
    assert loaded.act(obs) == policy.act(obs)


def test_acting_needs_neither_trainer_nor_torch(tmp_path: Path) -> None:
    for name, parts, obs in (
        ("vector", PolicyParts(Layout(2), TWO, "q", [LEFT_IF_NEGATIVE]), "[1.0, 2.0]"),
        ("image", image_parts(IMAGES["ten by ten"])[0], "numpy.zeros((10, 10), numpy.uint8)"),
    ):
        folder = Policy(parts).save(tmp_path / name)
        code = (
            "import sys, numpy; from onward.control import Policy; "
            f"print(Policy.load({str(folder)!r}).act({obs}, deterministic=True)); "
            "wrong = ('torch', 'gymnasium', 'onward.control.running.trainer', 'onward.control.algorithms'); "
            "print([m for m in sys.modules if m.startswith(wrong)])"
        )
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        action, loaded = ran.stdout.splitlines()
        assert (action.isdigit(), loaded) == (True, "[]"), ran.stderr


def one_sentence(path: Path, kind: type[Exception]) -> str:
    with pytest.raises(kind) as caught:
        Policy.load(path)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 400
    return said


def test_changed_numbers_are_refused(tmp_path: Path) -> None:
    file = saved(tmp_path) / "policy.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert "not the file that policy.json beside it was written with" in one_sentence(tmp_path, TamperedError)


def test_changed_words_are_refused(tmp_path: Path) -> None:
    file = saved(tmp_path) / "policy.json"
    words = json.loads(file.read_text())
    words["actions"]["start"] = [0]
    file.write_text(json.dumps(words))
    assert "was changed after it was written" in one_sentence(tmp_path, TamperedError)


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    file = saved(tmp_path) / "policy.json"
    for text in ("", "{}", "[1]", '{"format": "another"}', "\x80"):
        file.write_text(text, encoding="latin-1")
        assert "is not a control policy of Onward" in one_sentence(tmp_path, ControlError)


def test_another_version_is_refused(tmp_path: Path) -> None:
    file = saved(tmp_path) / "policy.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 99}))
    assert "has version 99" in one_sentence(tmp_path, ControlError)


def test_half_a_policy_and_no_policy_are_refused(tmp_path: Path) -> None:
    assert "No policy lies in" in one_sentence(tmp_path / "nowhere", ControlError)
    (saved(tmp_path) / "policy.safetensors").unlink()
    assert "cannot be read" in one_sentence(tmp_path, ControlError)
