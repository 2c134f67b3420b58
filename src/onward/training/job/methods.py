"""Learners from a job's numbers: one class per kind of loss, all with the same few methods.

Advantages, pairs and losses are those of ``onward.lm``. This module only chooses between them, and makes the
two adjustments of jobs (scale and weight of advantages below the baseline).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from onward.errors import ConfigError, TrainingError
from onward.lm import algorithms, paths, sft, value
from onward.lm.advantages import MIN_STD, asymmetric
from onward.lm.algorithms.base import Algorithm, Estimate, RowTensors, spread
from onward.lm.learner import Learner
from onward.lm.model import LanguageModel
from onward.lm.pairs import Pair, PairSelection, make_pairs, usable
from onward.lm.preference import PreferenceLearner, dpo_loss
from onward.lm.saved import trained_tensors
from onward.lm.stepper import Stepping
from onward.lm.tokens import TokenRow
from onward.lm.trajectories import NothingToLearnError, Selection, Trajectory
from onward.training.spec import learners
from onward.training.spec.request import JobSpec

ADAPTER = "policy"
PAIRS_PER_TASK = 8
MOST_DIFFERENCE, LEAST_ESS = 0.1, 0.95
"""Limits of a step's ``logprob_difference`` (nats) and ``importance_ess``. bfloat16 has 0.035 and 0.9975."""
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

    def __init__(self, policy: LanguageModel, spec: JobSpec) -> None:
        self.policy, self.spec = policy, spec
        self.adapter = None if spec.full else ADAPTER
        self.tensors = trained_tensors(policy, self.adapter)
        """The tensors that training changes."""
        self.excluded: dict[str, int] = {}
        """Exclusions of the last ``prepare``, by reason."""
        self.warn: Callable[[str], None] = lambda sentence: None
        """Receives a sentence about a run that goes on and should be looked at."""
        longest = policy.shape.max_positions
        self.max_tokens = longest if spec.max_length is None else min(spec.max_length, longest)
        """Tokens that a row may have."""

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

    def judge(self, trajectories: Sequence[Trajectory]) -> Metrics:
        """Returns ``eval_loss`` and others on data that is not trained on. Raises TrainingError (DATA)."""
        raise ConfigError(
            f"{self.spec.algorithm} cannot be judged on a file: its result shows in an environment (--env)."
        )

    def state(self) -> dict[str, Any]:
        """Returns the algorithm's own state (a baseline), as JSON."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        del state


class PolicyGradientMethod(Method):
    """Policy gradients: ppo, rloo, grpo, dr_grpo, reinforce, reinforce_plus_plus."""

    def __init__(self, policy: LanguageModel, spec: JobSpec) -> None:
        super().__init__(policy, spec)
        self.algorithm = _algorithm(spec)
        self.learner = Learner(policy, self.adapter, learners.learner_config(spec))
        self.stepper = self.learner.stepper
        self._selection: Selection | None = None
        self._warned = False

    def prepare(self, trajectories: Sequence[Trajectory]) -> int:
        self._selection = self.algorithm.select(
            trajectories, max_staleness=self.spec.max_staleness, max_tokens=self.max_tokens
        )
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
            self._check_behaviour(values)
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
        config = self.learner.config
        if config.importance_cap is not None or config.mismatch_cap is not None:
            extra += ("logprob_difference", "importance_ess", "truncated_share")
        return extra

    def _check_behaviour(self, step: Metrics) -> None:
        """Warns once if the probabilities that the sampler recorded are far from the learner's."""
        difference, share = step["logprob_difference"], step["importance_ess"]
        far = difference > MOST_DIFFERENCE or share < LEAST_ESS
        if far and not self._warned and not self.spec.max_staleness:
            self._warned = True
            self.warn(
                f"The recorded log-probs differ from the learner's by {difference:.3f} nats on average "
                f"(effective sample share {share:.3f}): compare the sampler's model, precision and template "
                f"with this job's, since the weights that correct for it discard data."
            )

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

    def __init__(self, policy: LanguageModel, spec: JobSpec) -> None:
        super().__init__(policy, spec)
        config = learners.dpo_config(spec)
        other = (lambda: _reference(policy, spec)) if config.reference == "other" else None
        self.learner = PreferenceLearner(policy, self.adapter, config, other)
        self.stepper = self.learner.stepper
        self._pairs: list[Pair] = []
        self._corrected = 0

    def prepare(self, trajectories: Sequence[Trajectory]) -> int:
        """Chooses the pairs; ``min_reward`` applies to the return of the chosen side."""
        kept = self._chosen(trajectories)
        self._pairs, self.excluded = kept.pairs, dict(kept.excluded)
        self._corrected = sum(pair.corrected for pair in self._pairs)
        return len(self._pairs)

    def _chosen(self, trajectories: Sequence[Trajectory]) -> PairSelection:
        found = make_pairs(
            trajectories,
            margin=self.spec.margin,
            min_reward=self.spec.min_reward,
            per_task=PAIRS_PER_TASK,
            seed=self.spec.seed,
        )
        return usable(found, self.max_tokens)

    def steps(self) -> Iterator[tuple[int, int, Metrics]]:
        for step in self.learner.update(self._pairs):
            values = {k: _finite(v) for k, v in asdict(step).items() if isinstance(v, float)}
            told = {"learning_rate": self.stepper.rate, "correction_pairs": self._corrected}
            yield step.step, step.total_steps, {**values, **told}

    def judge(self, trajectories: Sequence[Trajectory]) -> Metrics:
        margins = torch.tensor(self.learner.margins(self._chosen(trajectories).pairs))
        loss = dpo_loss(margins, self.spec.label_smoothing).mean()
        return {"eval_loss": float(loss), "eval_accuracy": float((margins > 0).float().mean())}

    def save(self, folder: Path) -> bool:
        return self.learner.save(folder)

    def restore(self, folder: Path) -> None:
        self.learner.restore(folder)


