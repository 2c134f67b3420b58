"""Settings of the learners, each checked at construction. Needs no torch, so a request is checked by them.

A combination that would count a term twice, or have no effect, is refused here, so that no enabled option is
without effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onward.errors import ConfigError
from onward.lm.cursor import SCHEDULES, Schedule

Normaliser = Literal["token", "sequence", "constant"]
KlEstimator = Literal["k1", "k2", "k3"]


@dataclass(frozen=True)
class CriticConfig:
    """Settings of PPO's value head: a linear read-out of the hidden state *before* each token."""

    learning_rate: float = 1e-2
    """For a network of one hidden unit; it is divided by √hidden, so that a value moves alike in all."""
    value_clip: float | None = 0.5
    """Largest move of a value from the old one that the loss still rewards; None: no clipping."""
    coef: float = 1.0
    """Weight of the value loss; matters only with ``trains_policy``, since the head has its own clipping."""
    warmup_steps: int = 20
    """Most steps of each update's fit to plain returns of other rows, before its advantages are made; the
    policy is not updated. 0: values are those of the head as it is."""
    trains_policy: bool = False
    """Lets the value loss shape the policy's features as well; otherwise the critic only reads them."""

    def __post_init__(self) -> None:
        refuse_out_of_range(
            self,
            learning_rate=self.learning_rate > 0,
            value_clip=self.value_clip is None or self.value_clip > 0,
            coef=self.coef > 0,
            warmup_steps=self.warmup_steps >= 0,
        )


@dataclass(frozen=True)
class LearnerConfig:
    """Settings of ``Learner``; the defaults suit rank-16 adapters on networks of 1 to 500 M parameters."""

    learning_rate: float = 5e-4
    schedule: Schedule = "constant"
    """``linear`` and ``cosine``: the learning rate falls to 0 over the steps of an update, which averages
    noise out."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises to its value."""
    max_steps: int | None = None
    """Ends an update after that many steps, whatever the epochs."""
    epochs: int = 2
    minibatch_rows: int = 64
    """Rows per optimiser step."""
    clip_epsilon: float = 0.2
    clip_epsilon_high: float | None = None
    """Upper clip if it differs from the lower one."""
    dual_clip: float | None = 3.0
    entropy_coef: float = 0.0
    """Reward for entropy per token; a positive value preserves exploration."""
    spare_above: float | None = None
    """Probability at or above which a failure never pushes a drawn token down: right and wrong answers share
    such tokens. None spares no token, as plain policy gradients do.
    """
    hold_coef: float = 0.0
    """Pull of the tokens that ``spare_above`` selects to the probability that they were drawn with, upwards
    and downwards (the gradient of k2)."""
    kl_coef: float = 0.0
    kl_in: Literal["loss", "reward"] = "loss"
    """A penalty in the loss, or its k1 estimate subtracted from each token's reward (then the policy gradient
    carries it, and algorithms see it).
    """
    kl_estimator: KlEstimator = "k3"
    """Value of the penalty in the loss; its gradient is always that of the reverse KL (k2)."""
    kl_reference: Literal["start", "base"] = "start"
    """Reference of the penalty: the adapter at the start of the update, or the base weights."""
    kl_target: float | None = None
    """Target in nats per token; ``kl_coef`` is steered towards it step by step (1909.08593, section 2.2)."""
    behaviour: Literal["recorded", "recompute"] = "recorded"
    """Source of the log-probs of μ: the engine's as recorded, or the learner's own at the start of the
    update, which assumes that the data is on policy.
    """
    importance_cap: float | None = None
    """None: bypass, the clipped ratio is π/μ. A number: decoupled, the ratio is π/π_start, weighted by w =
    min(π_start/μ, cap).
    """
    mismatch_cap: float | None = None
    """``importance_cap`` of an update whose recorded log-probs are not the learner's own, since the sampler
    has another precision or is another engine; a sample of the rows shows it. None: no sample is taken."""
    importance_floor: float | None = None
    """Drops tokens with w outside [floor, cap] instead of truncating w."""
    importance_level: Literal["token", "sequence"] = "token"
    """w per token, or its geometric mean over a row."""
    normaliser: Normaliser = "token"
    constant_length: int = 1024
    max_grad_norm: float = 1.0
    micro_batch_tokens: int = 2048
    """Tokens with a graph at once; changes memory and speed, never the result."""
    gradient_checkpointing: bool = False
    """Stores only each block's input and computes the block again: less memory, a third more time."""
    cache_bytes: int = 1 << 30
    """Memory for the output of the frozen layers below the adapter; larger output is computed again."""
    critic: CriticConfig | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_out_of_range(
            self,
            learning_rate=self.learning_rate > 0,
            schedule=self.schedule in SCHEDULES,
            warmup_steps=self.warmup_steps >= 0,
            max_steps=self.max_steps is None or self.max_steps >= 1,
            epochs=self.epochs >= 1,
            minibatch_rows=self.minibatch_rows >= 1,
            clip_epsilon=0 < self.clip_epsilon < 1,
            clip_epsilon_high=self.clip_epsilon_high is None or self.clip_epsilon_high > 0,
            dual_clip=self.dual_clip is None or self.dual_clip > 1,
            entropy_coef=self.entropy_coef >= 0,
            spare_above=self.spare_above is None or 0 < self.spare_above <= 1,
            hold_coef=self.hold_coef >= 0,
            kl_coef=self.kl_coef >= 0,
            kl_in=self.kl_in in ("loss", "reward"),
            kl_estimator=self.kl_estimator in ("k1", "k2", "k3"),
            kl_reference=self.kl_reference in ("start", "base"),
            kl_target=self.kl_target is None or self.kl_target > 0,
            behaviour=self.behaviour in ("recorded", "recompute"),
            importance_cap=self.importance_cap is None or self.importance_cap > 0,
            mismatch_cap=self.mismatch_cap is None or self.mismatch_cap > 0,
            importance_floor=self.importance_floor is None or self.importance_floor > 0,
            importance_level=self.importance_level in ("token", "sequence"),
            normaliser=self.normaliser in ("token", "sequence", "constant"),
            constant_length=self.constant_length >= 1,
            max_grad_norm=self.max_grad_norm > 0,
            micro_batch_tokens=self.micro_batch_tokens >= 1,
            cache_bytes=self.cache_bytes >= 0,
        )
        self._refuse_combinations()

    def _refuse_combinations(self) -> None:
        problem = ""
        if self.kl_in == "reward" and self.kl_coef > 0 and self.kl_reference == "start":
            problem = (
                "kl_in = 'reward' with kl_reference = 'start' is always 0, since the reward is fixed when "
                "the update starts: use kl_reference = 'base'"
            )
        elif self.hold_coef > 0 and self.spare_above is None:
            problem = "hold_coef without spare_above holds no token: give spare_above, for example 0.9"
        elif self.kl_target is not None and self.kl_coef == 0:
            problem = "kl_target without kl_coef steers nothing: give the coefficient to start from"
        elif self.behaviour == "recompute" and self.importance_cap is not None:
            problem = (
                "behaviour = 'recompute' with importance_cap corrects nothing, since π_start/μ is 1 by "
                "definition: leave one of them out"
            )
        elif self.importance_cap is None and (
            self.importance_floor is not None or self.importance_level != "token"
        ):
            problem = "importance_floor and importance_level need importance_cap: give it, for example 2.0"
        elif (
            self.importance_floor is not None
            and self.importance_cap is not None
            and self.importance_floor >= self.importance_cap
        ):
            problem = "importance_floor must be below importance_cap: use for example 0.5 and 2.0"
        if problem:
            raise ConfigError(f"The learner setting {problem}.")

    @property
    def penalises_loss(self) -> bool:
        return self.kl_coef > 0 and self.kl_in == "loss"

    @property
    def clip_high(self) -> float:
        return self.clip_epsilon if self.clip_epsilon_high is None else self.clip_epsilon_high


