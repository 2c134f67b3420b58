"""The critic: a value from before the token, on trained tokens only, warm before the policy moves."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from onward.errors import ConfigError
from onward.lm import losses
from onward.lm.algorithms import Ppo, learn
from onward.lm.learner import CriticConfig, Learner, LearnerConfig
from onward.lm.policy import Policy
from onward.lm.tokens import TokenRow
from onward.lm.trajectories import Trajectory
from onward.lm.value import ValueHead, explained_variance

from .conftest import noisy_adapter, random_rows, with_behaviour

CONFIG = LearnerConfig(epochs=1, critic=CriticConfig(), max_grad_norm=1e9)


def t(*values: float) -> Tensor:
    return torch.tensor(values)


def random_critic(learner: Learner) -> ValueHead:
    assert learner.critic is not None
    learner.critic.weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(3))
    learner.critic.bias.fill_(0.2)
    return learner.critic


# --- the loss -----------------------------------------------------------------------------------


def test_the_value_loss_by_hand() -> None:
    """V_old 0, clip 0.5. V = 1 towards R = 2: the clipped value 0.5 is further away, and counts."""
    loss = losses.value_loss(t(1.0, 1.0, 0.2), t(0.0, 0.0, 0.0), t(2.0, 0.9, 1.0), clip=0.5)
    assert loss.tolist() == pytest.approx([1.5**2 / 2, 0.4**2 / 2, 0.8**2 / 2])
    plain = losses.value_loss(t(1.0), t(0.0), t(2.0), clip=None)
    assert plain.tolist() == [0.5]


def test_the_value_loss_under_a_false_mask_is_zero_whatever_stands_there() -> None:
    values = torch.tensor([1.0, math.nan], requires_grad=True)
    loss = losses.value_loss(values, t(0.0, math.nan), t(0.0, math.nan), torch.tensor([1, 0]))
    loss.sum().backward()
    assert loss.tolist() == [0.5, 0.0] and values.grad is not None and values.grad.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("clip", [None, 0.5])
def test_the_gradient_of_the_value_loss_equals_finite_differences(clip: float | None) -> None:
    """Acceptance (f) for the critic's loss."""
    values = torch.tensor([0.3, -0.8, 1.4], dtype=torch.float64, requires_grad=True)
    old, returns = torch.zeros(3, dtype=torch.float64), torch.tensor([1.0, 0.5, 0.9], dtype=torch.float64)
    (grad,) = torch.autograd.grad(losses.value_loss(values, old, returns, clip=clip).mean(), values)
    for i in range(3):
        step = torch.zeros(3, dtype=torch.float64)
        step[i] = 1e-6
        up, down = (losses.value_loss(values + s, old, returns, clip=clip).mean() for s in (step, -step))
        assert float(grad[i]) == pytest.approx(float((up - down) / 2e-6), abs=1e-6)


def test_explained_variance() -> None:
    assert explained_variance([1.0, 2.0], [1.0, 2.0]) == pytest.approx(1.0)
    assert explained_variance([1.5, 1.5], [1.0, 2.0]) == pytest.approx(0.0)
    assert explained_variance([1.0, 1.0], [3.0, 3.0]) == 0.0


# --- where a value is read ----------------------------------------------------------------------


def test_the_value_of_a_token_is_read_one_position_before_it(policy: Policy) -> None:
    """Rule 15: what comes at t or later cannot change V_t, and what comes at t − 1 does."""
    noisy_adapter(policy, "x")

    def values(ids: list[int]) -> list[float]:
        learner = Learner(policy, "x", CONFIG)
        random_critic(learner)
        learner.open(with_behaviour(policy, "x", [TokenRow(ids, [False, False, True, True], [0.0] * 4)]))
        return learner.values()[0].tolist()

    plain = values([5, 6, 7, 8])
    assert values([5, 6, 99, 98])[0] == pytest.approx(plain[0], abs=1e-6)
    assert values([5, 6, 7, 98]) == pytest.approx(plain, abs=1e-6)
    assert values([5, 66, 7, 8])[0] != pytest.approx(plain[0], abs=1e-3)
    assert values([5, 6, 77, 8])[1] != pytest.approx(plain[1], abs=1e-3)


