"""PPO: what it stores, what it learns from, and that it learns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from on_policy_tasks import ACTIONS, Identity, greedy_returns, identity_score, train

from onward.control.algorithms.ppo import PPO
from onward.control.core.config import PPOConfig
from onward.control.core.contract import Environments, EnvSpec, Step
from onward.control.core.returns import gae
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import ActionSpec, Layout
from onward.control.environments import make

pytestmark = pytest.mark.slow

IDENTITY = {
    "n_steps": 32,
    "batch_size": 64,
    "epochs": 4,
    "learning_rate": 3e-3,
    "gamma": 0.0,
    "log_std": -1.0,
}
CARTPOLE = PPOConfig(
    num_envs=8, n_steps=32, batch_size=256, epochs=20, gamma=0.98, gae_lambda=0.8,
    learning_rate=1e-3, lr_schedule="linear", clip_schedule="linear",
)  # fmt: skip
PENDULUM = PPOConfig(
    num_envs=4, n_steps=1024, batch_size=64, epochs=10, gamma=0.9, learning_rate=1e-3,
)  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def ppo(kind: str = "discrete", seed: int = 0, num: int = 8, **settings) -> tuple[PPO, Identity]:
    envs = Identity(kind, num)
    config = PPOConfig(num_envs=num, **{"n_steps": 8, "batch_size": 16, "epochs": 2, **settings})
    return PPO(envs.spec, num, config, Seeds(seed)), envs


def filled(algorithm: PPO, envs: Environments) -> None:
    """Act until an update is due."""
    obs, mask = envs.reset(1)
    while not algorithm.due():
        actions = algorithm.act(obs, mask)
        step = envs.step(actions)
        algorithm.observe(obs, actions, step)
        obs, mask = step.obs, step.action_mask


class Endless(Environments):
    """One observation, reward 1 for ever, cut every 10 steps: V = 1/(1 − γ)."""

    def __init__(self, num: int = 4) -> None:
        self.num, self.time = num, 0
        self.spec = EnvSpec("endless", Layout(1), ActionSpec("discrete", sizes=(2,)), max_steps=10)

    def reset(self, seed: int):
        self.time = 0
        return np.ones((self.num, 1), np.float32), None

    def step(self, actions) -> Step:
        self.time += 1
        obs, cut = np.ones((self.num, 1), np.float32), np.full(self.num, self.time % 10 == 0)
        return Step(obs, np.ones(self.num, np.float32), ~cut & False, cut, obs if cut.any() else None)

    def state_dict(self):
        raise NotImplementedError

    def load_state_dict(self, state):
        raise NotImplementedError


# -- what is stored and learned from


def test_a_time_limit_is_bootstrapped_so_the_value_is_that_of_endless_life():
    envs = Endless()
    config = PPOConfig(num_envs=4, n_steps=32, batch_size=128, epochs=10, gamma=0.9, learning_rate=1e-2)
    algorithm = PPO(envs.spec, 4, config, Seeds(0))
    train(algorithm, envs, 4 * 32 * 40)
    assert algorithm.net.values(np.ones((1, 1), np.float32))[0, 0] == pytest.approx(10.0, rel=0.03)


def test_raw_actions_are_stored_and_scored_though_the_environment_clips():
    algorithm, envs = ppo("box", log_std=1.0)
    filled(algorithm, envs)
    stored = algorithm.rollout.actions
    assert np.abs(stored).max() > 1
    data, _ = algorithm._data()
    with torch.no_grad():
        means = algorithm.net.policy(torch.from_numpy(data["obs"]))
    expected = (
        torch.distributions.Normal(means, math.e).log_prob(torch.from_numpy(stored.reshape(-1, 1))).sum(1)
    )
    np.testing.assert_allclose(data["log_probs"], expected, rtol=1e-5, atol=1e-6)


def test_the_first_ratio_of_an_update_is_one():
    for kind in ACTIONS:
        algorithm, envs = ppo(kind, normalise_obs=True, batch_size=64, epochs=1)
        filled(algorithm, envs)
        algorithm.update()
        filled(algorithm, envs)
        data, _ = algorithm._data()
        *_, log_ratio = algorithm._loss(data, 0.2)
        assert float(log_ratio.detach().abs().max()) == pytest.approx(0, abs=1e-5)


def test_the_normaliser_moves_between_rollouts_only_and_learns_each_observation_once():
    algorithm, envs = ppo("box", normalise_obs=True)
    filled(algorithm, envs)
    assert algorithm.norm.count == 0
    rows = algorithm.rollout.obs[:-1].reshape(-1, 1).copy()
    algorithm.update()
    assert algorithm.norm.count == len(rows) == 64
    np.testing.assert_allclose(algorithm.norm.mean, rows.mean(0), rtol=1e-5)
    assert algorithm.networks().norm[0] is not algorithm.norm.mean


def test_advantages_are_normalised_over_the_rollout_and_not_over_minibatches():
    algorithm, envs = ppo()
    filled(algorithm, envs)
    data, _ = algorithm._data()
    assert float(data["advantages"].mean()) == pytest.approx(0, abs=1e-6)
    assert float(data["advantages"].std()) == pytest.approx(1, abs=1e-4)
    seen = np.concatenate([batch["advantages"] for batch in algorithm._minibatches(data)])
    assert np.array_equal(np.sort(seen), np.sort(data["advantages"]))


@pytest.mark.parametrize(
    ("rows", "batch_size", "parts"), [(64, 16, 4), (64, 63, 2), (64, 64, 1), (64, 100, 1)]
)
def test_minibatches_hold_every_row_once_in_nearly_equal_parts(rows, batch_size, parts):
    algorithm, _ = ppo(batch_size=batch_size)
    batches = list(algorithm._minibatches({"advantages": np.arange(rows)}))
    sizes = [len(batch["advantages"]) for batch in batches]
    assert len(batches) == parts and max(sizes) - min(sizes) <= 1
    assert sorted(np.concatenate([batch["advantages"] for batch in batches])) == list(range(rows))


def test_a_rollout_of_one_step_updates_without_nan():
    algorithm, envs = ppo(num=1, n_steps=1, batch_size=2)
    for _ in range(3):
        filled(algorithm, envs)
        assert all(math.isfinite(value) for value in algorithm.update().values())
    assert algorithm.networks().finite()


def with_dead_slots(poison: float) -> PPO:
    """Slots 2 and 3 of 4 are dead from the second step on; ``poison`` is what stands in their rows."""
    algorithm, envs = ppo(num=4)
    obs, _ = envs.reset(1)
    alive = np.array([True, True, False, False])
    while not algorithm.due():
        actions = algorithm.act(obs, None)
        step = envs.step(actions)
        shown = step.obs.copy()
        shown[2:] += poison
        reward = step.reward.copy()
        reward[2:] = 0 if algorithm.steps else reward[2:]
        ended = np.array([False, False, not algorithm.steps, not algorithm.steps])
        final = step.obs[2:].copy() if not algorithm.steps else None
        algorithm.observe(obs, actions, Step(shown, reward, ended, ended & False, final, alive))
        obs = shown
    return algorithm


def test_dead_slots_change_neither_statistics_nor_any_gradient():
    gradients, advantages = [], []
    for poison in (0.0, 1000.0):
        algorithm = with_dead_slots(poison)
        data, _ = algorithm._data()
        assert len(data["advantages"]) == 2 * 8 + 2  # two living slots, and the others' first step
        advantages.append(data["advantages"])
        algorithm.net.flat.backward(algorithm._loss(data, 0.2)[0])
        gradients.append(algorithm.net.flat.grad.clone())
    np.testing.assert_allclose(advantages[0], advantages[1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients[0], gradients[1])
    assert gradients[0].abs().max() > 0


def test_illegal_actions_are_not_taken_and_keep_probability_zero_in_the_update():
    algorithm, envs = ppo()
    mask = np.tile(np.array([False, True, True, False]), (8, 1))
    obs, _ = envs.reset(1)
    while not algorithm.due():
        actions = algorithm.act(obs, mask)
        assert set(np.unique(actions)) <= {1, 2}
        step = envs.step(actions)
        algorithm.observe(obs, actions, step)
        obs = step.obs
    data, _ = algorithm._data()
    assert float(data["log_probs"].min()) > math.log(0.4)  # two legal actions, hardly trained
    assert all(math.isfinite(value) for value in algorithm.update().values())


def written_down(algorithm: PPO, data: dict, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's loss as the paper has it, by torch.distributions and autograd: (policy's part, values' part)."""
    net, config = algorithm.net, algorithm.config
    obs, actions = torch.from_numpy(data["obs"]), torch.from_numpy(data["actions"])
    out, values = net.policy(obs), net.value(obs)
    D = torch.distributions
    found, each = {
        "discrete": lambda: ([D.Categorical(logits=out)], [actions]),
        "multi_discrete": lambda: (
            [D.Categorical(logits=x) for x in out.split((3, 2), dim=1)], list(actions.T)
        ),
        "multi_binary": lambda: ([D.Independent(D.Bernoulli(logits=out), 1)], [actions.float()]),
        "box": lambda: ([D.Independent(D.Normal(out, net.dist.log_std.exp()), 1)], [actions]),
    }[kind]()  # fmt: skip
    log_probs = torch.stack([d.log_prob(a) for d, a in zip(found, each, strict=True)]).sum(0)
    entropy = torch.stack([d.entropy() for d in found]).sum(0).mean()
    ratio, advantages = (log_probs - torch.from_numpy(data["log_probs"])).exp(), data["advantages"]
    advantages = torch.from_numpy(advantages)
    policy = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    old, returns = torch.from_numpy(data["values"]), torch.from_numpy(data["returns"])
    if config.value_clip is not None:
        values = old + (values - old).clamp(-config.value_clip, config.value_clip)
    value = (values - returns).square().sum(1).mean()
    return policy - config.entropy_coef * entropy, config.value_coef * value


