"""Gymnasium spaces in the form that networks and buffers use: flat observations, and four kinds of action.

An ``Obs`` is one float32 array (N, width) unless the space holds images. Then it is a dict with ``"vector"``
(if there is any other part) and one uint8 array (N, height, width, channels) per image. A stack of images,
which has four axes, is one image with the channels of all of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from onward.errors import ControlError

if TYPE_CHECKING:
    from gymnasium import Space

Obs = NDArray[Any] | dict[str, NDArray[Any]]
ActionKind = Literal["discrete", "multi_discrete", "multi_binary", "box"]
LeafKind = Literal["numbers", "one_hot", "image"]

LARGEST_ONE_HOT = 1 << 16
"""Most choices that an observation may have: a one-hot row of more would fill the memory."""


@dataclass(frozen=True)
class Leaf:
    """One part of an environment's own observation, and its flattening."""

    path: tuple[str | int, ...]
    """Keys and positions of the part within Dict and Tuple spaces."""
    kind: LeafKind
    shape: tuple[int, ...]
    """Shape in the environment's own observation."""
    sizes: tuple[int, ...] = ()
    """Choices per component, for ``one_hot`` and for ``numbers`` that are only 0 and 1; else empty."""
    start: tuple[int, ...] = ()
    """Smallest value per component of ``one_hot``."""
    key: str = ""
    """Key of an ``image`` in ``Obs``."""
    channels_first: bool = False
    """True where each frame of the environment's ``image`` is (channels, height, width)."""

    @property
    def countable(self) -> bool:
        """True where the part takes finitely many values."""
        return bool(self.sizes)

    @property
    def width(self) -> int:
        """Numbers that the part adds to the float32 part."""
        if self.kind == "image":
            return 0
        return sum(self.sizes) if self.kind == "one_hot" else prod(self.shape)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of an image; a stack of frames adds up their channels."""
        if len(self.shape) == 2:
            return (*self.shape, 1)
        frames = self.shape[0] if len(self.shape) == 4 else 1
        first, second, third = self.shape[-3:]
        height, width, channels = (second, third, first) if self.channels_first else (first, second, third)
        return height, width, frames * channels

    def images(self, values: NDArray[Any]) -> NDArray[Any]:
        """Returns (N, height, width, channels) from (N, *shape) of an image."""
        if self.channels_first:
            values = np.moveaxis(values, -3, -1)
        if len(self.shape) == 4:  # (N, frames, height, width, channels)
            values = np.moveaxis(values, 1, -2)
        return values.reshape(len(values), *self.image_shape)


@dataclass(frozen=True)
class Layout:
    """Shape of one flattened observation."""

    width: int
    """Numbers in the float32 part; 0 where there are only images."""
    images: tuple[tuple[str, tuple[int, int, int]], ...] = ()
    """(key, (height, width, channels)) of each uint8 image."""
    leaves: tuple[Leaf, ...] = ()
    """Source of each part, in order; ``ObsFlattener`` reads it."""

    @property
    def flat(self) -> bool:
        """True where an observation is one float32 array."""
        return not self.images

    def to_json(self) -> dict[str, Any]:
        """Returns plain lists and dicts, which ``from_json`` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Layout:
        """Restores a layout from the result of ``to_json``."""
        images = tuple((key, (int(h), int(w), int(c))) for key, (h, w, c) in data["images"])
        leaves = tuple(Leaf(**_tuples(leaf)) for leaf in data.get("leaves", ()))
        return cls(int(data["width"]), images, leaves)


