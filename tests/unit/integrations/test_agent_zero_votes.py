"""Votes and actions of Agent Zero's page: what is accepted, what an action is worth, what a withdrawal
does."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_zero_page import handler, host_modules, make_agent_zero

from onward.contracts import Feedback
from onward.feedback.votes import is_negative
from onward.integrations.agent_zero import install, signals
from onward.integrations.agent_zero.plugin.helpers import onward_reports, onward_votes
from onward.integrations.agent_zero.worker.service import Worker
from onward.reward.components.user_feedback import UserFeedback, signal_value

PLACE = {"context": "chat0001", "message_id": "m-1"}


def test_a_vote_becomes_arguments_of_the_runtime() -> None:
    assert onward_votes.read_vote({**PLACE, "signal": "rating", "stars": 3, "comment": " ok "}) == {
        "context_id": "chat0001", "message_id": "m-1", "signal": "rating", "kind": "explicit",
        "source": "webui", "value": 0.6, "comment": "ok", "feedback_id": None,
    }  # fmt: skip
    assert onward_votes.read_vote({**PLACE, "signal": "withdrawn"})["value"] is None


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"signal": "great"}, "'signal'"),
        ({"signal": "rating"}, "'stars'"),
        ({"signal": "rating", "stars": True}, "'stars'"),
        ({"signal": "rating", "stars": 6}, "'stars'"),
        ({"signal": "thumbs_up", "stars": 5}, "'stars'"),
        ({"signal": "comment"}, "'comment'"),
        ({"signal": "comment", "comment": "  "}, "'comment'"),
        ({"signal": "thumbs_up", "comment": "x" * 8193}, "8193 bytes"),
        ({"signal": "thumbs_up", "comment": "\ud800"}, "UTF-8"),
        ({"signal": "thumbs_up", "context": "../x"}, "'context'"),
        ({"signal": "thumbs_up", "message_id": "a b"}, "'message_id'"),
        ({"signal": "thumbs_up", "feedback_id": "a.b"}, "'feedback_id'"),
    ],
)
def test_anything_else_is_refused_in_one_sentence(change: dict[str, Any], word: str) -> None:
    with pytest.raises(onward_votes.VoteRefused, match=word) as raised:
        onward_votes.read_vote({**PLACE, **change})
    assert str(raised.value).count("\n") == 0
    with pytest.raises(onward_votes.VoteRefused):
        onward_votes.read_vote("not an object")


def test_an_action_is_implicit_and_only_a_message_has_text() -> None:
    action = onward_votes.read_signal({**PLACE, "signal": "copied"})
    assert (action["kind"], action["signal"], action["comment"]) == ("implicit", "copied", None)
    long = onward_votes.read_signal({**PLACE, "signal": "message", "comment": "y" * 5000})
    assert len(long["comment"]) == onward_votes.MOST_TEXT
    for body in ({"signal": "copied", "comment": "x"}, {"signal": "message"}, {"signal": "thumbs_up"}):
        with pytest.raises(onward_votes.VoteRefused):
            onward_votes.read_signal({**PLACE, **body})


def test_every_action_of_the_page_has_a_worth_in_the_reward() -> None:
    """The worths are the facts' values from -1 to 1, on the scale from 0 to 1: (v + 1) / 2."""
    facts = {
        "nudged": -0.4,
        "reset": -0.3,
        "interrupted": -0.3,
        "branched": -0.4,
        "copied": 0.2,
        "thanks": 0.4,
    }
    for signal, value in facts.items():
        assert signals.value_of(signal) == pytest.approx((value + 1) / 2), signal
    assert signals.value_of("abandoned") == 0.0 and signals.value_of("correction") == 0.2
    assert set(onward_votes.IMPLICIT) - {"message"} <= set(signals.IMPLICIT)


@pytest.mark.parametrize(
    ("text", "signal"),
    [
        ("That is wrong, try again", "correction"), ("das stimmt so nicht", "correction"),
        ("Thanks, perfect!", "thanks"), ("Danke!", "thanks"), ("谢谢", "thanks"),
        ("Thanks, but that is still wrong.", "correction"),
        ("Write a thank-you letter to my aunt", None), ("Thankless tasks: list five", None),
        ("Now do the same for 2025", None),
    ],
)  # fmt: skip
def test_the_next_message_is_a_correction_thanks_or_a_new_task(text: str, signal: str | None) -> None:
    assert signals.of_message(text) == signal