@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize("options", [{}, {"entropy_coef": 0.1, "value_clip": 0.05}, {"bonus": "rnd"}])
def test_gradients_are_those_that_autograd_finds_in_the_loss_as_it_is_written(kind, options):
    extra = {"bonus_random_steps": 8} if options.get("bonus") else {}
    algorithm, envs = ppo(kind, learning_rate=3e-2, epochs=3, max_grad_norm=1e9, **options, **extra)
    filled(algorithm, envs)
    data, _ = algorithm._data()
    for batch in [*algorithm._minibatches(data)] * 3:  # away from ratio 1, so that some are cut
        algorithm.net.flat.backward(algorithm._loss(batch, 0.2)[0])
        algorithm.optimiser.step()
    loss, policy_loss, value_loss, log_ratio = algorithm._loss(data, 0.2)
    assert 0.05 < ((log_ratio.exp() - 1).abs() > 0.2).float().mean() < 1
    algorithm.net.flat.backward(loss)
    policy, value = written_down(algorithm, data, kind)
    parameters = [*algorithm.net.policy.parameters(), *algorithm.net.dist.parameters()]
    parameters += algorithm.net.value.parameters()
    expected = torch.autograd.grad(policy + value, parameters)
    for p, wanted in zip(parameters, expected, strict=True):
        torch.testing.assert_close(p.grad, wanted, rtol=2e-4, atol=2e-6)
    if not options.get("entropy_coef"):
        assert policy_loss.item() == pytest.approx(float(policy.detach()), abs=1e-5)
    assert 0.5 * value_loss.item() == pytest.approx(float(value.detach()), rel=1e-4)