def test_values_equal_those_of_transformers(policy: Policy, small: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(small)
    learner = Learner(policy, None, CONFIG)
    critic = random_critic(learner)
    rows = with_behaviour(policy, None, random_rows(4))
    learner.open(rows)
    for r, mine in zip(rows, learner.values(), strict=True):
        with torch.no_grad():
            states = model(torch.tensor([r.ids]), output_hidden_states=True).hidden_states[-1][0]
        expected = [float(states[at - 1] @ critic.weight + critic.bias) for at in r.trained]
        assert mine.tolist() == pytest.approx(expected, abs=1e-4)


# --- training it --------------------------------------------------------------------------------


def trajectories(policy: Policy, count: int = 8) -> list[Trajectory]:
    rows = with_behaviour(policy, "x", random_rows(count))
    return [Trajectory([r], float(k % 2), success=bool(k % 2)) for k, r in enumerate(rows)]


def test_the_critic_is_warm_before_the_first_advantage(policy: Policy) -> None:
    """Rule 15: the warm-up moves the head alone, and the first step already sees its values."""
    noisy_adapter(policy, "x")
    learner = Learner(policy, "x", CONFIG)
    selection = Ppo().select(trajectories(policy))
    before = {k: v.clone() for k, v in learner.tensors.items()}
    learner.open(selection.rows)
    learner.warm_critic(Ppo().monte_carlo(selection, None))
    assert learner.critic is not None and learner.critic.warm
    assert all(torch.equal(before[k], v) for k, v in learner.tensors.items())
    assert not any(p.requires_grad or p.grad is not None for p in learner.critic.parameters)
    (metrics,) = learn(Learner(policy, "x", CONFIG), Ppo(), selection)
    cold = dataclasses.replace(CONFIG, critic=CriticConfig(warmup_steps=0))
    (unwarmed,) = learn(Learner(policy, "x", cold), Ppo(), selection)
    assert metrics.value_loss < unwarmed.value_loss


@pytest.mark.parametrize("trains_policy", [False, True])
def test_the_value_loss_reaches_the_policy_only_when_asked_to(policy: Policy, trains_policy: bool) -> None:
    noisy_adapter(policy, "x")
    critic = CriticConfig(trains_policy=trains_policy)
    learner = Learner(policy, "x", dataclasses.replace(CONFIG, critic=critic))
    random_critic(learner)
    rows = with_behaviour(policy, "x", random_rows(4))
    (metrics,) = learner.update(rows, [0.0] * 4, [1.0] * 4)
    assert metrics.value_loss > 0 and (metrics.grad_norm > 0) is trains_policy


def test_the_gradient_of_the_critic_and_through_it_equal_autograd(policy: Policy) -> None:
    """Value loss = mean over the step's trained tokens; an observation never counts."""
    noisy_adapter(policy, "x", [2])
    rows = with_behaviour(policy, "x", random_rows(5))
    returns = [1.0, -0.5, 0.25, 2.0, 0.0]
    config = dataclasses.replace(
        CONFIG, critic=CriticConfig(trains_policy=True, coef=0.7, value_clip=0.1), micro_batch_tokens=20
    )
    learner = Learner(policy, "x", config)
    critic = random_critic(learner)
    learner.open(rows)
    old = learner.values()
    critic.weight.mul_(1.3)  # so that the clip bites
    found: list[Tensor] = []

    def keep() -> None:
        found.extend(p.grad.clone() for p in (*learner.stepper.masters, *critic.parameters))  # type: ignore[union-attr]

    learner.stepper.optimizer.step = keep  # type: ignore[method-assign, assignment]
    (metrics,) = learner.update(rows, [0.0] * 5, returns)

    from onward.lm.packing import Packed

    wanted = [*learner.stepper.masters, *critic.parameters]
    for p in wanted:
        p.requires_grad_(True)
    with torch.enable_grad():
        losses_of_rows = []
        for r, v_old, target in zip(rows, old, returns, strict=True):
            hidden = policy.hidden(Packed([r], 0, policy.device), "x")
            v = hidden @ critic.weight + critic.bias
            near = torch.min(torch.max(v, v_old - 0.1), v_old + 0.1)
            losses_of_rows.append(torch.max((v - target) ** 2, (near - target) ** 2) / 2)
        loss = torch.cat(losses_of_rows).mean()
        expected = torch.autograd.grad(0.7 * loss, wanted)
    for p in wanted:
        p.requires_grad_(False)
    assert metrics.value_loss == pytest.approx(float(loss.detach()), rel=1e-5)
    for mine, theirs in zip(found, expected, strict=True):
        assert float((mine - theirs).abs().max()) < 1e-5


def test_a_value_head_survives_a_round_trip_and_refuses_another_width(tmp_path: Path) -> None:
    head = ValueHead(4, torch.device("cpu"))
    head.weight.copy_(t(1.0, 2.0, 3.0, 4.0))
    head.remember(random_rows(4))
    head.save(tmp_path)
    again = ValueHead(4, torch.device("cpu"))
    again.load(tmp_path)
    assert torch.equal(again.weight, head.weight) and again.warm
    assert again.fitted_to == head.fitted_to and len(head.fitted_to) == 4
    with pytest.raises(ConfigError, match="for 4 hidden units and this network has 5"):
        ValueHead(5, torch.device("cpu")).load(tmp_path)


# --- off policy (acceptance h) ------------------------------------------------------------------


def test_only_the_corrected_estimator_is_unbiased_off_policy() -> None:
    """Acceptance (h): a bandit of three arms, sampled from μ; the true gradient of J under π is known.

    Expectations over μ are exact sums. Bypass (ratio π/μ) and decoupled (w = π_old/μ with ratio π/π_old = 1)
    both give it; plain REINFORCE on the same data, or a weight of 1, does not.
    """
    logits = torch.tensor([0.2, -0.4, 0.5], dtype=torch.float64, requires_grad=True)
    mu = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log()
    reward = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)

    def slope(loss: Tensor) -> Tensor:
        return torch.autograd.grad(loss, logits, retain_graph=True)[0]

    logp = logits.log_softmax(-1)
    exact = slope((logp.exp() * reward).sum())
    wide = {"clip_epsilon": 1e9, "dual_clip": None}
    bypass = losses.clipped_loss(logp, mu, reward, **wide)  # type: ignore[arg-type]
    start = logp.detach()
    weights = losses.importance_weights(start, mu, cap=100.0)
    decoupled = weights * losses.clipped_loss(logp, start, reward, **wide)  # type: ignore[arg-type]
    unweighted = losses.clipped_loss(logp, start, reward, **wide)  # type: ignore[arg-type]
    twice = weights * losses.clipped_loss(logp, mu, reward, **wide)  # type: ignore[arg-type]
    for right in (bypass, decoupled):
        assert torch.allclose(slope(-(mu.exp() * right).sum()), exact, atol=1e-9)
    for wrong in (unweighted, twice):
        assert not torch.allclose(slope(-(mu.exp() * wrong).sum()), exact, atol=0.02)


