"""Environments of several agents as slots: one slot for each agent of each copy.

A slot's observation is the agent's own numbers, its number one-hot, and the global state. The policy sees the
first two parts, the critic all of them. An agent that is done while others go on is a dead slot until the
whole episode ends; then all agents begin the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from onward.control.core.contract import LONGEST_EPISODE, Environments, EnvSpec, Flags, Step
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import Layout, Leaf, Obs, ObsFlattener, action_spec, layout_of, to_env
from onward.control.core.streams import streams_of
from onward.errors import ControlError


class ParallelEnv(Protocol):
    """The part of PettingZoo's parallel interface that is used. ``state()``, if there is one, is the global
    state; otherwise it is the observations of all agents together."""

    possible_agents: list[Any]
    agents: list[Any]
    """Agents that still act."""

    def observation_space(self, agent: Any) -> Any: ...

    def action_space(self, agent: Any) -> Any: ...

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Mapping[Any, Any], Any]: ...

    def step(self, actions: Mapping[Any, Any]) -> tuple[Mapping[Any, Any], ...]:
        """Returns observations, rewards, terminations, truncations and infos, each by agent."""
        ...


Make = Callable[[], Any]
"""Makes a new ``ParallelEnv`` at each call."""


@dataclass(frozen=True)
class TeamSpec(EnvSpec):
    """Description of an environment of several agents."""

    own: int = 0
    """Numbers of a slot's observation that the policy sees."""
    agents: tuple[Any, ...] = ()


def numbers(width: int) -> Layout:
    """Returns the layout of a vector of ``width`` numbers."""
    return Layout(width, (), (Leaf((), "numbers", (width,)),))


class AgentInputs:
    """Inputs of each agent's policy: its own observation, padded with zeros to the widest one, and its number
    one-hot. Raises ControlError for spaces that cannot be shared by one policy."""

    def __init__(self, env: Any) -> None:
        self.agents = tuple(env.possible_agents)
        layouts = [layout_of(env.observation_space(agent)) for agent in self.agents]
        if not self.agents or any(not layout.flat for layout in layouts):
            raise ControlError("A team needs at least one agent, and observations of numbers without images.")
        specs = [action_spec(env.action_space(agent)) for agent in self.agents]
        for agent, spec in zip(self.agents, specs, strict=True):
            if spec != specs[0]:
                raise ControlError(
                    f"The agents {self.agents[0]!r} and {agent!r} have different action spaces: one policy "
                    f"is shared by all, so give them the same one (fill up with actions that do nothing)."
                )
        self.actions = specs[0]
        self.observed = max(layout.width for layout in layouts)
        self.width = self.observed + len(self.agents)
        self._flatteners = [ObsFlattener(layout) for layout in layouts]

    def write(self, agent: int, raw: Any, out: NDArray[np.float32]) -> None:
        """Writes the inputs of agent number ``agent`` into ``out`` (width,), which is zeros before."""
        flat = self._flatteners[agent].single(raw)
        assert not isinstance(flat, dict)
        out[: flat.shape[-1]] = flat.reshape(-1)
        out[self.observed + agent] = 1.0


