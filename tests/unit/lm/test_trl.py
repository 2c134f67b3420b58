"""Loss and gradient beside TRL's on the same batch, to 1e-5 where the definitions agree.

Its trainers run on a network of ours from a local folder; their ``_compute_loss`` gets the batch. Where TRL
means something else, a test says what and which is right.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("trl")

from onward.lm import advantages
from onward.lm.layout import to_transformers
from onward.lm.learner import Learner, LearnerConfig
from onward.lm.network import Layer, Weights
from onward.lm.pairs import Pair
from onward.lm.policy import Policy
from onward.lm.preference import DpoConfig, PreferenceLearner
from onward.lm.tokens import TokenRow

from .conftest import random_rows, with_behaviour

ADVANTAGES = [1.0, -0.5, 0.25, 2.0, -1.5, 0.7]


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def trainer(kind: str, folder: Path, out: Path) -> Any:
    import trl
    from datasets import Dataset

    common: dict[str, Any] = {
        "output_dir": str(out), "use_cpu": True, "bf16": False, "report_to": [], "logging_steps": 1,
        "gradient_checkpointing": False,
    }  # fmt: skip
    with quietly():
        if kind == "dpo":
            data = Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}] * 2)
            return trl.DPOTrainer(str(folder), args=trl.DPOConfig(**common), train_dataset=data)
        config, cls = (
            (trl.GRPOConfig, trl.GRPOTrainer) if kind == "grpo" else (trl.RLOOConfig, trl.RLOOTrainer)
        )
        args = config(
            num_generations=2, per_device_train_batch_size=2, max_completion_length=50, beta=0.0, **common
        )
        data = Dataset.from_list([{"prompt": "a"}] * 2)
        return cls(str(folder), reward_funcs=lambda **k: [0.0], args=args, train_dataset=data)


@pytest.fixture(scope="module")
def theirs(small: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """One trainer of each kind; ``current_gradient_accumulation_steps`` is what its train loop would set."""
    made = {k: trainer(k, small, tmp_path_factory.mktemp(k)) for k in ("grpo", "rloo", "dpo")}
    for one in made.values():
        one.current_gradient_accumulation_steps = 1
        one.model.train()
    return SimpleNamespace(**made)


def padded(rows: list[TokenRow]) -> dict[str, Tensor]:
    """TRL's batch: prompts of one length, completions padded on the right, observations in ``tool_mask``."""
    start = rows[0].trained[0]
    width = max(len(r) for r in rows) - start
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    attention, tool, old = torch.zeros_like(ids), torch.zeros_like(ids), torch.zeros(len(rows), width)
    for k, r in enumerate(rows):
        n = len(r) - start
        ids[k, :n] = torch.tensor(r.ids[start:])
        attention[k, :n] = 1
        tool[k, :n] = torch.tensor(r.sampled[start:]).long()
        old[k, :n] = torch.tensor(r.logprobs[start:])
    prompts = torch.tensor([r.ids[:start] for r in rows])
    return {
        "prompt_ids": prompts, "prompt_mask": torch.ones_like(prompts), "completion_ids": ids,
        "completion_mask": attention, "tool_mask": tool, "old_per_token_logps": old,
    }  # fmt: skip


def slopes(model: Any, loss: Tensor) -> tuple[float, dict[str, Tensor]]:
    model.zero_grad()
    loss.backward()
    return float(loss.detach()), {
        n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
    }


def ours(policy: Policy, learner: Any, step: Iterator[Any]) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradient of the first step (all weights are trained), by transformers' names."""
    found: list[Tensor] = []

    def keep() -> None:
        found.extend(p.grad.clone() for p in learner.stepper.masters)

    learner.stepper.optimizer.step = keep
    metrics = next(step)
    values = iter(found)
    shape = policy.shape
    embedding = next(values)
    like = policy.weights.layers[0]
    present = [f.name for f in dataclasses.fields(Layer) if getattr(like, f.name) is not None]
    layers = [Layer(**{name: next(values) for name in present}) for _ in range(shape.layers)]
    weights = Weights(embedding, layers, next(values), embedding)
    return metrics.loss, to_transformers(shape, weights)


def assert_same(a: tuple[float, dict[str, Tensor]], b: tuple[float, dict[str, Tensor]]) -> None:
    assert a[0] == pytest.approx(b[0], abs=1e-5)
    assert set(a[1]) == set(b[1]) and max(float(g.abs().max()) for g in b[1].values()) > 1e-2
    for name, gradient in a[1].items():
        assert float((gradient - b[1][name]).abs().max()) < 1e-5, name


def off_policy(policy: Policy) -> list[TokenRow]:
    """Ratios from 0.7 to 1.5, so that both clips bite; an observation inside each row."""
    rows = with_behaviour(policy, None, random_rows(6))
    shift = [0.0, 0.4, -0.4, 0.1, -0.1, 0.3]
    for k, r in enumerate(rows):
        r.logprobs = [p + shift[k] * s for p, s in zip(r.logprobs, r.sampled, strict=True)]
        r.logprobs = [min(p, 0.0) for p in r.logprobs]
    return rows