@dataclass(frozen=True)
class DpoConfig:
    """Settings of ``PreferenceLearner``."""

    beta: float = 0.1
    """Strength of the tie to the reference: the KL coefficient of the problem that DPO solves."""
    learning_rate: float = 2e-4
    epochs: int = 1
    minibatch_pairs: int = 32
    """Pairs per optimiser step."""
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    max_steps: int | None = None
    """See ``LearnerConfig`` for these three."""
    reference: Literal["start", "base", "other"] = "start"
    """The policy as it is when training starts, the base weights (adapter off), or another policy, which the
    learner is given."""
    length_normalised: bool = False
    """Compares means instead of sums of token log-ratios. Sums are DPO; means prevent long answers from
    weighing more (and from being preferred for their length).
    """
    label_smoothing: float = 0.0
    """Expected share of pairs in the wrong order (conservative DPO)."""
    max_grad_norm: float = 1.0
    micro_batch_tokens: int = 2048
    gradient_checkpointing: bool = False
    cache_bytes: int = 1 << 30
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_out_of_range(
            self,
            beta=self.beta > 0,
            learning_rate=self.learning_rate > 0,
            epochs=self.epochs >= 1,
            minibatch_pairs=self.minibatch_pairs >= 1,
            schedule=self.schedule in SCHEDULES,
            warmup_steps=self.warmup_steps >= 0,
            max_steps=self.max_steps is None or self.max_steps >= 1,
            reference=self.reference in ("start", "base", "other"),
            label_smoothing=0 <= self.label_smoothing < 0.5,
            max_grad_norm=self.max_grad_norm > 0,
            micro_batch_tokens=self.micro_batch_tokens >= 1,
            cache_bytes=self.cache_bytes >= 0,
        )


@dataclass(frozen=True)
class SftConfig:
    """Settings of ``SupervisedLearner``."""

    learning_rate: float
    batch_rows: int
    """Rows per optimiser step."""
    epochs: int = 1
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    max_steps: int | None = None
    """See ``LearnerConfig`` for these three."""
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    micro_batch_tokens: int = 2048
    gradient_checkpointing: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_out_of_range(
            self,
            learning_rate=self.learning_rate > 0,
            batch_rows=self.batch_rows >= 1,
            epochs=self.epochs >= 1,
            schedule=self.schedule in SCHEDULES,
            warmup_steps=self.warmup_steps >= 0,
            max_steps=self.max_steps is None or self.max_steps >= 1,
            weight_decay=self.weight_decay >= 0,
            max_grad_norm=self.max_grad_norm > 0,
            micro_batch_tokens=self.micro_batch_tokens >= 1,
        )


def refuse_out_of_range(config: object, **good: bool) -> None:
    """Raises ConfigError for the first field of ``config`` that is not good."""
    for name, fine in good.items():
        if not fine:
            raise ConfigError(
                f"The setting {name} = {getattr(config, name)!r} is out of range: see the "
                f"description of {type(config).__name__} for what is allowed."
            )
