"""Self-play of two opponents: training against copies of the best, tournaments, ratings.

Invariants: a learner's opponents are fixed while it trains, and one is drawn at each episode. Its draws and
the game's follow from the episode's seed, so a run can be repeated and resumed. A tournament plays every pair
on both sides from the same seeds. The best player of each generation stays, so the best never gets worse by
training on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from onward.control.api import train
from onward.control.core.contract import LONGEST_EPISODE, Flags
from onward.control.core.seeds import Seeds
from onward.control.multi.parallel import Make, legal_of
from onward.control.policies.policy import Policy
from onward.errors import ControlError

Player = Policy | None
"""A policy; None plays at random."""
BASE_RATING = 1500.0
_ROUNDS = 100


def _opponents_of(env: Any) -> tuple[Any, Any]:
    agents = tuple(env.possible_agents)
    if len(agents) != 2:
        raise ControlError(f"Self-play is between two agents, and this environment has {len(agents)}.")
    first, second = agents
    same = env.observation_space(first) == env.observation_space(second)
    if not same or env.action_space(first) != env.action_space(second):
        raise ControlError(
            "Self-play needs the same observation and action spaces for both agents: one policy plays both."
        )
    return first, second


class Versus(gymnasium.Env[Any, Any]):
    """One agent's view of a game of two; the other one is played by a policy drawn from ``opponents``.

    The side is drawn at each episode. Success is a positive return.
    """

    def __init__(self, make: Make, opponents: Sequence[Player]) -> None:
        """Raises ControlError for a game that is not between two agents alike."""
        self.game, self.opponents = make(), list(opponents)
        self.sides = _opponents_of(self.game)
        self.observation_space = self.game.observation_space(self.sides[0])
        self.action_space = self.game.action_space(self.sides[0])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        turn = int(self.np_random.integers(2))
        self.me, self.other = self.sides[turn], self.sides[1 - turn]
        drawn = self.opponents[int(self.np_random.integers(len(self.opponents)))]
        self.opponent = _seeded(drawn, self.np_random)
        self.seen, self.infos = self.game.reset(seed=int(self.np_random.integers(1 << 31)))
        self.total, self.alone = 0.0, False
        return self.seen[self.me], self._legal()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        chosen = {self.me: action}
        if self.other in self.game.agents and not self.alone:
            chosen[self.other] = _answer(
                self.opponent,
                self.seen[self.other],
                self.action_space,
                self.np_random,
                legal_of(self.infos, self.other),
            )
        seen, rewards, ends, cuts, self.infos = self.game.step(chosen)
        self.alone = self.alone or bool(ends.get(self.other, False) or cuts.get(self.other, False))
        self.seen = {**self.seen, **seen}
        reward = float(rewards[self.me])
        self.total += reward
        return (
            self.seen[self.me],
            reward,
            bool(ends[self.me]),
            bool(cuts[self.me]),
            {"success": self.total > 0, **self._legal()},
        )

    def _legal(self) -> dict[str, Any]:
        legal = legal_of(self.infos, self.me)
        return {} if legal is None else {"action_mask": legal}


def _seeded(player: Player, rng: np.random.Generator) -> Player:
    """Returns a copy that draws its actions from a seed out of ``rng``; the weights are shared."""
    if player is None:
        return None
    own = copy.copy(player)
    own.seed(int(rng.integers(1 << 31)))
    return own


def _answer(player: Player, obs: Any, space: Any, rng: np.random.Generator, legal: Flags | None) -> Any:
    if player is not None:
        return player.act(obs, deterministic=False, mask=legal)
    space.seed(int(rng.integers(1 << 31)))
    return space.sample() if legal is None else space.sample(legal.astype(np.int8))


@dataclass(frozen=True)
class Tournament:
    """Results of all players against each other."""

    scores: NDArray[np.float64]
    """(n, n) mean score of row against column: a win is 1, a draw 0.5; the diagonal is 0.5."""
    games: int
    """Games of each pair."""

    @property
    def means(self) -> NDArray[np.float64]:
        """(n,) mean score against the others."""
        n = len(self.scores)
        return (self.scores.sum(axis=1) - 0.5) / max(1, n - 1)

    @property
    def ratings(self) -> NDArray[np.float64]:
        """(n,) Elo ratings with a mean of 1500."""
        return elo(self.scores, self.games)

    def best(self, count: int) -> list[int]:
        """Returns the numbers of the ``count`` best players, the best first; ties in their order."""
        return sorted(range(len(self.scores)), key=lambda player: -self.means[player])[:count]


def elo(scores: NDArray[np.float64], games: int) -> NDArray[np.float64]:
    """Returns ratings that do not depend on the order of games: the Bradley-Terry strengths (Hunter 2004,
    equation 3, with one drawn game added to each pair, so that they are finite), as 1500 + 400 log10."""
    n = len(scores)
    played = np.full((n, n), games + 1.0)
    np.fill_diagonal(played, 0.0)
    won = (scores * games + 0.5) * (played > 0)
    logs = np.zeros(n)
    for _ in range(_ROUNDS):  # Newton's method: the likelihood is concave in the logarithms
        chance = 1.0 / (1.0 + np.exp(logs[None, :] - logs[:, None]))
        slope = (won - played * chance).sum(axis=1)
        weight = played * chance * (1.0 - chance)
        step = np.linalg.solve(np.diag(weight.sum(axis=1)) - weight + 1.0 / n, slope)
        logs += step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-9:
            break
    return BASE_RATING + 400.0 / np.log(10.0) * (logs - logs.mean())


def tournament(make: Make, players: Sequence[Player], *, games: int = 20, seed: int = 0) -> Tournament:
    """Plays ``games`` games of each pair, half of them on each side. Policies act by their distributions,
    with draws that follow from ``seed``. An odd number of games is one less.

    Raises ControlError for fewer than two players or games, and for a game that does not end.
    """
    if len(players) < 2 or games < 2:
        raise ControlError(
            f"A tournament has {len(players)} players and {games} games: give 2 or more of both."
        )
    game, scores, seeds = make(), np.full((len(players), len(players)), 0.5), Seeds(seed).child("tournament")
    sides, games = _opponents_of(game), games - games % 2
    space = game.action_space(sides[0])
    for one, other in combinations(range(len(players)), 2):
        total = 0.0
        for number in range(games):
            pair = seeds.integer("game", one, other, number // 2)
            rng = np.random.default_rng([pair, number])
            turn = number % 2
            total += _play(
                game, (sides[turn], sides[1 - turn]), (players[one], players[other]), space, pair, rng
            )
        scores[one, other] = total / games
        scores[other, one] = 1.0 - scores[one, other]
    return Tournament(scores, games)


def _play(
    game: Any, sides: tuple[Any, Any], pair: tuple[Player, Player], space: Any, seed: int,
    rng: np.random.Generator,
) -> float:  # fmt: skip
    """Returns the first player's score of one game: 1, 0.5 or 0, by the higher return."""
    seen, infos = game.reset(seed=seed)
    totals = dict.fromkeys(sides, 0.0)
    players = {side: _seeded(player, rng) for side, player in zip(sides, pair, strict=True)}
    acting, steps = set(sides), 0
    while acting := acting & set(game.agents):
        if steps == LONGEST_EPISODE:
            raise ControlError(
                f"A game of the tournament did not end within {LONGEST_EPISODE:,} steps: give it a limit."
            )
        chosen = {
            side: _answer(players[side], seen[side], space, rng, legal_of(infos, side))
            for side in sides
            if side in acting
        }
        seen, rewards, ends, cuts, infos = game.step(chosen)
        steps += 1
        for side in sides:
            totals[side] += float(rewards.get(side, 0.0))
        acting = {side for side in acting if not (ends.get(side, False) or cuts.get(side, False))}
    return 0.5 + 0.5 * float(np.sign(totals[sides[0]] - totals[sides[1]]))


