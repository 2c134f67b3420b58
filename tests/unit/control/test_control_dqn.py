"""DQN: targets by hand, heads, exploration, the target network, what it learns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from off_policy_tasks import Endless, assert_resumes, batch, fill, optimised
from on_policy_tasks import Identity, greedy_returns, identity_score, train
from torch import Tensor

from onward.control.algorithms.dqn import DQN
from onward.control.core.config import DQNConfig
from onward.control.core.contract import EnvSpec, Step
from onward.control.core.replay import Batch
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import ActionSpec, Layout
from onward.control.environments import make
from onward.control.policies.policy import Policy
from onward.control.running import presets

TWO = ActionSpec("discrete", (2,))
LINEAR = DQNConfig(hidden=(), learning_starts=0, train_every=1, batch_size=2, buffer_size=10_000)


def dqn(config: DQNConfig = LINEAR, actions: ActionSpec = TWO, width: int = 1, num: int = 1) -> DQN:
    return DQN(EnvSpec("test", Layout(width), actions), num, config, Seeds(0))


def with_values(config: DQNConfig, online: list[float], target: list[float]) -> DQN:
    """Q values of the observation 1, without biases: weights (1, in, out)."""
    made = dqn(config)
    fill(made.flats["online"], online, [0.0] * len(online))
    fill(made.flats["target"], target, [0.0] * len(target))
    return made


# The update


@pytest.mark.parametrize(
    ("double", "expected"),
    [
        # online (1, 2) prefers action 1, which the target network (10, 5) gives 5; its own maximum is 10
        (True, [3 + 0.5 * 5, 3.0]),
        (False, [3 + 0.5 * 10, 3.0]),
    ],
)
def test_double_chooses_by_the_online_and_values_by_the_target_network(double: bool, expected: Any) -> None:
    made = with_values(replace(LINEAR, double=double), [1, 2], [10, 5])
    told = batch([[1], [1]], [0, 0], [3, 3], [[1], [1]], [0.5, 0.0])  # the second one terminated
    targets = made.targets(told, made.target(told.next_obs))
    assert targets.tolist() == [expected]


def loss_of(made: DQN, told: Batch) -> Tensor:
    """The loss that one step takes the gradient of."""
    return made._step(told, made.targets(told, made.target(told.next_obs)))[0]


def test_the_loss_is_huber_and_its_gradient_is_bounded() -> None:
    made = with_values(replace(LINEAR, max_grad_norm=0.0), [1, 2], [0, 0])
    told = batch([[1], [1]], [0, 1], [1.5, 6], [[1], [1]], [0, 0])
    loss = loss_of(made, told)
    # differences −0.5 and −4: ½ · 0.25 and 4 − ½, over two rows
    assert float(loss) == pytest.approx((0.125 + 3.5) / 2)
    # gradients −0.5 and −1 (not −4), over two rows, on weights and biases alike
    assert made.flats["online"].grad.tolist() == [-0.25, -0.5, -0.25, -0.5]


def test_mse_is_there_for_the_seeds_settings() -> None:
    made = with_values(replace(LINEAR, loss="mse"), [1, 2], [0, 0])
    told = batch([[1], [1]], [0, 1], [1.5, 6], [[1], [1]], [0, 0])
    assert float(loss_of(made, told)) == pytest.approx((0.25 + 16) / 2)


def test_importance_weights_scale_each_row_and_errors_become_priorities() -> None:
    made = dqn(replace(LINEAR, prioritised=True, priority_alpha=1.0))
    fill(made.flats["online"], [1, 2], [0, 0])
    fill(made.flats["target"], [0, 0], [0, 0])
    for _ in range(2):
        ones = np.ones((1, 1), np.float32)
        step = Step(ones, np.zeros(1, np.float32), np.array([False]), np.array([False]))
        made.replay.add(ones, np.array([0]), step)
    told = batch([[1], [1]], [0, 1], [1.5, 6], [[1], [1]], [0, 0], weights=torch.tensor([1.0, 0.5]))
    loss = loss_of(made, told)
    assert float(loss) == pytest.approx((0.125 + 0.5 * 3.5) / 2)
    assert made.replay.state_dict()["priorities"][:2] == pytest.approx([0.5, 4.0], abs=1e-5)


def test_the_best_next_action_is_a_legal_one() -> None:
    made = with_values(LINEAR, [1, 2], [10, 5])
    mask = torch.tensor([[True, False], [True, True]])
    told = batch([[1], [1]], [0, 0], [0, 0], [[1], [1]], [1, 1], next_mask=mask)
    assert made.targets(told, made.target(told.next_obs)).tolist() == [[10, 5]]


def test_the_value_of_an_action_is_the_sum_of_its_components() -> None:
    made = dqn(actions=ActionSpec("multi_discrete", (3, 2)))
    # 2 heads of 3 choices; the second has no third one, whatever its weight
    fill(made.flats["online"], [1, 5, 2, 4, 3, 99], [0] * 6)
    fill(made.flats["target"], [10, 20, 30, 40, 50, 99], [0] * 6)
    told = batch([[1], [1]], [[0, 1], [2, 0]], [0, 0], [[1], [1]], [1, 1])
    values = made.target(told.next_obs)
    assert made.targets(told, values).tolist() == [[20 + 40, 20 + 40]]  # best by the online one: 1 and 0
    assert float(values[0, 0, 1, 2]) == -np.inf
    assert float(made._step(told, made.targets(told, values))[1].mean()) == pytest.approx(
        ((1 + 3) + (2 + 4)) / 2
    )
    assert made._greedy(np.ones((1, 1), np.float32), None).tolist() == [[1, 0]]


def test_dueling_values_average_to_the_value_and_ignore_shifts_of_the_advantage() -> None:
    made = dqn(replace(LINEAR, dueling=True, hidden=(8,)), ActionSpec("multi_discrete", (3, 2)), width=4)
    obs = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    net = made.online
    assert net.value is not None
    before = net(obs)
    value = net.value(obs)
    assert torch.allclose(before[..., 0, :].mean(-1), value[..., 0], atol=1e-6)
    assert torch.allclose(before[..., 1, :2].mean(-1), value[..., 1], atol=1e-6)  # over real choices only
    with torch.no_grad():
        net.advantage.layers[-1][1].add_(7.0)
    assert torch.allclose(net(obs)[..., :2], before[..., :2], atol=1e-5)


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_cut_life_is_worth_as_much_as_an_endless_one(n_step: int) -> None:
    """SB3#284, cleanrl#198: a time limit is no end. 1 / (1 − 0.8) = 5; taken for an end: 3.4."""
    config = replace(
        LINEAR, gamma=0.8, n_step=n_step, learning_rate=0.05, batch_size=32, target_every=20, train_every=4
    )
    made = DQN(EnvSpec("test", Layout(1), TWO), 4, config, Seeds(0))
    train(made, Endless(TWO), 2500)
    assert made.online(torch.ones(1, 1)).flatten().tolist() == pytest.approx([5, 5], abs=0.1)


