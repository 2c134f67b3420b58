"""Several agents in one environment: a team with a central critic, and self-play in tournaments.

Environments have PettingZoo's parallel interface (``parallel.ParallelEnv``); PettingZoo itself is not needed.
A team is trained by PPO with one policy for all its agents, which acts on each agent's own observation, and
one critic, which sees the global state (``team``). Opponents are trained against copies of themselves and of
others, and compared in tournaments (``self_play``).
"""
