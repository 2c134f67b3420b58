"""Spaces: every supported one flattened to the right numbers, every other one refused with a remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces.utils import flatten

from onward.control.core.spaces import (
    ActionSpec,
    Layout,
    ObsFlattener,
    action_spec,
    copy,
    layout_of,
    put,
    rows_of,
    take,
    to_env,
    zeros,
)
from onward.errors import ControlError

VECTORS: dict[str, spaces.Space[Any]] = {
    "box": spaces.Box(-1, 1, (3,)),
    "box of two axes": spaces.Box(-1, 1, (2, 3), np.float64),
    "box of no axes": spaces.Box(-1, 1, ()),
    "whole numbers": spaces.Box(0, 9, (4,), np.int32),
    "bytes of one axis are a vector": spaces.Box(0, 255, (128,), np.uint8),
    "images of floats are a vector": spaces.Box(0, 1, (4, 5, 3)),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,)),
    "discrete": spaces.Discrete(4),
    "discrete with a start": spaces.Discrete(4, start=-2),
    "multi discrete": spaces.MultiDiscrete([3, 2, 4]),
    "multi discrete of two axes": spaces.MultiDiscrete(np.array([[3, 2], [4, 5]])),
    "multi discrete with a start": spaces.MultiDiscrete([3, 2], start=[5, -1]),
    "multi binary": spaces.MultiBinary(3),
    "multi binary of two axes": spaces.MultiBinary([2, 2]),
    "dict": spaces.Dict(b=spaces.Discrete(3), a=spaces.Box(-1, 1, (2,))),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2))),
    "nested": spaces.Dict(
        inner=spaces.Dict(x=spaces.Tuple((spaces.Discrete(2, start=1), spaces.Box(-1, 1, (1,))))),
        outer=spaces.Tuple((spaces.Dict(y=spaces.MultiDiscrete(np.array([[2, 3]]))),)),
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_equal_gymnasiums_own_flattening(name: str) -> None:
    space = VECTORS[name]
    space.seed(3)
    flattener = ObsFlattener(space)
    out = zeros(flattener.layout, (5,))
    samples = [space.sample() for _ in range(5)]
    for slot, sample in enumerate(samples):
        flattener.write(sample, out, slot)
    expected = np.stack([np.asarray(flatten(space, sample)) for sample in samples]).astype(np.float32)
    assert isinstance(out, np.ndarray)
    np.testing.assert_array_equal(out, expected)
    assert out.dtype == np.float32
    assert flattener.layout.flat
    np.testing.assert_array_equal(flattener.single(samples[0]), expected[:1])


@pytest.mark.parametrize("name", VECTORS)
def test_batches_equal_single_observations(name: str) -> None:
    from gymnasium.vector.utils import concatenate, create_empty_array

    space = VECTORS[name]
    space.seed(4)
    samples = [space.sample() for _ in range(3)]
    batch = concatenate(space, samples, create_empty_array(space, 3))
    flattener = ObsFlattener(space)
    singles = np.concatenate([np.asarray(flattener.single(sample)) for sample in samples])
    np.testing.assert_array_equal(flattener.batch(batch, 3), singles)
    assert flattener.holds_batch(batch)
    assert not flattener.holds_batch(samples[0])


def test_one_hot_rows_by_hand() -> None:
    space = spaces.Dict(
        a=spaces.Discrete(3, start=1), b=spaces.MultiDiscrete(np.array([[2, 3]])), c=spaces.Box(-9, 9, (1,))
    )
    row = ObsFlattener(space).single({"a": 3, "b": np.array([[0, 1]]), "c": np.array([4.5])})
    np.testing.assert_array_equal(row, [[0, 0, 1, 1, 0, 0, 1, 0, 4.5]])


def test_image_alone() -> None:
    space = spaces.Box(0, 255, (6, 5, 3), np.uint8)
    flattener = ObsFlattener(space)
    assert flattener.layout.images == (("image", (6, 5, 3)),)
    assert flattener.layout.width == 0
    frame = space.sample()
    obs = flattener.single(frame)
    assert isinstance(obs, dict)
    assert list(obs) == ["image"]
    assert obs["image"].dtype == np.uint8
    np.testing.assert_array_equal(obs["image"], frame[None])


def test_grey_image_gets_a_channel() -> None:
    frame = np.arange(20, dtype=np.uint8).reshape(4, 5)
    obs = ObsFlattener(spaces.Box(0, 255, (4, 5), np.uint8)).single(frame)
    assert isinstance(obs, dict)
    np.testing.assert_array_equal(obs["image"], frame[None, :, :, None])


def test_image_with_channels_first_is_turned() -> None:
    space = spaces.Box(0, 255, (4, 84, 80), np.uint8)  # four stacked frames
    flattener = ObsFlattener(space)
    assert flattener.layout.images == (("image", (84, 80, 4)),)
    frame = space.sample()
    obs = flattener.single(frame)
    assert isinstance(obs, dict)
    assert obs["image"][0, 7, 9, 2] == frame[2, 7, 9]


def test_images_beside_numbers_in_nested_dicts() -> None:
    image = spaces.Box(0, 255, (4, 5, 3), np.uint8)
    space = spaces.Dict(camera=spaces.Dict(left=image, vector=image), vector=image, speed=spaces.Discrete(3))
    flattener = ObsFlattener(space)
    assert dict(flattener.layout.images) == {
        "camera/left": (4, 5, 3),
        "camera/vector": (4, 5, 3),
        "vector/image": (4, 5, 3),
    }
    sample = space.sample()
    obs = flattener.single({**sample, "speed": 2})
    assert isinstance(obs, dict)
    np.testing.assert_array_equal(obs["vector"], [[0, 0, 1]])
    np.testing.assert_array_equal(obs["camera/left"][0], sample["camera"]["left"])
    np.testing.assert_array_equal(obs["vector/image"][0], sample["vector"])


REFUSED_OBSERVATIONS = {
    "text": (spaces.Text(5), "TransformObservation"),
    "sequence": (spaces.Sequence(spaces.Box(0, 1, (2,))), "TransformObservation"),
    "graph": (spaces.Graph(spaces.Box(0, 1, (2,)), None), "TransformObservation"),
    "text within a dict": (spaces.Dict(a=spaces.Dict(b=spaces.Text(5))), "at 'a/b'"),
    "one of": (spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3))), "TransformObservation"),
    "too many choices": (spaces.Discrete(100_000), "wrap the environment"),
    "nothing": (spaces.Dict({}), "give one that does"),
    "two images of one name": (
        spaces.Dict(
            {
                "a/b": spaces.Box(0, 255, (4, 4), np.uint8),
                "a": spaces.Dict(b=spaces.Box(0, 255, (4, 4), np.uint8)),
            }
        ),
        "rename one key",
    ),
}


@pytest.mark.parametrize("name", REFUSED_OBSERVATIONS)
def test_every_other_observation_space_is_refused_with_a_remedy(name: str) -> None:
    space, remedy = REFUSED_OBSERVATIONS[name]
    with pytest.raises(ControlError, match=remedy):
        layout_of(space)


def test_an_observation_outside_its_space_is_refused() -> None:
    with pytest.raises(ControlError, match="correct its observation_space"):
        ObsFlattener(spaces.Discrete(3)).single(3)


def test_an_observation_of_another_shape_is_refused() -> None:
    with pytest.raises(ControlError, match="as the environment does"):
        ObsFlattener(spaces.Box(0, 1, (3,))).holds_batch(np.zeros((2, 4)))


def test_a_layout_survives_json() -> None:
    import json

    space = spaces.Dict(a=VECTORS["nested"], b=spaces.Box(0, 255, (4, 84, 80), np.uint8))
    layout = layout_of(space)
    again = Layout.from_json(json.loads(json.dumps(layout.to_json())))
    assert again == layout
    sample = space.sample()
    first, second = ObsFlattener(space).single(sample), ObsFlattener(again).single(sample)
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert all(np.array_equal(first[key], second[key]) for key in first)


def test_tools_reach_every_part() -> None:
    layout = Layout(2, (("image", (2, 2, 1)),))
    obs = zeros(layout, (3,))
    rows = zeros(layout, (1,))
    assert isinstance(rows, dict)
    rows["vector"][:] = 5
    rows["image"][:] = 7
    before = copy(obs)
    put(obs, [1], rows)
    taken = take(obs, [1, 2])
    assert isinstance(taken, dict)
    assert isinstance(before, dict)
    np.testing.assert_array_equal(taken["vector"], [[5, 5], [0, 0]])
    assert taken["image"].sum() == 28
    assert before["vector"].sum() == 0
    assert rows_of(obs) == 3
    assert rows_of(np.zeros((4, 2))) == 4


# Actions


def test_discrete_actions_get_their_start() -> None:
    spec = action_spec(spaces.Discrete(3, start=5))
    assert (spec.kind, spec.sizes, spec.dim) == ("discrete", (3,), 1)
    np.testing.assert_array_equal(to_env(spec, np.array([0, 2])), [5, 7])


def test_multi_discrete_of_two_axes_keeps_its_shape() -> None:
    space = spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 1], [2, 3]]))
    spec = action_spec(space)
    assert spec.sizes == (2, 3, 4, 5)
    given = to_env(spec, np.array([[1, 2, 3, 4], [0, 0, 0, 0]]))
    np.testing.assert_array_equal(given, [[[1, 3], [5, 7]], [[0, 1], [2, 3]]])
    assert space.contains(given[0])


def test_multi_binary_keeps_its_shape() -> None:
    spec = action_spec(spaces.MultiBinary([2, 2]))
    assert (spec.kind, spec.sizes) == ("multi_binary", (2, 2, 2, 2))
    np.testing.assert_array_equal(to_env(spec, np.array([[0, 1, 1, 0]])), [[[0, 1], [1, 0]]])


def test_box_actions_are_scaled_and_clipped_on_the_way_only() -> None:
    space = spaces.Box(np.array([[-2, 0]], np.float32), np.array([[2, 10]], np.float32))
    spec = action_spec(space)
    actions = np.array([[-1, -1], [1, 1], [0, 0.5], [-3, 7]], np.float32)
    before = actions.copy()
    given = to_env(spec, actions)
    np.testing.assert_allclose(given, [[[-2, 0]], [[2, 10]], [[0, 7.5]], [[-2, 10]]])
    np.testing.assert_array_equal(actions, before)


def test_scaled_actions_never_leave_the_box() -> None:
    low, high = np.array([0.1, -0.7, -1e-3], np.float32), np.array([0.3, 0.1, 1e3], np.float32)
    space = spaces.Box(low, high)
    spec = action_spec(space)
    actions = np.random.default_rng(0).uniform(-1.5, 1.5, (2000, 3)).astype(np.float32)
    given = to_env(spec, np.concatenate([actions, np.full((1, 3), 1, np.float32)]))
    assert all(space.contains(row) for row in given)
    np.testing.assert_array_equal(given[-1], high)


def test_scaled_actions_never_leave_a_box_of_float64() -> None:
    """0.1 and 0.7 in float32 are a little more than in float64, and −0.1 a little less."""
    space = spaces.Box(np.array([-0.1, 0.7]), np.array([0.1, 0.7]), dtype=np.float64)
    wide = spaces.Box(-0.1, 0.1, (2,), np.float64)
    ends = np.array([[-2, -2], [2, 2], [0, 0]], np.float32)
    assert all(wide.contains(row.astype(np.float64)) for row in to_env(action_spec(wide), ends))
    given = to_env(action_spec(space), ends)
    assert all(space.low[0] <= number <= space.high[0] for number in given[:, 0].astype(np.float64))
    np.testing.assert_allclose(given[:, 1], 0.7)  # no float32 lies within: the nearest


REFUSED_ACTIONS = {
    "tuple": (spaces.Tuple((spaces.Discrete(2),)), "TransformAction"),
    "dict": (spaces.Dict(a=spaces.Discrete(2)), "TransformAction"),
    "text": (spaces.Text(3), "Discrete, MultiDiscrete, MultiBinary"),
    "unbounded": (spaces.Box(-np.inf, np.inf, (2,)), "finite low and high"),
    "unbounded above": (spaces.Box(0, np.inf, (2,)), "finite low and high"),
    "as good as unbounded": (spaces.Box(-3e38, 3e38, (1,)), "finite low and high"),
    "whole numbers": (spaces.Box(0, 9, (2,), np.int64), "declare it as MultiDiscrete"),
    "nothing": (spaces.Box(0, 1, (0,)), "give one that does"),
}


@pytest.mark.parametrize("name", REFUSED_ACTIONS)
def test_every_other_action_space_is_refused_with_a_remedy(name: str) -> None:
    space, remedy = REFUSED_ACTIONS[name]
    with pytest.raises(ControlError, match=remedy) as raised:
        action_spec(space)
    assert str(space) in str(raised.value)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_action_that_is_not_finite_is_refused(value: float) -> None:
    spec = ActionSpec("box", low=(-1.0,), high=(1.0,), shape=(1,))
    with pytest.raises(ControlError, match="lower its learning rate"):
        to_env(spec, np.array([[value]], np.float32))


def test_actions_of_another_shape_are_refused() -> None:
    with pytest.raises(ControlError, match="one per slot"):
        to_env(action_spec(spaces.Discrete(3)), np.zeros((2, 1), np.int64))


def test_an_action_spec_survives_json() -> None:
    import json

    for space in (
        spaces.Box(-2, 2, (2, 1)),
        spaces.MultiDiscrete(np.array([[2, 3]]), start=np.array([[1, 2]])),
    ):
        spec = action_spec(space)
        assert ActionSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
