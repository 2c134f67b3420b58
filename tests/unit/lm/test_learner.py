"""The learner: exact gradients, whatever the batching; nothing learnt from bad numbers; exact resume."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from onward.errors import ConfigError, TrainingError
from onward.lm import losses
from onward.lm.learner import Learner, LearnerConfig, StepMetrics
from onward.lm.objective import PolicyObjective
from onward.lm.policy import Policy
from onward.lm.tokens import TokenRow

from .conftest import noisy_adapter, random_rows, with_behaviour

ONE_STEP = LearnerConfig(learning_rate=1e-3, epochs=1, minibatch_rows=64, max_grad_norm=1e9)


def advantages_for(rows: list[TokenRow], seed: int = 0) -> list[float]:
    rnd = random.Random(seed)
    return [rnd.gauss(0, 1) for _ in rows]


def gradients(
    policy: Policy, rows: list[TokenRow], advantages: list[float], config: LearnerConfig, name: str = "x"
) -> tuple[dict[str, Tensor], StepMetrics]:
    """The gradient of the first optimiser step, which is not taken."""
    learner = Learner(policy, name, config)
    found: dict[str, Tensor] = {}

    def keep() -> None:
        for key, parameter in learner.tensors.items():
            assert parameter.grad is not None
            found[key] = parameter.grad.clone()

    learner.stepper.optimizer.step = keep  # type: ignore[method-assign, assignment]
    metrics = next(learner.update(rows, advantages))
    return found, metrics


def assert_equal_gradients(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float = 2e-5) -> None:
    assert a.keys() == b.keys()
    for name in a:
        scale = float(b[name].abs().max())
        assert scale > 0, f"{name} has no gradient: the comparison would be empty"
        assert float((a[name] - b[name]).abs().max()) <= tolerance * scale + 1e-8, name


def peft_gradients(
    small: Path, adapter: Path, rows: list[TokenRow], advantages: list[float], weights: list[float]
) -> dict[str, Tensor]:
    """Gradient of the clipped loss, row by row; ``weights`` is that of each row's tokens."""
    from peft import PeftModel

    base = transformers.AutoModelForCausalLM.from_pretrained(small)
    model = PeftModel.from_pretrained(base, adapter, is_trainable=True)
    total = torch.tensor(0.0)
    for r, advantage, weight in zip(rows, advantages, weights, strict=True):
        logp = (model(torch.tensor([r.ids])).logits[0] / r.temperature).log_softmax(-1)
        for position in range(1, len(r)):
            if r.sampled[position]:
                ratio = (logp[position - 1, r.ids[position]] - r.logprobs[position]).exp()
                total = total - weight * torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    total.backward()
    return {
        name.replace(".default", ""): p.grad for name, p in model.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize("layers", [None, [1, 2]])
@pytest.mark.parametrize("normaliser", ["token", "sequence", "constant"])
def test_gradients_equal_those_of_transformers_and_peft(
    policy: Policy, small: Path, tmp_path: Path, layers: list[int] | None, normaliser: losses.Normaliser
) -> None:
    """An independent slow reference: row by row, full sequences, plain log_softmax, autograd."""
    noisy_adapter(policy, "x", layers)
    policy.save_adapter("x", tmp_path)
    rows = with_behaviour(policy, "x", random_rows(6, temperature=0.8))
    rows[2].logprobs = [p - 0.5 if s else 0.0 for p, s in zip(rows[2].logprobs, rows[2].sampled, strict=True)]
    advantages = advantages_for(rows)
    config = dataclasses.replace(ONE_STEP, normaliser=normaliser, constant_length=50)
    ours, _ = gradients(policy, rows, advantages, config)

    counts = [r.sampled_count for r in rows]
    weights = {
        "token": [1 / sum(counts)] * len(rows),
        "sequence": [1 / (n * len(rows)) for n in counts],
        "constant": [1 / (50 * len(rows))] * len(rows),
    }[normaliser]
    theirs = peft_gradients(small, tmp_path, rows, advantages, weights)
    assert_equal_gradients(ours, theirs, 2e-4)


def test_gradients_do_not_depend_on_micro_batches_or_padding(policy: Policy) -> None:
    """Acceptance (b) and case 10: one part, single rows, and anything between give the same step."""
    noisy_adapter(policy, "x", [1, 2])
    rows = with_behaviour(policy, "x", random_rows(9))
    advantages = advantages_for(rows)
    whole, _ = gradients(policy, rows, advantages, ONE_STEP)
    for limit in (1, 25):
        parts, _ = gradients(
            policy, rows, advantages, dataclasses.replace(ONE_STEP, micro_batch_tokens=limit)
        )
        assert_equal_gradients(parts, whole)


def test_the_shared_prefix_and_the_cached_trunk_change_no_gradient(policy: Policy) -> None:
    noisy_adapter(policy, "x", [2])
    rows = with_behaviour(policy, "x", random_rows(6, shared=12))
    advantages = advantages_for(rows)
    fast, _ = gradients(policy, rows, advantages, ONE_STEP)
    uncached, _ = gradients(policy, rows, advantages, dataclasses.replace(ONE_STEP, cache_bytes=0))
    assert_equal_gradients(uncached, fast)
    # a row that shares nothing and has advantage 0 switches sharing off and adds no gradient of its own
    stranger = TokenRow([1, 2, 3], [False, False, True], [0.0, 0.0, -1.0])
    constant = dataclasses.replace(ONE_STEP, normaliser="constant")
    plain, _ = gradients(policy, [*rows, stranger], [*advantages, 0.0], constant)
    shared, _ = gradients(policy, rows, advantages, constant)
    assert_equal_gradients({k: v * 7 / 6 for k, v in plain.items()}, shared)


def test_trailing_observations_change_nothing(policy: Policy) -> None:
    noisy_adapter(policy, "x")
    rows = with_behaviour(policy, "x", random_rows(4))
    longer = [
        TokenRow([*r.ids, 7, 8, 9], [*r.sampled, False, False, False], [*r.logprobs, 0.0, 0.0, 0.0])
        for r in rows
    ]
    a, _ = gradients(policy, rows, [1.0, -1.0, 0.5, 2.0], ONE_STEP)
    b, _ = gradients(policy, longer, [1.0, -1.0, 0.5, 2.0], ONE_STEP)
    assert_equal_gradients(b, a)


def test_case_13_observation_tokens_are_not_trained(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changing which observation is *predicted* must not matter: only sampled tokens are targets."""
    noisy_adapter(policy, "x")
    row = TokenRow([5, 6, 7, 8, 9], [False, True, False, False, True], [0.0, -1.0, 0.0, 0.0, -1.0])
    trained: list[int] = []
    original = policy.backward_logprobs

    def spy(states: Tensor, targets: Tensor, *rest: Any, **more: Any) -> tuple[Tensor, Tensor]:
        trained.extend(targets.tolist())
        return original(states, targets, *rest, **more)

    monkeypatch.setattr(policy, "backward_logprobs", spy)
    gradients(policy, [row], [1.0], ONE_STEP)
    assert trained == [6, 9]


def test_case_12_a_token_that_looks_like_padding_or_end_of_turn_is_trained(policy: Policy) -> None:
    """Masks come from what was sampled, never from ids: here the answer is [pad, end of turn, pad]."""
    noisy_adapter(policy, "x")
    pad, end = policy.tokenizer.encode("<|endoftext|><|im_end|>", add_special_tokens=False)
    assert pad == policy.tokenizer.pad_token_id and end == policy.tokenizer.eos_token_id
    odd = TokenRow([5, 6, pad, end, pad], [False, False, True, True, True], [0.0] * 5)
    (row,) = with_behaviour(policy, "x", [odd])
    found, metrics = gradients(policy, [row], [1.0], ONE_STEP)
    assert metrics.loss == pytest.approx(-1.0, abs=1e-4)  # three tokens, each −1/3
    alone, _ = gradients(policy, [row, random_rows(1)[0]], [1.0, 0.0], ONE_STEP)
    assert set(found) == set(alone)


def test_the_first_step_on_policy_has_ratio_one(policy: Policy) -> None:
    """Acceptance (g): with recorded log-probs of the same policy nothing is clipped and KL is nil."""
    noisy_adapter(policy, "x")
    rows = with_behaviour(policy, "x", random_rows(8, temperature=0.7))
    _, first = gradients(policy, rows, advantages_for(rows), ONE_STEP)
    assert first.ratio_mean == pytest.approx(1.0, abs=1e-4) and first.ratio_max == pytest.approx(
        1.0, abs=1e-3
    )
    assert first.clip_fraction == 0.0 and 0.0 <= first.kl < 1e-6
    assert first.ess == pytest.approx(1.0, abs=1e-4)


def test_decoupled_weights_multiply_the_clipped_loss(policy: Policy) -> None:
    """Behaviour twice as likely as the trainer says: weight ½, ratio still 1."""
    noisy_adapter(policy, "x")
    rows = with_behaviour(policy, "x", random_rows(4))
    stale = [
        TokenRow(
            r.ids,
            r.sampled,
            [p + math.log(2) if s else 0.0 for p, s in zip(r.logprobs, r.sampled, strict=True)],
        )
        for r in rows
    ]
    config = dataclasses.replace(ONE_STEP, importance_cap=2.0)
    advantages = [1.0, -1.0, 1.0, -1.0]
    full, _ = gradients(policy, rows, advantages, config)
    half, metrics = gradients(policy, stale, advantages, config)
    assert metrics.ratio_max == pytest.approx(1.0, abs=1e-4)
    assert_equal_gradients({k: 2 * v for k, v in half.items()}, full, 1e-3)


def test_a_kl_penalty_alone_pulls_back_to_the_base(policy: Policy) -> None:
    noisy_adapter(policy, "x")
    rows = with_behaviour(policy, "x", random_rows(8))
    config = LearnerConfig(
        learning_rate=5e-3, epochs=6, minibatch_rows=8, kl_coef=1.0, kl_reference="base", clip_epsilon=0.9
    )
    before = policy.logprobs(rows, "x")
    base = policy.logprobs(rows)
    list(Learner(policy, "x", config).update(rows, [0.0] * 8))

    def distance(values: list[Tensor]) -> float:
        return sum(float((v - b).abs().sum()) for v, b in zip(values, base, strict=True))

    assert distance(policy.logprobs(rows, "x")) < 0.9 * distance(before)


def test_case_23_training_moves_the_adapter_and_never_the_base(policy: Policy) -> None:
    policy.new_adapter("x", 4, 8.0)
    rows = with_behaviour(policy, "x", random_rows(8))
    base = [t.clone() for t in policy.weights.tensors()]
    probe = policy.logprobs(rows[:1], "x")[0]
    steps = list(Learner(policy, "x", LearnerConfig(minibatch_rows=4)).update(rows, advantages_for(rows)))
    assert [s.step for s in steps] == [1, 2, 3, 4] and steps[0].total_steps == 4
    assert all(torch.equal(a, b) for a, b in zip(base, policy.weights.tensors(), strict=True))
    assert float((policy.logprobs(rows[:1], "x")[0] - probe).abs().max()) > 1e-4


def test_an_update_raises_what_was_good_and_lowers_what_was_bad(policy: Policy) -> None:
    policy.new_adapter("x", 4, 8.0)
    rows = with_behaviour(policy, "x", random_rows(8))
    sign = [1.0, -1.0] * 4
    before = [float(v.sum()) for v in policy.logprobs(rows, "x")]
    list(Learner(policy, "x", LearnerConfig(learning_rate=2e-3, minibatch_rows=8)).update(rows, sign))
    after = [float(v.sum()) for v in policy.logprobs(rows, "x")]
    assert sum(s * (a - b) for s, a, b in zip(sign, after, before, strict=True)) > 0.05


def test_advantages_per_token_reach_their_tokens(policy: Policy) -> None:
    noisy_adapter(policy, "x")
    rows = with_behaviour(policy, "x", random_rows(3))
    per_row, _ = gradients(policy, rows, [0.5, -1.0, 2.0], ONE_STEP)
    tokens = [[a if s else math.nan for s in r.sampled] for r, a in zip(rows, [0.5, -1.0, 2.0], strict=True)]
    per_token, _ = gradients(policy, rows, tokens, ONE_STEP)  # type: ignore[arg-type]
    assert_equal_gradients(per_token, per_row)


def test_a_step_that_is_not_finite_is_not_taken_and_is_counted(policy: Policy) -> None:
    noisy_adapter(policy, "x")
    rows = with_behaviour(policy, "x", random_rows(4))
    learner = Learner(policy, "x", LearnerConfig(epochs=1, minibatch_rows=4))
    before = {k: v.clone() for k, v in learner.tensors.items()}
    policy.weights.norm[0] = math.nan
    (metrics,) = learner.update(rows, [1.0, -1.0, 1.0, -1.0])
    assert metrics.skipped and learner.skipped_steps == 1
    assert all(torch.equal(before[k], v) for k, v in learner.tensors.items())


def test_rows_without_any_signal_take_no_step(policy: Policy) -> None:
    """Adam's momentum would move the adapter even on a gradient of zero."""
    noisy_adapter(policy, "x")
    rows = with_behaviour(policy, "x", random_rows(4))
    learner = Learner(policy, "x", LearnerConfig(epochs=1, minibatch_rows=4))
    list(learner.update(rows, [1.0, -1.0, 1.0, -1.0]))
    before = {k: v.clone() for k, v in learner.tensors.items()}
    (metrics,) = learner.update(rows, [0.0] * 4)
    assert metrics.skipped and learner.skipped_steps == 0
    assert all(torch.equal(before[k], v) for k, v in learner.tensors.items())


@pytest.mark.parametrize("stop_after", [1, 3, 4])
@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_a_resumed_update_equals_an_uninterrupted_one(
    small: Path, tmp_path: Path, stop_after: int, kl_coef: float
) -> None:
    """Case 29: weights, optimiser, order of rows and cursor; the second update too."""
    config = LearnerConfig(learning_rate=1e-2, minibatch_rows=4, kl_coef=kl_coef, importance_cap=2.0, seed=3)

    def fresh() -> Learner:
        policy = Policy.load(small)
        noisy_adapter(policy, "x", [1, 2])
        return Learner(policy, "x", config)

    whole = fresh()
    rows = with_behaviour(whole.policy, "x", random_rows(7))
    advantages = advantages_for(rows)
    expected = [*whole.update(rows, advantages), *whole.update(rows, advantages)]

    part = fresh()
    steps = part.update(rows, advantages)
    got = [next(steps) for _ in range(stop_after)]
    part.save(tmp_path)
    del part
    again = fresh()
    for parameter in again.tensors.values():
        parameter.zero_()
    again.restore(tmp_path)
    got += [*again.update(rows, advantages), *again.update(rows, advantages)]
    assert got == expected
    for name, parameter in whole.tensors.items():
        assert torch.equal(parameter, again.tensors[name])


def test_a_restored_update_refuses_other_rows_and_other_adapters(policy: Policy, tmp_path: Path) -> None:
    noisy_adapter(policy, "x")
    rows = with_behaviour(policy, "x", random_rows(8))
    learner = Learner(policy, "x", LearnerConfig(minibatch_rows=4))
    next(learner.update(rows, [1.0] * 8))
    learner.save(tmp_path)
    with pytest.raises(TrainingError, match="same frozen dataset"):
        next(learner.update(rows, [2.0] * 8))
    policy.new_adapter("y", 2, 4.0)
    with pytest.raises(ConfigError, match="another adapter"):
        Learner(policy, "y", LearnerConfig()).restore(tmp_path)


@pytest.mark.parametrize("part", ["ids", "mask", "logprobs", "temperature", "order", "fewer"])
def test_a_restored_update_knows_its_rows_by_all_that_its_loss_reads(
    policy: Policy, tmp_path: Path, part: str
) -> None:
    """The mask too: with as many trained tokens at other places nothing else would tell the rows apart."""
    noisy_adapter(policy, "x")
    rows = with_behaviour(policy, "x", random_rows(8))
    learner = Learner(policy, "x", LearnerConfig(minibatch_rows=4))
    next(learner.update(rows, [1.0] * 8))
    learner.save(tmp_path)
    first = rows[0]
    at = first.trained[0]
    ids, sampled, logprobs = list(first.ids), list(first.sampled), list(first.logprobs)
    temperature = first.temperature
    if part == "ids":
        ids[0] += 1
    elif part == "mask":  # the token before the first sampled one is trained in its place
        sampled[at - 1], sampled[at] = True, False
    elif part == "logprobs":
        logprobs[at] -= 0.125
    elif part == "temperature":
        temperature = 0.5
    changed = [TokenRow(ids, sampled, logprobs, temperature), *rows[1:]]
    if part == "order":
        changed = [rows[1], rows[0], *rows[2:]]
    elif part == "fewer":
        changed = rows[:-1]
    again = Learner(policy, "x", LearnerConfig(minibatch_rows=4))
    again.restore(tmp_path)
    with pytest.raises(TrainingError, match="The rows differ from those of the update that was restored"):
        again.open(changed)
    copied = [dataclasses.replace(row, ids=list(row.ids)) for row in rows]
    again.open(copied)
    assert next(again.update(copied, [1.0] * 8)).step == 2


@pytest.mark.parametrize(
    ("row", "advantage", "message"),
    [
        (TokenRow([1, 2], [False, True], [0.0, math.nan]), 1.0, "not a finite number"),
        (TokenRow([1, 2], [False, True], [0.0, -math.inf]), 1.0, "not a finite number"),
        (TokenRow([1, 2], [False, True], [0.0, -1.0], 0.0), 1.0, "temperature 0.0"),
        (TokenRow([1] * 3000, [True] * 3000, [-1.0] * 3000), 1.0, "3000 tokens where"),
        (TokenRow([1, 2], [False, True], [0.0, -1.0]), math.nan, "advantage that is not finite"),
        (TokenRow([1, 2], [False, False], [0.0, 0.0]), 1.0, "nothing to train"),
    ],
)
def test_case_24_untrainable_data_fails_loudly(
    policy: Policy, row: TokenRow, advantage: float, message: str
) -> None:
    policy.new_adapter("x", 2, 4.0)
    with pytest.raises(TrainingError, match=message) as caught:
        next(Learner(policy, "x", LearnerConfig()).update([row], [advantage]))
    assert caught.value.code == "DATA"


@pytest.mark.parametrize(
    "change", [{"epochs": 0}, {"clip_epsilon": 1.5}, {"normaliser": "mean"}, {"dual_clip": 0.5}]
)
def test_a_setting_out_of_range_is_named(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        LearnerConfig(**change)  # type: ignore[arg-type]


def test_the_kl_term_is_corrected_off_policy_by_a_weight_without_gradient() -> None:
    """ℓ = 0.3 for every token, ratio π/π_old 1 and 2: slopes 0.3 and 0.6, and nothing from the ratio."""
    logp = torch.tensor([-1.0, -1.0])
    old = logp - torch.tensor([0.0, math.log(2)])
    objective = PolicyObjective(LearnerConfig(), torch.zeros(2), torch.ones(2), old, old, logp - 0.3, 1.0)
    assert objective.slope(logp, slice(0, 2)).tolist() == pytest.approx([0.3, 0.6], abs=1e-6)


def test_what_right_and_wrong_answers_share_is_not_pushed_down() -> None:
    """Drawn with 0.95, 0.95, 0.5: of three tokens of a failure and one of a success, on policy, A = ∓1.

    The slope of −rA at r = 1 is −A: 0 for the spared token, 1 for the uncertain one; a success pushes up.
    """
    mu = torch.tensor([0.95, 0.5, 0.95, 0.5]).log()
    pushes = torch.tensor([-1.0, -1.0, 1.0, 1.0])
    config = LearnerConfig(spare_above=0.9)
    objective = PolicyObjective(config, pushes, torch.ones(4), mu, mu, None, 0.0)
    assert objective.slope(mu, slice(0, 4)).tolist() == pytest.approx([0.0, 1.0, -1.0, -1.0], abs=1e-6)
    plain = PolicyObjective(LearnerConfig(), pushes, torch.ones(4), mu, mu, None, 0.0)
    assert plain.slope(mu, slice(0, 4)).tolist() == pytest.approx([1.0, 1.0, -1.0, -1.0], abs=1e-6)


def test_a_shared_token_that_fell_is_pulled_back_and_an_uncertain_one_is_not() -> None:
    """Drawn with 0.95 and 0.5, both half as probable now, A = 0: slopes 0.3·ln ½ and 0."""
    mu = torch.tensor([0.95, 0.5]).log()
    now = mu - math.log(2)
    config = LearnerConfig(spare_above=0.9, hold_coef=0.3)
    objective = PolicyObjective(config, torch.zeros(2), torch.ones(2), mu, mu, None, 0.0)
    assert objective.slope(now, slice(0, 2)).tolist() == pytest.approx([-0.3 * math.log(2), 0.0], abs=1e-6)
    assert objective.loss == pytest.approx(0.3 * math.log(2) ** 2 / 2, abs=1e-6)
    risen = torch.tensor([0.99, 0.9]).log()  # held from above as well
    slopes = objective.slope(risen, slice(0, 2)).tolist()
    assert slopes == pytest.approx([0.3 * math.log(0.99 / 0.95), 0.0], abs=1e-6)


def test_a_linear_schedule_falls_to_nothing_over_each_update(policy: Policy) -> None:
    """Four steps at 1, 3/4, 1/2 and 1/4 of the rate; the next update starts at the whole rate again."""
    noisy_adapter(policy, "x")
    rows = with_behaviour(policy, "x", random_rows(4))
    config = LearnerConfig(learning_rate=1e-3, schedule="linear", epochs=2, minibatch_rows=2)
    learner = Learner(policy, "x", config)
    for _ in range(2):
        rates = [learner.stepper.rate for _ in learner.update(rows, [1.0, -1.0, 1.0, -1.0])]
        assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])


def test_holding_without_saying_which_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"hold_coef without spare_above.*for example 0\.9"):
        LearnerConfig(hold_coef=0.3)


