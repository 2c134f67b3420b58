"""PPO with a critic: a token's advantage is how much better the outcome was than expected there."""

from __future__ import annotations

from dataclasses import dataclass

from torch.nn.utils.rnn import pad_sequence

from onward.errors import ConfigError
from onward.lm import advantages
from onward.lm.algorithm_options import PpoOptions
from onward.lm.algorithms.base import (
    Algorithm,
    Estimate,
    RowTensors,
    join_rows,
    monte_carlo_returns,
    padded_rewards,
    unpadded,
)
from onward.lm.trajectories import Selection


@dataclass
class Ppo(PpoOptions, Algorithm):
    """A by GAE(γ, λ) over trained tokens (1506.02438), whitened; returns R = A + V, A *before* that."""

    def _needs(self) -> dict[str, bool]:
        return {"dense": True}

    def estimate(
        self, selection: Selection, penalty: RowTensors | None, values: RowTensors | None
    ) -> Estimate:
        if values is None:
            raise ConfigError("ppo needs a critic's values: train with LearnerConfig(critic=CriticConfig()).")
        rewards, mask = padded_rewards(selection, penalty)
        expected = pad_sequence(join_rows(selection, values), batch_first=True)
        found, returns = advantages.gae(rewards, expected, mask, self.gamma, self.lam)
        if self.whiten != "none":
            found = advantages.whiten(found, mask, self.whiten)
        return Estimate(unpadded(selection, found), unpadded(selection, returns))

    def monte_carlo(self, selection: Selection, penalty: RowTensors | None) -> RowTensors:
        return monte_carlo_returns(selection, penalty, self.gamma)