class TeamSlots(Environments):
    """N copies of an environment of A agents: N · A slots, in the order of copies, then of agents."""

    def __init__(self, make: Make, copies: int, name: str = "team", max_steps: int | None = None) -> None:
        """``max_steps``: steps after which an episode is cut. Raises ControlError for what is no environment
        of several agents."""
        self.envs = [make() for _ in range(copies)]
        for env in self.envs:
            if not all(hasattr(env, part) for part in ("possible_agents", "reset", "step", "action_space")):
                raise ControlError(
                    f"{env!r} has not PettingZoo's parallel interface: give a function that makes one, such "
                    f"as mpe2.simple_spread_v3.parallel_env."
                )
        self.inputs = AgentInputs(self.envs[0])
        self.each = len(self.inputs.agents)
        self.num = copies * self.each
        self._limit = max_steps or LONGEST_EPISODE
        self._last: list[Mapping[Any, Any]] = [{} for _ in self.envs]
        self._steps = [0] * copies
        self.alive = np.ones((copies, self.each), np.bool_)
        self.envs[0].reset(seed=0)
        self._has_state = callable(getattr(self.envs[0], "state", None)) and self._try_state()
        state = len(self._state(0)) if self._has_state else self.each * self.inputs.observed
        self._state_width = state
        self.team = TeamSpec(
            name, numbers(self.inputs.width + state), self.inputs.actions, max_steps=max_steps,
            own=self.inputs.width, agents=self.inputs.agents,
        )  # fmt: skip
        self.spec = self.team

    def reset(self, seed: int) -> tuple[Obs, Flags | None]:
        """Implements ``Environments``."""
        masks: list[Any] = []
        for copy, slot_seed in enumerate(Seeds(seed).slots(len(self.envs))):
            masks.append(self._begin(copy, slot_seed))
        obs = np.concatenate([self._rows(copy) for copy in range(len(self.envs))])
        return obs, self._mask(masks)

    def step(self, actions: NDArray[Any]) -> Step:
        """Implements ``Environments``."""
        given = to_env(self.spec.actions, actions)
        reward = np.zeros(self.num, np.float32)
        terminated, truncated = np.zeros(self.num, np.bool_), np.zeros(self.num, np.bool_)
        obs: list[NDArray[np.float32]] = []
        finals: list[NDArray[np.float32]] = []
        masks: list[Any] = []
        infos: list[Mapping[str, Any]] = []
        for copy, env in enumerate(self.envs):
            first = copy * self.each
            chosen = {
                agent: _plain(given[first + at])
                for at, agent in enumerate(self.inputs.agents)
                if self.alive[copy, at]
            }
            seen, rewards, ends, cuts, info = env.step(chosen)
            self._last[copy], self._steps[copy] = seen, self._steps[copy] + 1
            over = not env.agents or self._steps[copy] >= self._limit
            rows = self._rows(copy)
            for at, agent in enumerate(self.inputs.agents):
                slot = first + at
                infos.append(info.get(agent, {}) if isinstance(info, Mapping) else {})
                if not self.alive[copy, at]:
                    continue
                reward[slot] = float(rewards.get(agent, 0.0))
                terminated[slot] = bool(ends.get(agent, False))
                truncated[slot] = not terminated[slot] and (bool(cuts.get(agent, False)) or over)
                if terminated[slot] or truncated[slot]:
                    finals.append(rows[at])
                    self.alive[copy, at] = False
            if over or not self.alive[copy].any():
                masks.append(self._begin(copy, None))
                rows = self._rows(copy)
            else:
                masks.append(info)
            obs.append(np.where(self.alive[copy][:, None], rows, np.float32(0)))
        streams = streams_of(infos, self.spec.id)
        return Step(
            obs=np.concatenate(obs),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            final_obs=np.stack(finals) if finals else None,
            alive=self.alive.reshape(-1).copy(),
            action_mask=self._mask(masks),
            info={"streams": streams} if streams else {},
        )

    def state_dict(self) -> dict[str, Any]:
        """Raises ControlError: the interface has no saved state of an episode."""
        raise ControlError("an environment of several agents cannot be put back into its episode")

    def load_state_dict(self, state: dict[str, Any]) -> tuple[Obs, Flags | None]:
        """Raises ControlError like ``state_dict``."""
        raise ControlError("an environment of several agents cannot be put back into its episode")

    def close(self) -> None:
        for env in self.envs:
            getattr(env, "close", lambda: None)()

    def _begin(self, copy: int, seed: int | None) -> Any:
        """Starts an episode; returns its infos."""
        self._last[copy], infos = self.envs[copy].reset(seed=seed)
        self._steps[copy] = 0
        self.alive[copy] = [agent in self.envs[copy].agents for agent in self.inputs.agents]
        return infos

    def _rows(self, copy: int) -> NDArray[np.float32]:
        """Returns (A, width) observations of all agents of one copy; zeros for those without one."""
        own = np.zeros((self.each, self.inputs.width), np.float32)
        for at, agent in enumerate(self.inputs.agents):
            if agent in self._last[copy]:
                self.inputs.write(at, self._last[copy][agent], own[at])
        state = self._state(copy) if self._has_state else own[:, : self.inputs.observed].reshape(-1)
        return np.concatenate([own, np.broadcast_to(state, (self.each, len(state)))], axis=1)

    def _state(self, copy: int) -> NDArray[np.float32]:
        return np.asarray(self.envs[copy].state(), np.float32).reshape(-1)

    def _try_state(self) -> bool:
        try:
            self._state(0)
        except (NotImplementedError, AttributeError):
            return False
        return True

    def _mask(self, infos: Sequence[Any]) -> Flags | None:
        """Returns (slots, actions) legal actions, where an environment gives ``action_mask`` in its infos."""
        if self.spec.actions.kind != "discrete":
            return None
        found = np.ones((self.num, self.spec.actions.sizes[0]), np.bool_)
        given = False
        for copy, info in enumerate(infos):
            for at, agent in enumerate(self.inputs.agents):
                legal = legal_of(info, agent)
                if legal is not None and self.alive[copy, at]:
                    found[copy * self.each + at] = legal
                    given = True
        return found if given else None


def legal_of(infos: Any, agent: Any) -> Flags | None:
    """Returns the legal actions of ``agent``, where its info has ``action_mask``."""
    one = infos.get(agent) if isinstance(infos, Mapping) else None
    found = one.get("action_mask") if isinstance(one, Mapping) else None
    return None if found is None else np.asarray(found, np.bool_)


def _plain(action: Any) -> Any:
    """Returns a discrete action as a Python integer, which every environment takes."""
    return int(action) if isinstance(action, np.integer) else action