def _reference(policy: LanguageModel, spec: JobSpec) -> tuple[LanguageModel, str | None]:
    """Loads the policy in the folder ``spec.reference``: a network of its own, or an adapter of ``policy``'s
    network. Raises ConfigError for a network that reads other tokens."""
    folder = Path(spec.reference)
    if (folder / "config.json").is_file():
        other = paths.load(folder, device=str(policy.device), dtype=policy.dtype, path=spec.path)
        if other.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
            raise ConfigError(
                f"The reference in {folder} has another tokenizer than the policy in training, so their "
                f"probabilities cannot be compared: give one of the same model."
            )
        return other, None
    if spec.full:  # training moves the network that the adapter belongs to
        policy = paths.load(
            Path(spec.model_folder), device=str(policy.device), dtype=policy.dtype, path=spec.path
        )
    if "reference" not in policy.adapters:
        policy.add_adapter("reference", folder)
    return policy, "reference"


class SupervisedMethod(Method):
    """Supervised learning: sft."""

    def __init__(self, policy: LanguageModel, spec: JobSpec) -> None:
        super().__init__(policy, spec)
        self.learner = sft.SupervisedLearner(policy, self.adapter, learners.sft_config(spec))
        self.stepper = self.learner.stepper
        self._rows: list[TokenRow] = []

    def prepare(self, trajectories: Sequence[Trajectory]) -> int:
        """Chooses rows by ``min_reward`` (default: success, a return of 1)."""
        self._rows, self.excluded = self._chosen(trajectories)
        return len(self._rows)

    def _chosen(self, trajectories: Sequence[Trajectory]) -> tuple[list[TokenRow], dict[str, int]]:
        least = 1.0 if self.spec.min_reward is None else self.spec.min_reward
        good = sft.warm_start_rows(trajectories, least)
        kept = [row for row in good if row.trained[-1] < self.max_tokens]
        if not kept:
            raise TrainingError(
                "DATA",
                f"None of the {len(good)} rows to imitate fits into {self.max_tokens} tokens: give shorter "
                f"ones, or raise the maximum length.",
            )
        low = sum((one.reward or 0.0) < least for one in trajectories)
        return kept, {"below_min_reward": low, "too_long": len(good) - len(kept)}

    def steps(self) -> Iterator[tuple[int, int, Metrics]]:
        for step in self.learner.update(self._rows):
            metrics = {"loss": step.loss, "grad_norm": step.grad_norm, "learning_rate": self.stepper.rate}
            yield step.step, step.total_steps, {name: _finite(value) for name, value in metrics.items()}

    def judge(self, trajectories: Sequence[Trajectory]) -> Metrics:
        return {"eval_loss": self.learner.loss(self._chosen(trajectories)[0])}

    def save(self, folder: Path) -> bool:
        return self.learner.save(folder)

    def restore(self, folder: Path) -> None:
        self.learner.restore(folder)


def make(policy: LanguageModel, spec: JobSpec) -> Method:
    """Builds the method that ``spec.algorithm`` names. Raises ConfigError for numbers out of range."""
    kinds: dict[str, type[Method]] = {"dpo": PreferenceMethod, "sft": SupervisedMethod}
    return kinds.get(spec.algorithm, PolicyGradientMethod)(policy, spec)


def _algorithm(spec: JobSpec) -> Algorithm:
    made = algorithms.algorithm_of(learners.algorithm_options(spec))
    if spec.algorithm in _TEMPERED and (spec.standardise or spec.negative_weight != 1.0):
        return Tempered(made, spec.standardise, spec.negative_weight)
    return made


def _finite(value: float) -> float:
    return float(value) if abs(value) < float("inf") else 0.0