# -- options


def test_learning_rate_and_clip_fall_with_environment_steps():
    algorithm, envs = ppo(lr_schedule="linear", clip_schedule="linear", learning_rate=1e-2)
    clips = []
    gradient = algorithm._gradient
    algorithm._gradient = lambda batch, clip: (clips.append(clip), gradient(batch, clip))[1]
    algorithm.total_steps = 256
    for steps in (64, 128, 192):
        filled(algorithm, envs)
        algorithm.update()
        assert algorithm.optimiser.lr == pytest.approx(1e-2 * (1 - steps / 256))
        assert clips[-1] == pytest.approx(0.2 * (1 - steps / 256))


def test_epochs_stop_when_the_policy_has_moved_too_far():
    algorithm, envs = ppo(target_kl=1e-6, learning_rate=1e-1, epochs=50, batch_size=64)
    filled(algorithm, envs)
    algorithm.update()
    assert int(algorithm.optimiser.state_dict()["step"]) == 1  # the second pass saw the move


def test_a_clipped_value_has_no_gradient_beyond_its_range():
    algorithm, envs = ppo(value_clip=0.1)
    filled(algorithm, envs)
    data, _ = algorithm._data()
    data["values"] = data["values"] + 5.0
    algorithm.net.flat.backward(algorithm._loss(data, 0.2)[0])
    assert all(float(p.grad.abs().max()) == 0 for p in algorithm.net.value.parameters())
    assert any(float(p.grad.abs().max()) > 0 for p in algorithm.net.policy.parameters())


def test_gradients_are_clipped_to_their_norm():
    algorithm, envs = ppo(max_grad_norm=1e-3, epochs=1, batch_size=64)
    filled(algorithm, envs)
    assert algorithm.update()["grad_norm"] > 1e-3
    assert float(algorithm.net.flat.grad.norm()) <= 1e-3 * 1.001


def test_rewards_are_scaled_for_learning_only():
    algorithm, envs = ppo(scale_rewards=True)
    filled(algorithm, envs)
    raw = algorithm.rollout.rewards
    assert set(np.unique(raw)) <= {0.0, 1.0}
    data, _ = algorithm._data()
    scaled = raw / np.sqrt(algorithm.scale.norm.var[0] + 1e-8)
    of_obs, led_to = algorithm.rollout.values(algorithm.net.values)
    values = of_obs[:-1, :, 0]
    flags = algorithm.rollout.terminated, algorithm.rollout.truncated
    expected = gae(scaled, values, led_to[..., 0], *flags, 0.99, 0.95) + values
    np.testing.assert_allclose(data["returns"][:, 0], expected.reshape(-1), rtol=1e-4, atol=1e-5)


