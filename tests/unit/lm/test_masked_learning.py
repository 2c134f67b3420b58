"""Learning under masks: losses, gradients and statistics are those of the renormalised policy."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from onward.errors import OnwardError, TrainingError
from onward.lm.algorithms import Grpo, Ppo, Reinforce, Rloo
from onward.lm.any_model.policy import AnyPolicy
from onward.lm.any_model.sampler import AnySampler
from onward.lm.chat import Chat
from onward.lm.constrained import CompiledGrammar, Grammar, GrammarCompiler
from onward.lm.head import backward_logprobs, token_logprobs
from onward.lm.layout import to_transformers
from onward.lm.learner import CriticConfig, Learner, LearnerConfig
from onward.lm.masks import AllowedTokens
from onward.lm.pairs import Pair, usable
from onward.lm.permitted import Permitted
from onward.lm.policy import Policy
from onward.lm.preference import DpoConfig, PreferenceLearner
from onward.lm.request import Sample, SampleRequest
from onward.lm.sampler import Sampler
from onward.lm.sft import SftConfig, SupervisedLearner
from onward.lm.tiny import build_tiny
from onward.lm.tokens import Call, TokenRow, rows_from_calls
from onward.lm.trajectories import Selection, Trajectory

from .conftest import noisy_adapter

SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "maxItems": 3,
    "items": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"check": {"const": name}, "weight": {"enum": [1, 2, 3, 4, 5]}},
                "required": ["check", "weight"],
                "additionalProperties": False,
            }
            for name in ("sum", "section", "summary")
        ]
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    corpus = ['[{"check": "sum", "weight": 3}, {"check": "section", "weight": 1}]', "system user assistant"]
    return build_tiny(tmp_path_factory.mktemp("m") / "m", corpus, vocab=290, hidden=32, layers=2)


@pytest.fixture()
def policy(folder: Path) -> Policy:
    return Policy.load(folder)


def compiled(policy: Policy | AnyPolicy) -> tuple[Chat, CompiledGrammar]:
    chat = Chat(policy.tokenizer)
    compiler = GrammarCompiler(policy.tokenizer, policy.shape.vocab, chat.stop_ids)
    return chat, compiler(Grammar("json_schema", json.dumps(SCHEMA)))


def drawn(
    sampler: Sampler | AnySampler, chat: Chat, grammar: CompiledGrammar, count: int, temperature: float = 1.0
) -> tuple[list[int], list[Sample]]:
    prompt = chat.render([{"role": "user", "content": "Who?"}])
    for seed in range(count):
        sampler.submit(
            SampleRequest(str(seed), prompt, grammar.max_tokens or 0, temperature, stop_ids=chat.stop_ids,
                          seed=seed, grammar=grammar, for_training=True)
        )  # fmt: skip
    done: list[Sample] = []
    while sampler.busy:
        done += sampler.step()
    return prompt, sorted(done, key=lambda sample: int(sample.request_id))


def rows_of(prompt: list[int], samples: list[Sample], temperature: float = 1.0) -> list[TokenRow]:
    rows = []
    for sample in samples:
        row = TokenRow([], [], [], temperature)
        row.extend(prompt, sample.token_ids, sample.logprobs, sample.allowed)
        rows.append(row)
    return rows


def words_of(ids: list[int], vocab: int) -> AllowedTokens:
    return AllowedTokens.of_ids(ids, vocab)


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
    one = words_of([5, 49_151], 49_152)
    assert len(one.data) == 8 and words_of([5, 49_151], 49_152) is one


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
            sets.append(words_of(allowed[state], 3))
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
        [words_of(ids, vocab) if ids else None for ids in sets], targets, torch.device("cpu")
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
        Permitted([words_of([0, 1], 3)], [2], torch.device("cpu"))
    permitted = Permitted([words_of([0, 1], 3)], [1], torch.device("cpu"))
    with pytest.raises(TrainingError, match="masks of 3 tokens and the network has 5"):
        token_logprobs(
            torch.ones(1, 2), torch.ones(5, 2), torch.tensor([1]), torch.ones(1), permitted=permitted
        )


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


def gradient_of(learner: Any, steps: Iterator[Any], after: int = 0) -> tuple[dict[str, Tensor], Any]:
    """The gradient of the step that follows ``after`` others and is not taken; and its metrics."""
    for _ in range(after):
        next(steps)
    found: dict[str, Tensor] = {}

    def keep() -> None:
        for key, parameter in learner.tensors.items():
            found[key] = parameter.grad.clone()

    learner.stepper.optimizer.step = keep
    return found, next(steps)


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


# --- invariants of an update -------------------------------------------------------------------------

ONE_STEP = LearnerConfig(learning_rate=1e-3, epochs=1, minibatch_rows=64, max_grad_norm=1e9, kl_coef=0.1,
                         entropy_coef=0.01)  # fmt: skip


def first_gradient(
    policy: Policy | AnyPolicy,
    rows: list[TokenRow],
    advantages: list[float],
    config: LearnerConfig = ONE_STEP,
) -> tuple[dict[str, Tensor], Any]:
    learner = Learner(policy, "x", config)
    return gradient_of(learner, learner.update(rows, advantages))


def same(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float = 2e-5) -> bool:
    scales = {name: float(one.abs().max()) for name, one in b.items()}
    assert any(scales.values())
    return all(float((a[n] - b[n]).abs().max()) <= tolerance * scales[n] + 1e-8 for n in b)


def test_before_the_first_step_ratios_are_one_and_divergences_zero(policy: Policy) -> None:
    chat, grammar = compiled(policy)
    noisy_adapter(policy, "x", [0, 1])
    rows = rows_of(*drawn(Sampler(policy, 8), chat, grammar, 6))  # sampled without the adapter
    rows = [replace(row, logprobs=values.tolist())
            for row, values in zip(rows, policy.logprobs(rows, "x"), strict=True)]  # fmt: skip
    _, metrics = first_gradient(policy, rows, [1.0, -1.0, 0.5, 0.0, 2.0, -0.5])
    assert metrics.ratio_max == pytest.approx(1.0, abs=1e-4) and metrics.ratio_mean == pytest.approx(
        1.0, abs=1e-4
    )
    assert metrics.kl < 1e-8 and metrics.reference_kl < 1e-8 and metrics.logprob_difference < 1e-3


def test_masked_gradients_do_not_depend_on_row_order_padding_or_micro_batches(policy: Policy) -> None:
    chat, grammar = compiled(policy)
    noisy_adapter(policy, "x", [0, 1])
    rows = rows_of(*drawn(Sampler(policy, 8), chat, grammar, 7, 1.3), 1.3)
    free = TokenRow([5, 6, 7, 8, 9], [False, True, False, True, True], [0.0, -2.0, 0.0, -3.0, -1.0])
    rows.append(free)  # an unconstrained row among them
    advantages = [1.0, -1.0, 0.5, 2.0, -0.3, 0.7, 1.1, -0.9]
    whole, _ = first_gradient(policy, rows, advantages)
    for limit in (1, 60):
        assert same(
            first_gradient(policy, rows, advantages, replace(ONE_STEP, micro_batch_tokens=limit))[0], whole
        )
    assert same(first_gradient(policy, rows[::-1], advantages[::-1])[0], whole)
    longer = [replace(row, ids=[*row.ids, 7, 8], sampled=[*row.sampled, False, False],
                      logprobs=[*row.logprobs, 0.0, 0.0]) for row in rows]  # fmt: skip
    assert same(first_gradient(policy, longer, advantages)[0], whole)


def test_both_paths_have_the_same_gradient_under_masks(folder: Path, tmp_path: Path) -> None:
    policy, other = Policy.load(folder), AnyPolicy.load(folder)
    chat, grammar = compiled(policy)
    noisy_adapter(policy, "x", [0, 1])
    policy.save_adapter("x", tmp_path)
    other.add_adapter("x", tmp_path)
    rows = rows_of(*drawn(Sampler(policy, 8), chat, grammar, 5))
    advantages = [1.0, -1.0, 0.5, 2.0, -0.3]
    assert same(first_gradient(other, rows, advantages)[0], first_gradient(policy, rows, advantages)[0], 2e-4)


def test_equal_rewards_teach_nothing(policy: Policy) -> None:
    chat, grammar = compiled(policy)
    noisy_adapter(policy, "x", [0, 1])
    rows = rows_of(*drawn(Sampler(policy, 8), chat, grammar, 4))
    selection = Selection([Trajectory([row], 0.75, group="a") for row in rows])
    estimate = Rloo().estimate(selection, None, None)
    before = {name: one.clone() for name, one in policy.adapter("x").params.items()}
    learner = Learner(policy, "x", LearnerConfig(learning_rate=1e-2, epochs=1))
    (metrics,) = learner.update(selection.rows, estimate.advantages)
    assert metrics.grad_norm == 0.0
    assert all(torch.equal(one, before[name]) for name, one in policy.adapter("x").params.items())


def test_an_update_under_masks_that_is_resumed_takes_the_steps_of_one_without_a_stop(
    folder: Path, tmp_path: Path
) -> None:
    config = LearnerConfig(learning_rate=1e-2, epochs=2, minibatch_rows=2, kl_coef=0.1)
    policy = Policy.load(folder)
    chat, grammar = compiled(policy)
    rows = rows_of(*drawn(Sampler(policy, 8), chat, grammar, 6))
    advantages = [1.0, -1.0, 0.5, 2.0, -0.3, 0.1]
    noisy_adapter(policy, "x", [0, 1])
    policy.save_adapter("x", tmp_path / "start")

    def learner() -> Learner:
        one = Policy.load(folder)
        one.add_adapter("x", tmp_path / "start")
        return Learner(one, "x", config)

    whole = learner()
    for _ in whole.update(rows, advantages):
        pass
    first = learner()
    steps = first.update(rows, advantages)
    next(steps)
    next(steps)
    first.save(tmp_path / "state")
    again = learner()
    again.restore(tmp_path / "state")
    with pytest.raises(TrainingError):  # other masks are other data
        next(again.update([replace(row, allowed={}) for row in rows], advantages))
    again = learner()
    again.restore(tmp_path / "state")
    for _ in again.update([copy.deepcopy(row) for row in rows], advantages):
        pass
    for name, one in whole.tensors.items():
        assert torch.equal(one, again.tensors[name])


# --- rows --------------------------------------------------------------------------------------------


def test_a_forced_token_is_sampled_but_trained_nowhere() -> None:
    forced, choice = words_of([6], 9), words_of([7, 8], 9)
    row = TokenRow([], [], [])
    row.extend([1, 2], [6, 7, 6], [0.0, -0.7, 0.0], [forced, choice, forced])
    row.extend([3], [5], [-1.5])
    assert row.sampled_count == 4 and row.trained == [3, 6]
    assert row.stretches() == [(0, 1), (0, 1)]  # a forced token does not cut its turn in two
    assert row.cut(4).trained == [3] and set(row.cut(4).allowed) == {2, 3}
    with pytest.raises(OnwardError, match="3 tokens has 1 masks"):
        row.extend([], [1, 2, 3], allowed=[forced])


def test_calls_keep_their_masks_in_rows_and_a_turn_without_a_choice_keeps_its_place() -> None:
    forced, choice = words_of([6], 9), words_of([7, 8], 9)
    calls = [
        Call([1], [7, 6], [-0.7, 0.0], 1.0, "a", allowed=[choice, forced]),
        Call([2], [6, 6], [0.0, 0.0], 1.0, "b", "a", allowed=[forced, forced]),
        Call([3], [5], [-1.5], 1.0, "c", "b"),
    ]
    (row,) = rows_from_calls(calls)
    assert row.allowed == {1: choice, 2: forced, 4: forced, 5: forced} and row.trained == [1, 7]
    one = Trajectory([row], 1.0, turn_rewards=[0.25, 0.5, 0.25])
    assert one.turn_ends() == [0, 0, 1]  # the second turn ends where the choice before it was made
    assert one.token_rewards().tolist() == [0.75, 0.25]
    with pytest.raises(OnwardError, match="1 tokens but 2 masks"):
        rows_from_calls([replace(calls[2], continues=None, allowed=[forced, forced])])


def test_rows_without_masks_are_packed_and_digested_as_before(policy: Policy) -> None:
    row = TokenRow([5, 6, 7, 8, 9], [True, True, False, False, True], [0.0] * 5)
    wanted, _ = policy.states([row], None)
    assert wanted.permitted is None and wanted.places == [(0, 1), (0, 4)] and row.masks_digest() == b""
    masked = replace(row, allowed={1: words_of([6, 7], policy.shape.vocab)})
    assert policy.states([masked], None)[0].permitted is not None and masked.masks_digest() != b""
