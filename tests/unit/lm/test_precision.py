"""What the network computes in and what of it is trained: dtypes, checkpointing, all weights, targets."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from onward.errors import ConfigError
from onward.lm.head import backward_logprobs
from onward.lm.learner import Learner, LearnerConfig
from onward.lm.policy import Policy
from onward.lm.sft import fit
from onward.lm.stepper import Stepper

from .conftest import noisy_adapter, random_rows, with_behaviour

ONE_STEP = LearnerConfig(learning_rate=1e-3, epochs=1, max_grad_norm=1e9)
ADVANTAGES = [1.0, -1.0, 0.5, 2.0, -0.5, 1.5]


def gradients(policy: Policy, name: str | None, config: LearnerConfig = ONE_STEP) -> dict[str, Tensor]:
    """Unscaled float32 gradients of the first step."""
    rows = with_behaviour(policy, name, random_rows(6))
    learner = Learner(policy, name, config)
    found: dict[str, Tensor] = {}

    def keep() -> None:
        for key, master in zip(learner.tensors, learner.stepper.masters, strict=True):
            assert master.grad is not None and master.grad.dtype == torch.float32
            found[key] = master.grad.clone()

    learner.stepper.optimizer.step = keep  # type: ignore[method-assign, assignment]
    next(learner.update(rows, ADVANTAGES))
    return found


def cosine(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    x, y = (torch.cat([t.flatten() for t in g.values()]).double() for g in (a, b))
    return float(torch.dot(x, y) / (x.norm() * y.norm()))


@pytest.mark.parametrize(("dtype", "least"), [("bfloat16", 0.99), ("float16", 0.9999)])
@pytest.mark.parametrize("full", [False, True])
def test_half_precision_has_the_gradient_of_float32(
    small: Path, dtype: str, least: float, full: bool
) -> None:
    found = []
    for kind in ("float32", dtype):
        policy = Policy.load(small, dtype=kind)
        noisy_adapter(policy, "x")
        found.append(gradients(policy, None if full else "x"))
    assert found[0].keys() == found[1].keys()
    assert cosine(*found) > least


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["x", None])
def test_every_precision_learns(small: Path, dtype: str, name: str | None) -> None:
    policy = Policy.load(small, dtype=dtype)
    policy.new_adapter("x", 4, 8.0)
    rows = with_behaviour(policy, name, random_rows(6))
    before = [float(v.sum()) for v in policy.logprobs(rows, name)]
    rate = 5e-3 if name else 1e-3
    learner = Learner(policy, name, LearnerConfig(learning_rate=rate, epochs=4))
    for metrics in learner.update(rows, ADVANTAGES):
        assert not metrics.skipped
    after = [float(v.sum()) for v in policy.logprobs(rows, name)]
    assert sum(a * (y - x) for a, x, y in zip(ADVANTAGES, before, after, strict=True)) > 0.1


def test_updates_too_small_for_bfloat16_are_not_lost() -> None:
    """1 + 1e-4 is 1 in bfloat16: forty of them arrive through the float32 copy."""
    parameter = torch.ones(3, dtype=torch.bfloat16)
    stepper = Stepper([parameter], 1e-4, 1.0)
    for _ in range(40):
        with stepper.tracking():
            (-parameter.float().sum()).backward()
        stepper.step()
    assert float(stepper.masters[0][0]) == pytest.approx(1.004, abs=1e-4) and float(parameter[0]) > 1.0


def test_gradients_of_many_small_parts_of_a_step_gather_in_float32() -> None:
    """In bfloat16 the sum of 2000 parts of 1/128 stands still at 2: what is added is half a bit of it."""
    parameter = torch.ones(1, dtype=torch.bfloat16)
    stepper = Stepper([parameter], 1e-4, 1e9)
    with stepper.tracking():
        for _ in range(2000):
            (parameter / 128).sum().backward()
    assert stepper.step()[0] == pytest.approx(2000 / 128, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_heads_gradient_does_not_fade_over_its_chunks(dtype: torch.dtype) -> None:
    """8192 positions that all say the same, in 128 chunks: summed in bfloat16 the gradient was 6 % off."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, 32, generator=generator).to(dtype).expand(8192, 32).contiguous()
    head = (0.1 * torch.randn(128, 32, generator=generator)).to(dtype)
    targets = torch.full((8192,), 7)
    exact = head.double().requires_grad_()
    logp = (hidden.detach().double() @ exact.t()).log_softmax(-1)[:, 7]
    (-logp.mean()).backward()
    assert exact.grad is not None
    stepper = Stepper([head], 1e-4, 1e9)
    with stepper.tracking():
        backward_logprobs(
            hidden.requires_grad_(),
            head,
            targets,
            torch.ones(8192),
            lambda part, _: torch.full_like(part, -1 / 8192),
        )
        assert head.grad is not None
        off = float((head.grad.double() - exact.grad).norm() / exact.grad.norm())
    assert off < {torch.bfloat16: 3e-3, torch.float16: 4e-4, torch.float32: 1e-5}[dtype]


