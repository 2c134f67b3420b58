"""Settings of every algorithm: one frozen dataclass each, with one line of explanation under each field.

Bounds are part of the type (``Rate``, ``Share``, ``Count`` …) and are checked when an object is made, so a
config that exists is valid. Defaults are those of stable-baselines3 2.9; tuned values are in ``presets.py``.
All times are environment steps over all slots.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal

from onward.control.core.fields import Range, as_tuples, check_fields
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
"""Course of a setting over the run: ``linear`` falls to 0 at its end."""
Activation = Literal["tanh", "relu"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of all algorithms."""

    algorithm: ClassVar[str]
    """Name on the command line."""

    num_envs: Count = 1
    """Number of slots: environments that step together."""
    gamma: Share = 0.99
    """Discount factor per step."""

    def __post_init__(self) -> None:
        for name, value in as_tuples(self).items():
            object.__setattr__(self, name, value)
        check_fields(self, self.algorithm)
        self.check()

    def check(self) -> None:
        """Checks settings that depend on each other. Raises ControlError."""

    def refuse(self, field: str, why: str) -> ControlError:
        """Returns the error for a field that does not fit the others: ``why`` names the fix."""
        return ControlError(f"{self.algorithm}: {field} is {getattr(self, field)!r}: {why}.")

    def as_dict(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(Config):
    """Settings of all algorithms with a network."""

    learning_rate: Rate = 3e-4
    """Learning rate of Adam."""
    lr_schedule: Schedule = "constant"
    """Schedule of the learning rate: constant, or linear to 0 at the end of the run."""
    hidden: Widths = (64, 64)
    """Units of each hidden layer."""
    activation: Activation = "tanh"
    """Activation function between the layers."""
    layer_norm: bool = False
    """Applies layer normalisation before each activation."""
    normalise_obs: bool = False
    """Standardises observations by their running mean and deviation."""
    obs_clip: Rate = 10.0
    """Largest absolute value of a standardised observation, beyond which it is clipped."""


@dataclass(frozen=True, kw_only=True)
class BonusConfig(NetworkConfig):
    """Settings of algorithms that can learn from an exploration bonus besides the reward."""

    bonus: Literal["none", "count", "rnd", "icm"] = "none"
    """Source of the bonus: state counts, random network distillation (rnd) or forward errors (icm)."""
    bonus_weight: Amount = 1.0
    """Weight of the (normalised) bonus."""
    bonus_gamma: Share = 0.99
    """Discount of the bonus stream, which for rnd never ends with an episode."""
    bonus_learning_rate: Rate = 1e-4
    """Learning rate of the bonus' own networks."""
    bonus_features: Count = 64
    """Outputs of the bonus' networks, or bits of the hash."""
    bonus_random_steps: Whole = 1000
    """Random steps at the start that only set the statistics of observations, without learning."""
    bonus_until: Share = 1.0
    """Share of the run over which the bonus falls linearly to 0; with 1 it does not fall."""

    def check(self) -> None:
        if self.bonus == "count" and self.bonus_features > 64:
            raise self.refuse("bonus_features", "a hash has at most 64 bits, set bonus_features=64 or less")


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(BonusConfig):
    """Settings of algorithms with a replay buffer."""

    hidden: Widths = (256, 256)
    activation: Activation = "relu"
    buffer_size: Count = 1_000_000
    """Transitions stored, over all slots."""
    batch_size: Count = 256
    """Transitions per gradient step."""
    learning_starts: Whole = 100
    """Steps before the first update; actions are uniformly random until then."""
    train_every: Count = 1
    """Steps collected between two bursts of gradient steps."""
    gradient_steps: int = 1
    """Gradient steps per burst; -1 means as many as steps were collected."""
    tau: Share = 1.0
    """Fraction by which the target network moves towards the trained one at each of its updates."""
    n_step: Count = 1
    """Number of rewards summed before bootstrapping."""

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
    """Size of the step towards the target of each visited entry."""
    epsilon_start: Share = 1.0
    """Share of random actions at the start."""
    epsilon_end: Share = 0.05
    """Share of random actions after epsilon has fallen."""
    epsilon_fraction: Annotated[float, Range(0, 1, above=True)] = 0.5
    """Part of the run over which epsilon falls."""
    ucb: Amount = 0.0
    """Weight of the bonus sqrt(ln t / n) when choosing an action; 0 means epsilon-greedy only."""


@dataclass(frozen=True, kw_only=True)
class ReinforceConfig(NetworkConfig):
    """REINFORCE with a learned baseline (Williams 1992): the smallest policy gradient."""

    algorithm = "reinforce"

    num_envs: Count = 8
    learning_rate: Rate = 3e-3
    episodes: Count = 16
    """Whole episodes per update."""
    entropy_coef: Amount = 0.0
    """Weight of the entropy in the loss."""
    value_coef: Amount = 0.5
    """Weight of the baseline's loss; 0 means no baseline."""
    max_grad_norm: Rate = 0.5
    """Largest norm of a gradient; a larger one is scaled down."""


@dataclass(frozen=True, kw_only=True)
class DQNConfig(OffPolicyConfig):
    """DQN (Mnih et al. 2015), by default with Double targets (van Hasselt et al. 2016)."""

    algorithm = "dqn"

    learning_rate: Rate = 1e-4
    batch_size: Count = 32
    train_every: Count = 4
    target_every: Count = 10_000
    """Steps between two updates of the target network."""
    double: bool = True
    """Chooses the next action by the trained network and values it by the target network."""
    dueling: bool = False
    """Uses separate value and advantage streams (Wang et al. 2016)."""
    loss: Literal["huber", "mse"] = "huber"
    """Loss of the temporal difference."""
    prioritised: bool = False
    """Samples by temporal-difference error (Schaul et al. 2016)."""
    priority_alpha: Share = 0.6
    """Exponent of the error in the sampling probability; 0 means uniform."""
    priority_beta: Share = 0.4
    """Exponent of the importance weights at the start; it grows to 1 over the run."""
    max_grad_norm: Annotated[float, Range(0)] = 10.0
    """Largest norm of a gradient; 0 means that it is not clipped."""
    epsilon_start: Share = 1.0
    """Share of random actions at the start."""
    epsilon_end: Share = 0.05
    """Share of random actions after epsilon has fallen."""
    epsilon_fraction: Annotated[float, Range(0, 1, above=True)] = 0.1
    """Part of the run over which epsilon falls linearly."""
    epsilon_decay: Annotated[float, Range(0, 1, above=True)] | None = None
    """Factor of epsilon at every gradient step, used instead of the linear fall."""
    ensemble: Count = 1
    """Number of networks, whose disagreement is the deviation of their values."""
    ucb: Amount = 0.0
    """Weight of the ensemble's deviation, which is added to its mean when choosing an action."""

    def check(self) -> None:
        super().check()
        if self.epsilon_end > self.epsilon_start:
            raise self.refuse("epsilon_end", f"give at most epsilon_start, which is {self.epsilon_start}")
        if self.ucb > 0 and self.ensemble < 2:
            raise self.refuse("ucb", "a single network cannot disagree, set ensemble=5 as well")


@dataclass(frozen=True, kw_only=True)
class ContinuousConfig(OffPolicyConfig):
    """Settings shared by SAC and DDPG."""

    tau: Share = 0.005
    action_noise: Literal["none", "gaussian", "ou"] = "none"
    """Noise added to actions: independent (gaussian), or Ornstein-Uhlenbeck (ou), which drifts."""
    noise_std: Amount = 0.1
    """Deviation of the action noise, in units where an action is −1 … 1."""


@dataclass(frozen=True, kw_only=True)
class SACConfig(ContinuousConfig):
    """Soft actor-critic with automatic temperature (Haarnoja et al. 2018)."""

    algorithm = "sac"

    learning_rate: Rate = 3e-4
    temperature: Rate | None = None
    """Fixed weight of the entropy; none means that it is learned."""
    target_entropy: float | None = None
    """Entropy that the learned temperature aims at; none means minus the number of action dimensions."""


@dataclass(frozen=True, kw_only=True)
class DDPGConfig(ContinuousConfig):
    """DDPG (Lillicrap et al. 2016); with ``twin``, ``policy_delay`` and ``target_noise`` it is TD3."""

    algorithm = "ddpg"

    learning_rate: Rate = 1e-3
    action_noise: Literal["none", "gaussian", "ou"] = "gaussian"
    twin: bool = False
    """Uses two critics and takes the smaller value."""
    policy_delay: Count = 1
    """Critic updates per update of the actor and the targets."""
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
    """Rows of a minibatch; the whole rollout where it has fewer."""
    epochs: Count = 10
    """Passes over the rollout per update."""
    gae_lambda: Share = 0.95
    """Lambda of generalised advantage estimation."""
    clip: Rate = 0.2
    """Largest distance of a ratio from 1 before it is clipped."""
    clip_schedule: Schedule = "constant"
    """Schedule of the clipping range: constant, or linear to 0 at the end of the run."""
    entropy_coef: Amount = 0.0
    """Weight of the entropy in the loss."""
    value_coef: Amount = 0.5
    """Weight of the value loss."""
    value_clip: Rate | None = None
    """Largest change of a value in one update; none means any."""
    max_grad_norm: Rate = 0.5
    """Largest norm of a gradient; a larger one is scaled down."""
    target_kl: Rate | None = None
    """Stops the epochs of an update once the KL divergence exceeds 1.5 × this; none means never."""
    log_std: float = 0.0
    """Log of the deviation of continuous actions at the start."""
    scale_rewards: bool = False
    """Divides rewards by the running deviation of their discounted sum; reported rewards stay raw."""
    bonus_head: bool = True
    """Values the bonus by a head and discount of its own instead of adding it to the reward."""


@dataclass(frozen=True, kw_only=True)
class A3CConfig(NetworkConfig):
    """Asynchronous advantage actor-critic (Mnih et al. 2016): workers in processes of their own."""

    algorithm = "a3c"

    learning_rate: Rate = 1e-4
    workers: Count = 2
    """Number of processes, each with num_envs slots and one thread."""
    n_steps: Count = 20
    """Steps of each slot before a worker submits its gradient."""
    gae_lambda: Share = 1.0
    """Lambda of generalised advantage estimation."""
    entropy_coef: Amount = 0.01
    """Weight of the entropy in the loss."""
    value_coef: Amount = 0.5
    """Weight of the value loss."""
    max_grad_norm: Rate = 50.0
    """Largest norm of a gradient; a larger one is scaled down."""


CONFIGS: dict[str, type[Config]] = {
    kind.algorithm: kind
    for kind in (
        QLearningConfig, ReinforceConfig, DQNConfig, PPOConfig, A3CConfig, SACConfig, DDPGConfig, TD3Config
    )
}  # fmt: skip
"""Name → its settings, from the smallest to the largest family."""
