"""The sampler: exact ids, the log-probs of what was really drawn, shared work, and no dependence on mates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode

from onward.errors import NotFoundError, OnwardError
from onward.lm import attention
from onward.lm import sampler as sampler_module
from onward.lm.draw import draw
from onward.lm.learner import Learner, LearnerConfig
from onward.lm.policy import Policy
from onward.lm.sampler import Sample, Sampler, SampleRequest
from onward.lm.tokens import TokenRow

from .conftest import noisy_adapter, random_rows, with_behaviour
from .family_networks import build

PREFIX = [5, 9, 14, 30, 7, 8, 100, 41, 77, 3, 60, 61]


def finish(sampler: Sampler) -> dict[str, Sample]:
    out = {}
    while sampler.busy:
        for sample in sampler.step():
            assert sample.request_id not in out
            out[sample.request_id] = sample
    return out


def requests(count: int, adapters: tuple[str | None, ...] = (None,), **more: object) -> list[SampleRequest]:
    settings = {"max_new_tokens": 7, "temperature": 0.8} | more
    prompts = [[*PREFIX, 20 + i, *range(40, 40 + i % 4)] for i in range(count)]
    return [
        SampleRequest(str(i), prompt, adapter=adapters[i % len(adapters)], seed=i, **settings)  # type: ignore[arg-type]
        for i, prompt in enumerate(prompts)
    ]


def row_of(request: SampleRequest, sample: Sample) -> TokenRow:
    n, m = len(request.prompt_ids), len(sample.token_ids)
    return TokenRow(
        [*request.prompt_ids, *sample.token_ids],
        [False] * n + [True] * m,
        [0.0] * n + sample.logprobs,
        request.temperature,
    )


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("least_saved", [0, attention.MIN_SAVED])
def test_log_probs_equal_the_learners_under_mixed_adapters(
    policy: Policy, batch: int, least_saved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every row reading its own keys, and with the common prefix read once per adapter."""
    monkeypatch.setattr(attention, "MIN_SAVED", least_saved)
    noisy_adapter(policy, "a", [1, 2], seed=1)
    noisy_adapter(policy, "b", None, seed=2)
    work = requests(12, (None, "a", "b"))
    sampler = Sampler(policy, batch)
    for request in work:
        sampler.submit(request)
    samples = finish(sampler)
    for adapter in (None, "a", "b"):
        rows = [row_of(r, samples[r.request_id]) for r in work if r.adapter == adapter]
        for row, logp in zip(rows, policy.logprobs(rows, adapter), strict=True):
            assert float((logp - torch.tensor(row.logprobs)).abs().max()) < 1e-4


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-4), ("bfloat16", 0.05), ("float16", 0.005)])
@pytest.mark.parametrize("least_saved", [0, attention.MIN_SAVED])
def test_every_dtype_samples_with_the_log_probs_of_its_learner(
    small: Path, dtype: str, most: float, least_saved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the rounding of the dtype, with and without an adapter; the log-probs themselves are float32."""
    monkeypatch.setattr(attention, "MIN_SAVED", least_saved)
    policy = Policy.load(small, dtype=dtype)
    noisy_adapter(policy, "a", seed=1, scale=0.05)
    sampler = Sampler(policy, 8)
    asked = requests(8, (None, "a"), temperature=1.0, max_new_tokens=12)
    for request in asked:
        sampler.submit(request)
    samples = finish(sampler)
    for request in asked:
        sample = samples[request.request_id]
        (learned,) = policy.logprobs([row_of(request, sample)], request.adapter)
        assert sample.logprobs == pytest.approx(learned[len(request.prompt_ids) :].tolist(), abs=most)
    odd = [p for s in samples.values() for p in s.logprobs if torch.tensor(p).bfloat16().item() != p]
    assert len(odd) > 80  # of 96: not values that were rounded to half precision


@pytest.mark.parametrize("least_saved", [0, attention.MIN_SAVED])
def test_scores_are_not_rounded_to_half_precision(
    tmp_path: Path, least_saved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qwen2's large biases of queries and keys make scores whose rounding would move the log-probs."""
    monkeypatch.setattr(attention, "MIN_SAVED", least_saved)
    tensors = load_file(build("qwen2", tmp_path) / "model.safetensors")
    for name in tensors:
        if name.endswith(("q_proj.bias", "k_proj.bias")):
            tensors[name].mul_(100.0)  # to a spread of 30
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    policy = Policy.load(tmp_path, dtype="bfloat16")
    sampler = Sampler(policy)
    prompt = [*range(5, 17), *range(3, 27)]
    asked = [SampleRequest(str(seed), prompt, 12, seed=seed) for seed in range(16)]
    for request in asked:
        sampler.submit(request)
    samples = finish(sampler)
    rows = [row_of(request, samples[request.request_id]) for request in asked]
    gaps = [
        (own - torch.tensor(row.logprobs)).abs()[len(prompt) :]
        for row, own in zip(rows, policy.logprobs(rows), strict=True)
    ]
    assert float(torch.cat(gaps).mean()) < 0.02


def test_half_precision_draws_from_the_distribution_of_float32(small: Path) -> None:
    """The same uniform numbers give the same tokens, but where one falls within the rounding of an edge."""
    found = []
    for dtype in ("float32", "bfloat16", "float16"):
        sampler = Sampler(Policy.load(small, dtype=dtype), 64)
        for request in requests(64, max_new_tokens=1, temperature=1.0):
            sampler.submit(request)
        found.append([sample.token_ids[0] for _, sample in sorted(finish(sampler).items())])
    for half in found[1:]:
        assert sum(a == b for a, b in zip(found[0], half, strict=True)) >= 56


def test_a_seeded_answer_does_not_depend_on_batch_mates(policy: Policy) -> None:
    noisy_adapter(policy, "a")
    work = requests(9, (None, "a"))
    sampler = Sampler(policy, 4)
    for request in work:
        sampler.submit(request)
    together = finish(sampler)
    for request in work:
        alone = Sampler(policy, 1)
        alone.submit(request)
        assert finish(alone)[request.request_id].token_ids == together[request.request_id].token_ids


def test_tokens_follow_the_policys_distribution(policy: Policy) -> None:
    """4,000 first tokens against the exact probabilities, Pearson's statistic."""
    prompt = [5, 9, 14]
    noisy_adapter(policy, "sharp", scale=0.6)
    sampler = Sampler(policy, 64)
    for i in range(4000):
        sampler.submit(SampleRequest(str(i), prompt, 1, adapter="sharp", seed=i))
    counts = torch.zeros(policy.shape.vocab)
    for sample in finish(sampler).values():
        counts[sample.token_ids[0]] += 1
    rows = [TokenRow([*prompt, v], [False] * 3 + [True], [0.0] * 4) for v in range(policy.shape.vocab)]
    expected = torch.stack([v[3] for v in policy.logprobs(rows, "sharp")]).exp() * 4000
    big = expected >= 5
    observed = torch.cat([counts[big], counts[~big].sum()[None]])
    wanted = torch.cat([expected[big], expected[~big].sum()[None]])
    statistic = float(((observed - wanted) ** 2 / wanted.clamp_min(1e-9)).sum())
    freedom = len(wanted) - 1
    assert statistic < freedom + 4 * math.sqrt(2 * freedom), (statistic, freedom)


def test_every_uniform_number_picks_its_symbol_in_a_wide_vocabulary() -> None:
    """The two-level search of ``draw`` against a plain cumulative sum in float64."""
    torch.manual_seed(0)
    logits = torch.randn(200, 2000) * 3
    logits[:, ::3] = -float("inf")
    u = torch.rand(200)
    tokens, logp = draw(logits.clone(), u)
    cumulative = logits.double().softmax(-1).cumsum(-1)
    wanted = torch.searchsorted(cumulative, u.double()[:, None], right=True).squeeze(1)
    assert int((tokens != wanted).sum()) <= 1  # float32 may decide a tie the other way
    exact = logits.log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)
    assert torch.allclose(logp, exact, atol=1e-5)