# The target network


def test_the_target_network_is_in_no_optimiser_and_gets_no_gradient() -> None:
    """SB3#1963."""
    made = dqn()
    assert all(not p.requires_grad and p.grad is None for p in made.target.parameters())
    held = {p.untyped_storage().data_ptr() for p in made.target.parameters()}
    assert not held & optimised(made)
    assert {p.untyped_storage().data_ptr() for p in made.online.parameters()} == optimised(made)
    assert made.flats["target"].tensor.tolist() == made.flats["online"].tensor.tolist()


@pytest.mark.parametrize(
    ("tau", "steps", "expected"), [(1.0, 9, 0.0), (1.0, 10, 1.0), (0.5, 25, 0.75), (0.5, 10, 0.5)]
)
def test_the_target_network_follows_by_environment_steps(tau: float, steps: int, expected: float) -> None:
    made = dqn(replace(LINEAR, target_every=10, tau=tau))
    fill(made.flats["online"], [1, 1], [1, 1])
    fill(made.flats["target"], [0, 0], [0, 0])
    made.steps = steps
    made._follow()
    assert made.flats["target"].tensor.tolist() == [expected] * 4
    made._follow()  # nothing more is owed
    assert made.flats["target"].tensor.tolist() == [expected] * 4


# How often


@pytest.mark.parametrize("num", [1, 4, 8])
def test_updates_per_step_do_not_depend_on_the_number_of_slots(num: int) -> None:
    config = replace(LINEAR, train_every=4, gradient_steps=2, learning_starts=16)
    made = DQN(EnvSpec("test", Layout(1), TWO), num, config, Seeds(0))
    train(made, Endless(TWO, num), 16)
    assert made.updates == 0
    train(made, Endless(TWO, num), 16 + 64)
    assert made.updates == 2 * 64 // 4


