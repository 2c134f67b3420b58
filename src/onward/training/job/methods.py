"""Learners from a job's numbers: one class per kind of loss, all with the same few methods.

Advantages, pairs and losses are those of ``onward.lm``. This module only chooses between them, and makes the
two adjustments of jobs (scale and weight of advantages below the baseline).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from onward.errors import TrainingError
from onward.lm import algorithms, sft, value
from onward.lm.advantages import MIN_STD, asymmetric
from onward.lm.algorithms.base import Algorithm, Estimate, RowTensors, spread
from onward.lm.learner import CriticConfig, Learner, LearnerConfig
from onward.lm.pairs import Pair, make_pairs, usable
from onward.lm.policy import Policy
from onward.lm.preference import DpoConfig, PreferenceLearner
from onward.lm.saved import load_state, save_state, trained_tensors
from onward.lm.stepper import Stepper, Stepping
from onward.lm.tokens import TokenRow
from onward.lm.trajectories import NothingToLearnError, Selection, Trajectory
from onward.training.spec.request import JobSpec

ADAPTER = "policy"
PAIRS_PER_TASK = 8
SFT_FILE = "supervised.pt"
_NAMES = {"dr_grpo": "grpo", "reinforce_pp": "reinforce_plus_plus"}
_TEMPERED = frozenset({"reinforce", "rloo"})

Metrics = dict[str, Any]


class Tempered(Algorithm):
    """``inner``, its advantages scaled to mean square 1 over the job, those below the baseline weighted."""

    def __init__(self, inner: Algorithm, standardise: bool, negative_weight: float) -> None:
        self.type = inner.type  # type: ignore[misc]  # the name of the wrapped algorithm
        self._inner, self._standardise, self._weight = inner, standardise, negative_weight

    def _needs(self) -> dict[str, bool]:
        return self._inner._needs()

    def estimate(
        self, selection: Selection, penalty: RowTensors | None, values: RowTensors | None
    ) -> Estimate:
        rows = iter(self._inner.estimate(selection, penalty, values).advantages)
        found = []
        for one in selection.trajectories:
            per_row = [next(rows) for _ in one.rows]
            found.append(float(per_row[0][0]))
        if self._standardise:
            found = standardised(found)
        return spread(selection, asymmetric(found, self._weight))

    def state(self) -> dict[str, Any]:
        return self._inner.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self._inner.load_state(state)


def standardised(values: Sequence[float]) -> list[float]:
    """Scales to mean square 1 over the whole job, so that the learning rate does not depend on luck. A scale
    below ``MIN_STD`` leaves the values unchanged, since scaling would blow noise up to full size."""
    scale = (sum(value * value for value in values) / len(values)) ** 0.5
    return list(values) if scale < MIN_STD else [value / scale for value in values]


class Method(Stepping, ABC):
    """A learner of ``ADAPTER``, or of all weights if the spec has ``full``."""

    def __init__(self, policy: Policy, spec: JobSpec) -> None:
        self.policy, self.spec = policy, spec
        self.adapter = None if spec.full else ADAPTER
        self.excluded: dict[str, int] = {}
        """Exclusions of the last ``prepare``, by reason."""

    @abstractmethod
    def prepare(self, trajectories: Sequence[Trajectory]) -> int:
        """Sets the next training data; returns the number of rows or pairs. Raises TrainingError (DATA)."""

    @abstractmethod
    def steps(self) -> Iterator[tuple[int, int, Metrics]]:
        """Yields (step, total steps, metrics) for each optimiser step on the prepared data."""

    @abstractmethod
    def save(self, folder: Path) -> bool:
        """Writes all that ``restore`` needs; after a step that was not finite, only returns False."""

    @abstractmethod
    def restore(self, folder: Path) -> None: ...

    def save_beside(self, folder: Path) -> None:
        """Writes the files that a later job needs beside the adapter in ``folder``, if any."""
        del folder

    def load_beside(self, folder: Path) -> None:
        """Reads the files of ``save_beside`` that are in ``folder``."""
        del folder

    def state(self) -> dict[str, Any]:
        """Returns the algorithm's own state (a baseline), as JSON."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        del state


