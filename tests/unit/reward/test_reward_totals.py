"""Windows, normalisation and the three numbers."""

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reward_documents import feedback, trajectory, turn

from onward.clock import ManualClock
from onward.config import RewardSettings, load
from onward.contracts import Reward, decode, encode
from onward.reward import Scored, State, Unscored, score
from onward.reward.normalise import Window
from onward.reward.scoring import reward_id
from onward.reward.total import combine

SETTINGS = load(environ={}).reward
NOW = ManualClock().now()
UNIT = st.floats(0.0, 1.0, allow_nan=False)


def scored(**scores: float) -> dict[str, Scored]:
    return {name: Scored(value, "automated", "") for name, value in scores.items()}


def as_raw(scores: dict[str, Scored]) -> dict[str, float]:
    return {name: s.score for name, s in scores.items()}


def test_the_seeds_scenario_one():
    scores = scored(task_completion=1.0, efficiency=0.85, code_quality=0.90, user_feedback=0.5)
    total = combine(scores, as_raw(scores), SETTINGS.weights())
    assert total.raw_total == pytest.approx(0.4 + 0.17 + 0.135 + 0.125)
    assert total.weights == pytest.approx({name: SETTINGS.weights()[name] for name in scores})


def test_a_component_that_does_not_apply_leaves_and_the_others_share_its_weight():
    scores = scored(task_completion=1.0, user_feedback=0.5)
    total = combine(scores, as_raw(scores), SETTINGS.weights())
    assert total.weights == pytest.approx({"task_completion": 0.4 / 0.65, "user_feedback": 0.25 / 0.65})
    assert total.raw_total == pytest.approx((0.4 + 0.125) / 0.65)


def test_without_any_weight_there_is_no_reward():
    scores = scored(safety=1.0)
    assert combine(scores, as_raw(scores), SETTINGS.weights()) is None
    assert combine({}, {}, SETTINGS.weights()) is None


@given(
    st.permutations(["task_completion", "efficiency", "code_quality", "user_feedback"]),
    st.lists(UNIT, min_size=4, max_size=4),
)
@settings(deadline=None)
def test_the_order_of_components_is_irrelevant(order, values):
    by_name = dict(zip(sorted(order), values, strict=True))
    reference = scored(**by_name)
    shuffled = {name: reference[name] for name in order}
    weights = SETTINGS.weights()
    assert combine(shuffled, as_raw(shuffled), weights).raw_total == (
        combine(reference, as_raw(reference), weights).raw_total
    )


def test_z_score_by_hand():
    window = Window(100, [0.2, 0.4, 0.6] * 10)
    got = window.normalise(0.6, "z-score")
    std = math.sqrt(((0.2 - 0.4) ** 2 + 0 + (0.6 - 0.4) ** 2) / 3)
    assert got.mean == pytest.approx(0.4) and got.std == pytest.approx(std) and got.n == 30
    assert got.value == pytest.approx((0.2 / std + 2) / 4)
    assert window.normalise(9.0, "z-score").value == 1.0
    assert window.normalise(-9.0, "z-score").value == 0.0
    assert window.normalise(0.3, "min-max").value == pytest.approx(0.25)
    assert window.normalise(0.3, "none").value == 0.3


@pytest.mark.parametrize("values", [[], [0.1, 0.9] * 14, [0.7] * 200])
def test_too_few_or_equal_samples_leave_the_raw_score(values):
    for method in ("z-score", "min-max"):
        got = Window(1000, values).normalise(0.37, method)
        assert (got.value, got.method) == (0.37, "none")


def test_the_window_forgets_what_left_it_exactly():
    rng = random.Random(7)
    values = [rng.random() * 10 ** rng.randint(-8, 0) for _ in range(3000)]
    window = Window(1000)
    for value in values:
        window.add(value)
    fresh = Window(1000, values[-1000:])
    assert (window.mean, window.std) == (fresh.mean, fresh.std)
    assert window.mean == pytest.approx(math.fsum(values[-1000:]) / 1000, rel=1e-15)
    assert window.std == pytest.approx(statistics.pstdev(values[-1000:]), rel=1e-12)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_window_statistics_equal_an_exact_reference(values):
    from fractions import Fraction

    window = Window(1000, values)
    exact = [Fraction(v) for v in values]
    mean = sum(exact) / len(exact)
    variance = sum((v - mean) ** 2 for v in exact) / len(exact)
    assert window.mean == float(mean)
    assert window.std == math.sqrt(float(variance))


def test_nan_and_infinities_are_refused_at_the_door():
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="finite"):
            Window(10).add(value)


def run(items, method="z-score", state=None, **more) -> list[Reward]:
    state = state or State(1000)
    chosen = SETTINGS.model_copy(update={"normalization": method})
    return [score(item, state, settings=chosen, timestamp=NOW, **more) for item in items]


