"""The parts of a run from outside: its training environments, its algorithm, the play of its evaluations.

Tests and comparisons give a ``World`` of their own; ``world`` makes the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onward.control.algorithms.base import Algorithm
from onward.control.algorithms.registry import algorithm_class
from onward.control.core.contract import Environments
from onward.control.evaluation.evaluate import SLOTS, Episodes, play, success_rule
from onward.control.policies.policy import Policy
from onward.control.running.budget import FEWEST
from onward.control.running.runs import RunConfig


def _nothing() -> None: ...


@dataclass(frozen=True)
class World:
    """Sources of a run's environments, algorithm and evaluations."""

    envs: Callable[[int], Environments]
    """Makes the environments of a worker (0 unless asynchronous); picklable."""
    algorithm: type[Algorithm]
    evaluate: Callable[[Policy, int, int, Callable[[], bool]], Episodes]
    """Plays greedy episodes, given (policy, episodes, seed, stopped). Raises EvaluationStopped once
    ``stopped()`` is true."""
    close: Callable[[], None] = _nothing
    """Closes what ``evaluate`` opened, at the end of a run."""


def world(run: RunConfig, source: Any = None) -> World:
    """Returns the real world of a run; ``source``: what makes its environment instead of its id.

    Raises ControlError for an unknown algorithm.
    """
    source = run.env if source is None else source
    evaluate = _Evaluate(run, source)
    return World(_Make(run, source), algorithm_class(run.algorithm), evaluate, evaluate.close)


class _Make:
    """Makes the run's environments, in this process or in a worker."""

    def __init__(self, run: RunConfig, source: Any) -> None:
        self._run, self._source = run, source

    def __call__(self, worker: int) -> Environments:
        from onward.control.environments import NoisyObservations, make

        run = self._run
        processes = 1 if algorithm_class(run.algorithm).asynchronous else run.env_processes
        envs = make(self._source, run.settings.num_envs, env_kwargs=run.env_kwargs, processes=processes)
        return NoisyObservations(envs, run.obs_noise, relative=True) if run.obs_noise else envs


class _Evaluate:
    """Plays greedy episodes in separate environments without noise and shaping: one set of slots for whole
    evaluations, a smaller one for those that the budget shortened, since slots beyond their episodes are
    stepped all the same."""

    def __init__(self, run: RunConfig, source: Any) -> None:
        self._run, self._source = run, source
        self._envs: dict[int, Environments] = {}

    def __call__(
        self, policy: Policy, episodes: int, seed: int, stopped: Callable[[], bool] = lambda: False
    ) -> Episodes:
        from onward.control.environments import make

        run = self._run
        slots = FEWEST if episodes < min(SLOTS, run.eval_episodes) else SLOTS
        if slots not in self._envs:
            self._envs[slots] = make(
                self._source, slots, env_kwargs=run.env_kwargs, processes=run.env_processes
            )
            self._envs[slots].without_shaping()
        envs = self._envs[slots]
        rule = success_rule(envs.spec, run.threshold)
        return play(policy, envs, episodes, seed, rule=rule, stopped=stopped)

    def close(self) -> None:
        while self._envs:
            self._envs.popitem()[1].close()