@pytest.mark.parametrize("u", [0.0, 1 - 2**-24])
def test_a_symbol_of_probability_zero_is_never_drawn(u: float) -> None:
    logits = torch.full((2, 700), -float("inf"))
    logits[0, 3] = logits[0, 600] = 1.0
    logits[1, 300] = -50.0
    tokens, logp = draw(logits.clone(), torch.tensor([u, u]))
    assert tokens.tolist() == [3 if u == 0 else 600, 300]
    assert torch.allclose(logp, torch.tensor([-math.log(2), 0.0]), atol=1e-5)


def test_truncated_sampling_reports_the_renormalised_log_prob() -> None:
    """lm-training case 20: μ is the distribution over the kept set."""
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().repeat(3, 1)
    tokens, logp = draw(logits, torch.tensor([0.7, 0.7, 0.99]), None, [2, None, None], [1.0, 0.75, 1.0])
    # top-k 2 keeps .5 and .3; the nucleus of .75 keeps the same two; the third row is not truncated
    assert tokens.tolist() == [1, 1, 3]
    assert torch.allclose(logp.exp(), torch.tensor([0.3 / 0.8, 0.3 / 0.8, 0.05]), atol=1e-5)


def test_temperature_is_part_of_the_reported_log_prob() -> None:
    """lm-training case 21. Temperature 0 is a point mass: the mode, with log-prob 0."""
    logits = torch.tensor([[2.0, 0.0]]).repeat(2, 1)
    tokens, logp = draw(logits, torch.tensor([0.999, 0.999]), torch.tensor([0.5, 0.0]))
    assert tokens.tolist() == [1, 0]
    assert float(logp[0]) == pytest.approx(-math.log(1 + math.exp(4.0)), abs=1e-5)
    assert float(logp[1]) == 0.0


