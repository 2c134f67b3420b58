"""Other weights: ranks, swaps and correlation against scipy and by brute force, totals by hand."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_documents import START, feedback, trajectory
from scipy import stats

from onward.config import load
from onward.contracts import Reward, encode, validate
from onward.errors import ConfigError
from onward.reward import State, score
from onward.reward.scoring.simulate import cases, parse_weights, ranks, simulate, spearman, swaps

SETTINGS = load(environ={}).reward
FEW = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 0.75])), min_size=2
)


def reward(name: str, task_type: str = "sum", **scores: float) -> Reward:
    """A reward with these raw scores, under the default weights; normalised scores are 1 - raw."""
    weights = {part: SETTINGS.weights()[part] for part in scores}
    whole = sum(weights.values())
    parts = {
        part: {
            "score": value,
            "weight": weights[part] / whole,
            "source": "automated",
            "raw_data": {"normalized": 1.0 - value},
        }
        for part, value in scores.items()
    }
    raw = sum(part["weight"] * part["score"] for part in parts.values())
    return validate(
        {
            "reward_id": f"r-{name}",
            "trajectory_id": name,
            "session_id": "s",
            "timestamp": START.isoformat(),
            "reward_components": parts,
            "total_reward": 1.0 - raw,
            "reward_type": "sparse",
            "metadata": {
                "evaluator": "e",
                "evaluation_method": "automated",
                "raw_total": raw,
                "task_type": task_type,
            },
        },
        Reward,
    )


@given(st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.5000001, 1.0]), min_size=1))
def test_equal_values_share_the_middle_of_their_ranks(values):
    assert ranks(values) == list(stats.rankdata(values))


@given(FEW)
def test_spearman_is_scipys_with_ties(pairs):
    one, other = [a for a, _ in pairs], [b for _, b in pairs]
    mine = spearman(one, other)
    if len(set(one)) == 1 or len(set(other)) == 1:
        assert mine is None
    else:
        assert mine == pytest.approx(stats.spearmanr(one, other).statistic, abs=1e-12)


@given(FEW)
def test_swaps_are_those_of_comparing_every_pair(pairs):
    ordered = [(a, b) for a, b in itertools.combinations(pairs, 2) if a[0] != b[0]]
    reversed_ = [(a, b) for a, b in ordered if (a[0] - b[0]) * (a[1] - b[1]) < 0]
    assert swaps([a for a, _ in pairs], [b for _, b in pairs]) == (len(ordered), len(reversed_))


def test_swaps_agree_with_kendalls_tau_without_ties():
    draw = random.Random(4)
    one, other = ([draw.random() for _ in range(300)] for _ in range(2))
    pairs, swapped = swaps(one, other)
    assert 1.0 - 2.0 * swapped / pairs == pytest.approx(stats.kendalltau(one, other).statistic)


def test_a_hand_worked_reordering():
    """Under .4/.2/.25 of .85: A .4·1+.25·.5 → .6176…, B .4·.75+.2·1+.25·.5, C .25·1."""
    rewards = [
        reward("A", task_completion=1.0, efficiency=0.0, user_feedback=0.5),
        reward("B", task_completion=0.75, efficiency=1.0, user_feedback=0.5),
        reward("C", "other", task_completion=0.0, efficiency=0.0, user_feedback=1.0),
    ]
    found = simulate(rewards, parse_weights("user_feedback=1"))
    assert [case.old for case in cases(rewards, parse_weights("user_feedback=1"))] == pytest.approx(
        [0.525 / 0.85, 0.625 / 0.85, 0.25 / 0.85]
    )
    assert (found["mean_new"], found["trajectories"], found["unscored"]) == (pytest.approx(2 / 3), 3, 0)
    assert found["mean_shift"] == pytest.approx(2 / 3 - 1.4 / 0.85 / 3)
    assert (found["pairs"], found["swapped_share"]) == (3, pytest.approx(2 / 3))  # C passes A and B
    # Ranks before: B 1, A 2, C 3; after: C 1, A and B 2.5. Pearson of (3,2,1) and (1.5,1.5,3).
    assert found["spearman"] == pytest.approx(-1.5 / math.sqrt(2 * 1.5))
    assert found["by_task_type"]["other"]["mean_shift"] == pytest.approx(1.0 - 0.25 / 0.85)
    assert found["by_task_type"]["other"]["spearman"] is None
    first, second, third = found["moved_most"]
    assert (first["trajectory_id"], first["old_rank"], first["new_rank"]) == ("C", 3, 1)
    assert (second["trajectory_id"], second["old_rank"], second["new_rank"]) == ("B", 1, 2.5)
    assert third["trajectory_id"] == "A"
    assert first["components"]["user_feedback"] == {
        "score": 1.0, "old_weight": pytest.approx(0.25 / 0.85), "new_weight": 1.0,
    }  # fmt: skip


def test_the_present_weights_change_nothing_even_in_the_last_bits():
    """Totals that differ by rounding alone are ties: else they would seem to swap."""
    draw, state, rewards = random.Random(1), State(40), []
    for number in range(120):
        item = trajectory(
            f"t{number}",
            status=draw.choice(["completed_successfully", "failed", "partial_completion"]),
            completion=draw.choice([0.25, 0.5]),
            turns=draw.randint(1, 4),
            tokens=draw.choice([90, 100, 110]),
        )
        given_feedback = [feedback("thumbs_up")] if draw.random() < 0.3 else []
        answer = score(item, state, settings=SETTINGS, timestamp=START, feedback=given_feedback)
        assert isinstance(answer, Reward)
        encode(answer)
        rewards.append(answer)
    present = ",".join(f"{name}={weight}" for name, weight in SETTINGS.weights().items())
    for by in ("raw_total", "total_reward"):
        found = simulate(rewards, parse_weights(present), by=by)
        assert found["spearman"] == pytest.approx(1.0, abs=1e-12)
        assert found["swapped_share"] == 0.0 and found["moved_most"] == []
        assert found["mean_shift"] == pytest.approx(0.0, abs=1e-12)
    assert found["rescaled"] == 120, "no trajectory has code, so everybody's weights are rescaled"


def test_what_would_be_unscored_is_counted_and_left_out():
    rewards = [reward("A", task_completion=1.0), reward("B", task_completion=0.0, efficiency=0.5)]
    found = simulate(rewards, parse_weights("efficiency=1"))
    assert (found["trajectories"], found["unscored"], found["spearman"]) == (1, 1, None)
    nothing = simulate(rewards, parse_weights("code_quality=1"))
    assert (nothing["trajectories"], nothing["unscored"], nothing["mean_shift"]) == (0, 2, None)


def test_by_the_normalised_total():
    rewards = [reward("A", task_completion=1.0, user_feedback=0.0)]
    (case,) = cases(rewards, parse_weights("user_feedback=1"), "total_reward")
    assert (case.old, case.new) == (pytest.approx(1 - 0.4 / 0.65), 1.0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("task_completion=.5", "The weights sum to 0.5: they must sum to 1"),
        ("task_completion=.9,efficiency=.2", "The weights sum to 1.1"),
        ("", "The weights sum to 0"),
        ("completion=1", "'completion=1' is not a weight: give NAME=NUMBER with one of task_completion"),
        ("task_completion", "'task_completion' is not a weight"),
        ("task_completion=much", "The weight of task_completion is 'much': expected a number from 0 to 1"),
        ("task_completion=-1,efficiency=2", "The weight of task_completion is '-1'"),
        ("task_completion=nan", "The weight of task_completion is 'nan'"),
        ("task_completion=inf", "The weight of task_completion is 'inf'"),
        ("task_completion=.5,task_completion=.5", "task_completion is given twice"),
    ],
)
def test_weights_that_cannot_be_used_are_one_sentence(text, sentence):
    with pytest.raises(ConfigError) as error:
        parse_weights(text)
    assert str(error.value).startswith(sentence)


def test_weights_are_divided_by_their_sum_when_asked():
    weights = parse_weights(" task_completion = 3, efficiency=1,", normalize=True)
    assert weights["task_completion"] == 0.75 and weights["efficiency"] == 0.25
    assert sum(weights.values()) == 1.0
    with pytest.raises(ConfigError, match=r"^The weights sum to 0: give one of them a number above 0\.$"):
        parse_weights("efficiency=0", normalize=True)