class PolicyGradientMethod(Method):
    """Policy gradients: ppo, rloo, grpo, dr_grpo, reinforce, reinforce_pp."""

    def __init__(self, policy: Policy, spec: JobSpec) -> None:
        super().__init__(policy, spec)
        self.algorithm = _algorithm(spec)
        self.learner = Learner(policy, self.adapter, learner_config(spec))
        self.stepper = self.learner.stepper
        self._selection: Selection | None = None

    def prepare(self, trajectories: Sequence[Trajectory]) -> int:
        self._selection = self.algorithm.select(trajectories, max_staleness=self.spec.max_staleness)
        self.excluded = dict(self._selection.excluded)
        returns = {one.reward for one in (*self._selection.trajectories, *self._selection.observers)}
        if len(returns) == 1 and self.spec.kl_coef == 0:
            raise NothingToLearnError(
                "All returns are equal, so there is nothing to learn: collect more trajectories."
            )
        return len(self._selection.rows)

    def steps(self) -> Iterator[tuple[int, int, Metrics]]:
        assert self._selection is not None
        for step in algorithms.learn(self.learner, self.algorithm, self._selection):
            values = asdict(step)
            metrics = {
                "loss": values["loss"],
                "policy_entropy": values["entropy"],
                "kl_divergence": max(0.0, _finite(values["kl"])),
                "learning_rate": self.stepper.rate,
                **{
                    name: values[name]
                    for name in ("clip_fraction", "ratio_max", "ess", "grad_norm", *self._extra())
                },
            }
            yield step.step, step.total_steps, {name: _finite(value) for name, value in metrics.items()}

    def _extra(self) -> tuple[str, ...]:
        extra: tuple[str, ...] = ()
        if self.algorithm.uses_critic:
            extra += ("value_loss", "held_out_explained_variance")
        if self.spec.kl_coef > 0:
            extra += ("reference_kl", "kl_coef")
        if self.spec.importance_cap is not None:
            extra += ("importance_ess", "truncated_share")
        return extra

    def save(self, folder: Path) -> bool:
        return self.learner.save(folder)

    def restore(self, folder: Path) -> None:
        self.learner.restore(folder)

    def save_beside(self, folder: Path) -> None:
        if self.learner.critic is not None:
            self.learner.critic.save(folder)

    def load_beside(self, folder: Path) -> None:
        if self.learner.critic is not None and (folder / value.FILE).is_file():
            self.learner.critic.load(folder)

    def state(self) -> dict[str, Any]:
        return self.algorithm.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        if state:
            self.algorithm.load_state(dict(state))


class PreferenceMethod(Method):
    """Preference learning: dpo."""

    def __init__(self, policy: Policy, spec: JobSpec) -> None:
        super().__init__(policy, spec)
        config = DpoConfig(
            beta=spec.beta,
            learning_rate=spec.learning_rate,
            epochs=spec.epochs,
            minibatch_pairs=spec.batch_rows,
            reference="start" if spec.full else "base",
            micro_batch_tokens=spec.micro_batch_tokens,
            gradient_checkpointing=spec.gradient_checkpointing,
            seed=spec.seed,
        )
        self.learner = PreferenceLearner(policy, self.adapter, config)
        self.stepper = self.learner.stepper
        self._pairs: list[Pair] = []
        self._corrected = 0

    def prepare(self, trajectories: Sequence[Trajectory]) -> int:
        """Chooses the pairs; ``min_reward`` applies to the return of the chosen side."""
        found = make_pairs(
            trajectories,
            margin=self.spec.margin,
            min_reward=self.spec.min_reward,
            per_task=PAIRS_PER_TASK,
            seed=self.spec.seed,
        )
        kept = usable(found, self.policy.shape.max_positions)
        self._pairs, self.excluded = kept.pairs, dict(kept.excluded)
        self._corrected = sum(pair.corrected for pair in self._pairs)
        return len(self._pairs)

    def steps(self) -> Iterator[tuple[int, int, Metrics]]:
        for step in self.learner.update(self._pairs):
            values = {k: _finite(v) for k, v in asdict(step).items() if isinstance(v, float)}
            told = {"learning_rate": self.spec.learning_rate, "correction_pairs": self._corrected}
            yield step.step, step.total_steps, {**values, **told}

    def save(self, folder: Path) -> bool:
        return self.learner.save(folder)

    def restore(self, folder: Path) -> None:
        self.learner.restore(folder)


