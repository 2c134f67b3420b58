"""AdamW beside ``torch.optim.AdamW``: the same bits, the same saved state, and no compiler imported."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch import Tensor

from onward.lm.adamw import AdamW

BETAS = (0.9, 0.95)
SIZES = ((5, 3), (7,), (2, 2))


def parameters() -> list[Tensor]:
    draws = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=draws) for size in SIZES]


def groups(tensors: list[Tensor]) -> list[dict[str, object]]:
    return [{"params": tensors[:2], "lr": 1e-2}, {"params": tensors[2:], "lr": 3e-3}]


def learn(optimizer: AdamW | torch.optim.AdamW, tensors: list[Tensor], steps: range) -> None:
    """The second tensor has a gradient from the third step on, and the first rate falls."""
    for step in steps:
        draws = torch.Generator().manual_seed(step)
        for number, tensor in enumerate(tensors):
            drawn = torch.randn(tensor.shape, generator=draws)
            tensor.grad = None if number == 1 and step < 2 else drawn
        optimizer.param_groups[0]["lr"] = 1e-2 / (1 + step)
        optimizer.step()


def test_steps_are_those_of_torch_to_the_bit() -> None:
    ours, theirs = parameters(), parameters()
    learn(AdamW(groups(ours), betas=BETAS, weight_decay=0.1), ours, range(6))
    learn(torch.optim.AdamW(groups(theirs), betas=BETAS, weight_decay=0.1), theirs, range(6))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert not torch.equal(ours[1], parameters()[1])


def test_a_state_saved_by_either_is_gone_on_with() -> None:
    whole = parameters()
    learn(AdamW(groups(whole), betas=BETAS), whole, range(6))
    for first in (AdamW, torch.optim.AdamW):
        tensors = parameters()
        begun = first(groups(tensors), betas=BETAS, weight_decay=0.0)
        learn(begun, tensors, range(3))
        saved = begun.state_dict()
        following = AdamW(groups(tensors), betas=BETAS)
        following.load_state_dict(saved)
        assert following.param_groups[0]["lr"] == 1e-2 / 3
        learn(following, tensors, range(3, 6))
        assert all(torch.equal(a, b) for a, b in zip(tensors, whole, strict=True))
        assert float(saved["state"][0]["step"]) == 3.0  # what was saved is not stepped on


def test_gradients_are_discarded() -> None:
    tensors = parameters()
    optimizer = AdamW(groups(tensors), betas=BETAS)
    learn(optimizer, tensors, range(1))
    optimizer.zero_grad()
    assert [tensor.grad for tensor in tensors] == [None] * 3


def test_a_step_imports_no_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from onward.lm.stepper import Stepper\n"
        "weight = torch.ones(3)\n"
        "stepper = Stepper([weight], 0.1, 1.0)\n"
        "weight.grad = torch.ones(3)\n"
        "stepper.step()\n"
        "assert weight[0] < 1\n"
        "print(sorted({'torch._dynamo', 'sympy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