def test_an_entropy_bonus_alone_raises_the_entropy(policy: Policy) -> None:
    noisy_adapter(policy, "x")
    rows = with_behaviour(policy, "x", random_rows(8))
    config = LearnerConfig(learning_rate=5e-3, epochs=6, minibatch_rows=8, entropy_coef=1.0, clip_epsilon=0.9)
    steps = list(Learner(policy, "x", config).update(rows, [0.0] * 8))
    assert steps[-1].entropy > steps[0].entropy + 0.002  # of at most ln 300 = 5.704, from 5.694


def test_case_10_each_step_divides_by_its_own_tokens(policy: Policy) -> None:
    """Case 10 (TRL#6024): with half as many rows per step, a step is not half as large."""
    noisy_adapter(policy, "x")
    rows = with_behaviour(policy, "x", random_rows(1) * 8)
    whole, a = gradients(policy, rows, [1.0] * 8, ONE_STEP)
    half, b = gradients(policy, rows, [1.0] * 8, dataclasses.replace(ONE_STEP, minibatch_rows=4))
    assert a.loss == pytest.approx(b.loss, abs=1e-6)
    assert_equal_gradients(half, whole)


def test_case_11_rows_that_teach_nothing_still_count_on_both_sides(policy: Policy) -> None:
    """Case 11 (TRL#6369): a row with advantage 0 adds tokens to the denominator and 0 to the numerator."""
    noisy_adapter(policy, "x")
    rows = with_behaviour(policy, "x", random_rows(1) * 2)
    one, _ = gradients(policy, rows[:1], [1.0], ONE_STEP)
    two, _ = gradients(policy, rows, [1.0, 0.0], ONE_STEP)
    assert_equal_gradients({k: 2 * v for k, v in two.items()}, one)