def feedback(signal: str, minute: int, kind: str = "explicit", **more: Any) -> Feedback:
    at = datetime(2026, 3, 28, 12, tzinfo=UTC) + timedelta(minutes=minute)
    given = {"feedback_id": f"f{minute}", "session_id": "s", "trajectory_id": "t", "timestamp": at}
    return Feedback.model_validate({**given, "kind": kind, "signal": signal, **more})


def scored(*given: Feedback) -> tuple[float, str]:
    judgement = SimpleNamespace(status=None, derived=False, corrected_at=None)
    context = SimpleNamespace(feedback=list(given), judgement=judgement)
    found = UserFeedback().score(None, context)  # type: ignore[arg-type]
    return found.score, found.raw_data.get("signal", "")  # type: ignore[union-attr]


def test_a_withdrawn_vote_counts_as_never_given_and_a_later_one_counts() -> None:
    down, taken_back = feedback("thumbs_down", 1), feedback("withdrawn", 2)
    assert scored(down) == (0.0, "thumbs_down")
    assert scored(down, taken_back) == (0.5, "")
    assert scored(taken_back, down) == (0.5, "")  # the order of arrival does not matter
    assert scored(down, taken_back, feedback("thumbs_up", 3)) == (1.0, "thumbs_up")
    assert scored(down, taken_back, feedback("copied", 0, "implicit")) == (0.6, "copied")
    other = feedback("rating", 1, value=0.4, turn_id=4)
    assert scored(other, taken_back) == (0.4, "rating")  # it is about another turn


def test_a_withdrawn_vote_is_not_against_the_model_at_the_gates() -> None:
    assert is_negative(feedback("thumbs_down", 1)) is True
    assert is_negative(feedback("withdrawn", 2)) is False
    assert is_negative(feedback("reset", 2, "implicit")) is None
    assert signal_value(feedback("withdrawn", 2)) is None


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_agent_zero(tmp_path_factory.mktemp("zero") / "a0")
    install.install(made)
    return made


@pytest.mark.parametrize("name", ["feedback", "feedback_external", "signal", "status", "approve"])
@pytest.mark.parametrize(
    "body", [[], None, "text", 3, [["signal", "thumbs_up"]], {"signal": ["thumbs_up"], "project": "p" * 201}]
)
def test_a_body_of_another_kind_is_refused_in_one_sentence(root: Path, name: str, body: Any) -> None:
    opted: list[str] = []
    runtime = SimpleNamespace(
        set_opt_out=opted.append, status=dict, feedback=lambda **_: {"ok": True}, opted_out=bool
    )
    with host_modules(root, runtime, {}):
        answer = asyncio.run(handler(root, name).process(body, None))
    if name == "approve" and isinstance(body, dict):
        assert answer == {"ok": True, "waiting": []}  # it asks for the list
        return
    assert answer["ok"] is False and answer["error"].endswith(".") and "Error" not in answer["error"]
    assert opted == []


def test_only_messengers_may_vote_without_login_and_they_need_the_key(root: Path) -> None:
    """What an agent writes into a page cannot post: a GET is never taken, a POST needs login and token."""
    with host_modules(root, None, {}):
        found = {name: handler(root, name) for name in ("feedback", "signal", "status", "approve")}
        external = handler(root, "feedback_external")
    for one in found.values():
        assert (one.requires_auth(), one.requires_csrf(), one.requires_api_key()) == (True, True, False)
        assert not hasattr(type(one), "get_methods")  # the host's default: POST alone
    rules = (external.requires_auth(), external.requires_csrf(), external.requires_api_key())
    assert rules == (False, False, True)


class Log:
    def __init__(self) -> None:
        self.logs: list[Any] = []

    def log(self, **item: Any) -> None:
        self.logs.append(SimpleNamespace(**item))


