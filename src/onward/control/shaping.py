"""Environments of one's own with a shaped reward: task, progress, efficiency, curiosity, safety.

Training sees the shaped reward; evaluations call ``without_shaping`` and play for the task's reward alone.
Each part is a named stream of the run. Progress is a potential: its discounted difference is added, which
leaves the best policy what it was (Ng, Harada and Russell 1999, theorem 1).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np


class CustomRLEnvironment(gymnasium.Env[Any, Any]):
    """Base of an environment: a subclass says what a state is, how it changes, and what it is worth.

    ``control.train`` takes the subclass itself. ``task_config`` is for the subclass; its arguments are those
    of the constructor.
    """

    max_steps: ClassVar[int] = 1000
    """Steps after which an episode is cut."""
    progress_weight: ClassVar[float] = 0.1
    step_penalty: ClassVar[float] = 0.01
    curiosity_weight: ClassVar[float] = 0.05
    discount: ClassVar[float] = 0.99
    """Discount of the difference of potentials: the algorithm's ``gamma``."""

    def __init__(self, **task_config: Any) -> None:
        self.task_config: Mapping[str, Any] = task_config
        self.observation_space = self.define_state_space()
        self.action_space = self.define_action_space()
        self.shaped = True
        self._met: Counter[bytes] = Counter()

    def without_shaping(self) -> None:
        """Leaves the task's reward alone from here on. Evaluations call it."""
        self.shaped = False

    # What a subclass says.

    @abstractmethod
    def define_state_space(self) -> gymnasium.Space[Any]:
        """Returns the observation space."""

    @abstractmethod
    def define_action_space(self) -> gymnasium.Space[Any]:
        """Returns the action space."""

    @abstractmethod
    def sample_initial_state(self) -> Any:
        """Returns the first state of an episode; draws from ``self.np_random``."""

    @abstractmethod
    def transition_function(self, state: Any, action: Any) -> Any:
        """Returns the state after ``action``, without changing ``state``."""

    @abstractmethod
    def compute_task_reward(self, state: Any) -> float:
        """Returns the task's own reward for reaching ``state``."""

    @abstractmethod
    def is_terminal(self, state: Any) -> bool:
        """Returns whether the task's rules end the episode in ``state``."""

    def check_success(self, state: Any) -> bool:
        """Returns whether ``state`` counts as success; by default, every state that ends the episode."""
        return self.is_terminal(state)

    def observe(self, state: Any) -> Any:
        """Returns what the policy sees of ``state``; by default all of it."""
        return np.asarray(state, self.observation_space.dtype)

    def compute_progress_reward(self, state: Any) -> float:
        """Returns the potential of ``state``: higher is nearer to the goal. 0 by default."""
        return 0.0

    def compute_curiosity_bonus(self, state: Any) -> float:
        """Returns 1/√n at the n-th visit of what is seen, rounded to one decimal (counts of this object)."""
        key = np.round(np.asarray(self.observe(state), np.float64), 1).tobytes()
        self._met[key] += 1
        return float(self._met[key] ** -0.5)

    def compute_safety_penalty(self, state: Any, action: Any) -> float:
        """Returns a number of at most 0 for an unsafe ``action`` that led to ``state``. 0 by default."""
        return 0.0

    # Gymnasium's interface.

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.sample_initial_state()
        self.steps, self.episode_reward = 0, 0.0
        return self.observe(self.state), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        before = self.state
        self.state = self.transition_function(before, action)
        self.steps += 1
        terminated = bool(self.is_terminal(self.state))
        truncated = not terminated and self.steps >= self.max_steps
        parts = self.reward_parts(before, action, self.state, terminated)
        reward = sum(parts.values()) if self.shaped else parts["task"]
        self.episode_reward += reward
        info = {
            "steps": self.steps,
            "episode_reward": self.episode_reward,
            "success": bool(self.check_success(self.state)),
            "cost": -parts["safety"],
            "rewards": parts,
        }
        return self.observe(self.state), float(reward), terminated, truncated, info

    def reward_parts(self, before: Any, action: Any, state: Any, terminated: bool) -> dict[str, float]:
        """Returns the weighted parts of the reward for one step; their sum is the shaped reward."""
        after = 0.0 if terminated else self.compute_progress_reward(state)
        progress = self.discount * after - self.compute_progress_reward(before)
        return {
            "task": float(self.compute_task_reward(state)),
            "progress": self.progress_weight * progress,
            "efficiency": -self.step_penalty,
            "curiosity": self.curiosity_weight
            * (self.compute_curiosity_bonus(state) if self.shaped else 0.0),
            "safety": float(self.compute_safety_penalty(state, action)),
        }


class SafetyMonitor:
    """Limits that hold whatever the policy has learned: an action that breaks one is replaced before it is
    executed."""

    def __init__(self, violates: Callable[[Any, Any], bool], safe: Any) -> None:
        """``violates(obs, action)`` says whether an action breaks a limit; ``safe`` is the action in its
        place, or a function of the observation that returns it."""
        self._violates, self._safe = violates, safe
        self.interventions = 0
        """Number of actions that were replaced."""

    def check_violation(self, obs: Any, action: Any) -> bool:
        return bool(self._violates(obs, action))

    def get_safe_action(self, obs: Any) -> Any:
        return self._safe(obs) if callable(self._safe) else self._safe

    def guard(self, obs: Any, action: Any) -> Any:
        """Returns ``action``, or the safe one where ``action`` breaks a limit."""
        if not self.check_violation(obs, action):
            return action
        self.interventions += 1
        return self.get_safe_action(obs)