@dataclass(frozen=True)
class ActionSpec:
    """Format of a policy's actions, per kind of action space:

    - ``discrete``: int64 (N,), 0 … sizes[0]−1 (a space's ``start`` is added on the way to the environment);
    - ``multi_discrete``: int64 (N, len(sizes)); ``multi_binary``: int64 (N, len(sizes)) of 0 and 1;
    - ``box``: float32 (N, dim) where −1 … 1 is ``low`` … ``high``; outside is clipped on the way to the
      environment only, so a stored action is the one whose log-prob was taken.
    """

    kind: ActionKind
    sizes: tuple[int, ...] = ()
    """Choices per component (2 each for ``multi_binary``); empty for ``box``."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    """Bounds of ``box``, flattened; always finite."""
    shape: tuple[int, ...] = ()
    """Shape of one action in the environment's own space."""
    start: tuple[int, ...] = ()
    """Smallest value per discrete component."""

    @property
    def dim(self) -> int:
        """Numbers in one action."""
        return len(self.low) if self.kind == "box" else len(self.sizes)

    def to_json(self) -> dict[str, Any]:
        """Returns plain lists and dicts, which ``from_json`` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ActionSpec:
        """Restores a specification from the result of ``to_json``."""
        return cls(**_tuples(data))


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


# Observations


def layout_of(space: Space[Any]) -> Layout:
    """Returns the flattened layout of ``space``. Raises ControlError where it cannot be flattened."""
    leaves = tuple(_leaves(space, ()))
    images = tuple((leaf.key, leaf.image_shape) for leaf in leaves if leaf.kind == "image")
    width = sum(leaf.width for leaf in leaves)
    if not width and not images:
        raise ControlError(f"The observation space {space} holds no numbers: give one that does.")
    keys = [key for key, _ in images]
    if len(set(keys)) < len(keys):
        raise ControlError(
            f"Two images of the observation space are named {max(keys, key=keys.count)!r}: rename one key."
        )
    return Layout(width, images, leaves)


def _leaves(space: Space[Any], path: tuple[str | int, ...]) -> list[Leaf]:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return [leaf for key, part in space.spaces.items() for leaf in _leaves(part, (*path, key))]
    if isinstance(space, spaces.Tuple):
        return [leaf for at, part in enumerate(space.spaces) for leaf in _leaves(part, (*path, at))]
    if isinstance(space, spaces.Box):
        return [_box_leaf(space, path)]
    if isinstance(space, spaces.Discrete):
        return [_one_hot(path, (), (int(space.n),), (int(space.start),))]
    if isinstance(space, spaces.MultiDiscrete):
        start = tuple(np.asarray(space.start).ravel().tolist())
        return [_one_hot(path, space.nvec.shape, tuple(space.nvec.ravel().tolist()), start)]
    if isinstance(space, spaces.MultiBinary):
        return [Leaf(path, "numbers", tuple(space.shape), sizes=(2,) * prod(space.shape))]
    where = f" at {'/'.join(map(str, path))!r}" if path else ""
    raise ControlError(
        f"The observation space {space}{where} cannot be flattened; Box, Discrete, MultiDiscrete, "
        f"MultiBinary, Dict and Tuple can: turn it into a Box with gymnasium.wrappers.TransformObservation."
    )


def _box_leaf(space: Any, path: tuple[str | int, ...]) -> Leaf:
    shape = tuple(int(size) for size in space.shape)
    if space.dtype != np.uint8 or len(shape) not in (2, 3, 4):
        return Leaf(path, "numbers", shape)
    key = "/".join(map(str, path)) or "image"
    if key == "vector":
        key = "vector/image"
    frame = shape[-3:]
    first = len(frame) == 3 and frame[0] < min(frame[1:]) and frame[2] > 4
    return Leaf(path, "image", shape, key=key, channels_first=first)


def _one_hot(path: tuple[str | int, ...], shape: tuple[int, ...], sizes: tuple[int, ...], start: Any) -> Leaf:
    if sum(sizes) > LARGEST_ONE_HOT:
        raise ControlError(
            f"A part of {sum(sizes)} choices is too wide for one-hot rows (at most {LARGEST_ONE_HOT}): "
            f"wrap the environment so that it gives numbers (a Box) instead."
        )
    return Leaf(path, "one_hot", tuple(shape), sizes, start)


class ObsFlattener:
    """Converts an environment's own observations to ``Obs``. Results are always copies, never views."""

    def __init__(self, space: Space[Any] | Layout) -> None:
        """Raises ControlError where ``space`` cannot be flattened."""
        self.layout = space if isinstance(space, Layout) else layout_of(space)
        leaves = self.layout.leaves
        if not leaves:
            raise ControlError(
                "This layout does not say where its parts come from: make it with layout_of(space)."
            )
        self._plain = len(leaves) == 1 and leaves[0].path == () and leaves[0].kind == "numbers"

    def batch(self, raw: Any, num: int) -> Obs:
        """Converts a vector environment's observation (leading axis N in every part) to ``Obs`` (N, …)."""
        out = zeros(self.layout, (num,))
        self._write(raw, out, slice(None), num)
        return out

    def single(self, raw: Any) -> Obs:
        """Converts one observation to ``Obs`` (1, …)."""
        out = zeros(self.layout, (1,))
        self.write(raw, out, 0)
        return out

    def write(self, raw: Any, out: Obs, slot: int) -> None:
        """Writes one observation into row ``slot`` of ``out``."""
        if self._plain:
            assert not isinstance(out, dict)
            out[slot] = raw if self.layout.leaves[0].shape == (self.layout.width,) else np.ravel(raw)
        else:
            self._write(raw, out, slice(slot, slot + 1), 1)

    def holds_batch(self, raw: Any) -> bool:
        """True where ``raw`` has a leading axis of observations. Raises ControlError where no shape fits."""
        leaf = self.layout.leaves[0]
        shape = np.shape(part_of(raw, leaf.path))
        if shape == leaf.shape:
            return False
        if shape[1:] == leaf.shape:
            return True
        raise ControlError(
            f"An observation of shape {shape} was given where {leaf.shape} (one) or (N, …) was expected: "
            f"give it as the environment does."
        )

    def _write(self, raw: Any, out: Obs, rows: slice, num: int) -> None:
        vector = out.get("vector") if isinstance(out, dict) else out
        at = 0
        for leaf in self.layout.leaves:
            value = np.asarray(part_of(raw, leaf.path)).reshape(num, *leaf.shape)
            if leaf.kind == "image":
                assert isinstance(out, dict)
                out[leaf.key][rows] = leaf.images(value)
                continue
            assert vector is not None
            block = value.reshape(num, -1)
            vector[rows, at : at + leaf.width] = (
                block if leaf.kind == "numbers" else _one_hot_rows(leaf, block)
            )
            at += leaf.width


