"""The settings of every algorithm: one frozen dataclass each, one line of explanation under each field.

The one thing to know: bounds stand in the type (``Rate``, ``Share``, ``Count`` …) and are checked when an
object is made, so a config that exists is valid; defaults are the peers' (stable-baselines3 2.9), tuned
values live in ``presets.py``. All times are environment steps over all slots.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal

from onward.control.running.fields import Range, check_fields
from onward.errors import ControlError

Rate = Annotated[float, Range(0, above=True)]
"""A number greater than 0."""
Amount = Annotated[float, Range(0)]
"""A number of at least 0."""
Share = Annotated[float, Range(0, 1)]
Count = Annotated[int, Range(1)]
Whole = Annotated[int, Range(0)]
Widths = tuple[int, ...]
"""Units of each hidden layer, such as (64, 64)."""
Schedule = Literal["constant", "linear"]
"""``linear`` falls to 0 at the end of the run."""
Activation = Literal["tanh", "relu"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """What all algorithms have."""

    algorithm: ClassVar[str]
    """Name on the command line."""

    num_envs: Count = 1
    """Slots: environments that step together."""
    gamma: Share = 0.99
    """Discount per step."""

    def __post_init__(self) -> None:
        check_fields(self, self.algorithm)
        self.check()

    def check(self) -> None:
        """What more than one field decides. Raises ControlError."""

    def refuse(self, field: str, why: str) -> ControlError:
        """The error of a field that does not fit the others: ``why`` names the fix."""
        return ControlError(f"{self.algorithm}: {field} is {getattr(self, field)!r}: {why}.")

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(Config):
    """What all algorithms with a network have."""

    learning_rate: Rate = 3e-4
    """Of Adam."""
    lr_schedule: Schedule = "constant"
    """How the learning rate goes on."""
    hidden: Widths = (64, 64)
    """Units of each hidden layer."""
    activation: Activation = "tanh"
    """Between the layers."""
    layer_norm: bool = False
    """Layer normalisation before each activation."""
    normalise_obs: bool = False
    """Standardise observations by their running mean and deviation."""
    obs_clip: Rate = 10.0
    """Standardised observations are clipped to this on both sides."""


@dataclass(frozen=True, kw_only=True)
class BonusConfig(NetworkConfig):
    """What algorithms have that can learn from an exploration bonus beside the reward."""

    bonus: Literal["none", "count", "rnd", "icm"] = "none"
    """Where the bonus comes from: visits of hashed states, random network distillation, or forward errors."""
    bonus_weight: Amount = 1.0
    """Multiplies the (normalised) bonus."""
    bonus_gamma: Share = 0.99
    """Discount of the bonus stream, which never ends with an episode for rnd."""
    bonus_learning_rate: Rate = 1e-4
    """Of the bonus' own networks."""
    bonus_features: Count = 64
    """Outputs of the bonus' networks, or bits of the hash."""
    bonus_random_steps: Whole = 1000
    """Random steps at the start that set the statistics of observations; nothing is learned from them."""
    bonus_until: Share = 1.0
    """Share of the run over which the bonus falls linearly to 0; 1: it does not fall."""

    def check(self) -> None:
        if self.bonus == "count" and self.bonus_features > 64:
            raise self.refuse("bonus_features", "a hash has at most 64 bits, set bonus_features=64 or less")


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(BonusConfig):
    """What algorithms with a replay buffer have."""

    hidden: Widths = (256, 256)
    activation: Activation = "relu"
    buffer_size: Count = 1_000_000
    """Transitions kept, over all slots."""
    batch_size: Count = 256
    """Transitions per gradient step."""
    learning_starts: Whole = 100
    """Steps before the first update; actions are uniformly random until then."""
    train_every: Count = 1
    """Steps collected between two bursts of gradient steps."""
    gradient_steps: int = 1
    """Gradient steps per burst; -1: as many as steps were collected."""
    tau: Share = 1.0
    """How far the target network moves towards the trained one at each of its updates."""
    n_step: Count = 1
    """Rewards added up before bootstrapping."""

    def check(self) -> None:
        super().check()
        if self.batch_size > self.buffer_size:
            raise self.refuse("batch_size", f"set buffer_size to at least {self.batch_size}")
        if self.gradient_steps == 0 or self.gradient_steps < -1:
            raise self.refuse("gradient_steps", "give a whole number of at least 1, or -1 for one per step")
        if self.tau == 0:
            raise self.refuse("tau", "a target that never moves learns nothing, give more than 0")