def test_minus_one_takes_as_many_gradient_steps_as_steps_were_collected() -> None:
    made = dqn(replace(LINEAR, train_every=4, gradient_steps=-1))
    train(made, Endless(TWO, 1), 40)
    assert made.updates == 40


# Exploration


def test_every_slot_draws_for_itself() -> None:
    """SB3 draws once for the whole batch: all slots explore together or none does."""
    num = 4000
    for actions in (TWO, ActionSpec("multi_discrete", (2, 2))):
        config = replace(LINEAR, epsilon_start=0.5, epsilon_end=0.5)
        made = dqn(config, actions, num=num)
        with torch.no_grad():
            made.flats["online"].tensor.zero_()
        chosen = made.act(np.ones((num, 1), np.float32), None).reshape(num, -1)
        explored = chosen.any(axis=1)  # greedy is 0
        expected = 0.5 * (1 - 0.5**actions.dim)
        assert explored.mean() == pytest.approx(expected, abs=0.04)  # 5 standard deviations


@pytest.mark.parametrize("num", [1, 8])
def test_epsilon_anneals_by_environment_steps(num: int) -> None:
    """LeanRL's schedule is at its end from step 0, so its DQN never anneals."""
    config = replace(LINEAR, epsilon_start=1.0, epsilon_end=0.1, epsilon_fraction=0.5)
    made = dqn(config, num=num)
    made.total_steps = 1600
    seen = {}
    obs = np.ones((num, 1), np.float32)
    quiet = Step(obs, np.zeros(num, np.float32), np.zeros(num, bool), np.zeros(num, bool))
    while made.steps <= 1600:
        seen[made.steps] = made.epsilon
        made.observe(obs, np.zeros(num, np.int64), quiet)
    wanted = {0: 1.0, 400: 0.55, 800: 0.1, 1600: 0.1}
    assert {at: seen[at] for at in wanted} == pytest.approx(wanted)


def test_the_seeds_epsilon_is_multiplied_at_each_gradient_step() -> None:
    made = dqn(replace(LINEAR, epsilon_start=1.0, epsilon_end=0.01, epsilon_decay=0.995))
    assert made.epsilon == 1.0
    made.updates = 100
    assert made.epsilon == pytest.approx(0.995**100)
    made.updates = 10_000
    assert made.epsilon == 0.01


def test_warming_up_is_random_and_illegal_actions_are_never_taken() -> None:
    num = 500
    made = dqn(replace(LINEAR, learning_starts=10_000, epsilon_start=0.0, epsilon_end=0.0), num=num)
    obs = np.ones((num, 1), np.float32)
    assert 0.4 < made.act(obs, None).mean() < 0.6
    mask = np.zeros((num, 2), bool)
    mask[np.arange(num), np.arange(num) % 2] = True
    assert made.act(obs, mask).tolist() == (np.arange(num) % 2).tolist()
    made.steps = 10_000
    assert made.act(obs, mask).tolist() == (np.arange(num) % 2).tolist()


def test_disagreement_of_an_ensemble_drives_exploration() -> None:
    config = replace(LINEAR, ensemble=2, ucb=1.0, epsilon_start=0.0, epsilon_end=0.0)
    made = dqn(config)
    # values of action 0: 3 and 3; of action 1: 0 and 4, whose mean 2 + deviation 2 is more
    fill(made.flats["online"], [[[3.0, 0.0]], [[3.0, 4.0]]], [0] * 4)
    obs = np.ones((1, 1), np.float32)
    assert made.act(obs, None).tolist() == [1]
    plain = dqn(replace(config, ucb=0.0))
    fill(plain.flats["online"], [[[3.0, 0.0]], [[3.0, 4.0]]], [0] * 4)
    assert plain.act(obs, None).tolist() == [0]


# Spaces and export