def part_of(raw: Any, path: tuple[str | int, ...]) -> Any:
    """Returns the part of an observation or of a space at ``path``."""
    for key in path:
        raw = raw[key]
    return raw


def _one_hot_rows(leaf: Leaf, values: NDArray[Any]) -> NDArray[np.float32]:
    index = values.astype(np.int64) - np.asarray(leaf.start, np.int64)
    sizes = np.asarray(leaf.sizes, np.int64)
    if (index < 0).any() or (index >= sizes).any():
        raise ControlError(
            f"The environment gave {values.tolist()} where it has {leaf.sizes} choices from {leaf.start}: "
            f"correct its observation_space."
        )
    out = np.zeros((len(values), leaf.width), np.float32)
    out[np.arange(len(values))[:, None], index + np.cumsum(sizes) - sizes] = 1.0
    return out


def zeros(layout: Layout, shape: tuple[int, ...]) -> Obs:
    """Returns zeros for observations with leading axes ``shape``: float32, and uint8 for images."""
    if layout.flat:
        return np.zeros((*shape, layout.width), np.float32)
    out: dict[str, NDArray[Any]] = {}
    if layout.width:
        out["vector"] = np.zeros((*shape, layout.width), np.float32)
    for key, image in layout.images:
        out[key] = np.zeros((*shape, *image), np.uint8)
    return out


def take(obs: Obs, index: Any) -> Obs:
    """Returns ``obs[index]`` of every part; a copy unless ``index`` is a slice."""
    if isinstance(obs, dict):
        return {key: array[index] for key, array in obs.items()}
    return obs[index]


def put(obs: Obs, index: Any, rows: Obs) -> None:
    """Assigns ``obs[index] = rows`` in every part."""
    if isinstance(obs, dict):
        assert isinstance(rows, dict)
        for key, array in obs.items():
            array[index] = rows[key]
    else:
        assert not isinstance(rows, dict)
        obs[index] = rows


