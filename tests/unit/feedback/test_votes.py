import pytest

from onward.contracts import Feedback, validate
from onward.feedback import votes
from onward.feedback.tokens import Subject
from onward.http.app import HttpError

UP = {"signal": "thumbs_up"}


def _vote(**fields):
    document = {
        "feedback_id": "f",
        "session_id": "s",
        "kind": "explicit",
        "timestamp": "2026-01-01T00:00:00Z",
    }
    return validate({**document, **fields}, Feedback)


@pytest.mark.parametrize(
    ("given", "value"),
    [({"stars": n}, value) for n, value in [(1, 0.2), (2, 0.4), (3, 0.6), (4, 0.8), (5, 1.0)]]
    + [({"value": 0}, 0.0), ({"value": 0.37}, 0.37), ({"value": 1}, 1.0)],
)
def test_a_rating_is_stars_of_five_or_a_value_as_it_is(given, value):
    assert votes.read_vote({"signal": "rating", **given}, by_key=False)["value"] == value


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "signal"),
        ({"signal": 1}, "signal"),
        ({"signal": "two words"}, "signal"),
        ({"signal": "abandoned"}, "signal"),
        ({"signal": "rating"}, "stars"),
        ({"signal": "rating", "stars": 3, "value": 0.6}, "value"),
        ({"signal": "rating", "stars": 0}, "stars"),
        ({"signal": "rating", "stars": 6}, "stars"),
        ({"signal": "rating", "stars": 2.5}, "stars"),
        ({"signal": "rating", "stars": True}, "stars"),
        ({"signal": "rating", "stars": "5"}, "stars"),
        ({"signal": "rating", "value": 1.01}, "value"),
        ({"signal": "rating", "value": float("nan")}, "value"),
        ({"signal": "rating", "value": True}, "value"),
        ({"signal": "thumbs_up", "stars": 5}, "stars"),
        ({"signal": "thumbs_down", "value": 1}, "value"),
        ({"signal": "correction", "value": 1}, "value"),
        ({**UP, "comment": 7}, "comment"),
        ({**UP, "comment": "half \ud83d"}, "comment"),
        ({**UP, "comment": "ä" * 4097}, "comment"),
        ({**UP, "turn_id": 0}, "turn_id"),
        ({**UP, "turn_id": True}, "turn_id"),
        ({**UP, "kind": "explicit"}, "kind"),
        ({**UP, "feedback_id": "f"}, "feedback_id"),
        ({**UP, "source": "me"}, "source"),
        ({**UP, "timestamp": "2030-01-01T00:00:00Z"}, "timestamp"),
    ],
)
def test_what_a_page_cannot_mean_is_refused_by_the_name_of_its_field(body, param):
    with pytest.raises(HttpError) as refused:
        votes.read_vote(body, by_key=False)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_a_server_may_say_more_than_a_page():
    said = votes.read_vote(
        {
            "signal": "helpful",
            "value": 0.9,
            "source": "webui",
            "kind": "implicit",
            "turn_id": 2,
            "comment": "",
        },
        by_key=True,
    )
    assert said == {"signal": "helpful", "value": 0.9, "source": "webui", "kind": "implicit", "turn_id": 2}
    assert votes.read_vote({"signal": "abandoned"}, by_key=True)["kind"] == "implicit"
    assert votes.read_vote({"signal": "abandoned", "kind": "explicit"}, by_key=True)["kind"] == "explicit"
    assert votes.read_vote(UP, by_key=True) == {**UP, "kind": "explicit", "source": "api"}
    for bad in ({"kind": "loud"}, {"source": "two words"}, {"stars": 3}):
        with pytest.raises(HttpError):
            votes.read_vote({"signal": "helpful", **bad}, by_key=True)


def test_a_token_is_good_for_its_own_subject_alone():
    session, trajectory = Subject("s"), Subject("s", "t")
    for subject, ids in [
        (session, (None, None)),
        (session, ("s", None)),
        (trajectory, (None, None)),
        (trajectory, ("s", "t")),
    ]:
        votes.check_scope(subject, *ids)
    for subject, ids in [
        (session, ("other", None)),
        (session, (None, "t")),
        (trajectory, ("other", "t")),
        (trajectory, (None, "other")),
    ]:
        with pytest.raises(HttpError) as refused:
            votes.check_scope(subject, *ids)
        assert refused.value.status == 403


def test_a_subject_is_read_or_refused():
    assert votes.read_subject({}) == (None, None)
    assert votes.read_subject({"session_id": "a b", "trajectory_id": "t-1"}) == ("a b", "t-1")
    for bad in ({"session_id": ""}, {"session_id": 1}, {"session_id": "s" * 513}, {"trajectory_id": "../x"}):
        with pytest.raises(HttpError):
            votes.read_subject(bad)


@pytest.mark.parametrize(
    ("fields", "negative"),
    [
        ({"signal": "thumbs_up"}, False),
        ({"signal": "thumbs_down"}, True),
        ({"signal": "rating", "value": 0.4}, True),
        ({"signal": "rating", "value": 0.5}, False),
        ({"signal": "rating", "value": 0.6}, False),
        ({"signal": "correction"}, True),
        ({"signal": "abandoned"}, True),
        ({"signal": "abandoned", "kind": "implicit"}, None),
        ({"signal": "shared"}, None),
    ],
)
def test_a_vote_is_against_when_it_is_worth_less_than_half(fields, negative):
    assert votes.is_negative(_vote(**fields)) is negative