def mixed(count: int, seed: int = 0) -> list:
    rng = random.Random(seed)
    kinds = [("completed_successfully", None), ("failed", None), ("partial_completion", 0.4)]
    return [
        trajectory(f"t{i}", status=(k := rng.choice(kinds))[0], completion=k[1], turns=rng.randint(1, 6),
                   seconds=rng.randint(1, 60), tokens=rng.randint(50, 500))
        for i in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("method", ["z-score", "min-max", "none"])
def test_a_reward_is_valid_in_range_and_explains_itself(method):
    for reward in run(mixed(120), method):
        again = decode(encode(reward), Reward)
        assert again.reward_id == reward_id(again.trajectory_id)
        assert 0.0 <= again.total_reward <= 1.0 and 0.0 <= again.metadata.raw_total <= 1.0
        assert math.fsum(c.weight for c in again.reward_components.values()) == pytest.approx(1.0)
        for part in again.reward_components.values():
            assert part.reasoning and {"normalized", "window", "evidence"} <= part.raw_data.keys()
        parts = again.reward_components.values()
        assert again.metadata.raw_total == pytest.approx(sum(c.weight * c.score for c in parts))
        assert again.total_reward == pytest.approx(sum(c.weight * c.raw_data["normalized"] for c in parts))


def test_raw_total_is_absolute_while_total_reward_is_pulled_to_the_middle():
    """A fall of success shows in raw_total and hardly in total_reward: the reason for two numbers."""
    rng = random.Random(3)

    def some(rate: float, n: int, start: int):
        return [
            trajectory(f"t{start + i}", status="completed_successfully" if rng.random() < rate else "failed")
            for i in range(n)
        ]

    rewards = run(some(0.45, 800, 0) + some(0.20, 800, 800), state=State(300))
    raw = [r.metadata.raw_total for r in rewards]
    total = [r.total_reward for r in rewards]
    assert statistics.mean(raw[300:800]) - statistics.mean(raw[-400:]) > 0.1
    assert abs(statistics.mean(total[300:800]) - statistics.mean(total[-400:])) < 0.05
    assert statistics.mean(total[-400:]) == pytest.approx(0.5, abs=0.06)


def test_the_same_order_gives_the_same_bytes_across_a_restart():
    items = mixed(300)
    whole, halves = State(100), State(100)
    expected = [encode(r) for r in run(items, state=whole)]
    got = [encode(r) for r in run(items[:140], state=halves)]
    halves = State.load(halves.dump(), 100)
    got += [encode(r) for r in run(items[140:], state=halves)]
    assert got == expected
    assert halves.dump() == whole.dump()


def test_a_fork_leaves_the_original_alone():
    state = State(100)
    run(mixed(50), state=state)
    before = state.dump()
    run(mixed(50, seed=1), state=state.fork())
    assert state.dump() == before


def test_the_record_of_a_full_window_fits_a_bucket_value():
    state = State(1000)
    for i in range(1000):
        for name in ("task_completion", "efficiency", "code_quality", "user_feedback", "raw_total"):
            state.of(name).add(random.Random(i).random())
    assert len(state.dump()) < 200_000


def test_an_unscored_component_means_no_reward_and_no_trace():
    class Missing:
        name = "judge"

        def score(self, trajectory, context):
            return Unscored("timeout", "no answer in 10 s")

    state = State(100)
    before = state.dump()
    (answer,) = run([trajectory()], state=state, components=[Missing()])
    assert answer == Unscored("timeout", "judge: no answer in 10 s")
    assert state.dump() == before


def test_confidence_is_the_share_of_weight_with_direct_evidence():
    (silent,) = run([trajectory()])
    assert silent.metadata.confidence == pytest.approx(0.40 / 0.65)
    assert silent.metadata.evaluation_method == "automated"
    (praised,) = run([trajectory()], feedback=[feedback("thumbs_up")])
    assert praised.metadata.confidence == 1.0 and praised.metadata.evaluation_method == "hybrid"
    (derived,) = run([trajectory(status=None)])
    assert derived.metadata.confidence == pytest.approx(0.5 * (0.40 + 0.20) / 0.85)


def _seen() -> bytes:
    state = State(1000)
    run(mixed(60), state=state)
    return state.dump()


_SEEN = _seen()


@given(st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_more_completion_never_lowers_the_raw_total(one, other):
    low, high = sorted((one, other))
    state = State(1000)
    run(mixed(60), state=state)
    rewards = [
        run([trajectory("x", status="partial_completion", completion=c)], state=state.fork())[0]
        for c in (low, high)
    ]
    assert rewards[0].metadata.raw_total <= rewards[1].metadata.raw_total
    assert rewards[0].total_reward <= rewards[1].total_reward


def test_hacks_never_beat_an_honest_part():
    hacks = {
        "give up at once": trajectory("h", status="failed", turns=1, seconds=0, tokens=1),
        "abandon": trajectory("h", status="abandoned", turns=1, seconds=0, tokens=1),
        "say nothing about it": trajectory("h", status=None, turns=[turn(1, tool="x")], seconds=0, tokens=1),
        "repeat a call": trajectory("h", status="failed", turns=[turn(i + 1, tool="x") for i in range(20)]),
    }
    honest = trajectory("x", status="partial_completion", completion=0.3, turns=6, seconds=60, tokens=500)
    for rate in (0.2, 0.5, 0.8, 0.95):
        rng, state = random.Random(1), State(1000)
        for i in range(400):
            good = rng.random() < rate
            item = trajectory(
                f"t{i}",
                status="completed_successfully" if good else "failed",
                turns=rng.randint(1, 6),
                seconds=rng.randint(1, 60),
                tokens=rng.randint(50, 500),
            )
            run([item], state=state)
        (part,) = run([honest], state=state.fork())
        for name, item in hacks.items():
            (hack,) = run([item], state=state.fork())
            assert hack.metadata.raw_total < part.metadata.raw_total, (name, rate)
            assert hack.total_reward < part.total_reward, (name, rate)


def test_weights_must_sum_to_one():
    with pytest.raises(ValueError, match="sum to 1"):
        RewardSettings(task_completion=0.9, efficiency=0.2, code_quality=0.15, user_feedback=0.25)
