"""Greedy episodes on unseen seeds: the measure of success, transfer and robustness under noise.

Invariants: every slot plays a quota of episodes fixed in advance. Taking the first hundred episodes that end
would favour short ones, which are the failures of some tasks and the successes of others. Returns are raw,
the policy's normaliser is frozen, and seeds come from a branch of the seed tree that training never uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from onward.control.core.contract import LONGEST_EPISODE, Environments, EnvSpec, Flags, Step
from onward.control.core.normalise import RunningNorm
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import ActionSpec, Obs, rows_of
from onward.errors import ControlError

EPISODES = 100
SLOTS = 20
NOISE = 0.2
"""Deviation of observation noise, in running deviations of each number."""


class Actor(Protocol):
    """Anything that can be evaluated: a ``Policy``, a peer library's model, the random policy."""

    def act_flat(
        self, obs: Obs, mask: NDArray[Any] | None = None, deterministic: bool = True
    ) -> NDArray[Any]:
        """Returns actions (N, …) in the format of ``ActionSpec``."""
        ...


# Success.


class SuccessRule(Protocol):
    """Decides whether an episode succeeded."""

    @property
    def words(self) -> str:
        """The rule in words, for people."""
        ...

    def start(self, num: int) -> None: ...

    def observe(self, step: Step) -> None: ...

    def success(self, episode_return: float, slot: int) -> bool | None:
        """Returns None where the environment reported nothing."""
        ...


class AtLeast:
    """Success where the episode's return is at least ``threshold``."""

    def __init__(self, threshold: float) -> None:
        """Raises ControlError for a threshold that is not finite: no or every episode would reach it."""
        if not np.isfinite(threshold):
            raise ControlError(f"The threshold of success is {threshold}: give a finite number.")
        self.threshold = threshold
        self.words = f"return ≥ {threshold:g}"

    def start(self, num: int) -> None: ...

    def observe(self, step: Step) -> None: ...

    def success(self, episode_return: float, slot: int) -> bool:
        return episode_return >= self.threshold - 1e-6


class Upright:
    """Success in Pendulum: upright (cos θ ≥ 0.95, within 18°) at each of the last 50 steps of the episode.

    The return alone shows where the episode started, not whether the pendulum was swung up.
    """

    words = "upright (cos θ ≥ 0.95) at each of the last 50 steps"
    STEPS, COSINE = 50, 0.95

    def start(self, num: int) -> None:
        self._streak = np.zeros(num, np.int64)
        self._before = self._streak

    def observe(self, step: Step) -> None:
        obs = step.next_obs()
        assert not isinstance(obs, dict)
        self._before = np.where(obs[:, 0] >= self.COSINE, self._streak + 1, 0)
        self._streak = np.where(step.ended, 0, self._before)

    def success(self, episode_return: float, slot: int) -> bool:
        return bool(self._before[slot] >= self.STEPS)


class ByInfo:
    """Success by ``info["success"]`` or ``info["is_success"]`` of the last step.

    Many environments report only successes, so an episode without a report failed if others have one. Where
    no episode has one, ``otherwise`` decides.
    """

    KEYS = ("is_success", "success")

    def __init__(self, otherwise: AtLeast | None) -> None:
        self._otherwise = otherwise
        self._reported: dict[int, bool] = {}
        self._reports = False

    @property
    def words(self) -> str:
        """The rule that decided last; before any episode, that of ``otherwise``."""
        if self._reports:
            return "info['success'] of the last step"
        return "" if self._otherwise is None else self._otherwise.words

    def start(self, num: int) -> None:
        self._reported = {}

    def observe(self, step: Step) -> None:
        for slot, info in step.info.get("final_info", {}).items():
            self._reported.pop(slot, None)
            for key in self.KEYS:
                if info.get(key) is not None:
                    self._reported[slot], self._reports = bool(np.all(info[key])), True

    def success(self, episode_return: float, slot: int) -> bool | None:
        return self._reported.get(slot)

    def settle(self, reported: Sequence[bool | None], returns: Sequence[float]) -> list[bool] | None:
        """Returns the successes of all episodes, given their reports; None where nothing says."""
        if self._reports:
            return [bool(one) for one in reported]
        if self._otherwise is None:
            return None
        return [self._otherwise.success(one, 0) for one in returns]


RULES: dict[str, type[Upright]] = {"Pendulum-v1": Upright}
SOLVE_BARS = {"Pendulum-v1": -200.0}
"""Mean returns that count as solved, where Gymnasium names none."""


def success_rule(spec: EnvSpec, threshold: float | None = None) -> SuccessRule:
    """Returns the rule of ``threshold``, else the task's, else the environment's own report, else that of
    Gymnasium's threshold, if any."""
    if threshold is not None:
        return AtLeast(threshold)
    if spec.id in RULES:
        return RULES[spec.id]()
    return ByInfo(None if spec.threshold is None else AtLeast(spec.threshold))


def solve_bar(spec: EnvSpec) -> float | None:
    """Returns the mean return at which ``spec`` counts as solved."""
    return SOLVE_BARS.get(spec.id, spec.threshold)


# Episodes.


class EvaluationStopped(Exception):
    """An evaluation was stopped before its last episode ended."""


