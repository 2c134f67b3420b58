"""Windows, normalisation and the three numbers."""

import functools
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
from onward.contracts.buckets import RewarderState
from onward.errors import ConfigError
from onward.reward import Scored, State, Unscored, score
from onward.reward.code.report import CodeReport
from onward.reward.measures.normalise import Window
from onward.reward.scoring.score import combine, reward_id

SETTINGS = load(environ={}).reward
NOW = ManualClock().now()
UNIT = st.floats(0.0, 1.0, allow_nan=False)


def scored(**scores: float) -> dict[str, Scored]:
    return {name: Scored(value, "automated", "") for name, value in scores.items()}


def as_raw(scores: dict[str, Scored]) -> dict[str, float]:
    return {name: s.score for name, s in scores.items()}


class Fixed:
    """A component that always gives one score."""

    def __init__(self, name: str, value: float) -> None:
        self.name, self.value = name, value

    def score(self, trajectory, context):
        return Scored(self.value, "automated", "")


def filled(**windows: list[float]) -> State:
    state = State(1000)
    for name, values in windows.items():
        for value in values:
            state.window_of(name).append(value)
    return state


SCENARIO = {"task_completion": 1.0, "efficiency": 0.85, "code_quality": 0.90, "user_feedback": 0.5}


def test_the_seeds_scenario_one():
    """1.0, 0.85, 0.90 and 0.5 make 0.83 raw. 0.87 comes of these windows:

    completion: 12 of 39 done, so mean 4/13 and deviation 6/13, z = 1.5, n = 0.875
    efficiency: mean 0.65, deviation 0.1, z = 2, n = 1
    code quality: mean 0.67, deviation 0.15, z = 0.23/0.15, n = 0.88333…
    feedback: half silent, half thumbs down: mean 0.25, deviation 0.25, z = 1, n = 0.75
    0.4 · 0.875 + 0.2 · 1 + 0.15 · 0.88333… + 0.25 · 0.75 = 0.35 + 0.2 + 0.1325 + 0.1875 = 0.87
    """
    state = filled(
        task_completion=[1.0] * 12 + [0.0] * 27,
        efficiency=[0.55, 0.75] * 20,
        code_quality=[0.52, 0.82] * 20,
        user_feedback=[0.0, 0.5] * 20,
    )
    components = [Fixed(name, value) for name, value in SCENARIO.items()]
    reward = score(trajectory(), state, settings=SETTINGS, timestamp=NOW, components=components)
    assert reward.metadata.raw_total == pytest.approx(0.4 + 0.17 + 0.135 + 0.125) == pytest.approx(0.83)
    assert reward.total_reward == pytest.approx(0.87, abs=1e-12)
    parts = reward.reward_components
    assert {name: part.weight for name, part in parts.items()} == pytest.approx(
        {name: SETTINGS.weights()[name] for name in SCENARIO}
    )
    assert {name: part.raw_data["normalized"] for name, part in parts.items()} == pytest.approx(
        {"task_completion": 0.875, "efficiency": 1.0, "code_quality": 0.53 / 0.6, "user_feedback": 0.75}
    )
    assert parts["efficiency"].raw_data["window"] == pytest.approx(
        {"n": 40, "mean": 0.65, "std": 0.1, "min": 0.55, "max": 0.75, "method": "z-score"}
    )


def test_the_seeds_scenario_one_without_history_is_its_raw_total():
    components = [Fixed(name, value) for name, value in SCENARIO.items()]
    reward = score(trajectory(), State(1000), settings=SETTINGS, timestamp=NOW, components=components)
    assert reward.total_reward == reward.metadata.raw_total == pytest.approx(0.83)


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
        window.append(value)
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
            Window(10).append(value)


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
    halves = State.load(RewarderState.load(halves.dump()), 100)
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
            state.window_of(name).append(random.Random(i).random())
    assert len(state.dump()) < 200_000


def test_a_window_whose_record_no_bucket_could_hold_is_refused():
    """The record is one message of 8 MiB at most; without it a restart would read everything again."""
    assert load(environ={}, overrides={"reward": {"window": 10_000}}).reward.window == 10_000
    with pytest.raises(ConfigError, match="window"):
        load(environ={}, overrides={"reward": {"window": 100_000}})


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


def test_weights_must_sum_to_one():
    with pytest.raises(ValueError, match="sum to 1"):
        RewardSettings(task_completion=0.9, efficiency=0.2, code_quality=0.15, user_feedback=0.25)


