"""Training, evaluation and use of a team with a central critic.

``train_team`` trains one policy for all agents; ``Team`` uses it, each agent on its own observation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.control.core.contract import Environments
from onward.control.core.spaces import Obs
from onward.control.core.threads import threads_kept
from onward.control.evaluation.evaluate import EPISODES, AtLeast, Episodes, play
from onward.control.multi.central import CentralPPO
from onward.control.multi.parallel import AgentInputs, Make, TeamSlots, legal_of
from onward.control.policies.policy import Policy
from onward.control.running import presets
from onward.control.running.runs import Folder, RunConfig, going_on
from onward.control.running.seeds_in_parallel import Task, train_one
from onward.control.running.trainer import Event
from onward.control.running.world import World
from onward.errors import ControlError

EVALUATED_COPIES = 8


@dataclass(frozen=True)
class TrainedTeam:
    """Result of ``train_team``."""

    folder: Path
    summary: dict[str, Any]
    """As of ``control.train``; an episode is one agent's, and its return that agent's own."""

    @property
    def policy(self) -> Policy:
        """The best policy by evaluation, shared by all agents."""
        return Policy.load(self.folder)


class Team:
    """Agents that share a policy. Each acts on its own observation: nothing central is left."""

    def __init__(self, policy: Policy, env: Any) -> None:
        """``env``: an environment of the kind it was trained in, for its spaces. Raises ControlError where
        the policy was made for others."""
        self.policy, self._inputs = policy, AgentInputs(env)
        if policy.parts.layout.width != self._inputs.width:
            raise ControlError(
                f"The policy sees {policy.parts.layout.width} numbers, and an agent here has "
                f"{self._inputs.width} (its observation and its number): use the environment that it was "
                f"trained in."
            )

    def act(
        self, observations: Mapping[Any, Any], deterministic: bool = True, infos: Any = None
    ) -> dict[Any, Any]:
        """Returns an action for each agent in ``observations``. ``infos``: those of the environment, where
        ``action_mask`` has the legal actions."""
        found = {}
        for at, agent in enumerate(self._inputs.agents):
            if agent in observations:
                own = np.zeros(self._inputs.width, np.float32)
                self._inputs.write(at, observations[agent], own)
                found[agent] = self.policy.act(own, deterministic, legal_of(infos, agent))
        return found


def train_team(
    make: Make,
    *,
    timesteps: int,
    folder: str | Path,
    seed: int = 0,
    max_steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
    threshold: float | None = None,
    resume: bool = False,
    callbacks: Sequence[Callable[[Event], Any]] = (),
) -> TrainedTeam:
    """Trains the agents of an environment together, with a central critic. Ctrl-C saves and ends the run.

    - ``make``: makes a new environment with PettingZoo's parallel interface.
    - ``timesteps``: steps of single agents, over all copies.
    - ``max_steps``: steps after which an episode is cut, for environments without an end.
    - ``settings``: changes to PPO's defaults; ``num_envs`` is the number of copies.
    - ``threshold``: mean return of an agent that counts as solved, and ends the run.
    - ``resume``: goes on with the run in ``folder``, whose settings and seed stay; its episodes begin anew.

    Raises ControlError for what does not fit, before anything is written.
    """
    where = Folder(Path(folder))
    run = (
        _going_on(where, timesteps)
        if resume
        else RunConfig(
            env=getattr(make, "__qualname__", type(make).__name__),
            algorithm="ppo",
            settings=presets.settings("ppo", presets.preset("default", "ppo", "")[1], dict(settings or {})),
            timesteps=timesteps,
            seed=seed,
            threshold=threshold,
        )
    )
    seen = _World(run, make, max_steps)

    def watch(event: Event) -> bool:
        return all([callback(event) is not False for callback in callbacks])

    world = World(seen.envs, CentralPPO, seen.evaluate)
    with threads_kept():
        summary = train_one(Task(run, where, resume, world), watch)
    return TrainedTeam(where.path, summary)


def _going_on(folder: Folder, timesteps: int) -> RunConfig:
    return going_on(folder, None if timesteps == folder.read().timesteps else timesteps)


def evaluate_team(
    policy: Policy | str | Path,
    make: Make,
    *,
    episodes: int = EPISODES,
    seed: int = 0,
    max_steps: int | None = None,
    threshold: float | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Episodes:
    """Plays greedy episodes; an episode is one agent's. Raises ControlError where the policy does not fit."""
    shared = policy if isinstance(policy, Policy) else Policy.load(policy)
    envs = TeamSlots(make, EVALUATED_COPIES, max_steps=max_steps)
    try:
        actor = _Own(shared, envs.team.own)
        rule = None if threshold is None else AtLeast(threshold)
        return play(actor, envs, max(episodes, envs.num), seed, rule=rule, stopped=stopped)
    finally:
        envs.close()


class _Own:
    """A policy that sees the own part of each slot."""

    def __init__(self, policy: Policy, own: int) -> None:
        if policy.parts.layout.width != own:
            raise ControlError(
                f"The policy sees {policy.parts.layout.width} numbers, and an agent here has {own}: use the "
                f"environment that it was trained in."
            )
        self._policy, self._own = policy, own

    def act_flat(
        self, obs: Obs, mask: NDArray[Any] | None = None, deterministic: bool = True
    ) -> NDArray[Any]:
        assert not isinstance(obs, dict)
        return self._policy.act_flat(np.ascontiguousarray(obs[:, : self._own]), mask, deterministic)


class _World:
    def __init__(self, run: RunConfig, make: Make, max_steps: int | None) -> None:
        self._run, self._make, self._max_steps = run, make, max_steps

    def envs(self, worker: int) -> Environments:
        return TeamSlots(self._make, self._run.settings.num_envs, self._run.env, self._max_steps)

    def evaluate(
        self, policy: Policy, episodes: int, seed: int, stopped: Callable[[], bool] = lambda: False
    ) -> Episodes:
        return evaluate_team(
            policy, self._make, episodes=episodes, seed=seed, max_steps=self._max_steps,
            threshold=self._run.threshold, stopped=stopped,
        )  # fmt: skip