def test_the_stop_token_is_kept_with_its_log_prob(policy: Policy) -> None:
    sampler = Sampler(policy)
    sampler.submit(SampleRequest("free", PREFIX, 6, seed=1))
    free = finish(sampler)["free"]
    stop = free.token_ids[3]
    assert stop not in free.token_ids[:3]
    sampler.submit(SampleRequest("stopped", PREFIX, 6, stop_ids=[stop], seed=1))
    stopped = finish(sampler)["stopped"]
    assert (free.finish_reason, stopped.finish_reason) == ("length", "stop")
    assert stopped.token_ids == free.token_ids[:4]
    assert stopped.logprobs == pytest.approx(free.logprobs[:4], abs=1e-5)


def test_finished_rows_leave_and_waiting_ones_take_their_place(policy: Policy) -> None:
    sampler = Sampler(policy, 2)
    for i, n in enumerate([1, 9, 2, 3]):
        sampler.submit(SampleRequest(str(i), [*PREFIX, i], n, seed=i))
    order, widths = [], []
    while sampler.busy:
        order += [s.request_id for s in sampler.step()]
        widths.append(sampler.running)
    assert sorted(order) == ["0", "1", "2", "3"] and order[0] == "0"
    assert order[-1] == "1" and len(widths) <= 9, "short answers must not wait for the long one"


def test_a_common_prefix_is_computed_once(policy: Policy) -> None:
    sampler = Sampler(policy, 8)
    for i in range(8):
        sampler.submit(SampleRequest(str(i), [*PREFIX, 200 + i], 2, seed=i))
    sampler.submit(SampleRequest("late", [*PREFIX, 250], 2, seed=1))
    finish(sampler)
    assert sampler.computed_prompt_tokens == len(PREFIX) + 8 + 1


