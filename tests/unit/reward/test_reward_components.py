"""Every component against values worked out by hand."""

import pytest
from reward_documents import feedback, trajectory, turn

from onward.contracts.buckets import RewarderState
from onward.reward import NotApplicable, ScoringContext, State, Unscored
from onward.reward.components import Efficiency, TaskCompletion, UserFeedback
from onward.reward.measures.baselines import (
    MAX_KEYS,
    MEMORY,
    MINIMUM_SAMPLES,
    MOST,
    Baseline,
    Baselines,
    redundant_calls,
    repeats,
)
from onward.reward.measures.judgement import judge


def context(item, baselines=None, *said) -> ScoringContext:
    return ScoringContext(judge(item), baselines or Baselines(), tuple(said))


def completion(item) -> float:
    return TaskCompletion().score(item, context(item)).score


@pytest.mark.parametrize(
    "status, share, score, success, done",
    [
        ("completed_successfully", None, 1.0, True, 1.0),
        ("completed_successfully", 0.3, 1.0, True, 1.0),
        ("partial_completion", 0.6, 0.8, False, 0.6),
        ("partial_completion", 0.0, 0.5, False, 0.0),
        ("partial_completion", None, 0.5, False, 0.0),
        ("failed", 0.9, 0.0, False, 0.9),
        ("abandoned", None, 0.0, False, 0.0),
    ],
)
def test_completion_follows_the_reported_status(status, share, score, success, done):
    item = trajectory(status=status, completion=share)
    assert completion(item) == score
    judgement = judge(item)
    assert (judgement.success, judgement.completion, judgement.derived) == (success, done, False)


@pytest.mark.parametrize(
    "turns, score, status",
    [
        ([turn(1, tool="calc"), turn(2)], 0.25, "partial_completion"),
        ([turn(1, tool="calc"), turn(2, success=False)], 0.0, "failed"),
        ([turn(1, tool="calc"), turn(2, tool="calc")], 0.0, "abandoned"),
    ],
)
def test_without_a_status_it_is_derived_and_weak_evidence(turns, score, status):
    item = trajectory(status=None, turns=turns)
    answer = TaskCompletion().score(item, context(item))
    assert (answer.score, answer.raw_data["status"], answer.evidence) == (score, status, 0.5)
    assert "no status was given" in answer.reasoning


@pytest.mark.parametrize("last", [turn(2), turn(2, tool="calc"), turn(2, success=False)])
def test_what_the_gateway_recorded_without_an_outcome_is_unscored_and_no_zero(last):
    item = trajectory(status=None, turns=[turn(1, tool="calc"), last])
    item.metadata.__pydantic_extra__ = {"capture": {"source": "gateway", "closed": "idle"}}
    answer = TaskCompletion().score(item, context(item))
    assert isinstance(answer, Unscored) and answer.reason == "no_outcome"


def test_what_the_gateway_recorded_with_an_outcome_is_scored_like_anything_else():
    item = trajectory(status="partial_completion", completion=0.6)
    item.metadata.__pydantic_extra__ = {"capture": {"source": "gateway", "closed": "close"}}
    assert completion(item) == 0.8


def test_an_unparsable_answer_is_noted():
    item = trajectory(turns=[turn(1, success=False, error="unparsable: two objects"), turn(2)])
    assert judge(item).unparsable
    assert not judge(trajectory()).unparsable


def known(count: int = 30) -> Baselines:
    """Half of the work took 4 turns, 10 s, 100 tokens, the other half 8, 30 and 300."""
    baselines = Baselines()
    for i in range(count):
        small = i % 2 == 0
        baselines.update(
            trajectory(turns=4 if small else 8, seconds=10 if small else 30, tokens=100 if small else 300)
        )
    return baselines


def efficiency(item, baselines):
    return Efficiency().score(item, context(item, baselines))