def copy(obs: Obs) -> Obs:
    """Copies every part."""
    return {key: array.copy() for key, array in obs.items()} if isinstance(obs, dict) else obs.copy()


def rows_of(obs: Obs) -> int:
    """Returns N, the length of the leading axis."""
    return len(next(iter(obs.values()))) if isinstance(obs, dict) else len(obs)


# Actions


def action_spec(space: Space[Any]) -> ActionSpec:
    """Returns the format of actions for ``space``. Raises ControlError, with the remedy, if unsupported."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return ActionSpec("discrete", (int(space.n),), start=(int(space.start),))
    if isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(space.nvec.ravel().tolist())
        start = tuple(np.asarray(space.start).ravel().tolist())
        return ActionSpec("multi_discrete", sizes, shape=tuple(space.nvec.shape), start=start)
    if isinstance(space, spaces.MultiBinary):
        shape = tuple(int(size) for size in space.shape)
        return ActionSpec("multi_binary", (2,) * prod(shape), shape=shape, start=(0,) * prod(shape))
    if isinstance(space, spaces.Box):
        return _box_actions(space)
    raise ControlError(
        f"The action space {space} is not supported; Discrete, MultiDiscrete, MultiBinary and a bounded "
        f"Box are: turn Tuple and Dict actions into one of them with gymnasium.wrappers.TransformAction."
    )


def _box_actions(space: Any) -> ActionSpec:
    if not np.issubdtype(space.dtype, np.floating):
        raise ControlError(
            f"The action space {space} holds whole numbers: declare it as MultiDiscrete or a Box of float32."
        )
    low, high = (np.asarray(bound, np.float32).ravel() for bound in (space.low, space.high))
    with np.errstate(over="ignore", invalid="ignore"):
        bounded = np.isfinite(high - low).all()
    if not bounded:
        raise ControlError(
            f"The action space {space} has no bounds, so actions cannot be scaled to it: "
            f"give it finite low and high in the environment, or wrap it in gymnasium.wrappers."
            f"TransformAction(env, lambda action: action, gymnasium.spaces.Box(-1, 1, {space.shape}))."
        )
    if not low.size:
        raise ControlError(f"The action space {space} holds no numbers: give one that does.")
    # Rounding float64 bounds may move them outside the space, which would then reject the action.
    low = np.where(low < space.low.ravel(), np.nextafter(low, np.float32(np.inf)), low)
    high = np.where(high > space.high.ravel(), np.nextafter(high, np.float32(-np.inf)), high)
    return ActionSpec("box", low=tuple(low.tolist()), high=tuple(high.tolist()), shape=tuple(space.shape))


@lru_cache(maxsize=64)
def _bounds(spec: ActionSpec) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    low, high = np.asarray(spec.low, np.float32), np.asarray(spec.high, np.float32)
    return low, high, ((high - low) / 2).astype(np.float32)


def to_env(spec: ActionSpec, actions: NDArray[Any]) -> NDArray[Any]:
    """Converts a policy's actions (N, …) to the environments' (N, *shape): clipped, scaled, ``start`` added.

    Raises ControlError for a shape that does not fit and for numbers that are not finite.
    """
    expected = (len(actions),) if spec.kind == "discrete" else (len(actions), spec.dim)
    if actions.shape != expected:
        raise ControlError(
            f"Actions of shape {actions.shape} were given where {expected} was expected: one per slot."
        )
    if spec.kind == "discrete":
        return actions + spec.start[0] if spec.start[0] else actions
    if spec.kind == "box":
        if not np.isfinite(actions).all():
            raise ControlError(
                "An action is not a finite number: the policy has diverged; lower its learning rate."
            )
        low, high, half = _bounds(spec)
        scaled = low + (np.clip(actions, -1.0, 1.0) + np.float32(1.0)) * half
        return np.clip(scaled, low, high).reshape(-1, *spec.shape)
    moved = actions + np.asarray(spec.start, np.int64) if any(spec.start) else actions
    return moved.reshape(-1, *spec.shape)