def test_a_group_of_equal_prompts_is_computed_once(policy: Policy) -> None:
    sampler = Sampler(policy, 8)
    for i in range(8):
        sampler.submit(SampleRequest(str(i), PREFIX, 3, seed=i))
    samples = finish(sampler)
    assert sampler.computed_prompt_tokens == len(PREFIX)
    assert len({tuple(s.token_ids) for s in samples.values()}) > 1


def test_the_next_turn_of_a_session_computes_only_what_is_new(policy: Policy) -> None:
    sampler = Sampler(policy, 4)
    sampler.submit(SampleRequest("1", PREFIX, 5, seed=1))
    first = finish(sampler)["1"]
    before = sampler.computed_prompt_tokens
    prompt = [*PREFIX, *first.token_ids, 33, 34]
    sampler.submit(SampleRequest("2", prompt, 4, seed=2))
    second = finish(sampler)["2"]
    assert sampler.computed_prompt_tokens - before == 3  # the last token of the answer and the two new ones
    row = row_of(SampleRequest("2", prompt, 4), second)
    logp = policy.logprobs([row])[0]
    assert float((logp - torch.tensor(row.logprobs)).abs().max()) < 1e-4


def test_prefixes_of_an_adapter_that_was_trained_are_not_reused(policy: Policy) -> None:
    noisy_adapter(policy, "x")
    sampler = Sampler(policy, 4)
    request = SampleRequest("1", [*PREFIX, 50], 4, adapter="x", seed=3)
    sampler.submit(request)
    finish(sampler)
    rows = with_behaviour(policy, "x", random_rows(4))
    config = LearnerConfig(learning_rate=0.05, minibatch_rows=4)
    list(Learner(policy, "x", config).update(rows, [1.0, -1.0, 1.0, -1.0]))
    sampler.submit(request)
    row = row_of(request, finish(sampler)["1"])
    assert float((policy.logprobs([row], "x")[0] - torch.tensor(row.logprobs)).abs().max()) < 1e-4
    sampler.forget_prefixes()


def _write(policy: Policy) -> None:
    policy.weights.layers[1].qkv.mul_(1.5)


def _replace(policy: Policy) -> None:
    policy.weights.layers[1].down = policy.weights.layers[1].down * -1.0


def _swap_weights(policy: Policy) -> None:
    other = Policy.load(policy.folder)
    for tensor in other.weights.tensors():
        tensor.add_(0.02)
    policy.weights = other.weights


def _train_all(policy: Policy) -> None:
    rows = with_behaviour(policy, None, random_rows(4))
    list(
        Learner(policy, None, LearnerConfig(learning_rate=1e-2, epochs=1)).update(rows, [1.0, -1.0, 0.5, 2.0])
    )


def _swap_adapter(policy: Policy) -> None:
    policy.remove_adapter("a")
    noisy_adapter(policy, "a", seed=9)


def _load_adapter(policy: Policy) -> None:
    noisy_adapter(policy, "other", seed=9)
    policy.adapter("a").params.update(policy.adapter("other").params)


def _write_adapter(policy: Policy) -> None:
    for parameter in policy.adapter("a").params.values():
        parameter.mul_(-1.0)


CHANGES = [_write, _replace, _swap_weights, _train_all, _swap_adapter, _load_adapter, _write_adapter]


@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("adapter", [None, "a"])
@pytest.mark.parametrize("running", [False, True])
def test_no_key_outlives_the_weights_it_was_computed_with(
    policy: Policy, change: Callable[[Policy], None], adapter: str | None, running: bool
) -> None:
    """A prompt known before the change, with or without a row that runs through it."""
    noisy_adapter(policy, "a", seed=1)
    sampler = Sampler(policy, 8)
    (request,) = requests(1, (adapter,), temperature=1.0, max_new_tokens=10)
    sampler.submit(replace(request, request_id="before"))
    if running:
        for _ in range(4):
            sampler.step()
    else:
        finish(sampler)
    change(policy)
    sampler.submit(request)
    samples = finish(sampler)
    for number, sample in samples.items():
        if number == "before" and "adapter" in change.__name__ and adapter is not None:
            continue  # an adapter's row goes on with the weights that it was admitted with
        (learned,) = policy.logprobs([row_of(request, sample)], adapter)
        assert sample.logprobs == pytest.approx(learned[len(request.prompt_ids) :].tolist(), abs=1e-4)
        assert len(sample.token_ids) == 10


