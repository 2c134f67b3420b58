"""A job of sft or dpo reads the messages that an export of the same trajectory has, whoever recorded it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import openai
import pytest
from chat_server import ChatServer, calls, text
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from trajectory_store import trajectory as stored_trajectory

from onward import Recorder, langchain_handler, wrap_openai
from onward.capture.conversations.answers import ToolCall
from onward.contracts import Feedback
from onward.export.demonstrations import Demonstrations
from onward.export.records import Record
from onward.serving.recording.conversations import Conversations, Exchange, links_of, seed_of
from onward.serving.recording.trajectory import trajectory
from onward.training.data import admission, corrections
from onward.training.data.admission import AdmissionRules, ScoredTrajectory

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Rome and Oslo?"}]
CITIES = ("Rome", "Oslo")
CALLED = json.dumps([{"tool_name": "weather", "tool_args": {"city": city}} for city in CITIES])
SEEN = [
    ("system", "Be brief."),
    ("user", "Weather in Rome and Oslo?"),
    ("assistant", CALLED),
    ("tool", "sunny in Rome"),
    ("tool", "sunny in Oslo"),
    ("assistant", "Sunny twice."),
]
RESULTS: list[Any] = [
    {"role": "tool", "tool_call_id": f"c{n}", "content": f"sunny in {c}"} for n, c in enumerate(CITIES)
]
REWARD = {"metadata": {"raw_total": 0.9, "outcome": {"success": True, "completion": 1.0}}}
RULES = AdmissionRules(None, None, {}, text_is_enough=True)


@tool
def weather(city: str) -> str:
    """Weather of a city."""
    return f"sunny in {city}"


def _recorded(path: Path, run: Callable[[Recorder], None]) -> dict[str, Any]:
    with Recorder(path, known_secrets=[]) as recorder:
        run(recorder)
        with sqlite3.connect(path) as connection:
            ((body,),) = connection.execute("SELECT body FROM queue").fetchall()
    return dict(json.loads(body))


def by_wrapper(folder: Path) -> dict[str, Any]:
    both = calls(*((f"c{n}", "weather", {"city": city}) for n, city in enumerate(CITIES)))

    def run(recorder: Recorder) -> None:
        script = lambda body: text("Sunny twice.") if len(body["messages"]) > 2 else both  # noqa: E731
        with ChatServer(script).running() as server:
            client = wrap_openai(openai.OpenAI(base_url=server.url, api_key="none", max_retries=0), recorder)
            messages: list[Any] = list(ASKED)
            messages.append(client.chat.completions.create(model="m", messages=messages).choices[0].message)
            client.chat.completions.create(model="m", messages=[*messages, *RESULTS])

    return _recorded(folder / "wrapper.db", run)


def by_langchain(folder: Path) -> dict[str, Any]:
    listed = [
        {"name": "weather", "args": {"city": city}, "id": f"c{n}", "type": "tool_call"}
        for n, city in enumerate(CITIES)
    ]
    model = FakeMessagesListChatModel(
        responses=[AIMessage(content="", tool_calls=listed), AIMessage(content="Sunny twice.")]
    )

    def agent(_: str, config: Any) -> Any:
        messages: list[Any] = [(one["role"], one["content"]) for one in ASKED]
        messages.append(model.invoke(messages, config))
        messages += [weather.invoke(call, config) for call in messages[-1].tool_calls]
        return model.invoke(messages, config).content

    def run(recorder: Recorder) -> None:
        RunnableLambda(agent).invoke("", config={"callbacks": [langchain_handler(recorder)]})

    return _recorded(folder / "langchain.db", run)


def by_gateway(folder: Path) -> dict[str, Any]:
    when, conversations = datetime(2026, 1, 1, tzinfo=UTC), Conversations()
    made = tuple(ToolCall(f"c{n}", "weather", {"city": city}) for n, city in enumerate(CITIES))
    answer = {"role": "assistant", "content": "", "tool_calls": [call.document() for call in made]}
    asked, action = list(ASKED), {"type": "response"}
    links = links_of(seed_of("key", None), asked)
    open_one = conversations.begin("s", "key", is_named=False, recorded=True)
    conversations.add_exchange(open_one, Exchange(when, asked, CALLED, action, made, {}, None), links, answer)
    asked = [*asked, answer, *RESULTS]
    links = links_of(seed_of("key", None), asked)
    assert conversations.find(links) is open_one
    open_one.take_results(RESULTS)
    last = Exchange(when, RESULTS, "Sunny twice.", action, (), {}, None)
    conversations.add_exchange(open_one, last, links, {"role": "assistant", "content": "Sunny twice."})
    open_one.ended_at = when
    return trajectory(open_one, "answer")


@pytest.mark.parametrize("record", [by_wrapper, by_langchain, by_gateway])
def test_a_job_reads_the_messages_of_the_export_with_calls_and_results(
    record: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    document = record(tmp_path)
    exported = Demonstrations("text").line(Record(document, REWARD))
    line = admission.line(ScoredTrajectory(document, REWARD), RULES)
    assert exported is not None and not isinstance(line, str)
    assert line["messages"] == exported["messages"]
    assert [(one["role"], one["content"]) for one in line["messages"]] == SEEN


def test_a_correction_replaces_the_answer_of_its_turn_behind_the_words_about_tools() -> None:
    """The tools add a system message to a conversation without one: later messages move by one."""
    document = stored_trajectory("a")
    document["turns"][0]["observation"]["content"] = "What is 17 times 23?"
    line = admission.line(ScoredTrajectory(document, REWARD), RULES)
    assert not isinstance(line, str)
    assert corrections.attach(line, document, "It is 392.", 2) is None
    place = line["correction"]["message"]
    assert [one["role"] for one in line["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert (place, line["messages"][place]["content"]) == (4, "It is 391.")


def test_a_correction_of_a_call_is_a_call() -> None:
    document = stored_trajectory("a")
    document["turns"][0]["action"].pop("raw_response")
    said = Feedback.model_validate(
        {"feedback_id": "f", "session_id": "s", "kind": "explicit", "signal": "correction", "comment": "391",
         "turn_id": 1, "timestamp": "2026-03-01T12:00:00Z"}
    )  # fmt: skip
    line = admission.line(ScoredTrajectory(document, REWARD, said), RULES)
    assert not isinstance(line, str)
    assert corrections.attach(line, document, said.comment, said.turn_id) == "correction_other_form"


def _turn(number: int, content: Any, raw: str | None) -> dict[str, Any]:
    action = {"type": "response"} | ({} if raw is None else {"raw_response": raw})
    seen = {"type": "user_message", "content": content}
    return {"turn_id": number, "observation": seen, "action": action, "result": {"success": raw is not None}}


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ([_turn(1, "Hello", None)], "no_answer"),
        ([_turn(1, "Hello", "Hi"), _turn(2, {"same_as_turn": 1}, "Hi there")], "answers_in_a_row"),
    ],
)
def test_a_conversation_that_a_chat_template_cannot_show_is_left_out(turns: Any, reason: str) -> None:
    document = {**stored_trajectory("a"), "turns": turns}
    assert admission.line(ScoredTrajectory(document, REWARD), RULES) == reason
