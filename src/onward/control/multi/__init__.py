"""Several agents in one environment: a team with a central critic, and self-play in tournaments.

Environments have PettingZoo's parallel interface (``parallel.ParallelEnv``); PettingZoo itself is not needed.
A team is trained by PPO with one policy for all its agents, which acts on each agent's own observation, and
one critic, which sees the global state (``team``). Opponents are trained against copies of themselves and of
others, and compared in tournaments (``self_play``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.lazy import attributes

if TYPE_CHECKING:
    from onward.control.multi.self_play import Tournament, Versus, competitive_self_play, elo, tournament
    from onward.control.multi.system import MultiAgentRLSystem
    from onward.control.multi.team import Team, TrainedTeam, evaluate_team, train_team

__all__ = [
    "MultiAgentRLSystem", "Team", "Tournament", "TrainedTeam", "Versus", "competitive_self_play", "elo",
    "evaluate_team", "tournament", "train_team",
]  # fmt: skip
__getattr__ = attributes(
    __name__,
    {
        "onward.control.multi.self_play": "Tournament Versus competitive_self_play elo tournament",
        "onward.control.multi.system": "MultiAgentRLSystem",
        "onward.control.multi.team": "Team TrainedTeam evaluate_team train_team",
    },
)
