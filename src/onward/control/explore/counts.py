"""Visit counts of states that are too many to list: an exact table, or SimHash for vectors.

Invariants: a hash must not change while it is used for counting. The whitening under it is frozen once the
bonus is primed, and the planes of the hash are drawn once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.control.core.config import BonusConfig
from onward.control.core.contract import EnvSpec, Flags
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import Layout, Obs
from onward.control.explore.bonus import (
    Bonus,
    Floats,
    check_kind,
    flat_rows,
    living_rows,
)
from onward.control.explore.ucb import count_bonus
from onward.errors import ControlError


class SimHash:
    """Signs of ``bits`` random affine functions of a whitened vector (Charikar 2002; Tang et al. 2017).

    The planes have offsets, so states are distinguished by distance from the centre and not by direction
    alone.
    """

    def __init__(self, width: int, bits: int, generator: np.random.Generator) -> None:
        if bits < 1:
            raise ControlError(f"A hash of {bits} bits tells nothing apart: give at least 1.")
        self.planes = generator.standard_normal((width, bits), dtype=np.float32) / np.float32(np.sqrt(width))
        self.offsets = generator.standard_normal(bits, dtype=np.float32)

    def keys(self, rows: Floats) -> list[bytes]:
        """Returns one key per row of (M, width)."""
        return _split(np.packbits(rows @ self.planes + self.offsets > 0, axis=1))


def exact_keys(rows: NDArray[Any]) -> list[bytes]:
    """Returns one key per row of (M, width): equal numbers, equal key (and −0 is 0)."""
    return _split(np.ascontiguousarray(rows + 0.0, dtype=np.float32))


class Counts:
    """Counts per key, ``columns`` numbers each: 1 for visits, one per action for state-action pairs."""

    def __init__(self, columns: int = 1) -> None:
        self.total = 0
        """Sum of all counts."""
        self._row: dict[bytes, int] = {}
        self._table = np.zeros((256, columns), dtype=np.int64)

    def __len__(self) -> int:
        """Number of keys seen."""
        return len(self._row)

    def add(self, keys: list[bytes], columns: NDArray[np.int64] | int = 0) -> None:
        """Adds one visit for each (key, column); a key may occur several times."""
        rows = np.fromiter((self._row.setdefault(key, len(self._row)) for key in keys), np.int64, len(keys))
        while len(self._table) < len(self._row):
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        np.add.at(self._table.reshape(-1), rows * self._table.shape[1] + columns, 1)
        self.total += len(keys)

    def of(self, keys: list[bytes]) -> NDArray[np.int64]:
        """Returns (M, columns) counts; zeros for a key never seen."""
        rows = np.fromiter((self._row.get(key, -1) for key in keys), np.int64, len(keys))
        return np.where(rows[:, None] >= 0, self._table[rows], 0)

    def state_dict(self) -> dict[str, Any]:
        width = len(next(iter(self._row), b""))
        keys = np.frombuffer(b"".join(self._row), dtype=np.uint8).reshape(len(self._row), width)
        return {"keys": keys.copy(), "table": self._table[: len(self._row)].copy(), "total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        keys = np.asarray(state["keys"], dtype=np.uint8)
        self._row = {key: row for row, key in enumerate(_split(keys))}
        size = max(256, 1 << max(0, len(keys) - 1).bit_length())
        table = np.asarray(state["table"], dtype=np.int64)
        self._table = np.zeros((size, self._table.shape[1]), dtype=np.int64)
        self._table[: len(table)] = table
        self.total = int(state["total"])


def tabular(layout: Layout) -> bool:
    """True where every part of an observation is a choice (Discrete …), so that states can be listed."""
    return bool(layout.leaves) and all(leaf.kind == "one_hot" for leaf in layout.leaves)


class CountBonus(Bonus):
    """Bonus r⁺ = √(ln t / n(s')), the width of ``UCB1`` for the state after a step; t counts all steps."""

    episodic = True

    def __init__(self, spec: EnvSpec, config: BonusConfig, seeds: Seeds) -> None:
        self.exact = tabular(spec.layout)
        super().__init__(spec, config, 0 if self.exact else config.bonus_random_steps)
        self.hash = SimHash(len(self.norm.mean), config.bonus_features, seeds.generator("bonus"))
        self.counts = Counts()

    def observe(
        self, obs: Obs, actions: NDArray[Any], next_obs: Obs, ended: Flags, alive: Flags | None = None
    ) -> None:
        self.counts.add(self._keys(living_rows(flat_rows(next_obs, self.layout), alive)))

    def reward(self, obs: Obs, actions: NDArray[Any], next_obs: Obs) -> Floats:
        rows = flat_rows(next_obs, self.layout)
        counts = self.counts.of(self._keys(rows))[:, 0]
        bonus = count_bonus(np.maximum(1, counts), self.counts.total, 1.0)
        return bonus.reshape(rows.shape[:-1]).astype(np.float32)

    def update(self, obs: Obs, actions: NDArray[Any], next_obs: Obs) -> dict[str, float]:
        return {"bonus_states": float(len(self.counts))}

    def _keys(self, rows: Floats) -> list[bytes]:
        rows = rows.reshape(-1, rows.shape[-1])
        return exact_keys(rows) if self.exact else self.hash.keys(self.norm.normalise(rows, 5.0))

    def state_dict(self) -> dict[str, Any]:
        return {
            "bonus": "count",
            "norm": self.norm.state_dict(),
            "planes": self.hash.planes.copy(),
            "offsets": self.hash.offsets.copy(),
            "counts": self.counts.state_dict(),
            "primed_by": self.primed_by,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_kind(state, "count")
        self.norm.load_state_dict(state["norm"])
        self.hash.planes = np.array(state["planes"], dtype=np.float32)
        self.hash.offsets = np.array(state["offsets"], dtype=np.float32)
        self.counts.load_state_dict(state["counts"])
        self.primed_by = int(state["primed_by"])


def _split(array: NDArray[Any]) -> list[bytes]:
    """Returns the bytes of each row of a contiguous array."""
    data, width = array.tobytes(), array.shape[1] * array.itemsize
    return [data[at : at + width] for at in range(0, len(data), width)] if width else []
