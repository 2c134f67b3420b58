"""Gradients under masks: those of the renormalised policy, by finite differences of a slow reference."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from onward.lm.algorithms import Grpo, Ppo, Reinforce, Rloo
from onward.lm.any_model.policy import AnyPolicy
from onward.lm.any_model.sampler import AnySampler
from onward.lm.layout import to_transformers
from onward.lm.learner import CriticConfig, Learner, LearnerConfig
from onward.lm.pairs import Pair, usable
from onward.lm.policy import Policy
from onward.lm.preference import DpoConfig, PreferenceLearner
from onward.lm.sampler import Sampler
from onward.lm.sft import SftConfig, SupervisedLearner
from onward.lm.tokens import TokenRow
from onward.lm.trajectories import Trajectory

from .masked_rows import build_criteria, compiled, drawn, gradient_of, rows_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_criteria(tmp_path_factory.mktemp("m") / "m")


@pytest.fixture()
def policy(folder: Path) -> Policy:
    return Policy.load(folder)


# --- samplers and the learner's own log-probs --------------------------------------------------------


@pytest.mark.parametrize("kind", [Policy, AnyPolicy])
@pytest.mark.parametrize("temperature", [1.0, 1.5])
def test_an_answer_for_training_has_masks_and_the_learner_finds_its_log_probs(
    folder: Path, kind: type[Policy] | type[AnyPolicy], temperature: float
) -> None:
    policy = kind.load(folder)
    chat, grammar = compiled(policy)
    sampler = Sampler(policy, 8) if isinstance(policy, Policy) else AnySampler(policy, 8)
    prompt, samples = drawn(sampler, chat, grammar, 12, temperature)
    forced = 0
    rows = rows_of(prompt, samples, temperature)
    for sample, row, values in zip(samples, rows, policy.logprobs(rows), strict=True):
        json.loads(chat.text(sample.token_ids))
        assert sample.allowed == grammar.replay(sample.token_ids)
        for token, value, allowed in zip(sample.token_ids, sample.logprobs, sample.allowed, strict=True):
            assert token in allowed
            if allowed.is_forced:
                forced += 1
                assert value == 0.0
        assert torch.allclose(values, torch.tensor(row.logprobs), atol=1e-4)
        assert len(row.trained) == sum(not one.is_forced for one in sample.allowed) < len(sample.token_ids)
    assert forced > 50


def test_probabilities_of_the_allowed_tokens_sum_to_one(policy: Policy) -> None:
    chat, grammar = compiled(policy)
    prompt, (sample,) = drawn(Sampler(policy), chat, grammar, 1)
    (row,) = rows_of(prompt, [sample])
    for t in row.trained:
        each = [replace(row.cut(t), ids=[*row.ids[:t], int(token)], sampled=[False] * t + [True],
                        logprobs=[0.0] * (t + 1), allowed={t: row.allowed[t]})
                for token in row.allowed[t].ids]  # fmt: skip
        total = torch.stack([values[-1] for values in policy.logprobs(each)]).exp().sum()
        assert float(total) == pytest.approx(1.0, abs=1e-5)


def log_policy(module: Any, row: TokenRow) -> tuple[Tensor, Tensor]:
    """The slow reference: log-probs and entropies of the trained tokens, in double precision and densely."""
    logits = module(torch.tensor([row.ids])).logits[0] / row.temperature
    logps, entropies = [], []
    for t in row.trained:
        line = logits[t - 1]
        if t in row.allowed:
            line = line[torch.from_numpy(row.allowed[t].ids.copy()).long()]
            target = row.allowed[t].ids.tolist().index(row.ids[t])
        else:
            target = row.ids[t]
        every = line.log_softmax(-1)
        logps.append(every[target])
        entropies.append(-(every.exp() * every).sum())
    return torch.stack(logps), torch.stack(entropies)


@cache
def network(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder).double()


@torch.no_grad()
def reference(policy: Policy, folder: Path, rows: list[TokenRow]) -> tuple[list[Tensor], list[Tensor]]:
    """``log_policy`` of each row by transformers' own network with the weights of ``policy``."""
    module = network(folder)
    module.load_state_dict(to_transformers(policy.shape, policy.weights), strict=False)
    both = [log_policy(module, row) for row in rows]
    return [logp for logp, _ in both], [entropy for _, entropy in both]


