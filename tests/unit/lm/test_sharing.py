"""What several rows begin with is computed once, and nothing but the work changes."""

from __future__ import annotations

import dataclasses
import itertools
import random
from pathlib import Path

import pytest
import torch

from onward.lm.batches import Batches, Prepared
from onward.lm.packing import Packed
from onward.lm.pairs import Pair
from onward.lm.policy import Policy
from onward.lm.preference import DpoConfig, PreferenceLearner
from onward.lm.sharing import Run, Sharing
from onward.lm.tokens import TokenRow

from .conftest import noisy_adapter, with_behaviour
from .test_learner import ONE_STEP, advantages_for, assert_equal_gradients, gradients, peft_gradients


def groups(sizes: list[int], seed: int = 0, common: int = 5, prompt: int = 12) -> list[TokenRow]:
    """Groups of attempts, each at a prompt of its own after ``common`` tokens, mixed; answers of all lengths,
    some with an observation inside."""
    rnd = random.Random(seed)
    start = [rnd.randrange(3, 250) for _ in range(common)]
    rows = []
    for size in sizes:
        own = [rnd.randrange(3, 250) for _ in range(prompt)]
        for _ in range(size):
            a, b, c = rnd.randint(1, 5), rnd.randint(0, 4), rnd.randint(1, 6)
            tail = [rnd.randrange(3, 250) for _ in range(a + b + c)]
            mask = [False] * (common + prompt) + [True] * a + [False] * b + [True] * c
            rows.append(TokenRow(start + own + tail, mask, [0.0] * len(mask)))
    rnd.shuffle(rows)
    return rows


def row(prompt: str, answer: str) -> TokenRow:
    """A letter is a token."""
    ids = [ord(c) for c in prompt + answer]
    return TokenRow(ids, [False] * len(prompt) + [True] * len(answer), [0.0] * len(ids))


# --- who shares what ----------------------------------------------------------------------------


def test_prompts_are_shared_short_of_their_last_token_by_hand() -> None:
    long = "system prompt: first question?"
    other = "system prompt: a second one?"
    rows = [row(long, "yes"), row(other, "no"), row(long, "nearly"), row("system prompt: alone", "x")]
    found = Sharing.from_rows(rows)
    assert found.prefix == len("system prompt: ")
    assert found.prompt_of == [0, None, 0, None]
    assert found.prompts == [len(long) - 1]
    assert [found.prompt(i) for i in range(4)] == [14, 0, 14, 0]
    assert [found.rest(i) for i in range(4)] == [4, 15, 7, 6]
    assert found.tokens == 15 + 14 + (4 + 15 + 7 + 6)
    assert found.together([2, 1, 0, 3]) == [[3], [1], [0, 2]]
    assert found.runs([3, 1, 0, 2]) == [Run(2, 15), Run(2, len(long) - 1)]


def test_a_prompt_that_saves_little_is_not_split_off() -> None:
    rows = [row("common prefix aaa bbb", "x"), row("common prefix aaa bbb", "y"), row("common prefix c", "z")]
    assert Sharing.from_rows(rows).prompt_of == [None, None, None]


def test_shuffling_keeps_the_rows_of_a_prompt_together() -> None:
    rows = groups([3, 1, 4, 2, 1])
    sharing = Sharing.from_rows(rows)
    seen = set()
    for seed in range(20):
        order = sharing.shuffled(random.Random(seed))
        assert sorted(order) == list(range(len(rows)))
        prompts = [tuple(rows[i].ids[:17]) for i in order]
        changes = sum(a != b for a, b in itertools.pairwise(prompts))
        assert changes == 4  # five prompts, each in one stretch
        seen.add(tuple(order))
    assert len(seen) > 10


def test_the_prompt_of_a_group_is_in_the_stream_once(policy: Policy) -> None:
    rows = groups([4, 4])
    batches = Batches(policy, None, Prepared.from_rows(rows, 512, "unused"), 2048, 0)
    (part,) = batches.split(range(8))
    packed, _ = batches.hidden(part, None)
    answers = sum(len(r) - 16 for r in rows)  # a row keeps the last token of its prompt
    assert packed.total == 5 + 2 * 11 + answers


