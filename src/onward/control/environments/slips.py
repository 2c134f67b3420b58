"""Slips in the data that an environment returns: each one as a sentence with its remedy.

These functions look at everything and are slow. ``CheckedEnv`` calls them only where its quick test fails,
``environments.check`` calls them at every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onward.control.core.spaces import ActionSpec, Layout, Leaf, part_of

MOST = float(np.finfo(np.float32).max)
"""Largest number that the buffers hold."""
_RESET = "return (observation, info) from reset, where info is a dict"
_STEP = "return (observation, reward, terminated, truncated, info) from step"


class Slip(NamedTuple):
    """One slip."""

    kind: str
    """Equal for equal slips at different steps."""
    what: str
    remedy: str


def of_reset(result: Any, layout: Layout) -> Iterator[Slip]:
    """Yields the slips in the result of ``reset``; the first one makes it unusable."""
    if not isinstance(result, tuple) or len(result) != 2:
        yield Slip("reset", f"reset returned {described(result)}", _RESET)
        return
    if not isinstance(result[1], dict):
        yield Slip("info", f"reset returned {described(result[1])} where info is expected", _RESET)
    yield from of_observation(result[0], layout)


def of_step(result: Any, layout: Layout) -> Iterator[Slip]:
    """Yields the slips in the result of ``step``."""
    if not isinstance(result, tuple) or len(result) != 5:
        yield Slip("step", f"step returned {described(result)}", _STEP)
        return
    raw, reward, terminated, truncated, info = result
    if not isinstance(info, dict):
        yield Slip("info", f"step returned {described(info)} where info, a dict, is expected", _STEP)
    yield from of_reward(reward)
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if not _is_flag(value):
            what = f"{name} is {described(value)}"
            yield Slip(name, what, f"return True or False, such as bool({name})")
    yield from of_observation(raw, layout)


def of_reward(value: Any) -> Iterator[Slip]:
    """Yields the slip of a reward that is no finite number."""
    remedy = "return one number, such as float(reward)"
    shape = getattr(value, "shape", ())
    if value is None or isinstance(value, str | bytes | dict | list | tuple | complex) or len(shape):
        yield Slip("reward", f"the reward is {described(value)}", remedy)
        return
    try:
        number = float(value)
    except (TypeError, ValueError):
        yield Slip("reward", f"the reward is {described(value)}", remedy)
        return
    if not -MOST <= number <= MOST:
        yield Slip("reward", f"the reward is {number}", "return a finite number")


def _is_flag(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return True
    if isinstance(value, np.ndarray):
        return value.shape == () and value.dtype.kind == "b"
    return isinstance(value, int | np.integer) and value in (0, 1)


def of_observation(raw: Any, layout: Layout) -> Iterator[Slip]:
    """Yields at most one slip for each part of an observation."""
    for leaf in layout.leaves:
        where = f"observation part {'/'.join(map(str, leaf.path))!r}" if leaf.path else "observation"
        for what, remedy in _of_part(raw, leaf):
            yield Slip(where, f"the {where} {what}", remedy)
            break


def _of_part(raw: Any, leaf: Leaf) -> Iterator[tuple[str, str]]:
    try:
        part = part_of(raw, leaf.path)
    except (KeyError, IndexError, TypeError):
        yield f"is missing in {described(raw)}", "return every part that observation_space declares"
        return
    try:
        value = np.asarray(part)
    except (TypeError, ValueError):  # a ragged list, or an object that cannot become an array
        value = np.empty(0, object)
    if value.dtype.kind not in "fiub":
        yield f"is {described(part)}", "return an array of numbers"
        return
    if value.shape != leaf.shape:
        declared = f"where observation_space declares {leaf.shape}"
        remedy = "return the declared shape, or correct observation_space"
        yield f"has the shape {value.shape} {declared}", remedy
        return
    yield from {"image": _of_image, "one_hot": _of_choices, "numbers": _of_numbers}[leaf.kind](leaf, value)


def _of_image(leaf: Leaf, value: NDArray[Any]) -> Iterator[tuple[str, str]]:
    if value.dtype.kind == "f":
        remedy = "return bytes, such as (255 * picture).astype(numpy.uint8), or declare a Box of float32"
        yield f"is {value.dtype}, where observation_space declares uint8 (0 … 255)", remedy
    elif value.dtype != np.uint8 and value.size and (value.min() < 0 or value.max() > 255):
        found = f"{value.min()} … {value.max()}"
        yield f"holds {found}, where observation_space declares uint8 (0 … 255)", "return bytes from 0 to 255"


def _of_choices(leaf: Leaf, value: NDArray[Any]) -> Iterator[tuple[str, str]]:
    index = value.ravel() - np.asarray(leaf.start)
    if (index != np.floor(index)).any() or (index < 0).any() or (index >= np.asarray(leaf.sizes)).any():
        sizes = leaf.sizes[0] if len(leaf.sizes) == 1 else leaf.sizes
        start = leaf.start[0] if len(leaf.start) == 1 else leaf.start
        yield f"is {value.tolist()} where it has {sizes} choices from {start} on", "correct observation_space"


def _of_numbers(leaf: Leaf, value: NDArray[Any]) -> Iterator[tuple[str, str]]:
    with np.errstate(over="ignore"):
        finite = np.isfinite(value.astype(np.float32))
    if not finite.all():
        at = tuple(np.argwhere(~finite)[0].tolist())
        yield f"holds {value[at]}{placed(at)}", "return finite numbers"


def of_mask(mask: Any, actions: ActionSpec) -> Iterator[Slip]:
    """Yields the slip of ``info["action_mask"]``."""
    size = sum(actions.sizes)
    given = np.asarray(mask)
    if not size:
        yield Slip("mask", "info['action_mask'] is given with a Box of actions", "leave it out")
    elif given.dtype.kind not in "fiub" or given.size != size:
        what = f"info['action_mask'] is {described(mask)}"
        yield Slip("mask", what, f"give {size} values, one per choice")
    elif not all(part.any() for part in np.split(given.ravel(), np.cumsum(actions.sizes)[:-1])):
        yield Slip("mask", "info['action_mask'] allows no action", "allow at least one in every component")


def described(value: Any) -> str:
    """Describes the kind of a value, without its contents."""
    if value is None:
        return "None"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)} values"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"an array of shape {shape}"
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def placed(at: tuple[int, ...]) -> str:
    """Returns `` at position 2`` or `` at position [0, 1]``, and nothing for a single number."""
    return f" at position {at[0] if len(at) == 1 else list(at)}" if at else ""
