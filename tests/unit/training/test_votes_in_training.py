"""Ten votes of one session are one vote in what is learned; the last one."""

import pytest

from onward.training.data.admission import one_per_session, vote


def line(name: str, session: str, score: float | None, at: str) -> dict:
    """A success without code and efficiency: weights 0.40 and 0.25 of 0.65."""
    feedback = 0.5 if score is None else score
    said = {} if score is None else {"vote": {"weight": 0.25 / 0.65, "score": score, "at": at}}
    return {
        "trajectory_id": name,
        "session_id": session,
        "raw_total": (0.40 + 0.25 * feedback) / 0.65,
        **said,
    }


def test_of_many_votes_of_a_session_the_last_counts_and_the_others_are_silence():
    lines = [line(f"t{i}", "s", 1.0, f"2026-01-01T00:00:0{i}Z") for i in range(9)]
    lines.append(line("last", "s", 0.0, "2026-01-01T00:00:09Z"))
    assert len(one_per_session(lines)) == 9 and not any("vote" in one for one in lines)
    assert [one["raw_total"] for one in lines[:9]] == pytest.approx([0.525 / 0.65] * 9)
    assert lines[9]["raw_total"] == pytest.approx(0.40 / 0.65)


def test_sessions_do_not_take_each_other_s_votes_and_silence_stays():
    lines = [line("a", "s1", 1.0, "1"), line("b", "s2", 0.0, "2"), line("c", "s2", None, "3")]
    before = [one["raw_total"] for one in lines]
    assert one_per_session(lines) == set()
    assert [one["raw_total"] for one in lines] == before


@pytest.mark.parametrize("kind", ["implicit", "none"])
def test_only_what_a_person_said_is_a_vote(kind):
    part = {"weight": 0.25, "score": 0.2, "raw_data": {"kind": kind}}
    assert vote({"reward_components": {"user_feedback": part}, "timestamp": "1"}) is None
    part["raw_data"]["kind"] = "explicit"
    found = vote({"reward_components": {"user_feedback": part}, "timestamp": "1"})
    assert found == {"weight": 0.25, "score": 0.2, "at": "1"}
    assert vote({"reward_components": {}, "timestamp": "1"}) is None
