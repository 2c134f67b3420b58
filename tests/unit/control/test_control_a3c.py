"""A3C: how gradients meet, what a worker learns from, and real worker processes that start, learn and go."""

from __future__ import annotations

import copy
import functools
import math
import multiprocessing
import os
import signal

import numpy as np
import pytest
import torch
from on_policy_tasks import ACTIONS, Identity, identity_score

from onward.control.algorithms.a3c import A3C
from onward.control.algorithms.a3c_shared import HandIn, Shared
from onward.control.algorithms.a3c_worker import Worker, gradient
from onward.control.core.config import A3CConfig
from onward.control.core.seeds import Seeds
from onward.control.environments import make
from onward.control.networks.flat import FlatParameters
from onward.control.networks.nets import MLP
from onward.errors import ControlError

pytestmark = pytest.mark.slow


def identity(kind: str, worker: int) -> Identity:
    return Identity(kind, 4)


def cartpole(worker: int):
    return make("CartPole-v1", 8)


def broken(worker: int):
    raise ValueError("no such board")


def killed(worker: int):
    os.kill(os.getpid(), signal.SIGKILL)


def threads_as_reward(worker: int) -> Identity:
    """Every reward is the number of torch's threads in the worker."""
    envs = Identity("discrete", 1)
    plain = envs.step

    def step(actions):
        after = plain(actions)
        after.reward[:] = torch.get_num_threads()
        return after

    envs.step = step
    return envs


def a3c(kind: str = "discrete", **settings) -> A3C:
    config = A3CConfig(**{"num_envs": 4, "n_steps": 10, "workers": 1, **settings})
    return A3C(Identity(kind, 4).spec, config.num_envs, config, Seeds(0))


def worker_of(algorithm: A3C) -> tuple[Worker, Shared]:
    shared = Shared(algorithm.net.flat.tensor, {}, algorithm.spec.layout.width, 0)
    return Worker(0, shared, algorithm.spec, algorithm.config, Seeds(0)), shared


def fill(worker: Worker, envs: Identity) -> None:
    obs, _ = envs.reset(1)
    worker.rollout.clear()
    while not worker.rollout.full:
        actions = worker.net.act(obs, worker.draws, None)
        step = envs.step(actions)
        worker.rollout.add(obs, actions, step, None, None)
        obs = step.obs


def no_children() -> bool:
    return not multiprocessing.active_children()


# -- how gradients meet


def test_handed_in_gradients_step_the_shared_parameters_like_adam_in_that_order():
    nets = [MLP((3, 2), generator=torch.Generator().manual_seed(0)) for _ in range(3)]
    local = [FlatParameters(nets[0]), FlatParameters(nets[1])]
    shared = Shared(local[0].tensor, {}, 0, 0)
    hands = [HandIn(shared, 1e-2), HandIn(shared, 1e-2)]
    reference = torch.optim.Adam(nets[2].parameters(), lr=1e-2, eps=1e-5)
    for turn in range(6):
        x = torch.full((4, 3), float(turn + 1))
        flat, net = local[turn % 2], nets[turn % 2]
        flat.tensor.data.copy_(shared.parameters)
        flat.backward(net(x).square().sum())
        hands[turn % 2](flat.grad, flat.tensor.data, 1e-2, 5)
        reference.zero_grad()
        nets[2](x).square().sum().backward()
        reference.step()
        for a, b in zip(net.parameters(), nets[2].parameters(), strict=True):
            torch.testing.assert_close(a, b)
    assert int(shared.steps) == 30