def test_box_actions_are_refused_with_a_remedy() -> None:
    with pytest.raises(Exception, match="box: use sac, ddpg, td3 or ppo"):
        dqn(actions=ActionSpec("box", low=(-1.0,), high=(1.0,)))


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "multi_binary"])
@pytest.mark.parametrize("options", [{}, {"dueling": True}, {"ensemble": 3}, {"layer_norm": True}])
def test_the_exported_policy_acts_as_the_algorithm_does(kind: str, options: dict[str, Any]) -> None:
    actions = Identity(kind).spec.actions
    config = DQNConfig(hidden=(16, 16), epsilon_start=0.0, epsilon_end=0.0, learning_starts=0,
                       buffer_size=1000, normalise_obs=True, **options)  # fmt: skip
    made = dqn(config, actions, width=6, num=64)
    rng = np.random.default_rng(0)
    assert made.norm is not None
    made.norm.update(rng.normal(3, 2, (50, 6)))
    obs = rng.normal(3, 2, (64, 6)).astype(np.float32)
    exported = Policy(made.networks()).act_flat(obs, deterministic=True)
    assert np.array_equal(exported, made.act(obs, None))


def test_an_export_does_not_change_with_what_is_learned_later() -> None:
    made = dqn(replace(LINEAR, hidden=(4,)))
    layers = made.networks().layers
    before = [layer.weight.copy() for layer in layers]
    with torch.no_grad():
        made.flats["online"].tensor.add_(1.0)
    assert all(np.array_equal(layer.weight, old) for layer, old in zip(layers, before, strict=True))


# Resume and learning

SMALL = DQNConfig(
    hidden=(32,), learning_rate=1e-3, batch_size=32, buffer_size=2000, learning_starts=64, train_every=4,
    target_every=40, epsilon_fraction=0.5,
)  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_step": 3, "prioritised": True},
        {"ensemble": 2, "normalise_obs": True},
        {"bonus": "count", "bonus_random_steps": 64},
    ],
)
def test_a_resumed_run_is_the_uninterrupted_one(options: dict[str, Any]) -> None:
    envs = make("CartPole-v1", 4)
    assert_resumes(lambda: DQN(envs.spec, 4, replace(SMALL, **options), Seeds(1)), envs, 400, 800)


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "multi_binary"])
def test_it_learns_to_repeat_what_it_sees(kind: str) -> None:
    envs = Identity(kind)
    made = DQN(envs.spec, 8, replace(SMALL, gamma=0.5, learning_rate=3e-3), Seeds(0))
    train(made, envs, 2000)
    assert identity_score(made, kind) >= 90


@pytest.mark.parametrize(
    "options", [{"dueling": True, "n_step": 3}, {"prioritised": True}, {"ensemble": 3, "ucb": 0.5}]
)
def test_its_options_learn_as_well(options: dict[str, Any]) -> None:
    envs = Identity("discrete")
    made = DQN(envs.spec, 8, replace(SMALL, gamma=0.5, learning_rate=3e-3, **options), Seeds(0))
    train(made, envs, 2000)
    assert identity_score(made, "discrete") >= 90


def train_until(env: str, bar: float) -> float:
    """Mean greedy return of 100 episodes on seeds of their own, once a look at 100 others reached ``bar``.

    Our preset, looked at every 2,500 steps. The episodes that are reported chose nothing.
    """
    _, preset = presets.preset("ours", "dqn", env)
    config = presets.settings("dqn", preset, {})
    envs, trial = make(env, config.num_envs), make(env, 100)
    made = DQN(envs.spec, envs.num, config, Seeds(0))  # type: ignore[arg-type]
    made.total_steps = preset.timesteps
    obs, _ = envs.reset(0)
    confirmed = -np.inf
    while made.steps < preset.timesteps and confirmed < bar:
        for _ in range(2500 // envs.num):
            actions = made.act(obs, None)
            step = envs.step(actions)
            made.observe(obs, actions, step)
            obs = step.obs
            while made.due():
                made.update()
        if greedy_returns(made, trial, seed=1).mean() >= bar:
            confirmed = float(greedy_returns(made, trial, seed=1_000_000 + made.steps).mean())
    return confirmed


@pytest.mark.long
@pytest.mark.parametrize(("env", "bar"), [("CartPole-v1", 475), ("MountainCar-v0", -110)])
def test_our_preset_solves_it(env: str, bar: float) -> None:
    assert train_until(env, bar) >= bar