def chat(at: str, kind: str = "user", asked: bool = False) -> Any:
    data = {onward_reports.ASKED: True} if asked else {}
    return SimpleNamespace(log=Log(), data=data, type=SimpleNamespace(value=kind), last_message=at)


def test_the_last_answer_is_that_of_the_main_agent() -> None:
    context = chat("1")
    assert onward_votes.last_answer(context) is None
    context.log.log(type="response", agentno=0, id="a")
    context.log.log(type="response", agentno=1, id="b")
    context.log.log(type="tool", agentno=0, id="c")
    assert onward_votes.last_answer(context) == "a"
    assert [onward_votes.is_of_a_person(chat("1", kind)) for kind in ("user", "task", "background")] == [
        True, False, False,
    ]  # fmt: skip


def test_reports_go_to_the_chats_that_asked_else_to_the_newest_of_a_person() -> None:
    sentence = "Initiating RL training job #47 with 10K samples"
    reports = [{"seq": 7, "message": sentence, "timestamp": "2026-03-28T12:00:00Z"}]
    old, new, task = chat("2026-03-27"), chat("2026-03-28"), chat("2026-03-29", "task")
    heard: list[str] = []
    assert onward_reports.show(reports, [old, new, task], heard.append) == 7
    assert [len(one.log.logs) for one in (old, new, task)] == [0, 1, 0]
    assert new.log.logs[0].content == sentence and heard == [sentence]
    asked = chat("2026-03-01", asked=True)
    onward_reports.show(reports, [old, new, task, asked])
    assert [len(one.log.logs) for one in (old, new, asked)] == [0, 1, 1]
    assert onward_reports.show([], [old]) == 0 and onward_reports.chats_of([task]) == []


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (
            '{"job_id": "j", "number": 47, "samples": 10000}',
            "Initiating RL training job #47 with 10K samples",
        ),
        ('{"job_id": "j", "state": "queued"}', "Initiating RL training job j with 2.5K samples"),
        ('{"error": "no"}', None),
        ("no JSON", None),
    ],
)
def test_a_job_that_a_tool_started_is_reported(answer: str, sentence: str | None) -> None:
    assert onward_reports.job_begins({"sample_size": 2500}, answer) == sentence


@pytest.mark.parametrize("shown", [True, False])
def test_a_job_is_reported_once_in_its_chat_and_never_if_reports_are_off(shown: bool) -> None:
    context, answer = chat("1"), '{"job_id": "j", "number": 47, "samples": 10000}'
    onward_reports.after_call(context, "start_training", {}, answer, shown=shown)
    assert context.data[onward_reports.ASKED]
    if shown:  # the loop reports the same job a little later
        sentence = "Initiating RL training job #47 with 10K samples"
        onward_reports.show([{"seq": 1, "message": sentence, "timestamp": "t"}], [context])
    assert len(context.log.logs) == shown


@pytest.mark.parametrize(
    ("kind", "signal", "age", "expected"),
    [
        ("implicit", "abandoned", 5.0, "feedback"),
        ("implicit", "abandoned", 600.0, "opted_out"),  # the task that was stopped was not recorded
        ("explicit", "thumbs_down", 600.0, "feedback"),
    ],
)
def test_a_stop_is_no_vote_on_a_task_that_had_ended_long_before(
    tmp_path: Path, kind: str, signal: str, age: float, expected: str
) -> None:
    heard: list[dict[str, Any]] = []
    worker = Worker(tmp_path, tmp_path, heard.append)
    worker.take({"op": "settings"})
    opened = {"op": "open", "t": "t-1", "root": "chat", "chat": "chat", "agent": 0, "at": 1.0}
    worker.take({**opened, "content": {"user_message": "Count."}})
    at = time.time()
    worker.take({"op": "close", "t": "t-1", "at": at - age, "status": "success", "result": "Three."})
    said = {"signal": signal, "kind": kind, "source": "webui"}
    worker.take(
        {"op": "feedback", "id": "f-1", "chat": "chat", "message": "", "at": at, "said": said, "link": None}
    )
    worker.end()
    assert [(one["id"], one["as"]) for one in heard if one["op"] == "done"] == [
        ("t-1", "recorded"), ("f-1", expected),
    ]  # fmt: skip
