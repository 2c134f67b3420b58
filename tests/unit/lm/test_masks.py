"""Masks, and log-probs and gradients of the output head under them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from onward.errors import TrainingError
from onward.lm.head import backward_logprobs, token_logprobs
from onward.lm.masks import AllowedTokens
from onward.lm.permitted import Permitted

# --- masks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [3, 32, 33, 290])
def test_a_mask_is_the_same_set_however_it_is_stored(vocab: int) -> None:
    rnd = np.random.default_rng(vocab)
    for share in (0.02, 0.5, 1.0):
        chosen = set(np.flatnonzero(rnd.random(vocab) < share).tolist()) | {vocab - 1}
        made = AllowedTokens.of_ids(sorted(chosen), vocab)
        padded = np.zeros(made.words.shape, dtype=np.int32)
        padded[:] = made.words.view(np.int32)
        padded.view(np.uint32)[-1] |= np.uint32((1 << 32) - (1 << (vocab % 32)) if vocab % 32 else 0)
        assert AllowedTokens.of_words(padded, vocab) == made  # bits beyond the vocabulary do not count
        assert set(made.ids.tolist()) == set(np.flatnonzero(made.bits).tolist()) == chosen
        assert {t for t in range(vocab) if t in made} == chosen and made.count == len(chosen)
        assert made.is_forced == (len(chosen) == 1)


def test_masks_of_a_schema_of_enums_need_little_memory() -> None:
    """A word of 32 bits for each 32 tokens would be 6 KiB a token."""
    one = AllowedTokens.of_ids([5, 49_151], 49_152)
    assert len(one.data) == 8 and AllowedTokens.of_ids([5, 49_151], 49_152) is one


# --- the head ----------------------------------------------------------------------------------------


def worked_example(masks: list[list[int]] | None) -> Tensor:
    """The expected policy gradient of two steps with three tokens; rows: the states s, a and b.

    In s, token 0 leads to a and token 1 to b; a then 0 earns 1, b then 0 earns 0.3, and J is the baseline.
    """
    head = torch.tensor([[0.0, 0.2, 0.0], [0.0, -0.1, 0.5], [0.0, 1.0, -1.0]], requires_grad=True)
    allowed = {"s": [0, 1], "a": [0, 1], "b": [0, 2]}
    logits = dict(zip("sab", head.detach().t(), strict=True))
    chance = {state: torch.zeros(3).index_copy_(0, torch.tensor(ids), logits[state][ids].softmax(0))
              for state, ids in allowed.items()}  # fmt: skip
    paths = [("a", 0, 1.0), ("a", 1, 0.0), ("b", 0, 0.3), ("b", 2, 0.0)]
    value = sum(float(chance["s"]["ab".index(x)] * chance[x][t]) * r for x, t, r in paths)
    assert value == pytest.approx(0.3969, abs=5e-5)
    states, targets, weights, sets = [], [], [], []
    for second, token, reward in paths:
        probability = float(chance["s"]["ab".index(second)] * chance[second][token])
        for state, target in (("s", "ab".index(second)), (second, token)):
            states.append("sab".index(state))
            targets.append(target)
            weights.append(probability * (reward - value))
            sets.append(AllowedTokens.of_ids(allowed[state], 3))
    hidden = torch.eye(3)[states].requires_grad_()
    slope = torch.tensor(weights)
    permitted = None if masks is None else Permitted(sets, targets, torch.device("cpu"))
    backward_logprobs(
        hidden, head, torch.tensor(targets), torch.ones(len(targets)), lambda _, at: slope[at],
        permitted=permitted,
    )  # fmt: skip
    assert head.grad is not None
    return head.grad.t()


def expected_return(logits: Tensor) -> float:
    """J of the worked example, in double precision: rows are the states s, a and b."""
    s, a, b = logits.double()
    first = s[[0, 1]].softmax(0)
    return float(first[0] * a[[0, 1]].softmax(0)[0] + first[1] * b[[0, 2]].softmax(0)[0] * 0.3)


def test_the_gradient_of_the_worked_example_is_that_of_finite_differences() -> None:
    found = worked_example([[]])
    logits = torch.tensor([[0.0, 0.0, 0.0], [0.2, -0.1, 1.0], [0.0, 0.5, -1.0]], dtype=torch.float64)
    for state in range(3):
        for token in range(3):
            up, down = logits.clone(), logits.clone()
            up[state, token] += 1e-5
            down[state, token] -= 1e-5
            slope = (expected_return(up) - expected_return(down)) / 2e-5
            assert float(found[state, token]) == pytest.approx(slope, abs=1e-6)
    by_hand = [[0.0888, -0.0888, 0.0], [0.1222, -0.1222, 0.0], [0.0295, 0.0, -0.0295]]
    assert torch.allclose(found, torch.tensor(by_hand), atol=6e-5)
    assert found[0, 2] == found[1, 2] == found[2, 1] == 0.0


def test_without_masks_the_worked_example_moves_mass_to_forbidden_tokens() -> None:
    """What a learner computes that samples under a grammar and does not learn under it."""
    found = worked_example(None)
    assert torch.allclose(found[1], torch.tensor([0.1508, -0.1010, -0.0498]), atol=6e-5)
    assert torch.allclose(found[2], torch.tensor([-0.0060, 0.0485, -0.0425]), atol=6e-5)


@pytest.mark.parametrize("cap", [None, 3.0])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_masked_log_probs_entropy_and_gradients_equal_a_dense_reference(
    cap: float | None, temperature: float
) -> None:
    """Positions with few allowed tokens, many, all and no mask, in one call."""
    generator = torch.Generator().manual_seed(3)
    vocab, width, count = 2000, 12, 150
    rnd = np.random.default_rng(4)
    head = torch.randn(vocab, width, generator=generator).requires_grad_()
    hidden = torch.randn(count, width, generator=generator).requires_grad_()
    sizes = [None if k % 4 == 0 else int(rnd.choice([2, 5, 60, 900, vocab])) for k in range(count)]
    sets = [None if n is None else sorted(rnd.choice(vocab, n, replace=False).tolist()) for n in sizes]
    targets = [int(rnd.choice(ids)) if ids else int(rnd.integers(vocab)) for ids in sets]
    permitted = Permitted(
        [AllowedTokens.of_ids(ids, vocab) if ids else None for ids in sets], targets, torch.device("cpu")
    )
    slope, uncertain = torch.randn(2, count, generator=generator)
    heat = torch.full((count,), temperature)
    found = backward_logprobs(
        hidden, head, torch.tensor(targets), heat, lambda _, at: slope[at], entropy_slope=uncertain, cap=cap,
        permitted=permitted,
    )  # fmt: skip
    again = token_logprobs(hidden.detach(), head.detach(), torch.tensor(targets), heat, cap=cap,
                           permitted=permitted)  # fmt: skip
    mine = [hidden.grad, head.grad]
    hidden.grad = head.grad = None
    logits = hidden @ head.t()
    logits = (logits if cap is None else cap * torch.tanh(logits / cap)) / temperature
    closed = torch.ones(count, vocab, dtype=torch.bool)
    for line, ids in enumerate(sets):
        closed[line, slice(None) if ids is None else ids] = False
    every = logits.masked_fill(closed, -1e30).log_softmax(-1)
    logp = every.gather(1, torch.tensor(targets)[:, None])[:, 0]
    entropy = -(every.exp() * every).masked_fill(closed, 0.0).sum(-1)
    ((slope * logp).sum() + (uncertain * entropy).sum()).backward()
    for got, once_more, wanted in zip(found, again, (logp, entropy), strict=True):
        assert torch.allclose(got, wanted, atol=2e-5) and torch.allclose(once_more, wanted, atol=2e-5)
    for got, wanted in zip(mine, (hidden.grad, head.grad), strict=True):
        assert got is not None and wanted is not None and torch.allclose(got, wanted, atol=2e-5)


def test_a_token_outside_its_mask_and_a_mask_of_another_vocabulary_are_refused() -> None:
    with pytest.raises(TrainingError, match="Token 2 is none of the 2 tokens"):
        Permitted([AllowedTokens.of_ids([0, 1], 3)], [2], torch.device("cpu"))
    permitted = Permitted([AllowedTokens.of_ids([0, 1], 3)], [1], torch.device("cpu"))
    with pytest.raises(TrainingError, match="masks of 3 tokens and the network has 5"):
        token_logprobs(
            torch.ones(1, 2), torch.ones(5, 2), torch.tensor([1]), torch.ones(1), permitted=permitted
        )
