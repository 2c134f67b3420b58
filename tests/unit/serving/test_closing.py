from onward.serving.closing import parse_close


def test_nothing_said_is_no_outcome():
    assert parse_close({}) == (None, None)


def test_an_outcome_and_feedback_as_they_were_given():
    body = {"status": "partial_completion", "completion_percentage": 1, "feedback": {"signal": "thumbs_up"}}
    assert parse_close(body) == (
        {"status": "partial_completion", "completion_percentage": 1.0},
        {"signal": "thumbs_up"},
    )