CONFIG = LearnerConfig(
    learning_rate=1e-3, epochs=1, max_grad_norm=1e9, dual_clip=None, clip_epsilon=0.2, constant_length=50
)


@pytest.mark.parametrize(
    ("loss_type", "normaliser"), [("grpo", "sequence"), ("bnpo", "token"), ("dr_grpo", "constant")]
)
def test_grpo_loss_and_gradient(
    policy: Policy, theirs: SimpleNamespace, loss_type: str, normaliser: Any
) -> None:
    """With an entropy bonus where its normaliser is the same: TRL's is a token mean under every loss."""
    entropy = 0.05 if normaliser == "token" else 0.0
    rows = off_policy(policy)
    peer = theirs.grpo
    peer.loss_type, peer.max_completion_length = loss_type, 50
    peer.entropy_coef, peer._entropy_bonus_enabled = entropy, entropy > 0
    loss = peer._compute_loss(peer.model, {**padded(rows), "advantages": torch.tensor(ADVANTAGES)})
    config = dataclasses.replace(CONFIG, normaliser=normaliser, entropy_coef=entropy)
    learner = Learner(policy, None, config)
    assert_same(ours(policy, learner, learner.update(rows, ADVANTAGES)), slopes(peer.model, loss))


def test_rloo_loss_and_gradient_on_policy(policy: Policy, theirs: SimpleNamespace) -> None:
    """TRL's RLOO is a sum over the tokens of a sequence and a mean over sequences: L = 1 in ours."""
    rows = with_behaviour(policy, None, random_rows(6))
    inputs = padded(rows)
    old = (inputs["old_per_token_logps"] * inputs["tool_mask"]).sum(1)
    inputs["completion_mask"] = inputs["tool_mask"]  # its RLOO knows no tool mask: hide observations so
    attended = padded(rows)["completion_mask"]
    with attending(theirs.rloo, attended):
        loss = theirs.rloo._compute_loss(
            theirs.rloo.model, {**inputs, "advantages": torch.tensor(ADVANTAGES), "old_logps": old}
        )
    learner = Learner(policy, None, dataclasses.replace(CONFIG, normaliser="constant", constant_length=1))
    value, gradient = ours(policy, learner, learner.update(rows, ADVANTAGES))
    # the values differ by construction, Σ_t r_t A against (Π_t r_t) A, and are −ΣA·n and −ΣA at ratio 1
    counts = [r.sampled_count for r in rows]
    assert value == pytest.approx(-sum(a * n for a, n in zip(ADVANTAGES, counts, strict=True)) / 6, abs=1e-4)
    assert float(loss) == pytest.approx(-sum(ADVANTAGES) / 6, abs=1e-4)
    assert_same((0.0, gradient), (0.0, slopes(theirs.rloo.model, loss)[1]))


@contextlib.contextmanager
def attending(peer: Any, attended: Tensor) -> Iterator[None]:
    """Let the forward pass see observations although the loss mask hides them (case 12)."""
    original = peer._get_per_token_logps_and_entropies

    def seen(model: Any, ids: Tensor, mask: Tensor, *rest: Any, **more: Any) -> Any:
        mask = mask.clone()
        mask[:, -attended.shape[1] :] = attended
        return original(model, ids, mask, *rest, **more)

    peer._get_per_token_logps_and_entropies = seen
    try:
        yield
    finally:
        peer._get_per_token_logps_and_entropies = original


def test_rloo_off_policy_trl_multiplies_the_ratios_of_a_whole_sequence() -> None:
    """Ours is right for long answers (case 22): forty tokens, each 5 % off, are clipped as one in TRL.

    Its ratio is exp(40 · 0.05) = 7.4, far outside [0.8, 1.2], so the sequence teaches nothing; per token the
    ratio is 1.05 and all of them do.
    """
    from onward.lm.losses import clipped_share

    per_token = torch.full((40,), 0.05)
    assert float(per_token.sum().exp()) > 7
    assert not clipped_share(per_token.exp(), torch.ones(40), 0.2, 0.2).any()
    assert clipped_share(per_token.sum(0, keepdim=True).exp(), torch.ones(1), 0.2, 0.2).all()


def test_group_advantages_equal_trl() -> None:
    """Its GRPO divides by nanstd (n−1) + 1e-4, its RLOO takes the mean of the others."""
    from trl.trainer.utils import nanstd

    rewards = [1.0, 0.0, 0.5, 1.0, 0.2, 0.0, 0.9, 0.4]
    groups = [0] * 4 + [1] * 4
    grouped = torch.tensor(rewards).view(2, 4)
    expected = (grouped - grouped.mean(1, keepdim=True)) / (nanstd(grouped, dim=1)[:, None] + 1e-4)
    assert advantages.grpo(rewards, groups, eps=1e-4) == pytest.approx(expected.flatten().tolist(), abs=1e-5)
    others = grouped - (grouped.sum(1, keepdim=True) - grouped) / 3
    assert advantages.rloo(rewards, groups) == pytest.approx(others.flatten().tolist(), abs=1e-5)