@dataclass(frozen=True, kw_only=True)
class QLearningConfig(Config):
    """Tabular Q-learning (Watkins 1989): the smallest value method."""

    algorithm = "q_learning"

    learning_rate: Annotated[float, Range(0, 1, above=True)] = 0.1
    """Step towards the target of each visited entry."""
    epsilon_start: Share = 1.0
    """Share of random actions at the start."""
    epsilon_end: Share = 0.05
    """Share of random actions at the end of their fall."""
    epsilon_fraction: Annotated[float, Range(0, 1, above=True)] = 0.5
    """Part of the run over which epsilon falls."""
    ucb: Amount = 0.0
    """Weight of the bonus sqrt(ln t / n) when choosing an action; 0: epsilon-greedy only."""


@dataclass(frozen=True, kw_only=True)
class ReinforceConfig(NetworkConfig):
    """REINFORCE with a learned baseline (Williams 1992): the smallest policy gradient."""

    algorithm = "reinforce"

    num_envs: Count = 8
    learning_rate: Rate = 3e-3
    episodes: Count = 16
    """Whole episodes per update."""
    entropy_coef: Amount = 0.0
    """Weight of the entropy."""
    value_coef: Amount = 0.5
    """Weight of the baseline's loss; 0: no baseline."""
    max_grad_norm: Rate = 0.5
    """Largest norm of a gradient."""


@dataclass(frozen=True, kw_only=True)
class DQNConfig(OffPolicyConfig):
    """DQN (Mnih et al. 2015), Double (van Hasselt et al. 2016) by default."""

    algorithm = "dqn"

    learning_rate: Rate = 1e-4
    batch_size: Count = 32
    train_every: Count = 4
    target_every: Count = 10_000
    """Steps between two updates of the target network."""
    double: bool = True
    """Choose the next action by the trained network, value it by the target network."""
    dueling: bool = False
    """Separate value and advantage streams (Wang et al. 2016)."""
    loss: Literal["huber", "mse"] = "huber"
    """Of the temporal difference."""
    prioritised: bool = False
    """Sample by temporal difference (Schaul et al. 2016)."""
    priority_alpha: Share = 0.6
    """How much the difference decides; 0: uniform."""
    priority_beta: Share = 0.4
    """Correction at the start; it grows to 1 over the run."""
    max_grad_norm: Annotated[float, Range(0)] = 10.0
    """Largest norm of a gradient; 0: not clipped."""
    epsilon_start: Share = 1.0
    """Share of random actions at the start."""
    epsilon_end: Share = 0.05
    """Share of random actions at the end of their fall."""
    epsilon_fraction: Annotated[float, Range(0, 1, above=True)] = 0.1
    """Part of the run over which epsilon falls linearly."""
    epsilon_decay: Annotated[float, Range(0, 1, above=True)] | None = None
    """Multiply epsilon by this at every gradient step instead of the linear fall."""
    ensemble: Count = 1
    """Networks whose disagreement (deviation of their values) is known."""
    ucb: Amount = 0.0
    """Act by mean + this × deviation over the ensemble."""

    def check(self) -> None:
        super().check()
        if self.epsilon_end > self.epsilon_start:
            raise self.refuse("epsilon_end", f"give at most epsilon_start, which is {self.epsilon_start}")
        if self.ucb > 0 and self.ensemble < 2:
            raise self.refuse("ucb", "a single network cannot disagree, set ensemble=5 as well")


@dataclass(frozen=True, kw_only=True)
class ContinuousConfig(OffPolicyConfig):
    """What SAC and DDPG share."""

    tau: Share = 0.005
    action_noise: Literal["none", "gaussian", "ou"] = "none"
    """Noise added to actions: independent, or Ornstein-Uhlenbeck, which drifts."""
    noise_std: Amount = 0.1
    """Deviation of that noise, in units where an action is −1 … 1."""