def test_an_overflow_of_float16_is_a_counted_step_that_is_not_taken() -> None:
    parameter = torch.ones(2, dtype=torch.float16)
    stepper = Stepper([parameter], 1e-2, 1.0)
    stepper.scale_for(torch.float16)
    first = stepper.scale
    with stepper.tracking():
        (parameter.sum() * 1e5 * stepper.scale).backward()
    assert stepper.step() == (pytest.approx(float("inf")), False)
    assert stepper.skipped == 1 and not stepper.finite and stepper.scale == first / 2
    assert parameter.tolist() == [1.0, 1.0]
    with stepper.tracking():
        (parameter.sum() * stepper.scale).backward()
    norm, taken = stepper.step()
    assert taken and norm == pytest.approx(2**0.5, rel=1e-3), "the norm is of the unscaled gradient"


def test_gradient_checkpointing_changes_no_gradient(policy: Policy) -> None:
    noisy_adapter(policy, "x", [1, 2])
    plain = gradients(policy, "x")
    less_memory = gradients(policy, "x", dataclasses.replace(ONE_STEP, gradient_checkpointing=True))
    for name in plain:
        assert torch.allclose(plain[name], less_memory[name], atol=1e-7), name
    full = gradients(policy, None)
    again = gradients(policy, None, dataclasses.replace(ONE_STEP, gradient_checkpointing=True))
    assert cosine(full, again) == pytest.approx(1.0, abs=1e-9)


def test_gradient_checkpointing_changes_no_supervised_step(small: Path) -> None:
    found = []
    for recompute in (False, True):
        policy = Policy.load(small)
        (step, *_) = fit(
            policy, None, random_rows(6), learning_rate=1e-3, batch_rows=6, gradient_checkpointing=recompute
        )
        found.append((step.loss, step.grad_norm))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.parametrize("targets", [["q_proj"], ["q_proj", "v_proj"], ["down_proj", "gate_proj"]])
def test_lora_targets_train_what_they_name_and_survive_peft(
    policy: Policy, small: Path, tmp_path: Path, targets: list[str]
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    adapter = policy.new_adapter("x", 3, 6.0, [1, 2], targets=targets)
    assert {name.split(".")[-3] for name in adapter.params} == set(targets)
    gradient = gradients(policy, "x")
    assert all(float(g.abs().max()) > 0 for n, g in gradient.items() if ".lora_B." in n)
    for parameter in adapter.params.values():
        parameter.normal_(0, 0.2, generator=torch.Generator().manual_seed(1))
    policy.save_adapter("x", tmp_path)
    again = policy.add_adapter("y", tmp_path)
    assert again.targets == sorted(targets) and again.layers == [1, 2]
    rows = random_rows(3)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(small), tmp_path)
    for ours, r in zip(policy.logprobs(rows, "y"), rows, strict=True):
        with torch.no_grad():
            logp = model(torch.tensor([r.ids])).logits[0].log_softmax(-1)
        for t in r.trained:
            assert float(ours[t]) == pytest.approx(float(logp[t - 1, r.ids[t]]), abs=1e-4)


def test_a_target_that_does_not_exist_is_refused(policy: Policy) -> None:
    with pytest.raises(ConfigError, match="choose targets among q_proj, k_proj"):
        policy.new_adapter("x", 2, 4.0, targets=["w_pack"])


def test_training_all_weights_needs_no_base_as_reference(policy: Policy) -> None:
    with pytest.raises(ConfigError, match="leaves no base to stay close to"):
        Learner(policy, None, LearnerConfig(kl_coef=0.1, kl_reference="base"))


def test_what_the_sampler_reads_is_not_stale_after_training_all_weights(policy: Policy) -> None:
    """Packed copies of the weights must go with the first step."""
    policy.weights.pack()
    rows = with_behaviour(policy, None, random_rows(4))
    list(Learner(policy, None, LearnerConfig(learning_rate=1e-2)).update(rows, [1.0, -1.0, 1.0, -1.0]))
    assert policy.weights.packed is None
    policy.weights.pack()
    for _ in fit(policy, None, random_rows(4), learning_rate=1e-2, batch_rows=2):
        assert policy.weights.packed is None
        policy.weights.pack()  # as a sampler between two steps does


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_no_state_is_written_after_a_step_that_was_not_finite(
    policy: Policy, tmp_path: Path, bad: float
) -> None:
    """Rule 16: the step is not taken and counted, and nothing is saved until a good one follows."""
    noisy_adapter(policy, "x")
    rows = with_behaviour(policy, "x", random_rows(4))
    learner = Learner(policy, "x", dataclasses.replace(ONE_STEP, minibatch_rows=2))
    before = {k: v.clone() for k, v in learner.tensors.items()}
    original = policy.hidden

    def broken(*a: Any, **k: Any) -> Tensor:
        return original(*a, **k) * bad

    policy.hidden = broken  # type: ignore[method-assign]
    steps = learner.update(rows, [1.0, -1.0, 1.0, -1.0])
    assert next(steps).skipped and learner.skipped_steps == 1 and not learner.finite
    assert all(torch.equal(before[k], v) for k, v in learner.tensors.items())
    assert learner.save(tmp_path) is False and not list(tmp_path.iterdir())
    policy.hidden = original  # type: ignore[method-assign]
    assert not next(steps).skipped and learner.finite
    assert learner.save(tmp_path) is True and list(tmp_path.iterdir())
