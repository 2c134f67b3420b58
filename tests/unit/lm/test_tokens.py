"""Token rows: append-only, joined by exact prefixes only."""

from __future__ import annotations

import math

import pytest

from onward.errors import OnwardError
from onward.lm.tokens import Call, rows_from_calls


def call(name: str, prompt: list[int], out: list[int], continues: str | None = None, t: float = 1.0) -> Call:
    return Call(prompt, out, [-float(i + 1) for i in range(len(out))], t, name, continues)


def test_deltas_join_into_one_row_and_observations_are_not_trained() -> None:
    rows = rows_from_calls([call("a", [1, 2], [3, 4]), call("b", [5], [6], "a")])
    assert len(rows) == 1
    assert rows[0].ids == [1, 2, 3, 4, 5, 6]
    assert rows[0].sampled == [False, False, True, True, False, True]
    assert rows[0].logprobs == [0.0, 0.0, -1.0, -2.0, 0.0, -1.0]


def test_a_full_prompt_that_extends_a_row_exactly_is_appended() -> None:
    rows = rows_from_calls([call("a", [1, 2], [3]), call("b", [1, 2, 3, 9], [4])])
    assert [r.ids for r in rows] == [[1, 2, 3, 9, 4]]
    assert rows[0].sampled == [False, False, True, False, True]


def test_two_tokenisations_of_the_same_text_are_never_merged() -> None:
    """lm-training case 17/18: the next prompt encodes the same text as other ids, so a new row starts."""
    rows = rows_from_calls([call("a", [1], [53122, 316]), call("b", [1, 393, 30002, 7], [8])])
    assert [r.ids for r in rows] == [[1, 53122, 316], [1, 393, 30002, 7, 8]]
    assert rows[1].sampled == [False, False, False, False, True]


def test_a_branch_trains_the_shared_tokens_once() -> None:
    calls = [call("a", [1], [2]), call("b", [3], [4], "a"), call("c", [5], [6], "a")]
    rows = rows_from_calls(calls)
    assert [r.ids for r in rows] == [[1, 2, 3, 4], [1, 2, 5, 6]]
    assert sum(r.sampled_count for r in rows) == 3


def test_another_temperature_starts_a_row_of_its_own() -> None:
    rows = rows_from_calls([call("a", [1], [2], t=1.0), call("b", [3], [4], "a", t=0.5)])
    assert [(r.ids, r.sampled, r.temperature) for r in rows] == [
        ([1, 2], [False, True], 1.0),
        ([1, 2, 3, 4], [False, False, False, True], 0.5),
    ]


def test_tokens_voided_by_redaction_end_the_row() -> None:
    calls = [call("a", [1], [2]), Call([], [], [], 1.0, "b", "a"), call("c", [5], [6], "b")]
    assert [r.ids for r in rows_from_calls(calls)] == [[1, 2]]


def test_the_sampled_end_of_turn_token_is_trained_with_its_own_log_prob() -> None:
    """lm-training case 16: it is neither removed nor given log-prob 0."""
    end = 2
    row = rows_from_calls([Call([1], [7, end], [-0.5, -4.6], 1.0, "a")])[0]
    assert row.ids[-1] == end and row.sampled[-1] and row.logprobs[-1] == -4.6


def test_a_continuation_of_an_unknown_generation_is_refused() -> None:
    with pytest.raises(OnwardError, match="in the order in which they were made"):
        rows_from_calls([call("b", [1], [2], "missing")])


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_an_unknown_sampling_probability_is_refused(bad: float) -> None:
    """lm-training 6.11: a missing log-prob must not silently count as on-policy."""
    with pytest.raises(OnwardError, match="not a finite number"):
        rows_from_calls([Call([1], [2], [bad], 1.0, "a")])


def test_ids_and_log_probs_of_different_length_are_refused() -> None:
    with pytest.raises(OnwardError, match="one log-prob for each"):
        rows_from_calls([Call([1], [2, 3], [-1.0], 1.0, "a")])
