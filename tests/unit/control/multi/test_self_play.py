"""Self-play: a game of two from one side, tournaments and ratings by hand, players that get better."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from team_games import BothRight, HigherBid, Leaves

from onward.control import Policy, resume, train
from onward.control.core.spaces import ActionSpec, layout_of
from onward.control.multi import MultiAgentRLSystem
from onward.control.multi.self_play import Tournament, Versus, competitive_self_play, elo, tournament
from onward.control.policies.policy import Layer, PolicyParts
from onward.errors import ControlError


def always(choice: int) -> Policy:
    """A player that makes the same choice at each step."""
    bias = np.full(5, -1e4, np.float32)
    bias[choice] = 0.0
    layer = Layer(np.zeros((5, 1), np.float32), bias)
    return Policy(
        PolicyParts(layout_of(HigherBid.seen), ActionSpec("discrete", (5,), start=(0,)), "logits", [layer])
    )


def test_ratings_are_those_of_the_formula():
    # 20 games, 15 won, and one added draw: strengths as 15.5 to 5.5.
    found = elo(np.array([[0.5, 0.75], [0.25, 0.5]]), 20)
    assert found[0] - found[1] == pytest.approx(400 * math.log10(15.5 / 5.5))
    assert found.mean() == pytest.approx(1500.0)
    assert elo(np.full((3, 3), 0.5), 10) == pytest.approx([1500.0] * 3)


def test_a_tournament_scores_wins_draws_and_losses_on_both_sides():
    table = tournament(HigherBid, [always(1), always(4), always(1), None], games=6)
    assert table.scores[:3, :3].tolist() == [[0.5, 0.0, 0.5], [1.0, 0.5, 1.0], [0.5, 0.0, 0.5]]
    assert table.scores[1, 3] > 0.8 and table.scores[3, 1] == 1 - table.scores[1, 3]
    assert table.best(1) == [1] and table.ratings.argmax() == 1
    again = tournament(HigherBid, [always(1), always(4), always(1), None], games=6)
    assert np.array_equal(table.scores, again.scores)
    assert Tournament(np.array([[0.5, 0.75], [0.25, 0.5]]), 4).means.tolist() == [0.75, 0.25]


def undecided() -> Policy:
    """A player that draws each choice with the same chance."""
    player = always(0)
    player.parts.layers[0].bias[:] = 0.0
    return Policy(player.parts)


def test_ratings_of_many_players_are_those_that_explain_the_results():
    # A player that beats all below it. At the solution, expected and real points are the same (plus a draw).
    n, games = 12, 100
    scores = np.triu(np.ones((n, n)), 1) + 0.5 * np.eye(n)
    ratings = elo(scores, games)
    chance = 1 / (1 + 10 ** ((ratings[None, :] - ratings[:, None]) / 400))
    others = ~np.eye(n, dtype=bool)
    points = ((games * scores + 0.5) * others).sum(axis=1)
    assert ((games + 1) * chance * others).sum(axis=1) == pytest.approx(points, abs=1e-6)


def test_games_of_players_that_draw_their_actions_repeat_from_the_seed():
    players = [undecided(), undecided(), None]
    first = tournament(HigherBid, players, games=10, seed=3).scores
    assert np.array_equal(first, tournament(HigherBid, players, games=10, seed=3).scores)
    assert not np.array_equal(first, tournament(HigherBid, players, games=10, seed=4).scores)


def test_a_learners_episode_repeats_from_its_random_state_alone():
    opponents = [undecided(), None]
    env, other = Versus(HigherBid, opponents), Versus(HigherBid, opponents)

    def episode(versus: Versus) -> list[float]:
        versus.reset()
        return [versus.step(2)[1] for _ in range(HigherBid.length)]

    env.reset(seed=5)
    found = []
    for _ in range(6):
        state = env.np_random.bit_generator.state
        found.append(episode(env))
        episode(other) if found[1:] else other.reset(seed=9)  # another past
        other.np_random.bit_generator.state = state
        assert episode(other) == found[-1]
    assert len({tuple(one) for one in found}) > 1


def test_a_player_that_was_interrupted_goes_on_bit_for_bit(tmp_path: Path):
    small = {"num_envs": 4, "n_steps": 18, "batch_size": 72, "hidden": (8,)}  # 18: inside an episode of four
    arena = partial(Versus, HigherBid, [undecided(), None])
    given = {"timesteps": 1_440, "settings": small, "checkpoint_every": 100}

    def stop(event):
        return event["step"] < 700

    whole = train(arena, "ppo", folder=tmp_path / "whole", **given)
    train(arena, "ppo", folder=tmp_path / "parts", callbacks=[stop], **given)
    differences: list[str] = []

    def watch(event):
        differences.extend(event.get("differences", []))

    parts = resume(tmp_path / "parts", arena, callbacks=[watch])
    assert not differences and parts.summary["steps"] == whole.summary["steps"]
    for one, other in zip(whole.policy.parts.layers, parts.policy.parts.layers, strict=True):
        assert np.array_equal(one.weight, other.weight)


class KeepsItsAgents(Leaves):
    """A game that does not take agents that are done out of ``agents``."""

    def step(self, actions):
        step = super().step(actions)
        self.agents = list(self.possible_agents)
        return step


class OnlyTheLiving(KeepsItsAgents):
    def step(self, actions):
        self.agents = list(actions)
        return super().step(actions)


def test_a_game_that_keeps_agents_that_are_done_ends_all_the_same():
    table = tournament(OnlyTheLiving, [always(0), always(1)], games=2)
    assert table.scores[0, 1] == 0.5  # 1 against 3 on the one side, 3 against 1 on the other


def test_one_side_of_a_game_is_an_environment_that_meets_each_opponent():
    env = Versus(HigherBid, [always(0), always(4)])
    env.reset(seed=1)
    met, sides = set(), set()
    for _ in range(40):
        env.reset()
        sides.add(env.me)
        total, over = 0.0, False
        while not over:
            _, reward, ended, cut, info = env.step(2)
            total, over = total + reward, ended or cut
        met.add(total)
        assert info["success"] == (total > 0)
    assert met == {4.0, -4.0} and sides == {"a", "b"}


def test_players_that_play_themselves_find_the_choice_that_never_loses(tmp_path: Path):
    found = competitive_self_play(
        HigherBid, folder=tmp_path, timesteps=2_048, num_agents=2, generations=2, top_k=1, games=10,
        settings={"num_envs": 8, "n_steps": 32, "batch_size": 128, "hidden": (16,), "learning_rate": 3e-3},
    )  # fmt: skip
    champion = Policy.load(found[-1].champion)
    assert champion.act(np.zeros(1, np.float32)) == 4
    assert found[1].folders[0] == found[0].champion  # it stays as it is
    assert tournament(HigherBid, [champion, None], games=40).scores[0, 1] > 0.9


class Three(HigherBid):
    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["a", "b", "c"]


def test_what_is_no_game_of_two_is_one_sentence(tmp_path: Path):
    with pytest.raises(ControlError, match="between two agents, and this environment has 3"):
        Versus(Three, [None])
    with pytest.raises(ControlError, match="2 players and 1 games: give 2 or more of both"):
        tournament(BothRight, [None, None], games=1)
    with pytest.raises(ControlError, match="4 players, the 5 best of them"):
        competitive_self_play(HigherBid, folder=tmp_path, timesteps=10, top_k=5)


def test_the_system_of_the_published_profile_trains_a_team_and_players(tmp_path: Path):
    small = {"num_envs": 4, "n_steps": 16, "batch_size": 64, "hidden": (8,)}
    system = MultiAgentRLSystem(2, BothRight, folder=tmp_path)
    team = system.centralized_training_decentralized_execution(512, settings=small)
    assert team.summary["steps"] == 512 and team.folder == tmp_path / "team"
    (only,) = MultiAgentRLSystem(2, HigherBid, folder=tmp_path).competitive_self_play(
        1, 256, settings=small, games=2
    )
    assert len(only.folders) == 2 and only.table.scores.shape == (2, 2)
    with pytest.raises(ControlError, match="num_agents is 3, and the environment has 2: give 2"):
        MultiAgentRLSystem(3, BothRight).centralized_training_decentralized_execution(1)