@dataclass(frozen=True, kw_only=True)
class SACConfig(ContinuousConfig):
    """Soft actor-critic with automatic temperature (Haarnoja et al. 2018)."""

    algorithm = "sac"

    learning_rate: Rate = 3e-4
    temperature: Rate | None = None
    """Fixed weight of the entropy; none: learned."""
    target_entropy: float | None = None
    """What the learned temperature aims at; none: minus the number of action dimensions."""


@dataclass(frozen=True, kw_only=True)
class DDPGConfig(ContinuousConfig):
    """DDPG (Lillicrap et al. 2016); with ``twin``, ``policy_delay`` and ``target_noise`` it is TD3."""

    algorithm = "ddpg"

    learning_rate: Rate = 1e-3
    action_noise: Literal["none", "gaussian", "ou"] = "gaussian"
    twin: bool = False
    """Two critics, the smaller one counts."""
    policy_delay: Count = 1
    """Critic steps per step of actor and targets."""
    target_noise: Amount = 0.0
    """Deviation of the noise on the target's action."""
    target_noise_clip: Amount = 0.5
    """Largest noise on the target's action."""


@dataclass(frozen=True, kw_only=True)
class TD3Config(DDPGConfig):
    """TD3 (Fujimoto et al. 2018): DDPG with its three options."""

    algorithm = "td3"

    twin: bool = True
    policy_delay: Count = 2
    target_noise: Amount = 0.2


@dataclass(frozen=True, kw_only=True)
class PPOConfig(BonusConfig):
    """PPO with clipped ratios (Schulman et al. 2017)."""

    algorithm = "ppo"

    n_steps: Count = 2048
    """Steps of each slot per update."""
    batch_size: Annotated[int, Range(2)] = 64
    """Rows of a minibatch; the whole rollout where that has fewer."""
    epochs: Count = 10
    """Passes over the rollout per update."""
    gae_lambda: Share = 0.95
    """Of generalised advantage estimation."""
    clip: Rate = 0.2
    """How far a ratio may move from 1."""
    clip_schedule: Schedule = "constant"
    """How the clipping range goes on."""
    entropy_coef: Amount = 0.0
    """Weight of the entropy."""
    value_coef: Amount = 0.5
    """Weight of the value loss."""
    value_clip: Rate | None = None
    """How far a value may move in one update; none: any."""
    max_grad_norm: Rate = 0.5
    """Largest norm of a gradient."""
    target_kl: Rate | None = None
    """Stop the epochs of an update when the policy has moved 1.5 × this; none: never."""
    log_std: float = 0.0
    """Log of the deviation of continuous actions at the start."""
    scale_rewards: bool = False
    """Divide rewards by the running deviation of their discounted sum; reports stay raw."""
    bonus_head: bool = True
    """Value the bonus by a head (and discount) of its own instead of adding it to the reward."""


@dataclass(frozen=True, kw_only=True)
class A3CConfig(NetworkConfig):
    """Asynchronous advantage actor-critic (Mnih et al. 2016): workers in processes of their own."""

    algorithm = "a3c"

    learning_rate: Rate = 1e-4
    workers: Count = 2
    """Processes; each has ``num_envs`` slots and one thread."""
    n_steps: Count = 20
    """Steps of each slot before a worker hands in its gradient."""
    gae_lambda: Share = 1.0
    """Of generalised advantage estimation."""
    entropy_coef: Amount = 0.01
    """Weight of the entropy."""
    value_coef: Amount = 0.5
    """Weight of the value loss."""
    max_grad_norm: Rate = 50.0
    """Largest norm of a gradient."""


CONFIGS: dict[str, type[Config]] = {
    kind.algorithm: kind
    for kind in (
        QLearningConfig, ReinforceConfig, DQNConfig, PPOConfig, A3CConfig, SACConfig, DDPGConfig, TD3Config
    )
}  # fmt: skip
"""Name → its settings, from the smallest to the largest family."""