def test_efficiency_by_hand():
    # Means 6, 20, 200, 0; deviations 2, 10, 100, 0. This one: z = +1, +2 (capped from +2), −1, 0.
    item = trajectory(turns=4, seconds=0, tokens=300)
    answer = efficiency(item, known())
    z = 0.4 * 1.0 + 0.2 * 2.0 + 0.2 * -1.0 + 0.2 * 0.0
    assert answer.score == pytest.approx((z + 2) / 4)
    turns = {"value": 4.0, "mean": 6.0, "std": 2.0, "z": 1.0, "weight": 0.4}
    assert answer.raw_data["signals"]["turns"] == turns
    assert answer.raw_data["baseline"] == 'type:"sum"'


def test_efficiency_is_multiplied_by_completion():
    baselines = known()
    fast_failure = trajectory(status="failed", turns=1, seconds=0, tokens=1)
    slow_part = trajectory(status="partial_completion", completion=0.5, turns=8, seconds=30, tokens=300)
    assert efficiency(fast_failure, baselines).score == 0.0
    z = 0.8 * -1.0
    assert efficiency(slow_part, baselines).score == pytest.approx((z + 2) / 4 * 0.75)


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (trajectory(status="partial_completion", completion=0.5, turns=[turn(1, success=False)]),
         "The results contradict the reported outcome"),
        (trajectory(status=None), "Completion was not reported but derived from the results"),
        (trajectory(status="failed"), "The reported completion is 0"),
    ],
    ids=["contradicted", "derived", "failed"],
)  # fmt: skip
def test_an_efficiency_of_zero_says_which_of_three_things_earned_none(item, why):
    answer = efficiency(item, Baselines())
    assert (answer.score, answer.reasoning) == (0.0, f"{why}, so no efficiency is earned.")


def test_efficiency_without_tokens_uses_the_other_signals():
    answer = efficiency(trajectory(turns=4, seconds=20, tokens=None), known())
    assert answer.score == pytest.approx((0.4 * 1.0 / 0.8 + 2) / 4)
    assert "tokens" not in answer.raw_data["signals"]


def test_redundant_calls_cost_even_where_nobody_made_any():
    repeated = [turn(i + 1, tool="search", args={"q": "x"}) for i in range(3)] + [turn(4)]
    item = trajectory(turns=repeated, seconds=20, tokens=200)
    assert redundant_calls(item) == 2
    answer = efficiency(item, known())
    assert answer.raw_data["signals"]["redundant_calls"]["z"] == -2.0
    assert answer.score == pytest.approx((0.4 * 1.0 + 0.2 * -2.0 + 2) / 4)


def test_a_repeated_call_with_news_is_not_redundant():
    turns = [
        turn(1, tool="poll", args={"a": 1, "b": 2}, output="waiting"),
        turn(2, tool="poll", args={"b": 2, "a": 1}, output="done"),
        turn(3, tool="poll", args={"a": 1, "b": 3}, output="done"),
        turn(4),
    ]
    assert redundant_calls(trajectory(turns=turns)) == 0


def test_no_efficiency_before_thirty_of_the_type_then_the_domain_stands_in():
    item = trajectory()
    assert isinstance(efficiency(item, known(29)), NotApplicable)
    baselines = Baselines()
    for i in range(30):
        baselines.update(trajectory(task_type=f"kind{i}"))
    assert efficiency(item, baselines).raw_data["baseline"] == "domain:general"
    assert isinstance(efficiency(trajectory(domain="coding"), baselines), NotApplicable)


def feedback_score(*said, item=None):
    item = item or trajectory()
    return UserFeedback().score(item, context(item, None, *said))


@pytest.mark.parametrize(
    "signal, value, score",
    [
        ("thumbs_up", None, 1.0),
        ("thumbs_down", None, 0.0),
        ("rating", 0.8, 0.8),
        ("correction", None, 0.2),
        ("abandoned", None, 0.0),
    ],
)
def test_feedback_signals(signal, value, score):
    assert feedback_score(feedback(signal, value=value)).score == score


