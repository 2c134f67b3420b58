"""Named numbers of each step beside the reward: a cost to keep low, and the parts of a reward.

An environment reports them in a step's ``info``: ``cost``, one number, and ``rewards``, a dict of name →
number (anything else under that name is not for us). Here they become one array per name, under ``cost`` and
``reward_<name>``. Nothing learns from them by
itself: they are stored with the steps and logged as means per episode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.errors import EnvironmentFault

Streams = dict[str, NDArray[np.float32]]
"""Name → (N,) values of one step; a slot that reports nothing has 0."""


def streams_of(infos: Sequence[Mapping[str, Any]], env: str) -> Streams:
    """Collects the streams of N slots from their infos. Raises EnvironmentFault for a value that is no
    finite number; ``env`` names the environment there."""
    found: Streams = {}
    for slot, info in enumerate(infos):
        if "cost" in info or "rewards" in info:
            for name, value in _named(info).items():
                if name not in found:
                    found[name] = np.zeros(len(infos), np.float32)
                found[name][slot] = _number(value, name, slot, env)
    return found


def split_infos(infos: Mapping[str, Any], num: int) -> list[dict[str, Any]]:
    """Returns each slot's ``cost`` and ``rewards`` of a ``VectorEnv``'s infos.

    There a name is an array over slots, and ``_name`` marks the slots that have it. A slot that ended has its
    last ones in ``final_info``.
    """
    split: list[dict[str, Any]] = [{} for _ in range(num)]
    for source in (infos, infos.get("final_info", {})):
        if isinstance(source, Mapping):
            for slot in range(num):
                split[slot] |= _of_slot(source, slot)
    return split


def _of_slot(infos: Mapping[str, Any], slot: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("cost", "rewards"):
        if name in infos and (f"_{name}" not in infos or infos[f"_{name}"][slot]):
            value = infos[name]
            found[name] = (
                {key: value[key][slot] for key in value if not key.startswith("_")}
                if isinstance(value, Mapping)
                else value[slot]
            )
    return found


def _named(info: Mapping[str, Any]) -> dict[str, Any]:
    rewards = info.get("rewards")
    named = {f"reward_{name}": rewards[name] for name in rewards} if isinstance(rewards, Mapping) else {}
    return {**named, "cost": info["cost"]} if "cost" in info else named


def _number(value: Any, name: str, slot: int, env: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise EnvironmentFault(f"{env} gave {name} {value!r} in slot {slot}: give a finite number.")
    return number
