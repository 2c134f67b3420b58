"""Replay memory: steps in preallocated arrays, sampled as n-step transitions.

Invariants: every observation is stored once. A step's next observation is the next row of its slot. Where the
episode ended, or the slot was reset from outside, it is in a side table instead. So a cut episode is
bootstrapped from its own last observation, never from the first one of the next episode.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.control.core.contract import EnvSpec, Flags, Step
from onward.control.core.spaces import Obs, copy, put, rows_of, take, zeros
from onward.control.core.streams import Streams
from onward.control.core.sum_tree import SumTree
from onward.errors import ControlError
from onward.memory import free_memory

RUNNING, TERMINATED, CUT, DEAD = 0, 1, 2, 3  # endings of a stored step; a dead slot's rows are never sampled
_log = logging.getLogger(__name__)


@dataclass
class Batch:
    """Sampled n-step transitions; every array has one row each."""

    obs: Any
    actions: Any
    """``discrete``: (B,) int64; other discrete kinds: (B, dim) int64; ``box``: (B, dim) float32 in −1 … 1."""
    returns: Any
    """(B,) r₀ + γ r₁ + … over m ≤ n steps; the sum stops at the end of the episode or at the newest step."""
    next_obs: Any
    """(B, …) observations after the m-th step."""
    discount: Any
    """(B,) γᵐ, or 0 where the m-th step terminated the episode: a target is returns + discount · value."""
    weights: Any
    """(B,) importance weights of prioritised sampling; None where sampling is uniform."""
    rows: NDArray[np.int64]
    """(B,) rows in the memory, for ``Replay.set_priorities``."""
    next_mask: Any = None
    """(B, actions) legal actions in ``next_obs``; None where the environment has no masks."""
    streams: Any = None
    """Name → (B,) numbers beside the reward, summed as ``returns``; None where there are none."""

    def tensors(self) -> Batch:
        """Returns the batch as torch tensors that share the memory; ``rows`` stays an array."""
        import torch

        def convert(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: torch.from_numpy(array) for key, array in value.items()}
            return None if value is None else torch.from_numpy(value)

        fields = {name: convert(value) for name, value in vars(self).items() if name != "rows"}
        return Batch(rows=self.rows, **fields)

    def pieces(self, size: int) -> Iterator[Batch]:
        """Yields consecutive batches of ``size``: a burst of updates is sampled once and split here."""

        def cut(value: Any, part: slice) -> Any:
            return (
                {key: array[part] for key, array in value.items()} if isinstance(value, dict) else value[part]
            )

        there = {name: value for name, value in vars(self).items() if value is not None}
        absent: dict[str, Any] = dict.fromkeys(vars(self).keys() - there.keys())
        for start in range(0, len(self.rows), size):
            part = slice(start, start + size)
            yield Batch(**{name: cut(value, part) for name, value in there.items()}, **absent)


def replay_bytes(spec: EnvSpec, capacity: int) -> int:
    """Returns the bytes of a memory of ``capacity`` steps, without the side table of last observations."""
    layout, actions = spec.layout, spec.actions
    obs = 4 * layout.width + sum(int(np.prod(shape)) for _, shape in layout.images)
    return capacity * (obs + (4 if actions.kind == "box" else 8) * actions.dim + 4 + 1 + 4)


class Replay:
    """The last ``capacity`` steps over ``num`` slots, sampled as n-step transitions with discount ``gamma``.

    ``prioritised``: transitions are sampled with probability ∝ (|error| + 1e-6)^``alpha`` (Schaul et al.
    2016, section 3.3) instead of uniformly. Raises ControlError, before anything is allocated, where the
    memory would be larger than ``memory_limit`` bytes (default: the free memory).
    """

    def __init__(
        self,
        spec: EnvSpec,
        num: int,
        capacity: int,
        rng: np.random.Generator,
        *,
        gamma: float = 0.99,
        n_step: int = 1,
        prioritised: bool = False,
        alpha: float = 0.6,
        memory_limit: int | None = None,
    ) -> None:
        if capacity < num or n_step < 1:
            raise ControlError(
                f"A replay memory of {capacity} steps for {num} environments with n_step {n_step}: "
                "it needs at least one step per environment, and n_step of 1 or more."
            )
        self.size_text = _checked_size(spec, capacity, memory_limit)
        _log.info(self.size_text)
        self.gamma, self.n_step, self.num = gamma, n_step, num
        self.rows = capacity // num + 1  # one more: the newest observation, which has no action yet
        self._rng = rng
        self._layout = spec.layout
        self._box = spec.actions.kind == "box"
        cells = self.rows * num
        self._obs = zeros(spec.layout, (cells,))
        shape = () if spec.actions.kind == "discrete" else (spec.actions.dim,)
        self._actions = np.zeros((cells, *shape), np.float32 if self._box else np.int64)
        self._rewards = np.zeros(cells, np.float32)
        self._ending = np.zeros(cells, np.uint8)
        self._final_at = np.full(cells, -1, np.int32)
        self._finals = zeros(spec.layout, (0,))
        self._free: list[int] = []
        self._masks: Flags | None = None
        self._streams: Streams = {}
        self._head = 0  # the row that the next step is written to
        self._filled = 0  # rows that hold steps
        self.alive: Flags | None = None  # slots that act next; None: all
        self._expected: Obs | None = None
        self._tree = SumTree(cells) if prioritised else None
        self._alpha = alpha
        self._top_priority = 1.0

    def __len__(self) -> int:
        """Number of stored steps."""
        return self._filled * self.num

    def add(self, obs: Obs, actions: NDArray[Any], step: Step) -> None:
        """Stores the step that ``actions`` in ``obs`` produced. Box actions are clipped to −1 … 1.

        Where ``obs`` differs from the last step's observation (the environments were reset from outside), the
        last step counts as cut.
        """
        cells = self._cells(self._head)
        if self._filled and obs is not self._expected:
            self._cut_where_changed(obs)
        put(self._obs, cells, obs)
        self._actions[cells] = np.clip(actions, -1.0, 1.0) if self._box else actions
        self._rewards[cells] = step.reward
        for name in step.streams:
            self._streams.setdefault(name, np.zeros(len(self._rewards), np.float32))
        for name, stored in self._streams.items():
            stored[cells] = step.streams.get(name, 0.0)
        ending = np.where(step.terminated, TERMINATED, np.where(step.truncated, CUT, RUNNING))
        if self.alive is not None:
            ending[~self.alive] = DEAD
        self._ending[cells] = ending
        if step.final_obs is not None:
            self._store_finals(cells.start + np.flatnonzero(step.ended), step.final_obs)
        if self._tree is not None:
            self._tree.set(
                np.arange(cells.start, cells.stop), np.where(ending == DEAD, 0, self._top_priority)
            )
        self._advance(step)

    def sample(self, size: int, beta: float = 0.4) -> Batch:
        """Samples ``size`` transitions, with replacement; ``beta``: exponent of the importance weights.

        Sampling is uniform over stored steps, or by priority, with weights (len · P(i))^−β divided by the
        largest of the batch (Schaul et al. 2016, algorithm 1). Raises ControlError where nothing is stored.
        """
        if not self._filled:
            raise ControlError("A replay memory was sampled before anything was added: add steps first.")
        weights = None
        if self._tree is None:
            cells = self._uniform(size)
        else:
            cells, probability = self._tree.sample(size, self._rng)
            weights = (len(self) * probability) ** -beta
            weights = (weights / weights.max()).astype(np.float32)
        (returns, *sums), last, discount = self._windows(cells)
        following = (last + self.num) % len(self._rewards)
        next_obs = take(self._obs, following)
        at = self._final_at[last]
        apart = np.flatnonzero(at >= 0)
        if len(apart):
            put(next_obs, apart, take(self._finals, at[apart]))
        next_mask = None
        if self._masks is not None:
            next_mask = self._masks[following]
            next_mask[apart] = True  # the legal actions at the end of a cut episode are unknown
        return Batch(
            take(self._obs, cells),
            self._actions[cells],
            returns,
            next_obs,
            discount,
            weights,
            cells,
            next_mask,
            dict(zip(self._streams, sums, strict=True)) or None,
        )

    def set_priorities(self, rows: NDArray[np.int64], errors: NDArray[Any]) -> None:
        """Sets new priorities from the temporal-difference errors of sampled ``rows``."""
        assert self._tree is not None
        priorities = (np.abs(errors).astype(np.float64) + 1e-6) ** self._alpha
        self._top_priority = max(self._top_priority, float(priorities.max()))
        self._tree.set(rows, priorities)

    def state_dict(self) -> dict[str, Any]:
        """Returns the whole state. Arrays are views: write or copy them before the next ``add``."""
        used = len(self._rewards) if self._filled == self.rows - 1 else (self._head + 1) * self.num
        return {
            "obs": take(self._obs, slice(0, used)),
            "actions": self._actions[:used],
            "rewards": self._rewards[:used],
            "ending": self._ending[:used],
            "final_at": self._final_at[:used],
            "finals": self._finals,
            "free": list(self._free),
            "masks": None if self._masks is None else self._masks[:used],
            "streams": {name: stored[:used] for name, stored in self._streams.items()},
            "head": self._head,
            "filled": self._filled,
            "alive": self.alive,
            "priorities": None if self._tree is None else self._tree.values()[:used],
            "top_priority": self._top_priority,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from ``state``. Raises ControlError where it comes from a memory of another size."""
        used = len(state["rewards"])
        if used > len(self._rewards) or used % self.num:
            raise ControlError(
                f"A replay memory of {len(self._rewards)} rows was given the state of one of {used}: "
                "resume with the same buffer size and number of environments."
            )
        part = slice(0, used)
        put(self._obs, part, state["obs"])
        for name in ("actions", "rewards", "ending", "final_at"):
            getattr(self, f"_{name}")[part] = state[name]
        self._finals = copy(state["finals"])
        self._free = list(state["free"])
        self._masks = None
        if state["masks"] is not None:
            self._masks = np.ones((len(self._rewards), state["masks"].shape[1]), bool)
            self._masks[part] = state["masks"]
        self._streams = {}
        for name, stored in state.get("streams", {}).items():
            self._streams[name] = np.zeros(len(self._rewards), np.float32)
            self._streams[name][part] = stored
        self._head, self._filled = int(state["head"]), int(state["filled"])
        self.alive = None if state["alive"] is None else np.array(state["alive"])
        self._expected = None
        if self._tree is not None:
            self._tree.set(np.arange(used), np.asarray(state["priorities"]))
        self._top_priority = float(state["top_priority"])
        self._rng.bit_generator.state = state["rng"]

    def _cells(self, row: int) -> slice:
        return slice(row * self.num, (row + 1) * self.num)

    def _uniform(self, size: int) -> NDArray[np.int64]:
        """Samples cells of slots that are alive. The oldest row follows the head's, which has no action."""
        oldest = (self._head - self._filled) % self.rows * self.num
        cells = (oldest + self._rng.integers(0, len(self), size)) % len(self._rewards)
        if self.alive is not None:
            while len(dead := np.flatnonzero(self._ending[cells] == DEAD)):
                cells[dead] = (oldest + self._rng.integers(0, len(self), len(dead))) % len(self._rewards)
        return cells

    def _windows(
        self, cells: NDArray[np.int64]
    ) -> tuple[list[NDArray[np.float32]], NDArray[np.int64], NDArray[np.float32]]:
        """Returns windows from ``cells``: (sums of the rewards and of each stream, cell of the last step, γᵐ
        or 0 if terminated)."""
        stored = [self._rewards, *self._streams.values()]
        sums = [values[cells] for values in stored]
        last = cells
        discount = np.full(len(cells), self.gamma, np.float32)
        if self.n_step > 1:
            last = cells.copy()
            newest = (self._head - 1) % self.rows
            going = np.arange(len(cells))
            for _ in range(self.n_step - 1):
                here = last[going]
                going = going[(self._ending[here] == RUNNING) & (here // self.num != newest)]
                if not len(going):
                    break
                last[going] = (last[going] + self.num) % len(self._rewards)
                for total, values in zip(sums, stored, strict=True):
                    total[going] += discount[going] * values[last[going]]
                discount[going] *= np.float32(self.gamma)
        discount *= self._ending[last] != TERMINATED
        return sums, last, discount

    def _advance(self, step: Step) -> None:
        self._head = (self._head + 1) % self.rows
        self._filled = min(self._filled + 1, self.rows - 1)
        cells = self._cells(self._head)  # this row holds the oldest step, if any: drop it
        gone = self._final_at[cells]
        self._free.extend(gone[gone >= 0].tolist())
        self._final_at[cells] = -1
        if self._tree is not None:
            self._tree.set(np.arange(cells.start, cells.stop), np.zeros(self.num))
        put(self._obs, cells, step.obs)
        if step.action_mask is not None and self._masks is None:
            self._masks = np.ones((len(self._rewards), step.action_mask.shape[1]), bool)
        if self._masks is not None:
            self._masks[cells] = True if step.action_mask is None else step.action_mask
        self.alive, self._expected = step.alive, step.obs

    def _store_finals(self, cells: NDArray[np.int64], finals: Obs) -> None:
        missing = len(cells) - len(self._free)
        if missing > 0:
            size = rows_of(self._finals)
            more = max(missing, 16, size // 2)
            grown = zeros(self._layout, (size + more,))
            put(grown, slice(0, size), self._finals)
            self._finals = grown
            self._free.extend(range(size + more - 1, size - 1, -1))
        at = np.array([self._free.pop() for _ in range(len(cells))], np.int32)
        self._final_at[cells] = at
        put(self._finals, at, finals)

    def _cut_where_changed(self, obs: Obs) -> None:
        """Cuts the last step where ``obs`` differs from its next one, which moves to the side table."""
        cells = self._cells(self._head)
        before = take(self._obs, cells)
        pairs = [(before[k], obs[k]) for k in before] if isinstance(before, dict) else [(before, obs)]
        changed = np.zeros(self.num, bool)
        for old, new in pairs:
            changed |= (old != new).reshape(self.num, -1).any(axis=1)
        last = self._cells((self._head - 1) % self.rows).start + np.arange(self.num)
        changed &= self._ending[last] == RUNNING
        if changed.any():
            self._store_finals(last[changed], take(before, changed))
            self._ending[last[changed]] = CUT


def _checked_size(spec: EnvSpec, capacity: int, limit: int | None) -> str:
    need = replay_bytes(spec, capacity)
    limit = free_memory() if limit is None else limit
    images = ", ".join(f"{'×'.join(map(str, shape))} bytes" for _, shape in spec.layout.images)
    numbers = f"{spec.layout.width} numbers" if spec.layout.width else ""
    each = " + ".join(part for part in (numbers, images) if part)
    text = f"Replay memory: {capacity:,} steps of {each}, {need / 1e6:,.1f} MB."
    if need > limit:
        most = capacity * limit // need
        raise ControlError(
            f"{text} {limit / 1e6:,.1f} MB are free: lower the buffer size to {most:,} steps or fewer."
        )
    return text