def test_silence_is_marked_and_is_no_evidence():
    answer = feedback_score()
    assert (answer.score, answer.raw_data["default"], answer.evidence) == (0.5, True, 0.0)
    item = trajectory()
    assert isinstance(UserFeedback(exclude_default=True).score(item, context(item)), NotApplicable)


def test_the_last_explicit_signal_wins_whatever_the_order_of_arrival():
    late, early = feedback("thumbs_down", at=5), feedback("thumbs_up", at=1)
    implicit = feedback("accepted", kind="implicit", value=1.0, at=9)
    assert feedback_score(late, early, implicit).score == 0.0
    assert feedback_score(implicit).score == 1.0
    assert feedback_score(feedback("scrolled", kind="implicit")).raw_data["default"]


def test_abandoning_is_an_implicit_signal_and_explicit_praise_beats_it():
    item = trajectory(status="abandoned")
    assert feedback_score(item=item).score == 0.0
    assert feedback_score(feedback("thumbs_up"), item=item).score == 1.0


def test_running_statistics_equal_the_plain_formulas():
    values = [1e9 + 0.1 * (i * 7919 % 101) for i in range(MEMORY)]
    running = Baseline()
    for value in values:
        running = running.with_sample(value)
    mean = sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / len(values)
    assert running.mean == pytest.approx(mean, rel=1e-12)
    assert running.variance == pytest.approx(variance, rel=1e-6)


def test_one_absurd_number_leaves_baselines_that_can_be_kept_and_published():
    """``total_tokens`` is anybody's number. Its square must not become an infinity: such a record could not
    be kept, and no reward of this type of task could be published any more."""
    state = State(1000)
    for i in range(MINIMUM_SAMPLES):
        state.baselines.update(trajectory(f"t{i}", tokens=100 + i))
    state.baselines.update(trajectory("absurd", tokens=10**300))
    running = dict(state.baselines.find(trajectory())[1])["tokens"]
    assert running.mean == pytest.approx(MOST / (MINIMUM_SAMPLES + 1))
    assert State.load(RewarderState.load(state.dump()), 1000).dump() == state.dump()
    assert 0.0 <= efficiency(trajectory(tokens=10**300), state.baselines).score <= 1.0


def test_a_baseline_follows_an_agent_that_gets_better():
    running = Baseline()
    for value in [10.0] * 5000 + [4.0] * 5000:
        running = running.with_sample(value)
    assert running.mean == pytest.approx(4.0, abs=0.05)


def test_task_types_from_outside_cannot_fill_the_memory():
    baselines = Baselines()
    for i in range(MAX_KEYS + 50):
        baselines.update(trajectory(task_type=f"kind{i}", domain="coding"))
    keys = [key for key, _ in baselines.dump()]
    assert len(keys) == MAX_KEYS
    assert keys[-1] == "domain:coding" and 'type:"kind0"' not in keys
    assert Baselines.load(baselines.dump()).dump() == baselines.dump()


def test_long_task_types_do_not_make_the_record_larger_than_a_message():
    baselines = Baselines()
    for i in range(3):
        for _ in range(MINIMUM_SAMPLES):
            baselines.update(trajectory(task_type=f"{i}" + "x" * 100_000))
    keys = [key for key, _ in baselines.dump()]
    assert len(keys) == 4 and max(map(len, keys)) < 100
    assert dict(baselines.find(trajectory(task_type="1" + "x" * 100_000))[1])["turns"].n == MINIMUM_SAMPLES


def test_a_repeated_call_is_known_whatever_its_spaces_order_and_times():
    """Not new: another order of arguments, spaces, and results that differ in nothing but time."""
    results = [
        "2026-01-05T09:00:00Z 3 passed in 0.51s",
        "2026-01-05 09:00:07.25  3 passed in 0.49s\n",
        "2026-01-06T10:11:12+01:00 3 passed in 12 ms",
    ]
    arguments = [{"a": "x y", "b": [1, {"c": "d"}]}, {"b": [1, {"c": "d "}], "a": " x\n y"}, {"a": "x y"}]
    turns = [
        turn(1, tool="test", args=arguments[0], output=results[0]),
        turn(2, tool="test ", args=arguments[1], output=results[1]),
        turn(3, tool="test", args=arguments[0], output=results[2]),
        turn(4, tool="test", args=arguments[2], output=results[0]),
    ]
    assert repeats(trajectory(turns=turns)) == [False, True, True, False]