@given(
    st.lists(UNIT, min_size=4, max_size=4),
    st.lists(st.lists(UNIT, max_size=60), min_size=4, max_size=4),
    st.sampled_from(["z-score", "min-max", "none"]),
    st.sampled_from([None, "failed", "partial_completion", "completed_successfully"]),
)
@settings(max_examples=150, deadline=None)
def test_totals_stay_in_range_whatever_the_windows(values, windows, method, status):
    names = list(SCENARIO)
    state = filled(**dict(zip(names, windows, strict=True)))
    components = [Fixed(name, value) for name, value in zip(names, values, strict=True)]
    (reward,) = run([trajectory(status=status)], method, state, components=components)
    assert 0.0 <= reward.total_reward <= 1.0 and 0.0 <= reward.metadata.raw_total <= 1.0
    for part in reward.reward_components.values():
        assert 0.0 <= part.raw_data["normalized"] <= 1.0


@given(st.permutations(list(SCENARIO)), st.lists(UNIT, min_size=4, max_size=4))
@settings(max_examples=40, deadline=None)
def test_the_order_of_components_changes_no_byte(order, values):
    by_name = dict(zip(SCENARIO, values, strict=True))
    windows = {name: [0.1, 0.5, 0.7, 0.9] * 10 for name in SCENARIO}

    def encoded(names):
        state = filled(**windows)
        (reward,) = run([trajectory()], state=state, components=[Fixed(n, by_name[n]) for n in names])
        return encode(reward), state.dump()

    assert encoded(order) == encoded(list(SCENARIO))


_STEPS = st.sampled_from(["failed", "partial_completion", "completed_successfully"])


@given(
    st.tuples(_STEPS, UNIT), st.tuples(_STEPS, UNIT), st.sampled_from(["z-score", "min-max", "none"]),
    st.sampled_from([0.2, 0.5, 0.8, 0.95]), st.booleans(),
)  # fmt: skip
@settings(max_examples=120, deadline=None)
def test_more_completion_never_lowers_a_total(one, other, method, rate, known):
    low, high = sorted((one, other), key=lambda step: (_RANK[step[0]], step[1]))
    rewards = [
        run(
            [trajectory("x", status=status, completion=completion, task_type="sum" if known else "new",
                        domain="general" if known else "writing")],
            method, _warm(rate), cause="look", code=CodeReport(linter=0.4),
        )[0]
        for status, completion in (low, high)
    ]  # fmt: skip
    assert rewards[0].metadata.raw_total <= rewards[1].metadata.raw_total
    assert rewards[0].total_reward <= rewards[1].total_reward


_RANK = {"failed": 0, "partial_completion": 1, "completed_successfully": 2}


@functools.cache
def _warm(rate: float) -> State:
    rng, state = random.Random(rate), State(1000)
    for i in range(120):
        status, part = (
            ("completed_successfully", None) if rng.random() < rate else ("partial_completion", 0.4)
        )
        code = CodeReport(linter=rng.random())
        run(
            [trajectory(f"t{i}", status=status, completion=part, turns=rng.randint(1, 6))],
            state=state,
            code=code,
        )
    return state


@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 0.3]) | UNIT, min_size=1, max_size=80), st.integers(1, 12)
)
@settings(max_examples=100, deadline=None)
def test_the_extremes_of_a_window_equal_a_search_and_survive_a_restart(values, size):
    window = Window(size)
    for i, value in enumerate(values):
        window.append(value)
        if i == len(values) // 2:
            window = Window(size, window.values())
    kept = values[-size:]
    got = window.fork().normalise(0.5, "min-max")
    assert (got.min, got.max, got.n) == (min(kept), max(kept), len(kept))


def test_a_window_agrees_with_the_naive_sums():
    rng = random.Random(5)
    window, values = Window(1000), [rng.betavariate(0.4, 0.6) for _ in range(5000)]
    for i, value in enumerate(values):
        window.append(value)
        if i % 50 == 0:
            kept = values[max(0, i - 999) : i + 1]
            mean = sum(kept) / len(kept)
            assert window.mean == pytest.approx(mean, abs=1e-12)
            assert window.std == pytest.approx(
                math.sqrt(sum((v - mean) ** 2 for v in kept) / len(kept)), abs=1e-12
            )