def test_a_workers_gradient_is_its_own_memory_and_never_piles_up():
    algorithm = a3c()
    worker, shared = worker_of(algorithm)
    fill(worker, Identity("discrete", 4))
    gradient(worker.net, worker.rollout, worker.config, lambda obs: obs)
    once = worker.net.flat.grad.clone()
    worker.hand_in(worker.net.flat.grad, torch.empty_like(once), 1e-2, 1)
    worker.net.policy.zero_grad(set_to_none=True)  # what broke the aliased gradients of pytorch-a3c
    gradient(worker.net, worker.rollout, worker.config, lambda obs: obs)
    assert torch.equal(worker.net.flat.grad, once) and once.abs().max() > 0
    memory = worker.net.flat.grad.untyped_storage().data_ptr()
    assert memory not in {t.untyped_storage().data_ptr() for t in (shared.parameters, *shared.adam.values())}
    assert not worker.net.flat.grad.is_shared()


def test_a_worker_goes_on_with_the_shared_parameters():
    worker, shared = worker_of(a3c())
    fill(worker, Identity("discrete", 4))
    before = worker.net.flat.tensor.detach().clone()
    shared.parameters += 1.0  # another worker's doing
    worker.learn(1000)
    assert torch.equal(worker.net.flat.tensor, shared.parameters)
    assert (worker.net.flat.tensor - before).min() > 0.5


# -- what is learned from


def test_targets_are_constants_and_a_time_limit_is_bootstrapped():
    """The gradient equals that of a loss written down with numbers for advantages and returns."""
    worker, _ = worker_of(a3c(entropy_coef=0.0, max_grad_norm=1e9, gamma=0.9, n_steps=25))
    fill(worker, Identity("discrete", 4))
    rollout, net = worker.rollout, worker.net
    assert rollout.truncated.any()
    gradient(net, rollout, worker.config, lambda obs: obs)
    ours = net.flat.grad.clone()

    twin = copy.deepcopy((net.policy, net.value))
    of_obs, led_to = rollout.values(net.values)
    returns = np.zeros((25, 4))
    for slot in range(4):
        running = led_to[24, slot, 0]
        for t in range(24, -1, -1):
            running = led_to[t, slot, 0] if rollout.truncated[t, slot] else running
            running = rollout.rewards[t, slot] + 0.9 * running
            returns[t, slot] = running
    rows = torch.from_numpy(rollout.obs[:-1].reshape(100, -1))
    target = torch.from_numpy(returns.reshape(-1)).float()
    log_prob = torch.distributions.Categorical(logits=twin[0](rows)).log_prob(
        torch.from_numpy(rollout.actions.reshape(-1))
    )
    advantage = target - torch.from_numpy(of_obs[:-1].reshape(-1))
    loss = -(log_prob * advantage).mean() + 0.5 * (twin[1](rows)[:, 0] - target).square().mean()
    expected = torch.autograd.grad(loss, [*twin[0].parameters(), *twin[1].parameters()])
    torch.testing.assert_close(ours, torch.cat([g.reshape(-1) for g in expected]), rtol=1e-3, atol=1e-6)


def test_dead_slots_change_no_gradient():
    worker, _ = worker_of(a3c(entropy_coef=1.0))
    with torch.no_grad():
        worker.net.policy.linears[-1].weight *= 100  # far from uniform, where the entropy has no gradient
    fill(worker, Identity("discrete", 4))
    rollout, gradients = worker.rollout, []
    rollout.alive[3:, 2:] = False
    rollout.terminated[2, 2:] = True
    for poison in (0.0, 1000.0):
        rollout.obs[3:, 2:] += poison
        gradient(worker.net, rollout, worker.config, lambda obs: obs)
        gradients.append(worker.net.flat.grad.clone())
    torch.testing.assert_close(gradients[0], gradients[1])
    assert gradients[0].abs().max() > 0


def test_workers_share_the_statistics_of_all_their_observations():
    algorithm = a3c("box", normalise_obs=True)
    first, shared = worker_of(algorithm)
    second = Worker(1, shared, algorithm.spec, algorithm.config, Seeds(0))
    for worker in (first, second):
        fill(worker, Identity("box", 4))
        worker.learn(1000)
    rows = np.concatenate([worker.rollout.obs[:-1].reshape(-1, 1) for worker in (first, second)])
    assert second.norm.count == len(rows) == 80
    np.testing.assert_allclose(
        [second.norm.mean[0], second.norm.var[0]], [rows.mean(), rows.var()], rtol=1e-4
    )


