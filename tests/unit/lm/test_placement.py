"""Tensors stay on the policy's device, without a GPU: torch's fake tensors refuse to mix two devices.

Fake tensors have a device and a shape and no numbers. So these tests say that a pass on a GPU mixes no tensor
of the CPU into its arithmetic; they do not say that its numbers are right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorDeviceMismatchError, FakeTensorMode

from onward.lm import next_token
from onward.lm.draw import draw
from onward.lm.learner import CriticConfig, Learner, LearnerConfig
from onward.lm.network import Layer, Weights
from onward.lm.pairs import Pair
from onward.lm.policy import Policy
from onward.lm.preference import DpoConfig, PreferenceLearner
from onward.lm.request import SampleRequest
from onward.lm.sampler import Sampler
from onward.lm.sft import SftConfig, SupervisedLearner

from .conftest import random_rows

DEVICE = "meta"
"""A device beside the CPU that a build of torch for CPUs knows, as it knows no GPU."""


class Pretend(FakeTensorMode):
    """Fake tensors whose numbers, where Python asks for one, are 1."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return {torch.bool: True, torch.int64: 1}.get(args[0].dtype, 1.0)
        if func is torch.ops.aten.detach_.default:  # the end of ``torch.tensor(list)``
            return args[0]
        return super().dispatch(func, types, args, kwargs or {})


@pytest.fixture()
def pretend() -> Iterator[Pretend]:
    with Pretend(allow_non_fake_inputs=True) as mode:  # tensors of lists are made outside of its sight
        yield mode


def moved(small: Policy, dtype: torch.dtype = torch.float32) -> Policy:
    """The policy ``small`` without numbers, on another device, with an adapter ``x``."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=dtype, device=DEVICE)

    given = small.weights

    def copy(layer: Layer) -> Layer:
        parts = {f.name: getattr(layer, f.name) for f in fields(layer)}
        return Layer(**{name: None if part is None else move(part) for name, part in parts.items()})

    layers = [copy(layer) for layer in given.layers]
    embedding = move(given.embedding)
    weights = Weights(embedding, layers, move(given.norm), embedding)
    policy = Policy(small.shape, weights, small.folder, torch.device(DEVICE))
    policy.new_adapter("x", 4, 8.0)
    return policy


@pytest.fixture(scope="module")
def loaded(small: Path) -> Policy:
    return Policy.load(small)


def test_fake_tensors_of_two_devices_do_not_mix(pretend: Pretend) -> None:
    with pytest.raises(FakeTensorDeviceMismatchError):
        torch.ones(2, device=DEVICE) + torch.ones(2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sampling_stays_on_its_device(
    loaded: Policy, pretend: Pretend, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """A group with a shared prompt, a prompt under the base, and one that continues a known prompt."""
    policy = moved(loaded, dtype)
    sampler, where = Sampler(policy, max_batch=4), set()

    def drawn(logits: torch.Tensor, *rest: Any) -> Any:
        tokens, logp = draw(logits, *rest)
        where.add((logits.device.type, tokens.device.type, logp.device.type))
        return tokens, logp

    monkeypatch.setattr(next_token, "draw", drawn)
    prompt = list(range(3, 40))
    for number, adapter in enumerate(("x", "x", None)):
        sampler.submit(
            SampleRequest(str(number), [*prompt, number + 50], 3, adapter=adapter, temperature=0.5)
        )
    sampler.submit(SampleRequest("cut", prompt, 2, top_k=5))
    sampler.submit(SampleRequest("again", [*prompt, 60, 61], 2))
    done = []
    while sampler.busy:
        done += sampler.step()
    assert sorted(one.request_id for one in done) == ["0", "1", "2", "again", "cut"]
    assert where == {(DEVICE, DEVICE, DEVICE)}


CONFIGS = {
    "plain": LearnerConfig(epochs=1),
    "weighted": LearnerConfig(epochs=1, importance_cap=2.0, importance_level="sequence"),
    "looked at": LearnerConfig(epochs=1, mismatch_cap=2.0),
    "held": LearnerConfig(epochs=1, kl_coef=0.1, entropy_coef=0.01, spare_above=0.9, hold_coef=0.1),
    "critic": LearnerConfig(epochs=1, critic=CriticConfig(trains_policy=True)),
    "checkpointed": LearnerConfig(epochs=1, gradient_checkpointing=True),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "adapter"), [*((name, "x") for name in CONFIGS), ("plain", None), ("critic", None)]
)
def test_a_step_of_the_learner_stays_on_its_device(
    loaded: Policy, pretend: Pretend, name: str, adapter: str | None
) -> None:
    config = CONFIGS[name]
    policy = moved(loaded)
    rows = [replace(row, logprobs=[-1.0] * len(row)) for row in random_rows(6, shared=12)]
    learner = Learner(policy, adapter, config)
    returns = [1.0] * 6 if config.critic else None
    (step,) = learner.update(rows, [1.0, -1.0, 0.5, 2.0, -0.5, 1.5], returns)
    assert not step.skipped
    assert {tensor.device.type for tensor in learner.stepper.masters} == {DEVICE}
    assert {tensor.dtype for tensor in learner.stepper.masters} == {torch.float32}


@pytest.mark.parametrize("adapter", ["x", None])
def test_imitation_and_preference_stay_on_their_device(
    loaded: Policy, pretend: Pretend, adapter: str | None
) -> None:
    policy = moved(loaded, torch.bfloat16)
    rows = random_rows(4, shared=12)
    supervised = SupervisedLearner(policy, adapter, SftConfig(1e-3, 4))
    assert len(list(supervised.update(rows))) == 1
    preference = PreferenceLearner(policy, adapter, DpoConfig())
    assert (
        len(list(preference.update([Pair([a], [b]) for a, b in zip(rows[:2], rows[2:], strict=True)]))) == 1
    )