@dataclass(frozen=True)
class Generation:
    """Players of one generation and their tournament."""

    folders: list[Path]
    table: Tournament

    @property
    def champion(self) -> Path:
        """Folder of the best player's run."""
        return self.folders[self.table.best(1)[0]]


def competitive_self_play(
    make: Make,
    *,
    folder: str | Path,
    timesteps: int,
    num_agents: int = 4,
    generations: int = 3,
    top_k: int = 2,
    games: int = 20,
    settings: dict[str, Any] | None = None,
    seed: int = 0,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Generation]:
    """Trains players against each other and returns the generations, the last one last.

    The first players are trained against a random one. Then, in each generation, the ``top_k`` best of the
    tournament train on, each against all of them, itself included, for ``timesteps`` steps. The champion
    stays as it is; the next generation is the champion and what was trained.
    Raises ControlError for numbers that do not fit, and for a game that is not between two agents alike.
    """
    if not 1 <= top_k <= num_agents or num_agents < 2 or generations < 1:
        raise ControlError(
            f"{num_agents} players, the {top_k} best of them, {generations} generations: give at least 2 "
            f"players, a top_k between 1 and their number, and at least 1 generation."
        )
    _opponents_of(make())
    root, branch = Path(folder), Seeds(seed).child("self-play")

    def trained(name: str, opponents: Sequence[Player], start: Path | None) -> Path:
        place = root / name
        train(
            _Arena(make, opponents), "ppo" if start is None else None, timesteps=timesteps, folder=place,
            eval_every=timesteps, seed=branch.integer(name), start=start,
            settings=settings if start is None else None,
        )  # fmt: skip
        return place

    found: list[Generation] = []
    folders = [trained(f"generation-1/player-{n + 1}", [None], None) for n in range(num_agents)]
    for number in range(1, generations + 1):
        players: list[Player] = [Policy.load(place) for place in folders]
        now = Generation(
            folders, tournament(make, players, games=games, seed=branch.integer("games", number))
        )
        found.append(now)
        best = now.table.best(top_k)
        score, rating = now.table.means[best[0]], now.table.ratings[best[0]]
        tell(f"Generation {number}: the best scores {score:.2f}, rating {rating:.0f}")
        if number == generations:
            break
        pool = [players[player] for player in best]
        folders = [folders[best[0]]] + [
            trained(f"generation-{number + 1}/player-{n + 2}", pool, folders[best[n % top_k]])
            for n in range(num_agents - 1)
        ]
    return found


class _Arena:
    """Makes the learner's view of a game against fixed opponents."""

    def __init__(self, make: Make, opponents: Sequence[Player]) -> None:
        self._make, self._opponents = make, list(opponents)
        self.__qualname__ = getattr(make, "__qualname__", type(make).__name__)

    def __call__(self) -> Versus:
        return Versus(self._make, self._opponents)