def test_a_bonus_has_a_head_of_its_own_whose_life_never_ends():
    algorithm, envs = ppo(
        bonus="rnd", bonus_random_steps=16, bonus_weight=2.0, bonus_gamma=0.5, gae_lambda=1.0
    )
    assert algorithm.net.value(torch.zeros(1, 4)).shape == (1, 2)
    filled(algorithm, envs)
    assert algorithm.steps == 16 + 64 and algorithm.bonus.primed  # random steps are not learned from
    rollout = algorithm.rollout
    stream = np.arange(64, dtype=np.float32).reshape(8, 8)
    of_obs, led_to = algorithm.rollout.values(algorithm.net.values)
    extra = algorithm._bonus_advantages(stream, of_obs[..., 1], led_to[..., 1])
    rollout.truncated[:] = True  # ends of episodes change nothing
    np.testing.assert_array_equal(algorithm._bonus_advantages(stream, of_obs[..., 1], led_to[..., 1]), extra)
    returns = sum(0.5**t * stream[t] for t in range(8)) + 0.5**8 * of_obs[8, :, 1]
    np.testing.assert_allclose(extra[0] + of_obs[0, :, 1], returns, rtol=1e-4)
    rollout.truncated[:] = False
    told = algorithm.update()
    assert told["bonus_mean"] > 0 and math.isfinite(told["bonus_loss"])


# -- runs


@pytest.mark.parametrize("kind", ACTIONS)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(kind):
    settings = {"normalise_obs": True, "scale_rewards": True, "lr_schedule": "linear"}
    bonus = {"bonus": "rnd", "bonus_random_steps": 8}
    whole, envs = ppo(kind, **settings, **bonus)
    other, _ = ppo(kind, seed=7, **settings, **bonus)
    whole.total_steps = other.total_steps = 1000
    obs, _ = envs.reset(3)
    for turn in range(40):
        if turn == 21:  # in the middle of a rollout
            other.load_state_dict(whole.state_dict())
        actions = whole.act(obs, None)
        if turn >= 21:
            np.testing.assert_array_equal(other.act(obs, None), actions)
        step = envs.step(actions)
        for algorithm in (whole, other) if turn >= 21 else (whole,):
            algorithm.observe(obs, actions, step)
            if algorithm.due():
                algorithm.update()
        obs = step.obs
    assert whole.steps == other.steps
    assert torch.equal(whole.net.flat.tensor, other.net.flat.tensor)


def test_runs_of_one_seed_are_equal_and_of_another_are_not():
    def weights(seed):
        algorithm, envs = ppo(seed=seed)
        train(algorithm, envs, 256, seed)
        return algorithm.net.flat.tensor

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


@pytest.mark.parametrize("kind", ACTIONS)
def test_every_action_space_is_learned(kind):
    algorithm, envs = ppo(kind, **IDENTITY, entropy_coef=0.0 if kind == "box" else 0.02)
    train(algorithm, envs, 8192)
    assert identity_score(algorithm, kind) >= 90


def test_layer_norm_and_relu_learn_too():
    algorithm, envs = ppo("discrete", **IDENTITY, entropy_coef=0.02, layer_norm=True, activation="relu")
    train(algorithm, envs, 8192)
    assert identity_score(algorithm, "discrete") >= 90


def test_cartpole_is_solved():
    envs = make("CartPole-v1", 8)
    algorithm = PPO(envs.spec, 8, CARTPOLE, Seeds(0))
    train(algorithm, envs, 65_536)
    assert greedy_returns(algorithm, make("CartPole-v1", 50)).mean() >= 475


def test_a_task_seen_as_pixels_is_learned():
    envs = make("onward/Catch-v0", 16)
    config = PPOConfig(
        num_envs=16, n_steps=64, batch_size=256, epochs=4, learning_rate=1e-3, entropy_coef=0.01, gamma=0.95
    )  # fmt: skip
    algorithm = PPO(envs.spec, 16, config, Seeds(0))
    train(algorithm, envs, 12_288)
    assert greedy_returns(algorithm, make("onward/Catch-v0", 100)).mean() >= 0.9


@pytest.mark.long
def test_pendulum_is_learned_though_every_episode_is_cut():
    """cleanrl#504: without a value after the time limit this does not learn at all."""
    envs = make("Pendulum-v1", 4)
    algorithm = PPO(envs.spec, 4, PENDULUM, Seeds(0))
    train(algorithm, envs, 100_000)
    assert greedy_returns(algorithm, make("Pendulum-v1", 100)).mean() >= -200
