"""The settings of the core's learners that a job's numbers give. Pure, without torch.

A job builds its learner from them, and a request is refused if they cannot be built: there is no second list
of what a learner takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onward.lm.algorithm_options import AlgorithmOptions, options_of
from onward.lm.options import CriticConfig, DpoConfig, LearnerConfig, SftConfig

if TYPE_CHECKING:
    from onward.training.spec.request import JobSpec

MISMATCH_CAP = 2.0
"""Cap on importance weights if the recorded log-probs are not the learner's own and no cap is set."""


def check(spec: JobSpec) -> None:
    """Raises ConfigError for numbers of which the job could not build its learner."""
    if spec.algorithm == "dpo":
        dpo_config(spec)
    elif spec.algorithm == "sft":
        sft_config(spec)
    else:
        algorithm_options(spec)
        learner_config(spec)


def algorithm_options(spec: JobSpec) -> AlgorithmOptions:
    """Returns the options of a policy gradient. ``dr_grpo`` is grpo without division by the deviation."""
    options: dict[str, Any] = {"type": "grpo" if spec.algorithm == "dr_grpo" else spec.algorithm}
    if spec.algorithm == "ppo":
        options |= {"gamma": spec.gamma, "lam": spec.gae_lambda}
    elif spec.algorithm == "reinforce_plus_plus":
        options |= {"gamma": spec.gamma}
    elif spec.algorithm == "dr_grpo":
        options |= {"normalise_std": False}
    return options_of(options)


def learner_config(spec: JobSpec) -> LearnerConfig:
    """Returns the learner's settings. Raises ConfigError.

    In an environment every step is a separate update, and the distance from its start is 0 at the start. The
    penalty there is relative to the network without its adapter. On logged data it is relative to the policy
    that serves.
    """
    return LearnerConfig(
        minibatch_rows=spec.batch_rows,
        clip_epsilon=spec.clip_epsilon,
        normaliser="constant" if spec.algorithm == "dr_grpo" else spec.normaliser,
        spare_above=spec.spare_above,
        hold_coef=spec.hold_coef,
        kl_coef=spec.kl_coef,
        kl_reference="base" if spec.environment is not None else "start",
        behaviour=spec.behaviour,
        importance_cap=spec.importance_cap,
        # In float32 an environment's attempts are sampled by the learner's own arithmetic.
        mismatch_cap=None if spec.plays and spec.dtype == "float32" else MISMATCH_CAP,
        critic=CriticConfig() if spec.algorithm == "ppo" else None,
        **_common(spec),
    )


def dpo_config(spec: JobSpec) -> DpoConfig:
    """Returns the settings of preference learning. A job of all weights has no adapter to turn off, so its
    base is its start. Raises ConfigError."""
    reference = "start" if spec.reference == "base" and spec.full else spec.reference
    return DpoConfig(
        beta=spec.beta,
        minibatch_pairs=spec.batch_rows,
        reference=reference if reference in ("start", "base") else "other",
        length_normalised=spec.length_normalised,
        label_smoothing=spec.label_smoothing,
        **_common(spec),
    )


def sft_config(spec: JobSpec) -> SftConfig:
    """Returns the settings of supervised learning. Raises ConfigError."""
    return SftConfig(batch_rows=spec.batch_rows, **_common(spec))


def _common(spec: JobSpec) -> dict[str, Any]:
    """Returns the settings that every learner has."""
    return {
        "learning_rate": spec.learning_rate,
        "epochs": spec.epochs,
        # In an environment each step is an update of its own; the rate falls over all of them (OnPolicy).
        **({"schedule": spec.schedule, "warmup_steps": spec.warmup_steps} if not spec.plays else {}),
        "max_steps": spec.max_steps,
        "micro_batch_tokens": spec.micro_batch_tokens,
        "gradient_checkpointing": spec.gradient_checkpointing,
        "seed": spec.seed,
    }