@dataclass(frozen=True)
class Episodes:
    """Results of the episodes played, ordered by slot, then by time."""

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    successes: NDArray[np.bool_] | None
    """None where no rule says what success is."""
    met: RunningNorm | None
    """Statistics of the numbers in the observations acted on; None where there are only images."""

    @property
    def mean(self) -> float:
        return float(self.returns.mean())

    @property
    def success(self) -> float | None:
        """Share of the episodes that succeeded."""
        return None if self.successes is None else float(self.successes.mean())


def play(
    actor: Actor,
    env: Environments,
    episodes: int = EPISODES,
    seed: int = 0,
    *,
    deterministic: bool = True,
    rule: SuccessRule | None = None,
    noise: NDArray[Any] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Episodes:
    """Plays ``episodes`` episodes in ``env``, divided among its slots before the first step.

    ``noise``: (width,) deviation of Gaussian noise on the numbers that the actor sees; the environment itself
    is unchanged. ``stopped`` is asked at every step. Raises ControlError for fewer than one episode and
    EvaluationStopped once ``stopped`` is true.
    """
    if episodes < 1:
        raise ControlError(f"{episodes} episodes were asked for: give at least 1.")
    seeds = Seeds(seed).child("evaluation")
    disturb = _Noise(noise, seeds) if noise is not None else None
    quota = np.full(env.num, episodes // env.num) + (np.arange(env.num) < episodes % env.num)
    record = _Record(env, rule)
    obs, mask = env.reset(seeds.integer("env"))
    while (left := quota > record.counts).any():
        if stopped():
            raise EvaluationStopped
        record.meet(obs, left)
        actions = actor.act_flat(obs if disturb is None else disturb(obs), mask, deterministic)
        step = env.step(actions)
        record.add(step, left)
        if env.spec.max_steps is None and record.longest > LONGEST_EPISODE:
            raise ControlError(
                f"An evaluation episode of {env.spec.id} did not end within {LONGEST_EPISODE:,} steps: "
                f"give it a limit (--env-set max_episode_steps=1000)."
            )
        obs, mask = step.obs, step.action_mask
    return record.episodes()


class _Record:
    """Sums of the running episodes, and results of the finished ones that count."""

    def __init__(self, env: Environments, rule: SuccessRule | None) -> None:
        self.counts = np.zeros(env.num, np.int64)
        self._sums, self._lengths = np.zeros(env.num), np.zeros(env.num, np.int64)
        self._done: list[list[tuple[float, int, bool | None]]] = [[] for _ in range(env.num)]
        self._rule = rule
        width = env.spec.layout.width
        self._met = RunningNorm(width) if width else None
        if rule is not None:
            rule.start(env.num)

    def meet(self, obs: Obs, left: Flags) -> None:
        if self._met is not None:
            self._met.update_obs(obs, left)

    def add(self, step: Step, left: Flags) -> None:
        self._sums += step.reward
        self._lengths += 1 if step.alive is None else step.alive
        if self._rule is not None:
            self._rule.observe(step)
        ended = step.ended
        for slot in np.flatnonzero(ended & left):
            total = float(self._sums[slot])
            success = None if self._rule is None else self._rule.success(total, int(slot))
            self._done[slot].append((total, int(self._lengths[slot]), success))
            self.counts[slot] += 1
        self._sums[ended], self._lengths[ended] = 0.0, 0

    @property
    def longest(self) -> int:
        """Steps of the longest running episode."""
        return int(self._lengths.max())

    def episodes(self) -> Episodes:
        returns, lengths, successes = zip(*(one for slot in self._done for one in slot), strict=True)
        if isinstance(self._rule, ByInfo):
            successes = self._rule.settle(successes, returns)
        known = None if self._rule is None or successes is None else np.array(successes, np.bool_)
        return Episodes(np.array(returns), np.array(lengths), known, self._met)


class _Noise:
    def __init__(self, deviation: NDArray[Any], seeds: Seeds) -> None:
        self._deviation = np.asarray(deviation, np.float32)
        self._generator = seeds.generator("noise")

    def __call__(self, obs: Obs) -> Obs:
        numbers = obs["vector"] if isinstance(obs, dict) else obs
        noisy = numbers + self._deviation * self._generator.standard_normal(numbers.shape, np.float32)
        return {**obs, "vector": noisy} if isinstance(obs, dict) else noisy


class RandomActor:
    """Actor that chooses uniformly among the legal actions: the baseline of every ratio."""

    def __init__(self, actions: ActionSpec, seed: int = 0) -> None:
        self._actions = actions
        self._generator = Seeds(seed).child("evaluation").generator("random actor")

    def act_flat(
        self, obs: Obs, mask: NDArray[Any] | None = None, deterministic: bool = True
    ) -> NDArray[Any]:
        num, spec = rows_of(obs), self._actions
        if spec.kind == "box":
            return self._generator.uniform(-1, 1, (num, spec.dim)).astype(np.float32)
        if mask is not None or spec.kind == "discrete":
            chance = self._generator.random((num, sum(spec.sizes)))
            chance = chance if mask is None else np.where(mask, chance, -1.0)
            parts = np.split(chance, np.cumsum(spec.sizes)[:-1], axis=1)
            drawn = np.stack([part.argmax(axis=1) for part in parts], axis=1)
            return drawn[:, 0] if spec.kind == "discrete" else drawn
        return self._generator.integers(0, np.array(spec.sizes), (num, spec.dim))