def test_a_request_whose_adapter_was_removed_gets_an_error_of_its_own(policy: Policy) -> None:
    """One that runs goes on with the weights that it began with; one that waits behind it cannot begin."""
    noisy_adapter(policy, "gone", seed=9)
    asked = [
        SampleRequest("runs", [5, 6], 6, adapter="gone", seed=1),
        SampleRequest("base", [5, 6], 6, seed=2),
        SampleRequest("late", [5, 6], 6, adapter="gone", seed=3),
        SampleRequest("last", [5, 6], 6, seed=4),
    ]
    alone, sampler = Sampler(policy), Sampler(policy, max_batch=2)
    for request in asked:
        alone.submit(request)
        sampler.submit(request)
    expected = finish(alone)
    assert sampler.step() == []
    policy.remove_adapter("gone")
    found = finish(sampler)
    late = found.pop("late")
    assert (late.finish_reason, late.token_ids) == ("error", [])
    assert late.error == (
        "Adapter 'gone' was removed before request 'late' was answered: load it again and repeat the request."
    )
    for name, sample in found.items():
        assert (sample.finish_reason, sample.error) == ("length", "")
        assert sample.token_ids == expected[name].token_ids


def test_rows_longer_than_the_first_allocation_stay_exact(policy: Policy) -> None:
    sampler = Sampler(policy, 2)
    requests_ = [SampleRequest(str(i), [*PREFIX, i], 290, seed=i) for i in range(2)]
    for request in requests_:
        sampler.submit(request)
    samples = finish(sampler)
    rows = [row_of(r, samples[r.request_id]) for r in requests_]
    for row, logp in zip(rows, policy.logprobs(rows), strict=True):
        assert float((logp - torch.tensor(row.logprobs)).abs().max()) < 1e-4


def test_a_cancelled_request_disappears_and_the_others_go_on(policy: Policy) -> None:
    work = requests(4)
    sampler = Sampler(policy, 2)
    for request in work:
        sampler.submit(request)
    sampler.step()
    assert sampler.cancel("0") and sampler.cancel("3") and not sampler.cancel("nobody")
    samples = finish(sampler)
    assert set(samples) == {"1", "2"}
    alone = Sampler(policy, 1)
    alone.submit(work[1])
    assert finish(alone)["1"].token_ids == samples["1"].token_ids


@pytest.mark.parametrize(
    "change",
    [{"prompt_ids": []}, {"max_new_tokens": 0}, {"max_new_tokens": 5000}, {"temperature": -1.0},
     {"temperature": math.inf}, {"top_p": 0.0}, {"top_k": 0}, {"prompt_ids": [10**6]}],
)  # fmt: skip
def test_an_impossible_request_is_refused_at_once(policy: Policy, change: dict[str, object]) -> None:
    settings: dict[str, object] = {"request_id": "r", "prompt_ids": PREFIX, "max_new_tokens": 2} | change
    with pytest.raises(OnwardError, match="'r' has"):
        Sampler(policy).submit(SampleRequest(**settings))  # type: ignore[arg-type]
    with pytest.raises(NotFoundError):
        Sampler(policy).submit(SampleRequest("r", PREFIX, 2, adapter="nope"))


def test_training_refuses_a_truncated_support(policy: Policy) -> None:
    """lm-training case 20: under top-p or top-k the log-probs are renormalised, the learner's are not."""
    for change in ({"top_p": 0.9}, {"top_k": 50}, {"temperature": 0.0}):
        with pytest.raises(OnwardError, match="full support"):
            Sampler(policy).submit(SampleRequest("r", PREFIX, 2, for_training=True, **change))  # type: ignore[arg-type]
    Sampler(policy).submit(SampleRequest("r", PREFIX, 2, for_training=True))


