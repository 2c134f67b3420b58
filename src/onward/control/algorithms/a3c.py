"""Asynchronous advantage actor-critic (Mnih et al. 2016, 1602.01783), with real worker processes.

This process learns nothing itself. It starts the workers, forwards their reports, and then copies the shared
parameters. ``a3c_worker`` holds the work of a worker, ``a3c_shared`` the exchange of gradients. A worker may
be killed at any time, so every wait here has an end.
"""

from __future__ import annotations

import multiprocessing.connection as connection
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as torch_processes
from numpy.typing import NDArray

from onward.control.algorithms.a3c_shared import Shared, read_statistics, write_statistics
from onward.control.algorithms.a3c_worker import work
from onward.control.algorithms.base import AsynchronousAlgorithm, AsyncProgress
from onward.control.algorithms.policy_gradient import PolicyGradient
from onward.control.core.config import A3CConfig
from onward.control.core.contract import Environments, EnvSpec, Flags, Step
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import Obs
from onward.errors import ControlError, EnvironmentFault
from onward.processes import start_deaf

WAIT_SECONDS = 2.0
JOIN_SECONDS = 10.0
LOCK_SECONDS = 60.0
"""Time limit for the lock. It is held for microseconds, but a busy machine may stop its holder for long."""


class A3C(PolicyGradient, AsynchronousAlgorithm):
    """A3C. Each worker: θ' ← θ, n steps with π_θ', then θ steps along ∇ of its advantage actor-critic loss.

    The order of the workers' updates is not repeatable, so runs of one seed differ.
    """

    def __init__(self, spec: EnvSpec, num: int, config: A3CConfig, seeds: Seeds) -> None:
        self.config, self.seeds = config, seeds
        super().__init__(spec, num, config, seeds)

    def run(
        self,
        make_envs: Callable[[int], Environments],
        total_steps: int,
        on_progress: Callable[[AsyncProgress], bool],
    ) -> None:
        """Implements ``AsynchronousAlgorithm``. Raises ControlError where a worker fails or dies."""
        shared = Shared(self.net.flat.tensor, self.optimiser.state_dict(), self.spec.layout.width, self.steps)
        if self.norm is not None:
            write_statistics(shared, self.norm)
        context = torch_processes.get_context("spawn")
        parts = (self.spec, self.config, self.seeds.child("from", self.steps), make_envs)
        processes, pipes = [], []
        try:
            for index in range(self.config.workers):
                here, there = context.Pipe(duplex=False)
                arguments = (index, shared, parts, total_steps, there)
                processes.append(context.Process(target=work, args=arguments, daemon=True))
                pipes.append(here)
                start_deaf(processes[-1])
                there.close()
            self._watch(shared, pipes, on_progress)
        finally:
            shared.stop()
            for pipe in pipes:
                pipe.close()
            for process in processes:
                process.join(JOIN_SECONDS)
                if process.is_alive():
                    process.kill()
                    process.join()
            self._copy(shared)

    def _watch(self, shared: Shared, pipes: list[Any], on_progress: Callable[[AsyncProgress], bool]) -> None:
        """Forwards the workers' reports until all are done. Reads each pipe to its end: a full one blocks."""
        running = list(pipes)
        while running:
            episodes: list[tuple[float, int]] = []
            metrics: dict[str, float] = {}
            for pipe in connection.wait(running, timeout=WAIT_SECONDS):
                told = _read(pipe, pipes.index(pipe))
                if told is None:
                    running.remove(pipe)
                    continue
                episodes += told[0]
                metrics |= told[1]
            self._take_over(shared)
            if not on_progress(AsyncProgress(self.steps, episodes, metrics)):
                shared.stop()

    def _take_over(self, shared: Shared) -> None:
        if not shared.lock.acquire(timeout=LOCK_SECONDS):
            raise ControlError(
                "A worker of a3c died while it handed in a gradient: resume from the last saved state."
            )
        try:
            self._copy(shared)
        finally:
            shared.lock.release()

    def _copy(self, shared: Shared) -> None:
        self.net.load_parameters(shared.parameters)
        self.optimiser.load_state_dict(shared.adam)
        self.steps = int(shared.steps)
        if self.norm is not None:
            read_statistics(shared, self.norm)

    def act(self, obs: Obs, mask: Flags | None) -> NDArray[Any]:
        raise _asynchronous("act")

    def observe(self, obs: Obs, actions: NDArray[Any], step: Step) -> None:
        raise _asynchronous("observe")

    def due(self) -> bool:
        return False

    def update(self) -> dict[str, float]:
        raise _asynchronous("update")


def _read(pipe: Any, index: int) -> tuple[list[tuple[float, int]], dict[str, float]] | None:
    """Reads a worker's report; None when it is done. Raises EnvironmentFault for a fault of its environment
    and ControlError where it failed or died otherwise."""
    try:
        told = pipe.recv()
    except (EOFError, ConnectionResetError):
        told = "its process died without a word (killed, or out of memory)"
    if isinstance(told, EnvironmentFault):
        raise told
    if isinstance(told, str):
        raise ControlError(f"Worker {index} of a3c failed: {told}; mend that, or train with ppo.")
    return told


def _asynchronous(method: str) -> ControlError:
    return ControlError(f"a3c was asked to {method}, but it runs environments by itself: call run().")