class SupervisedMethod(Method):
    """Supervised learning: sft."""

    def __init__(self, policy: Policy, spec: JobSpec) -> None:
        super().__init__(policy, spec)
        self._tensors = trained_tensors(policy, self.adapter)
        self.stepper = Stepper(list(self._tensors.values()), spec.learning_rate, max_grad_norm=1.0)
        self.stepper.scale_for(policy.weights.norm.dtype)
        self._rows: list[TokenRow] = []
        self._done = 0

    def prepare(self, trajectories: Sequence[Trajectory]) -> int:
        """Chooses rows by ``min_reward`` (default: success, a return of 1)."""
        least = 1.0 if self.spec.min_reward is None else self.spec.min_reward
        good = sft.warm_start_rows(trajectories, least)
        longest = self.policy.shape.max_positions
        self._rows = [row for row in good if len(row) <= longest]
        self.excluded = {
            "below_min_reward": sum((one.reward or 0.0) < least for one in trajectories),
            "too_long": len(good) - len(self._rows),
        }
        if not self._rows:
            raise TrainingError(
                "DATA",
                f"None of the {len(good)} rows to imitate fits into the {longest} tokens that the network "
                f"reads: give shorter ones.",
            )
        return len(self._rows)

    def steps(self) -> Iterator[tuple[int, int, Metrics]]:
        for step in sft.fit(
            self.policy,
            self.adapter,
            self._rows,
            learning_rate=self.spec.learning_rate,
            batch_rows=self.spec.batch_rows,
            epochs=self.spec.epochs,
            micro_batch_tokens=self.spec.micro_batch_tokens,
            recompute=self.spec.gradient_checkpointing,
            seed=self.spec.seed,
            stepper=self.stepper,
            done=self._done,
        ):
            self._done = step.step
            metrics = {"loss": step.loss, "grad_norm": step.grad_norm}
            yield (
                step.step,
                step.total_steps,
                {
                    **{name: _finite(value) for name, value in metrics.items()},
                    "learning_rate": self.spec.learning_rate,
                },
            )

    def save(self, folder: Path) -> bool:
        if not self.finite:
            return False
        save_state(folder / SFT_FILE, self._tensors, {"stepper": self.stepper.state(), "done": self._done})
        return True

    def restore(self, folder: Path) -> None:
        state = load_state(folder / SFT_FILE, self._tensors)
        self.stepper.load_state(state["stepper"])
        self._done = int(state["done"])
        if self.adapter is None:
            self.policy.weights.unpack()


def make(policy: Policy, spec: JobSpec) -> Method:
    """Builds the method that ``spec.algorithm`` names. Raises ConfigError for numbers out of range."""
    kinds: dict[str, type[Method]] = {"dpo": PreferenceMethod, "sft": SupervisedMethod}
    return kinds.get(spec.algorithm, PolicyGradientMethod)(policy, spec)


def learner_config(spec: JobSpec) -> LearnerConfig:
    """Returns the learner's settings. Raises ConfigError.

    In an environment every step is a separate update, and the distance from its start is 0 at the start. The
    penalty there is relative to the network without its adapter. On logged data it is relative to the policy
    that serves.
    """
    return LearnerConfig(
        learning_rate=spec.learning_rate,
        schedule="constant" if spec.environment is not None else spec.schedule,
        epochs=spec.epochs,
        minibatch_rows=spec.batch_rows,
        clip_epsilon=spec.clip_epsilon,
        normaliser="constant" if spec.algorithm == "dr_grpo" else spec.normaliser,
        spare_above=spec.spare_above,
        hold_coef=spec.hold_coef,
        kl_coef=spec.kl_coef,
        kl_reference="base" if spec.environment is not None else "start",
        behaviour=spec.behaviour,
        importance_cap=spec.importance_cap,
        critic=CriticConfig() if spec.algorithm == "ppo" else None,
        micro_batch_tokens=spec.micro_batch_tokens,
        gradient_checkpointing=spec.gradient_checkpointing,
        seed=spec.seed,
    )


def _algorithm(spec: JobSpec) -> Algorithm:
    options: dict[str, Any] = {"type": _NAMES.get(spec.algorithm, spec.algorithm)}
    if spec.algorithm == "ppo":
        options |= {"gamma": spec.gamma, "lam": spec.gae_lambda}
    elif spec.algorithm == "reinforce_pp":
        options |= {"gamma": spec.gamma}
    elif spec.algorithm == "dr_grpo":
        options |= {"normalise_std": False}
    made = algorithms.from_options(options)
    if spec.algorithm in _TEMPERED and (spec.standardise or spec.negative_weight != 1.0):
        return Tempered(made, spec.standardise, spec.negative_weight)
    return made


def _finite(value: float) -> float:
    return float(value) if abs(value) < float("inf") else 0.0