@pytest.mark.parametrize("temperature", [0.3, 1.7])
def test_log_probs_are_the_learners_at_each_rows_own_temperature(policy: Policy, temperature: float) -> None:
    """Rows of two temperatures and two adapters in one batch; the learner divides by the captured one."""
    noisy_adapter(policy, "a")
    work = [
        SampleRequest(str(i), [*PREFIX, i], 6, t, adapter=("a", None)[i % 2], seed=i)
        for i, t in enumerate([temperature, 1.0, 1.0, temperature])
    ]
    sampler = Sampler(policy, 4)
    for request in work:
        sampler.submit(request)
    samples = finish(sampler)
    for request in work:
        row = row_of(request, samples[request.request_id])
        (logp,) = policy.logprobs([row], request.adapter)
        assert float((logp - torch.tensor(row.logprobs)).abs().max()) < 1e-4


def test_a_system_prompt_is_computed_once_for_different_prompts_and_for_each_adapter(policy: Policy) -> None:
    """A batch of different prompts under two adapters: the shared beginning counts once per adapter."""
    noisy_adapter(policy, "a")
    sampler = Sampler(policy, 8)
    for i in range(8):
        sampler.submit(SampleRequest(str(i), [*PREFIX, 200 + i, 7], 2, adapter=("a", None)[i % 2], seed=i))
    finish(sampler)
    assert sampler.computed_prompt_tokens == 2 * len(PREFIX) + 8 * 2


def test_decoding_computes_only_rows_that_still_run(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Early leave and refill: rows per decode step, with two places and answers of 1, 4, 2 and 2 tokens.

    The first token of an answer comes from its prompt's pass. Step 1 admits the answers of 1 and of 4
    tokens; the first is over at once. Each later step fills the free place before it decodes.
    """
    widths: list[int] = []
    original = sampler_module.decode_attend

    def watched(shape: object, cache: object, positions: torch.Tensor, *rest: object) -> object:
        widths.append(len(positions))
        return original(shape, cache, positions, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(sampler_module, "decode_attend", watched)
    sampler = Sampler(policy, 2)
    for i, n in enumerate([1, 4, 2, 2]):
        sampler.submit(SampleRequest(str(i), [*PREFIX, i], n, seed=i))
    finish(sampler)
    assert widths == [1, 2, 2]
    assert sum(widths) == (1 + 4 + 2 + 2) - 4, "one decoded row for each token after an answer's first"


def test_keys_are_never_copied_for_the_heads_that_share_them(policy: Policy) -> None:
    """Grouped queries are rows of one product, and every product of a step reads the cache's own memory."""
    read: list[tuple[int, tuple[int, ...]]] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func in (torch.bmm, torch.baddbmm):
                keys = args[-1]
                read.append((keys.untyped_storage().data_ptr(), tuple(keys.shape)))
            return func(*args, **(kwargs or {}))

    sampler = Sampler(policy, 3)
    for i in range(3):
        sampler.submit(SampleRequest(str(i), [*PREFIX, i], 4, seed=i))
    sampler.step()
    with Watch():
        sampler.step()
    cache = sampler._cache.data
    assert policy.shape.group == 2 and len(read) == 2 * policy.shape.layers
    for storage, shape in read:
        assert storage == cache.untyped_storage().data_ptr()
        assert shape[0] == 3 * policy.shape.kv_heads, "one matrix per key head, not per query head"


def test_the_cache_is_as_large_as_the_rows_that_run(policy: Policy) -> None:
    """A sampler for up to 64 rows that has three of 20 tokens reserves three slots of 64 tokens."""
    sampler = Sampler(policy, 64)
    for i in range(3):
        sampler.submit(SampleRequest(str(i), [*PREFIX, i], 7, seed=i))
    finish(sampler)
    shape = policy.shape
    assert sampler._cache.data.shape == (shape.layers, 2, 3, shape.kv_heads, 64, shape.head_dim)