def test_nearly_equal_rewards_trl_blows_noise_up() -> None:
    """Ours is right (cases 8 and 9): rewards 1e-3 apart get advantages near ±0.6 there and 0 here."""
    from trl.trainer.utils import nanstd

    rewards = torch.tensor([0.5, 0.501])
    there = (rewards - rewards.mean()) / (nanstd(rewards, dim=0) + 1e-4)
    assert float(there.abs().max()) > 0.6
    assert advantages.grpo(rewards.tolist(), ["g"] * 2) == [0.0, 0.0]


@pytest.mark.parametrize("corrected", [True, False])
def test_kl_in_the_loss(policy: Policy, theirs: SimpleNamespace, corrected: bool) -> None:
    """Same value, k3, on both sides. With TRL's bias correction (its default) the gradient is ours too.

    Without it TRL differentiates k3 alone, whose gradient is the *forward* KL's: 1 − e^{−ℓ} per token where
    the penalty stands for the reverse KL with ℓ. Ours is right (rule 9): ``test_losses`` compares it with the
    exact gradient. Here ℓ = 0.3 everywhere, so the two differ by 0.3/0.2592.
    """
    rows = with_behaviour(policy, None, random_rows(6))
    inputs = padded(rows)
    peer = theirs.grpo
    peer.loss_type, peer.beta, peer._entropy_bonus_enabled = "bnpo", 1.0, False
    peer.args.use_bias_correction_kl = corrected
    reference = inputs["old_per_token_logps"] - 0.3 * inputs["tool_mask"]
    try:
        zero = {"advantages": torch.zeros(6), "ref_per_token_logps": reference}
        value, gradient = slopes(peer.model, peer._compute_loss(peer.model, {**inputs, **zero}))
    finally:
        peer.beta = 0.0
    learner = Learner(policy, None, dataclasses.replace(CONFIG, kl_coef=1.0))
    learner.open(rows)
    learner._fixed["reference"] = [
        torch.tensor([p - 0.3 for p, s in zip(r.logprobs, r.sampled, strict=True) if s]) for r in rows
    ]
    mine, slope = ours(policy, learner, learner.update(rows, [0.0] * 6))
    if corrected:
        assert_same((mine, slope), (value, gradient))
    else:
        forward = 1 - math.exp(-0.3)
        assert_same((mine, {k: v * forward / 0.3 for k, v in slope.items()}), (value, gradient))


@pytest.mark.parametrize(
    ("loss_type", "options"), [("sigmoid", {}), ("sigmoid_norm", {"length_normalised": True})]
)
def test_dpo_loss_and_gradient(
    policy: Policy, small: Path, theirs: SimpleNamespace, loss_type: str, options: dict[str, Any]
) -> None:
    rows = random_rows(6)
    pairs = [Pair([rows[k]], [rows[k + 3]]) for k in range(3)]
    peer = theirs.dpo
    peer.loss_types, peer.beta, peer.precompute_ref_logps = [loss_type], 0.1, True
    width = max(len(r) for r in rows)
    ids, attention, mask = (torch.zeros(6, width, dtype=torch.long) for _ in range(3))
    for k, r in enumerate(rows):
        ids[k, : len(r)] = torch.tensor(r.ids)
        attention[k, : len(r)] = 1
        mask[k, : len(r)] = torch.tensor(r.sampled).long()
    shift = [0.3, -0.2, 0.1, -0.4, 0.2, 0.0]
    reference = [v + shift[k] * torch.tensor(r.sampled)
                 for k, (v, r) in enumerate(zip(policy.logprobs(rows), rows, strict=True))]  # fmt: skip
    sums = torch.stack([v.sum() for v in reference])
    inputs = {
        "input_ids": ids, "attention_mask": attention, "completion_mask": mask,
        "ref_chosen_logps": sums[:3], "ref_rejected_logps": sums[3:],
    }  # fmt: skip
    loss = peer._compute_loss(peer.model, inputs, False)
    learner = PreferenceLearner(
        policy,
        None,
        DpoConfig(reference="start", max_grad_norm=1e9, **options),  # type: ignore[arg-type]
    )
    order = [rows[i] for p in range(3) for i in (p, p + 3)]
    by_row = {id(r): v[torch.tensor(r.sampled)] for r, v in zip(rows, reference, strict=True)}
    learner._reference = lambda batches: [by_row[id(r)] for r in order]  # type: ignore[method-assign]
    assert_same(ours(policy, learner, learner.update(pairs)), slopes(peer.model, loss))
