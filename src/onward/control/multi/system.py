"""Both ways to train several agents under the names of the published profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onward.control.multi.parallel import Make
from onward.control.multi.self_play import Generation, competitive_self_play
from onward.control.multi.team import TrainedTeam, train_team
from onward.errors import ControlError


class MultiAgentRLSystem:
    """Agents in one environment: a team with a central critic, or players of a game of two."""

    def __init__(self, num_agents: int, make: Make, *, folder: str | Path = "agents", seed: int = 0) -> None:
        """``num_agents``: agents of the team, or players of the population. ``make``: makes an environment
        with PettingZoo's parallel interface."""
        self.num_agents, self.make, self.folder, self.seed = num_agents, make, Path(folder), seed

    def centralized_training_decentralized_execution(self, timesteps: int, **options: Any) -> TrainedTeam:
        """Trains the team (``train_team``). Raises ControlError where the environment has another number of
        agents."""
        found = len(self.make().possible_agents)
        if found != self.num_agents:
            raise ControlError(
                f"num_agents is {self.num_agents}, and the environment has {found}: give {found}."
            )
        given: dict[str, Any] = {"folder": self.folder / "team", "seed": self.seed, **options}
        return train_team(self.make, timesteps=timesteps, **given)

    def competitive_self_play(self, num_generations: int, timesteps: int, **options: Any) -> list[Generation]:
        """Trains players against each other (``self_play``). The four best go on, or half of fewer than
        eight."""
        given: dict[str, Any] = {
            "folder": self.folder / "self-play",
            "num_agents": self.num_agents,
            "top_k": min(4, max(1, self.num_agents // 2)),
            "seed": self.seed,
            **options,
        }
        return competitive_self_play(self.make, timesteps=timesteps, generations=num_generations, **given)