@pytest.mark.parametrize(
    "one, other, news",
    [
        ("at 10:15", "at 11:20:30.5", False),
        ("id 0b9f6f5e-4a57-4c33-9d3e-6e4ad9a1c001", "id 1b9f6f5e-4a57-4c33-9d3e-6e4ad9a1c001", False),
        ("<object at 0x7f00aa11bb22>", "<object at 0x7f00aa11bb33>", False),
        ("now 1767603600", "now 1767603605.25", False),
        ("3 failed", "2 failed", True),
        ("price 10", "price 12", True),
        ("version 1.2", "version 1.3", True),
        ({"n": 1}, {"n": 2}, True),
        ({"at": "09:00:01", "n": 1}, {"n": 1, "at": "09:00:02"}, False),
    ],
)
def test_what_is_news(one, other, news):
    turns = [turn(1, tool="x", output=one), turn(2, tool="x", output=other)]
    assert redundant_calls(trajectory(turns=turns)) == (not news)


def test_times_are_looked_for_in_so_many_results_and_no_more(monkeypatch):
    """Megabytes of times would hold up the whole process for seconds."""
    monkeypatch.setattr("onward.reward.measures.baselines.MOST_READ", 60)
    outputs = ["at 10:00:00", "at 10:00:01", "at 10:00:02", "at 10:00:03", "at 10:00:03"]
    turns = [turn(n + 1, tool="look", args={}, output=text) for n, text in enumerate(outputs)]
    assert repeats(trajectory(turns=turns)) == [False, True, True, False, True]  # 22 bytes each


def test_failing_the_same_way_again_is_no_news_and_succeeding_is():
    turns = [
        turn(1, tool="x", output=None, success=False, error="timeout after 3.0s"),
        turn(2, tool="x", output=None, success=False, error="timeout after 3.1s"),
        turn(3, tool="x", output=None),
    ]
    assert repeats(trajectory(turns=turns)) == [False, True, False]


@pytest.mark.parametrize("status", ["failed", "abandoned", None])
def test_without_completion_that_was_told_efficiency_is_zero_and_does_not_leave(status):
    item = trajectory(status=status)
    for baselines in (Baselines(), known()):
        assert efficiency(item, baselines).score == 0.0


def test_the_deviations_of_effort_are_capped_at_two():
    fast = efficiency(trajectory(turns=1, seconds=0, tokens=0), known(60))
    zs = {name: signal["z"] for name, signal in fast.raw_data["signals"].items()}
    assert zs == pytest.approx({"turns": 2.0, "seconds": 2.0, "tokens": 2.0, "redundant_calls": 0.0})
    assert fast.score == pytest.approx((0.8 * 2.0 + 2.0) / 4.0)
    slow = efficiency(trajectory(turns=90, seconds=9e5, tokens=10**6), known(60))
    assert slow.score == pytest.approx((0.8 * -2.0 + 2.0) / 4.0)


def test_votes_of_the_same_moment_are_told_apart_by_their_ids():
    up, down = feedback("thumbs_up", at=1), feedback("thumbs_down", at=1)
    assert feedback_score(up, down).score == feedback_score(down, up).score == 1.0  # f-thumbs_up-1 is last
    rating = feedback("rating", value=0.6, at=2)
    assert feedback_score(up, rating).score == 0.6
    assert feedback_score(feedback("retry", kind="implicit")).score == 0.2
    assert feedback_score(feedback("accepted", kind="implicit", value=0.9)).evidence == 0.5
