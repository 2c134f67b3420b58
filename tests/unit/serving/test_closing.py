from datetime import UTC, datetime

import pytest

from onward.http.app import HttpError
from onward.serving.recording.closing import Closing, Closings, parse_close

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_nothing_said_is_no_outcome():
    assert parse_close({}) == (None, None)


def test_an_outcome_and_feedback_as_they_were_given():
    body = {"status": "partial_completion", "completion_percentage": 1, "feedback": {"signal": "thumbs_up"}}
    assert parse_close(body) == (
        {"status": "partial_completion", "completion_percentage": 1.0},
        {"signal": "thumbs_up"},
    )


def test_a_close_is_remembered_until_its_session_has_a_new_task_and_contradicted_only_by_another_outcome():
    closings, failed = Closings(), {"status": "failed"}
    closing = Closing(failed)
    for owner in ("key", None):
        closings.put("s", owner, closing)
        assert closings.find("s", owner, failed) is closings.find("s", owner, None) is closing
        with pytest.raises(HttpError) as refused:
            closings.find("s", owner, {"status": "completed_successfully"})
        assert refused.value.status == 409
    assert closings.find("s", "other", failed) is closings.find("t", "key", failed) is None
    closings.forget("s", "key")
    assert closings.find("s", "key", failed) is closings.find("s", None, failed) is None


def test_feedback_is_heard_once_and_not_of_those_who_opted_out():
    tasks = [{"trajectory_id": name, "session_id": "s", "turns": 1} for name in ("a", "b")]
    closing = Closing(None, tasks, {"b"})
    assert closing.add_feedback(None, NOW) == []
    messages = [
        message
        for signal in ("thumbs_up", "thumbs_up", "thumbs_down")
        for message in closing.add_feedback({"signal": signal}, NOW)
    ]
    ids = [message.pop("feedback_id") for message in messages]
    about = {"trajectory_id": "a", "session_id": "s", "kind": "explicit", "source": "gateway"}
    assert messages == [
        {**about, "timestamp": "2026-01-01T00:00:00.000Z", "signal": signal}
        for signal in ("thumbs_up", "thumbs_down")
    ]
    assert len(set(ids)) == 2 and closing.ids == ["a", "b", *ids]


@pytest.mark.parametrize("comment", ["x" * (64 * 1024 + 1), "ø" * (32 * 1024 + 1), 7])
def test_a_comment_that_could_not_be_published_is_refused(comment):
    with pytest.raises(HttpError) as refused:
        parse_close({"feedback": {"signal": "thumbs_up", "comment": comment}})
    assert refused.value.status == 400 and refused.value.param == "feedback.comment"


def test_the_longest_comment_is_taken():
    said = {"signal": "thumbs_up", "comment": "ø" * (32 * 1024)}
    assert parse_close({"feedback": said}) == (None, said)