def test_rows_of_a_large_group_are_cut_at_the_limit_and_no_part_is_empty(policy: Policy) -> None:
    rows = groups([9, 1, 1])
    batches = Batches(policy, None, Prepared.from_rows(rows, 512, "unused"), 40, 0)
    parts = batches.split(range(11))
    assert sorted(i for part in parts for i in part) == list(range(11)) and all(parts)
    for part in parts:
        total = batches._pack(part).total - batches.sharing.prefix
        assert total <= 40 or len(part) == 1


# --- what comes out -----------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [2048, 45])
def test_gradients_of_groups_equal_those_of_transformers_and_peft(
    policy: Policy, small: Path, tmp_path: Path, limit: int
) -> None:
    noisy_adapter(policy, "x")
    policy.save_adapter("x", tmp_path)
    rows = with_behaviour(policy, "x", groups([3, 1, 4, 2, 1]))
    advantages = advantages_for(rows)
    ours, _ = gradients(policy, rows, advantages, dataclasses.replace(ONE_STEP, micro_batch_tokens=limit))
    weights = [1 / sum(r.sampled_count for r in rows)] * len(rows)
    assert_equal_gradients(ours, peft_gradients(small, tmp_path, rows, advantages, weights), 2e-4)


@pytest.mark.parametrize("limit", [2048, 30])
def test_states_of_frozen_layers_are_kept_piece_by_piece(policy: Policy, limit: int) -> None:
    noisy_adapter(policy, "x", [2])
    rows = with_behaviour(policy, "x", groups([3, 1, 4, 2, 1], common=0))
    advantages = advantages_for(rows)
    config = dataclasses.replace(ONE_STEP, micro_batch_tokens=limit)
    kept, _ = gradients(policy, rows, advantages, config)
    computed, _ = gradients(policy, rows, advantages, dataclasses.replace(config, cache_bytes=0))
    assert_equal_gradients(kept, computed)


def test_log_probs_of_groups_equal_those_of_single_rows(policy: Policy) -> None:
    noisy_adapter(policy, "x")
    rows = groups([3, 2, 1])
    batches = Batches(policy, "x", Prepared.from_rows(rows, 512, "unused"), 2048, 1 << 20)
    for found, one in zip(batches.logprobs("x"), rows, strict=True):
        (alone,) = policy.logprobs([one], "x")
        assert found.tolist() == pytest.approx(alone[torch.tensor(one.sampled)].tolist(), abs=1e-5)


def test_pairs_of_one_prompt_are_packed_together_and_their_gradients_stay(policy: Policy) -> None:
    noisy_adapter(policy, "x", scale=0.1)
    rows = groups([4, 4, 4])
    same: dict[tuple[int, ...], list[TokenRow]] = {}
    for one in rows:
        same.setdefault(tuple(one.ids[:17]), []).append(one)
    pairs = [Pair([r[k]], [r[k + 2]]) for k in range(2) for r in same.values()]

    def step(limit: int) -> tuple[dict[str, torch.Tensor], float]:
        config = DpoConfig(learning_rate=1e-3, minibatch_pairs=6, max_grad_norm=1e9, micro_batch_tokens=limit)
        learner = PreferenceLearner(policy, "x", config)
        found: dict[str, torch.Tensor] = {}

        def keep() -> None:
            found.update({k: p.grad.clone() for k, p in learner.tensors.items() if p.grad is not None})

        learner.stepper.optimizer.step = keep  # type: ignore[method-assign, assignment]
        return found, next(learner.update(pairs)).loss

    together, loss = step(2048)
    alone, same_loss = step(1)
    assert loss == pytest.approx(same_loss, abs=1e-6)
    assert_equal_gradients(together, alone)


def test_runs_that_do_not_fit_the_rows_are_refused(policy: Policy) -> None:
    rows = groups([2])
    with pytest.raises(ValueError, match="must cover all rows"):
        Packed(rows, 0, policy.device, [Run(1, 5)])
    with pytest.raises(ValueError, match="must cover all rows"):
        Packed(rows, 8, policy.device, [Run(2, 5)])
    with pytest.raises(ValueError, match="before the last context token"):
        Packed(rows, 0, policy.device, [Run(2, 17)])