def test_masked_and_sequence_weights_by_hand() -> None:
    """IcePop drops what is outside the band; a row's geometric mean does not explode with its length."""
    old, mu = t(-1.0, -1.0, -1.0, -1.0), t(-1.0, -3.0, 0.0, -1.5)
    ratios = [1.0, math.exp(2), math.exp(-1), math.exp(0.5)]
    assert losses.importance_weights(old, mu, 2.0).tolist() == pytest.approx([1.0, 2.0, ratios[2], ratios[3]])
    masked = losses.importance_weights(old, mu, 2.0, floor=0.5)
    assert masked.tolist() == pytest.approx([1.0, 0.0, 0.0, ratios[3]])
    rows = torch.tensor([0, 0, 1, 1])
    level = losses.importance_weights(old, mu, 10.0, rows=rows)
    assert level.tolist() == pytest.approx([math.e, math.e, math.exp(-0.25), math.exp(-0.25)])


def test_case_22_masked_share_and_effective_size_are_reported(policy: Policy) -> None:
    """Case 22 (TRL#4772): half of the tokens are far off policy, and the metrics say so."""
    noisy_adapter(policy, "x")
    rows = with_behaviour(policy, "x", random_rows(2))
    rows[1].logprobs = [p - 3.0 if s else 0.0 for p, s in zip(rows[1].logprobs, rows[1].sampled, strict=True)]
    far = rows[1].sampled_count / (rows[0].sampled_count + rows[1].sampled_count)
    base = LearnerConfig(epochs=1, importance_cap=2.0)
    (masked,) = Learner(policy, "x", dataclasses.replace(base, importance_floor=0.5)).update(rows, [1.0, 1.0])
    assert masked.masked_share == pytest.approx(far) and masked.importance_ess == pytest.approx(1 - far)
    (cut,) = Learner(policy, "x", base).update(rows, [1.0, 1.0])
    assert cut.truncated_share == pytest.approx(far) and cut.masked_share == 0.0
    assert cut.importance_max == pytest.approx(2.0) and 0 < cut.ess < cut.importance_ess < 1
