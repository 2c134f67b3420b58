"""A team: slots of several agents, a critic that sees all, a policy that sees its own part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from team_games import BothRight, Leaves

from onward.control import train
from onward.control.core.config import PPOConfig
from onward.control.core.seeds import Seeds
from onward.control.multi.central import CentralPPO
from onward.control.multi.parallel import TeamSlots
from onward.control.multi.self_play import Versus, tournament
from onward.control.multi.team import Team, evaluate_team, train_team
from onward.errors import ControlError

SMALL = {
    "num_envs": 8,
    "n_steps": 32,
    "batch_size": 128,
    "hidden": (32,),
    "learning_rate": 3e-3,
    "gamma": 0.9,
}


def test_a_slot_has_its_own_numbers_its_number_and_the_state():
    envs = TeamSlots(BothRight, 3)
    obs, mask = envs.reset(7)
    assert obs.shape == (6, 1 + 2 + 2) and mask is None and envs.team.own == 3
    for copy in range(3):
        first, second = obs[2 * copy], obs[2 * copy + 1]
        assert first[1:3].tolist() == [1, 0] and second[1:3].tolist() == [0, 1]
        assert first[3:].tolist() == second[3:].tolist() == [first[0], second[0]]
    again, _ = TeamSlots(BothRight, 3).reset(7)
    assert np.array_equal(again, obs)


def test_an_agent_that_is_done_is_dead_until_all_are_and_its_end_is_its_own():
    envs = TeamSlots(Leaves, 1)
    envs.reset(0)
    steps = [envs.step(np.zeros(2, np.int64)) for _ in range(4)]
    assert [step.reward.tolist() for step in steps] == [[1, 1], [0, 1], [0, 1], [1, 1]]
    assert [step.terminated.tolist() for step in steps[:3]] == [[True, False], [False, False], [False, True]]
    assert [step.alive.tolist() for step in steps[:3]] == [[False, True], [False, True], [True, True]]
    assert steps[0].final_obs[0][0] == pytest.approx(0.1) and not steps[0].obs[0].any()
    assert not any(step.truncated.any() for step in steps)


def test_the_policy_sees_nothing_but_its_own_part_and_the_critic_sees_all():
    envs = TeamSlots(BothRight, 2)
    learner = CentralPPO(envs.spec, envs.num, PPOConfig(hidden=(8,), num_envs=2), Seeds(0))
    obs, _ = envs.reset(0)
    other = obs.copy()
    other[:, envs.team.own :] += 1.0  # the state alone is different
    assert np.array_equal(learner.net.outputs(obs), learner.net.outputs(other))
    assert not np.allclose(learner.net.values(obs), learner.net.values(other))
    outputs, values = learner.net(torch.from_numpy(obs))
    assert outputs.shape == (4, 2) and values.shape == (4, 1)


def test_a_team_learns_what_only_both_together_are_paid_for(tmp_path: Path):
    done = train_team(BothRight, timesteps=60_000, folder=tmp_path / "run", settings=SMALL, threshold=9.0)
    assert done.summary["solved"] is not None
    played = evaluate_team(done.policy, BothRight, episodes=40, seed=5)
    assert played.mean >= 9.0  # 2.5 by chance, 10 at best
    game = BothRight()
    team, (seen, _) = Team(done.policy, game), game.reset(seed=3)
    total = 0.0
    while game.agents:
        seen, rewards, *_ = game.step(team.act(seen))
        total += rewards["a"]
    assert total >= 9.0


class KeepsItsAgents(Leaves):
    """A game that does not take agents that are done out of ``agents``."""

    def step(self, actions):
        self.agents = list(actions)
        step = super().step(actions)
        self.agents = list(self.possible_agents)
        return step


def test_an_episode_is_over_when_all_are_done_whatever_the_game_lists():
    envs = TeamSlots(KeepsItsAgents, 1)
    envs.reset(0)
    steps = [envs.step(np.zeros(2, np.int64)) for _ in range(4)]
    assert [step.alive.tolist() for step in steps] == [
        [False, True],
        [False, True],
        [True, True],
        [False, True],
    ]
    assert steps[3].reward.tolist() == [1, 1]  # the next episode


class Throttle(BothRight):
    """Actions are one number without an axis."""

    def action_space(self, agent):
        return spaces.Box(-1.0, 1.0, (), np.float32)

    def score(self, actions):
        return {agent: float(action) for agent, action in actions.items()}


def test_an_action_of_one_number_is_not_rounded():
    envs = TeamSlots(Throttle, 1)
    envs.reset(0)
    assert envs.step(np.array([[0.5], [-0.25]], np.float32)).reward.tolist() == [0.5, -0.25]


class OneLegal(BothRight):
    """The mask allows one action: the other one than the bit. A game refuses what is not legal."""

    def masked(self):
        return {
            agent: {"action_mask": np.array([bit == 1, bit == 0], np.int8)}
            for agent, bit in self.bits.items()
        }

    def reset(self, seed=None, options=None):
        seen, _ = super().reset(seed, options)
        return seen, self.masked()

    def score(self, actions):
        assert all(actions[agent] != self.bits[agent] for agent in actions), "an illegal action"
        return {"a": 1.0, "b": -1.0}

    def step(self, actions):
        seen, rewards, ends, cuts, _ = super().step(actions)
        return seen, rewards, ends, cuts, self.masked()


def test_a_team_in_use_keeps_to_legal_actions(tmp_path: Path):
    small = {**SMALL, "hidden": (8,)}
    policy = train_team(OneLegal, timesteps=512, folder=tmp_path / "run", settings=small).policy
    game = OneLegal()
    seen, infos = game.reset(seed=1)
    team, steps = Team(policy, game), 0
    while game.agents:
        seen, *_, infos = game.step(team.act(seen, infos=infos))
        steps += 1
    assert steps == OneLegal.length


def test_players_keep_to_legal_actions(tmp_path: Path):
    policy = train(
        lambda: Versus(OneLegal, [None]), "ppo", timesteps=512, folder=tmp_path, settings=SMALL
    ).policy
    found = tournament(OneLegal, [policy, None], games=4)
    assert found.scores[0, 1] == 0.5  # side a wins, whoever plays it
    env = Versus(OneLegal, [policy])
    _, info = env.reset(seed=0)
    for _ in range(OneLegal.length):
        _, _, _, over, info = env.step(int(info["action_mask"].argmax()))
    assert over


def test_a_team_that_was_interrupted_goes_on(tmp_path: Path):
    def stop(event):
        return event["event"] != "row"

    given = {"timesteps": 4_096, "folder": tmp_path / "run", "settings": SMALL}
    first = train_team(BothRight, **given, callbacks=[stop]).summary
    assert first["end"] == "interrupted" and first["steps"] < 4_096
    done = train_team(BothRight, **given, resume=True)
    assert done.summary["end"] == "finished" and done.summary["steps"] == 4_096
    # The steps of the episode that was left are lost: it cannot be gone on with.
    assert done.summary["updates"] == (4_096 - first["steps"]) // (32 * 16)
    with pytest.raises(ControlError, match="is finished"):
        train_team(BothRight, **given, resume=True)


class Unlike(BothRight):
    def action_space(self, agent):
        return spaces.Discrete(2 if agent == "a" else 3)


def test_what_cannot_be_a_team_is_one_sentence(tmp_path: Path):
    with pytest.raises(ControlError, match="'a' and 'b' have different action spaces: one policy is shared"):
        TeamSlots(Unlike, 1)
    with pytest.raises(ControlError, match="has not PettingZoo's parallel interface"):
        train_team(object, timesteps=1, folder=tmp_path / "x")
