"""Slow environments in processes of their own, which step at the same time.

Invariants: slot i has the same seeds as in one process, so the results are the same. A worker ends when its
pipe does, and ignores signals, which are for the trainer. The pipes are closed when the object is collected,
and at the end of a program before multiprocessing waits for its children.
"""

from __future__ import annotations

import pickle
from multiprocessing import get_context
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.control.core.contract import Environments, EnvSpec, Flags, Step
from onward.control.core.spaces import Obs
from onward.control.environments.gym_slots import GymSlots
from onward.errors import ControlError, EnvironmentFault, OnwardError
from onward.processes import start_deaf, stay_deaf

JOIN_SECONDS = 10.0
"""Patience with a worker that closes its environments."""


class ProcessSlots(Environments):
    """``num`` slots of ``source``, divided among worker processes."""

    def __init__(self, source: Any, num: int, processes: int, env_kwargs: dict[str, Any] | None) -> None:
        """Raises ControlError where ``source`` cannot be sent to a process, or makes no environment there."""
        try:
            pickle.dumps(source)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ControlError(
                f"{source!r} cannot be made in another process ({error}): give an id, or a function of a "
                f"module."
            ) from error
        self.num = num
        self._parts = np.array_split(np.arange(num), min(processes, num))
        self._workers: list[tuple[Any, Any]] = []
        self._ended = Finalize(self, _end, (self._workers,), exitpriority=10)
        self._failed = False
        context = get_context("spawn")
        for part in self._parts:
            here, there = context.Pipe()
            arguments = (there, source, len(part), int(part[0]), env_kwargs)
            process = context.Process(target=_work, args=arguments, daemon=True)
            start_deaf(process)
            there.close()
            self._workers.append((process, here))
        try:
            self.spec: EnvSpec = self._answers()[0]
        except BaseException:
            self.close()
            raise

    def _ask(self, *questions: Any) -> list[Any]:
        """Sends each worker its question. Returns the answers. Raises the first error of a worker."""
        for (_, pipe), question in zip(self._workers, questions, strict=True):
            try:
                pipe.send(question)
            except BrokenPipeError:
                continue  # told by the answer
        return self._answers()

    def _answers(self) -> list[Any]:
        answers = [self._answer(worker) for worker in range(len(self._workers))]
        for answer in answers:
            if isinstance(answer, OnwardError):
                self._failed = True
                raise answer
        return answers

    def _answer(self, worker: int) -> Any:
        process, pipe = self._workers[worker]
        try:
            return pipe.recv()
        except (EOFError, ConnectionResetError):
            process.join(JOIN_SECONDS)
            slots = f"{self._parts[worker][0]} to {self._parts[worker][-1]}"
            return EnvironmentFault(
                f"The process of the environments {slots} ended with {process.exitcode} (killed, or out of "
                f"memory): use fewer with --env-processes."
            )

    def without_shaping(self) -> None:
        """Implements ``Environments``."""
        self._ask(*[("without_shaping",)] * len(self._parts))

    def reset(self, seed: int) -> tuple[Obs, Flags | None]:
        """Implements ``Environments``."""
        found = self._ask(*[("reset", seed)] * len(self._parts))
        self._failed = False
        return _joined([obs for obs, _ in found]), self._masks([mask for _, mask in found])

    def step(self, actions: NDArray[Any]) -> Step:
        """Implements ``Environments``."""
        steps: list[Step] = self._ask(*(("step", actions[part]) for part in self._parts))
        final = [step.final_obs for step in steps if step.final_obs is not None]
        infos = {
            int(part[0]) + slot: info
            for part, step in zip(self._parts, steps, strict=True)
            for slot, info in step.info.get("final_info", {}).items()
        }
        told: dict[str, Any] = {"final_info": infos} if infos else {}
        if names := dict.fromkeys(name for step in steps for name in step.streams):
            told["streams"] = {
                name: np.concatenate([_stream(step, name) for step in steps]) for name in names
            }
        return Step(
            _joined([step.obs for step in steps]),
            np.concatenate([step.reward for step in steps]),
            np.concatenate([step.terminated for step in steps]),
            np.concatenate([step.truncated for step in steps]),
            _joined(final) if final else None,
            None,
            self._masks([step.action_mask for step in steps]),
            told,
        )

    def _masks(self, masks: list[Flags | None]) -> Flags | None:
        if all(mask is None for mask in masks):
            return None
        width = sum(self.spec.actions.sizes)
        filled = [
            np.ones((len(part), width), np.bool_) if mask is None else mask
            for part, mask in zip(self._parts, masks, strict=True)
        ]
        return np.concatenate(filled)

    def state_dict(self) -> dict[str, Any]:
        """Implements ``Environments``. After a fault it is only a note: some workers are a step ahead."""
        if self._failed:
            return {"unsaved": self.spec.id}
        states = self._ask(*[("state_dict",)] * len(self._parts))
        return {
            "starts": [start for state in states for start in state["starts"]],
            "actions": [taken for state in states for taken in state["actions"]],
            "obs": _joined([state["obs"] for state in states]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> tuple[Obs, Flags | None]:
        """Implements ``Environments``; the state may come from any number of processes."""
        if "unsaved" in state or len(state["starts"]) != self.num:
            raise ControlError(
                f"The state of the {self.num} environments of {self.spec.id} was not saved: one of their "
                f"processes failed at that step, or there were other slots."
            )
        parts = [
            {
                "starts": [state["starts"][slot] for slot in part],
                "actions": [state["actions"][slot] for slot in part],
                "obs": _rows(state["obs"], part),
            }
            for part in self._parts
        ]
        found = self._ask(*(("load_state_dict", part) for part in parts))
        return _joined([obs for obs, _ in found]), self._masks([mask for _, mask in found])

    def close(self) -> None:
        """Ends the workers, which close their environments."""
        self._ended()


def _end(workers: list[tuple[Any, Any]]) -> None:
    for _, pipe in workers:
        pipe.close()
    for process, _ in workers:
        process.join(JOIN_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
    workers.clear()


def _stream(step: Step, name: str) -> NDArray[np.float32]:
    return step.streams.get(name, np.zeros(len(step.reward), np.float32))


def _joined(parts: list[Any]) -> Obs:
    if isinstance(parts[0], dict):
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    return np.concatenate(parts)


def _rows(obs: Obs, part: NDArray[Any]) -> Obs:
    return {key: rows[part] for key, rows in obs.items()} if isinstance(obs, dict) else obs[part]


def _work(pipe: Any, source: Any, num: int, first: int, env_kwargs: dict[str, Any] | None) -> None:
    """Runs a worker process: sends the spec, then answers calls until its pipe ends."""
    from onward.control.environments.making import make

    stay_deaf()
    envs: Environments | None = None
    try:
        envs = make(source, num, env_kwargs=env_kwargs)
        if not isinstance(envs, GymSlots):
            raise ControlError(f"{envs.spec.id} does not run in processes: leave --env-processes out.")
        envs.number_from(first)
        pipe.send(envs.spec)
        while True:
            method, *given = pipe.recv()
            try:
                answer = getattr(envs, method)(*given)
            except OnwardError as error:
                answer = error
            pipe.send(answer)
    except OnwardError as error:
        pipe.send(error)
    except (EOFError, ConnectionResetError, BrokenPipeError):
        return
    finally:
        if envs is not None:
            envs.close()