@pytest.mark.parametrize("method", ["z-score", "min-max"])
def test_after_a_sudden_shift_the_normalised_mean_comes_back_within_the_window(method):
    rng, window = random.Random(11), Window(1000)

    def seen(middle: float, count: int) -> list[float]:
        got = []
        for _ in range(count):
            value = min(1.0, max(0.0, rng.gauss(middle, 0.08)))
            got.append(window.normalise(value, method).value)
            window.append(value)
        return got

    before, after = seen(0.3, 2000), seen(0.7, 2000)
    assert statistics.mean(before[1000:]) == pytest.approx(0.5, abs=0.05)
    assert statistics.mean(after[:50]) > 0.85
    assert statistics.mean(after[1000:]) == pytest.approx(0.5, abs=0.05)


def test_a_score_that_is_no_finite_number_makes_no_reward_and_leaves_no_trace():
    for value in (math.nan, math.inf, -math.inf):
        state = State(100)
        before = state.dump()
        with pytest.raises(ValueError, match="finite"):
            run([trajectory()], state=state, components=[Fixed("efficiency", value)])
        assert state.dump() == before


def test_a_superseding_reward_has_an_id_of_its_own_and_moves_no_window():
    state = filled(task_completion=[0.0, 1.0] * 20)
    (first,) = run([trajectory()], state=state)
    before = state.dump()
    again = [run([trajectory()], state=state, cause="f1", supersedes=first.reward_id)[0] for _ in range(2)]
    assert state.dump() == before and encode(again[0]) == encode(again[1])
    assert again[0].metadata.supersedes == first.reward_id != again[0].reward_id
    assert again[0].reward_id == reward_id("t1", "f1") and first.reward_id == reward_id("t1")


def test_a_component_without_weight_is_shown_and_counts_for_nothing():
    (reward,) = run([trajectory(turns=[turn(1, tool="shell", args={"c": "rm -rf /"}), turn(2)])])
    assert (reward.reward_components["safety"].score, reward.reward_components["safety"].weight) == (0.0, 0.0)
    (plain,) = run([trajectory(turns=[turn(1, tool="shell", args={"c": "ls"}), turn(2)])])
    assert reward.metadata.raw_total == plain.metadata.raw_total


def test_silence_can_be_left_out():
    chosen = RewardSettings.model_validate({"feedback_default": "exclude"})
    reward = score(trajectory(), State(100), settings=chosen, timestamp=NOW)
    assert "user_feedback" not in reward.reward_components and reward.metadata.raw_total == 1.0
    assert reward.metadata.confidence == 1.0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), min_size=1, max_size=12))
@settings(max_examples=80, deadline=None)
def test_dense_rewards_sum_to_the_raw_total_and_pay_nothing_for_failing_or_repeating(work):
    turns = [turn(i + 1, tool="x", args={"n": n}, success=good) for i, (good, n) in enumerate(work)]
    chosen = SETTINGS.model_copy(update={"dense": True})
    reward = score(trajectory(turns=turns), State(100), settings=chosen, timestamp=NOW)
    assert reward.reward_type == "dense" and decode(encode(reward), Reward) == reward
    parts = [part.reward for part in reward.metadata.dense]
    assert math.fsum(parts) == pytest.approx(reward.metadata.raw_total, abs=1e-12)
    assert [part.turn_id for part in reward.metadata.dense] == list(range(1, len(work) + 1))
    assert min(parts) >= 0.0
    for i, (good, n) in enumerate(work[:-1]):
        assert (parts[i] > 0.0) == (good and (good, n) not in work[:i]) or reward.metadata.raw_total == 0.0


def test_dense_rewards_by_hand():
    """0.8077 raw: half to the last turn, a quarter to each of the two that succeeded with news."""
    turns = [turn(1, tool="x"), turn(2, tool="x"), turn(3, tool="y", success=False), turn(4)]
    chosen = SETTINGS.model_copy(update={"dense": True})
    reward = score(trajectory(turns=turns), State(100), settings=chosen, timestamp=NOW)
    raw = (0.4 + 0.125) / 0.65
    assert [part.reward for part in reward.metadata.dense] == pytest.approx(
        [raw / 4, 0, 0, raw / 2 + raw / 4]
    )
    (sparse,) = run([trajectory(turns=turns)])
    assert sparse.reward_type == "sparse" and sparse.metadata.dense is None