def slope_along(
    policy: Policy, gradient: dict[str, Tensor], loss: Callable[[], float], seed: int
) -> tuple[float, float]:
    """(difference of ``loss`` between two points of float32 weights, what ``gradient`` says of it).

    The direction is half along the gradient, half at random, so that the difference is never near zero.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = list(policy.tensors())
    slopes = [gradient[f"weights.{i}"] for i in range(len(tensors))]
    size = torch.cat([one.flatten() for one in slopes]).norm()
    before = [one.clone() for one in tensors]
    ways = []
    for one, slope in zip(tensors, slopes, strict=True):
        noise = torch.randn(one.shape, generator=generator)
        ways.append(2e-4 * (slope / size + 0.01 * noise))
    points, values = [], []
    for sign in (1.0, -1.0):
        for one, start, way in zip(tensors, before, ways, strict=True):
            one.copy_(start + sign * way)
        points.append([one.double().clone() for one in tensors])
        values.append(loss())
    for one, start in zip(tensors, before, strict=True):
        one.copy_(start)
    said = sum(float((g.double() * (a - b)).sum()) for g, a, b in zip(slopes, *points, strict=True))
    return values[0] - values[1], said


def scored(rows: list[TokenRow], groups: int = 3) -> list[Trajectory]:
    """Attempts with graded rewards, some of them alike."""
    return [Trajectory([row], float((7 * n) % 5) / 4, group=n % groups) for n, row in enumerate(rows)]


DECOUPLED = {"importance_cap": 1.3}
ALGORITHMS = {
    "rloo": (Rloo(), {}),
    "grpo": (Grpo(), {}),
    "reinforce": (Reinforce(), DECOUPLED),
    "ppo": (Ppo(), {"critic": CriticConfig(), **DECOUPLED}),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_gradient_of_the_objective_equals_finite_differences_of_a_slow_reference(
    policy: Policy, folder: Path, name: str
) -> None:
    """Clipped policy loss, KL, entropy and importance weights, after a first step: four log-probs differ."""
    algorithm, more = ALGORITHMS[name]
    chat, grammar = compiled(policy)
    prompt, samples = drawn(Sampler(policy, 8), chat, grammar, 9, 1.2)
    selection = algorithm.select(scored(rows_of(prompt, samples, 1.2)))
    rows = selection.rows
    with torch.no_grad():
        for number, tensor in enumerate(policy.tensors()):  # the data is off policy
            noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(number))
            tensor.add_(0.02 * noise)
    policy.drop_copies()
    config = LearnerConfig(
        learning_rate=3e-3, epochs=2, minibatch_rows=64, max_grad_norm=1e9, kl_coef=0.3, entropy_coef=0.05,
        dual_clip=None, **more,
    )  # fmt: skip
    learner = Learner(policy, None, config)
    learner.open(rows)
    values = None if learner.critic is None else learner.values()
    estimate = algorithm.estimate(selection, learner.reward_penalty(), values)
    start, _ = reference(policy, folder, rows)
    gradient, metrics = gradient_of(learner, learner.update(rows, estimate.advantages, estimate.returns), 1)
    recorded = [torch.tensor([row.logprobs[t] for t in row.trained]).double() for row in rows]
    count = sum(len(row.trained) for row in rows)
    assert [len(one) for one in estimate.advantages] == [len(row.trained) for row in rows]
    assert count < sum(row.sampled_count for row in rows) / 2  # most tokens are forced and count nowhere
    old = start if "importance_cap" in more else recorded
    here, uncertain = reference(policy, folder, rows)

    def loss() -> float:
        policy.drop_copies()
        total = 0.0
        for k, (logp, entropy) in enumerate(zip(*reference(policy, folder, rows), strict=True)):
            advantage = estimate.advantages[k].double()
            weight = (start[k] - recorded[k]).exp().clamp_max(1.3) if old is start else torch.ones_like(logp)
            ratio = (logp - old[k]).exp()
            each = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            each = each + 0.3 * (here[k] - old[k]).exp() * (logp - start[k]) ** 2 / 2
            total += float((each * weight - 0.05 * entropy).sum()) / count
        return total

    for seed in (1, 2):
        difference, said = slope_along(policy, gradient, loss, seed)
        assert abs(said) > 1e-5 and difference == pytest.approx(said, rel=1e-4)
    assert metrics.entropy == pytest.approx(float(torch.cat(uncertain).mean()), abs=1e-4)
    worst = max(float((a - b).exp().max()) for a, b in zip(here, old, strict=True))
    assert metrics.ratio_max == pytest.approx(worst, rel=1e-3)


def test_the_gradient_of_imitation_equals_finite_differences_and_forced_tokens_add_none(
    policy: Policy, folder: Path
) -> None:
    chat, grammar = compiled(policy)
    prompt, samples = drawn(Sampler(policy, 8), chat, grammar, 4)
    rows = rows_of(prompt, samples)
    learner = SupervisedLearner(policy, None, SftConfig(1e-3, 64, max_grad_norm=1e9))
    gradient, metrics = gradient_of(learner, learner.update(rows))
    count = sum(len(row.trained) for row in rows)

    def loss() -> float:
        policy.drop_copies()
        return -float(torch.cat(reference(policy, folder, rows)[0]).sum()) / count

    assert metrics.tokens == count < sum(row.sampled_count for row in rows) / 2
    assert metrics.loss == pytest.approx(loss(), abs=1e-5) == learner.loss(rows)
    difference, said = slope_along(policy, gradient, loss, 3)
    assert difference == pytest.approx(said, rel=1e-4)


def test_the_gradient_of_preferences_equals_finite_differences(policy: Policy, folder: Path) -> None:
    chat, grammar = compiled(policy)
    rows = rows_of(*drawn(Sampler(policy, 8), chat, grammar, 6))
    pairs = usable([Pair([rows[k]], [rows[k + 1]]) for k in (0, 2, 4)], 500).pairs
    learner = PreferenceLearner(
        policy, None, DpoConfig(beta=0.4, max_grad_norm=1e9, epochs=2, learning_rate=3e-3)
    )
    flat = [side[0] for pair in pairs for side in (pair.chosen, pair.rejected)]
    start, _ = reference(policy, folder, flat)
    gradient, metrics = gradient_of(learner, learner.update(pairs), 1)

    def loss() -> float:
        policy.drop_copies()
        sums = torch.stack(
            [(a - b).sum() for a, b in zip(reference(policy, folder, flat)[0], start, strict=True)]
        )
        return -float(torch.nn.functional.logsigmoid(0.4 * (sums[::2] - sums[1::2])).mean())

    assert metrics.loss == pytest.approx(loss(), abs=1e-5) and metrics.loss < math.log(2)
    difference, said = slope_along(policy, gradient, loss, 4)
    assert difference == pytest.approx(said, rel=1e-4)