# -- processes


@pytest.mark.parametrize("kind", ACTIONS)
def test_every_action_space_is_learned_by_workers_in_turn(kind):
    """Two workers hand in by turns in this process, so that the outcome is the same each time."""
    box = kind == "box"
    turns, settings = (1200, {"entropy_coef": 0.0, "n_steps": 20}) if box else (700, {})
    algorithm = a3c(kind, learning_rate=3e-3, gamma=0.0, lr_schedule="linear", **settings)
    first, shared = worker_of(algorithm)
    workers = [first, Worker(1, shared, algorithm.spec, algorithm.config, Seeds(0))]
    tasks = [Identity(kind, 4), Identity(kind, 4)]
    met = [tasks[0].reset(1)[0], tasks[1].reset(2)[0]]
    for turn in range(turns):
        worker, envs, obs = workers[turn % 2], tasks[turn % 2], met[turn % 2]
        worker.rollout.clear()
        while not worker.rollout.full:
            actions = worker.net.act(obs, worker.draws, None)
            step = envs.step(actions)
            worker.rollout.add(obs, actions, step, None, None)
            obs = step.obs
        met[turn % 2] = obs
        worker.learn(turns * worker.rollout.rewards.size)
    algorithm.net.load_parameters(shared.parameters)
    assert identity_score(algorithm, kind) >= 90


def test_cartpole_is_learned_by_two_processes_and_they_are_gone_afterwards():
    config = A3CConfig(
        num_envs=8, workers=2, n_steps=16, learning_rate=1e-3, gae_lambda=0.95, max_grad_norm=0.5
    )
    algorithm = A3C(cartpole(0).spec, 8, config, Seeds(0))
    returns: list[float] = []
    best = [0.0]

    def watch(progress) -> bool:
        assert all(math.isfinite(value) for value in progress.metrics.values())
        returns.extend(score for score, _ in progress.episodes)
        if len(returns) >= 50:
            best.append(float(np.mean(returns[-50:])))
        return max(best) < 300

    algorithm.run(cartpole, 600_000, watch)
    assert no_children()
    assert max(best) >= 300  # by turns in one process it is there after 31,000 steps


def test_a_run_goes_on_from_a_saved_state_to_its_total_and_workers_have_one_thread():
    algorithm, rewards = a3c(num_envs=1), []
    algorithm.run(threads_as_reward, 2000, lambda progress: not rewards.extend(progress.episodes))
    assert 2000 <= algorithm.steps <= 2010
    assert {score / length for score, length in rewards} == {1.0}
    state = algorithm.state_dict()
    other = a3c(num_envs=1)
    other.load_state_dict(state)
    assert torch.equal(other.net.flat.tensor, algorithm.net.flat.tensor)
    other.run(functools.partial(threads_as_reward), 3000, lambda progress: True)
    assert 3000 <= other.steps <= 3010 and no_children()
    assert float(other.state_dict()["adam"]["step"]) == other.steps / 10
    assert not torch.equal(other.net.flat.tensor, algorithm.net.flat.tensor)


@pytest.mark.parametrize(
    ("envs", "why"), [(broken, "ValueError: no such board"), (killed, "died without a word")]
)
def test_a_worker_that_fails_or_is_killed_ends_the_run_with_a_reason(envs, why):
    with pytest.raises(ControlError, match=f"Worker 0 of a3c failed: .*{why}"):
        a3c().run(envs, 1000, lambda progress: True)
    assert no_children()


def test_an_error_of_whoever_watches_leaves_no_process_behind():
    def watch(progress) -> bool:
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="the disk is full"):
        a3c().run(functools.partial(identity, "discrete"), 10**9, watch)
    assert no_children()
