"""The policy-gradient algorithms: each turns scored trajectories into advantages, in a module of its own.

Their options are in ``algorithm_options``, which needs no torch. The learner does not know which algorithm
runs: ``learn`` is the only link between the two. Preference learning (``preference``) and supervised learning
(``sft``) have losses of another kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from onward.errors import ConfigError, TrainingError
from onward.lm.algorithm_options import AlgorithmOptions, options_of
from onward.lm.algorithms.base import Algorithm, Estimate, units_of
from onward.lm.algorithms.grpo import Grpo
from onward.lm.algorithms.ppo import Ppo
from onward.lm.algorithms.reinforce import Reinforce
from onward.lm.algorithms.reinforce_plus_plus import ReinforcePlusPlus
from onward.lm.algorithms.rloo import Rloo
from onward.lm.learner import Learner
from onward.lm.statistics import StepMetrics
from onward.lm.trajectories import Selection

__all__ = [
    "ALGORITHMS", "Algorithm", "Estimate", "Grpo", "Ppo", "Reinforce", "ReinforcePlusPlus", "Rloo",
    "algorithm_of", "from_options", "learn",
]  # fmt: skip

ALGORITHMS: dict[str, type[Algorithm]] = {
    kind.type: kind for kind in (Ppo, Rloo, Grpo, Reinforce, ReinforcePlusPlus)
}


def from_options(options: Mapping[str, Any]) -> Algorithm:
    """Builds the algorithm named by ``options["type"]``, with the other options as its settings. Raises
    ConfigError as ``options_of`` does."""
    return algorithm_of(options_of(options))


def algorithm_of(options: AlgorithmOptions) -> Algorithm:
    """Returns the algorithm that has ``options``."""
    return ALGORITHMS[options.type](**asdict(options))


def learn(learner: Learner, algorithm: Algorithm, selection: Selection) -> Iterator[StepMetrics]:
    """Runs one update of ``learner`` on ``algorithm.select(trajectories)``, step by step.

    After ``Learner.restore``, with the same selection and algorithm state, it continues from the saved step.
    Raises ConfigError when the algorithm needs a critic and the learner has none. Raises TrainingError (DATA)
    when older trajectories would be trained on as if they were new.
    """
    if algorithm.uses_critic and learner.critic is None:
        raise ConfigError(
            f"{algorithm.type} needs a critic: give LearnerConfig(critic=CriticConfig()), or use reinforce."
        )
    if learner.config.importance_cap is None and any(one.staleness for one in selection.trajectories):
        raise TrainingError(
            "DATA",
            "Some trajectories were sampled by an older policy than the one that is trained: give "
            "importance_cap (for example 2.0), which weighs them, or leave them out.",
        )
    rows = selection.rows
    learner.open(rows)
    penalty = learner.reward_penalty()
    if algorithm.uses_critic:
        learner.warm_critic(algorithm.monte_carlo(selection, penalty), units_of(selection))
    values = learner.values() if algorithm.uses_critic else None
    estimate = algorithm.estimate(selection, penalty, values)
    yield from learner.update(rows, estimate.advantages, estimate.returns)
