"""Interface of algorithms to the trainer: they act, observe, and update when enough was collected.

Invariants: the trainer does not know the algorithm. It requests actions, passes on their results, and calls
``update`` while ``due``. Time is counted in environment steps over all slots. Every schedule is a function of
``steps`` and ``total_steps``, never of the number of calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import NDArray

from onward.control.core.contract import Environments, EnvSpec, Flags, Step
from onward.control.core.normalise import RunningNorm
from onward.control.core.spaces import ActionKind, Obs
from onward.errors import ControlError

if TYPE_CHECKING:
    from onward.control.core.seeds import Seeds
    from onward.control.policies.policy import PolicyParts


class Algorithm(ABC):
    """A learning algorithm, made by ``cls(spec, num, config, seeds)``.

    A subclass names the action spaces it can learn in ``action_kinds`` (and, where it cannot take images,
    sets ``images`` to False). The trainer refuses everything else before anything is allocated.
    """

    action_kinds: ClassVar[tuple[ActionKind, ...]]
    images: ClassVar[bool] = True
    """True where observations with uint8 images can be learned from."""
    tabular: ClassVar[bool] = False
    """True where every state must be countable: discrete observations only."""
    asynchronous: ClassVar[bool] = False
    """True where the algorithm runs environments in processes of its own: see ``AsynchronousAlgorithm``."""

    config: Any
    """Settings: a dataclass of ``config.py``."""
    steps: int = 0
    """Environment steps observed so far, over all slots."""
    total_steps: int = 1
    """Environment steps of the whole run; the trainer sets it before the first ``act``."""

    @abstractmethod
    def __init__(self, spec: EnvSpec, num: int, config: Any, seeds: Seeds) -> None:
        """Creates the algorithm for ``num`` slots. Raises ControlError for spaces that it cannot learn."""

    @classmethod
    def learns(cls, spec: EnvSpec) -> bool:
        """True where it can take the observations and actions of ``spec``."""
        if cls.tabular and not all(leaf.countable for leaf in spec.layout.leaves):
            return False
        return spec.actions.kind in cls.action_kinds and (cls.images or spec.layout.flat)

    @property
    def progress(self) -> float:
        """Progress of the run from 0 to 1; schedules are functions of it."""
        return min(1.0, self.steps / max(1, self.total_steps))

    @abstractmethod
    def act(self, obs: Obs, mask: Flags | None) -> NDArray[Any]:
        """Returns exploring actions (N, …) for ``obs`` (N, …); see ``ActionSpec``. ``mask``: legal ones."""

    @abstractmethod
    def observe(self, obs: Obs, actions: NDArray[Any], step: Step) -> None:
        """Records what ``actions`` in ``obs`` led to: raw observations and rewards. Adds N to ``steps``."""

    @abstractmethod
    def due(self) -> bool:
        """True while enough was collected for an ``update`` that has not happened yet."""

    @abstractmethod
    def update(self) -> dict[str, float]:
        """Makes one update (or one burst of gradient steps); returns metrics such as ``policy_loss``.

        A metric that is not finite stops the run; the last good checkpoint stays.
        """

    @abstractmethod
    def networks(self) -> PolicyParts:
        """Returns the parts that a policy needs to act without the trainer, as copies, not as views."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns all that the next steps depend on: weights, optimiser, buffers, normaliser, generators.

        The state is nested dicts and lists of torch tensors, numpy arrays, numbers (integers of any size),
        strings, booleans and None. ``load_state_dict``, in a new object, continues from it bit for bit.
        """

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from ``state``. The arrays belong to the algorithm afterwards."""

    @abstractmethod
    def start_from(self, state: dict[str, Any]) -> None:
        """Takes over what a run of the same algorithm has learned (its ``state_dict``): weights, moments of
        the optimiser, statistics of observations and rewards. Steps, collected data and generators stay new.

        Raises ControlError or RuntimeError where the weights do not fit.
        """

    def environments_reset(self) -> None:
        """Discards the data of running episodes: the environments were reset from outside. (A replay memory
        notices by itself.)"""
        return None

    def parameters_finite(self) -> bool:
        """False where a learned number of the policy is NaN or infinite."""
        return self.networks().finite()

    def close(self) -> None:
        """Releases processes and shared memory, where there are any."""
        return None


@dataclass(frozen=True)
class AsyncProgress:
    """Report of an asynchronous algorithm, sent at least every few seconds."""

    steps: int
    """Environment steps so far, over all workers."""
    episodes: list[tuple[float, int]]
    """(return, length) of each episode that ended since the last call, oldest first."""
    metrics: dict[str, float]
    """Metrics as of ``Algorithm.update``."""


class AsynchronousAlgorithm(Algorithm):
    """An algorithm with worker processes of its own (A3C): it is run, not stepped.

    ``act``, ``observe``, ``due`` and ``update`` are not called. A resumed run continues from the weights, the
    optimiser and the counters, but not bit for bit: the order of the workers' updates is not repeatable.
    """

    asynchronous: ClassVar[bool] = True

    @abstractmethod
    def run(
        self,
        make_envs: Callable[[int], Environments],
        total_steps: int,
        on_progress: Callable[[AsyncProgress], bool],
    ) -> None:
        """Trains from ``steps`` up to ``total_steps``; all workers are gone when it returns.

        ``make_envs(worker)`` is picklable and makes a worker's own environments inside that worker.
        ``on_progress`` runs in the calling process; training stops soon after it returns False.
        """


def take_norm(norm: RunningNorm | None, saved: dict[str, Any] | None, setting: str = "normalise_obs") -> None:
    """Restores saved statistics. Raises ControlError where only one side has them, by its ``setting``."""
    if (norm is None) != (saved is None):
        raise ControlError(f"only one of the two has {setting}")
    if norm is not None and saved is not None:
        norm.load_state_dict(saved)
