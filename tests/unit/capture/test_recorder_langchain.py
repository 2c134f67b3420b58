"""The LangChain handler with langchain-core's own fake models and real tools."""

from __future__ import annotations

import builtins
import gc
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any, cast
from uuid import uuid4

import pytest
from langchain_core.documents import Document
from langchain_core.language_models.fake import FakeListLLM
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.tools import tool

from onward import Recorder, langchain_handler
from onward.capture.conversations.dialogue import INTERRUPTED
from onward.capture.conversations.messages import conversation
from onward.contracts import Trajectory, decode
from onward.errors import MissingExtraError


@tool
def weather(city: str) -> str:
    """Weather of a city."""
    if city == "Atlantis":
        raise ValueError("sunk")
    return f"sunny in {city}"


def stored(recorder: Recorder) -> list[Trajectory]:
    with sqlite3.connect(recorder._outbox.path) as connection:
        rows = connection.execute("SELECT body FROM queue ORDER BY seq").fetchall()
    return [decode(body, Trajectory) for (body,) in rows]


@pytest.fixture
def recorder(tmp_path) -> Iterator[Recorder]:
    with Recorder(tmp_path / "outbox.db", known_secrets=[]) as recorder:
        yield recorder


def agent(model: Any) -> RunnableLambda[Any, Any]:
    """A loop of model and tools, as an agent framework runs it."""

    def run(question: str, config: Any) -> str:
        messages: list[Any] = [SystemMessage("Be brief."), HumanMessage(question)]
        while True:
            answer = model.invoke(messages, config)
            if not answer.tool_calls:
                return answer.content
            messages.append(answer)
            messages += [weather.invoke(call, config) for call in answer.tool_calls]

    return RunnableLambda(run)


def calling(*cities: str) -> AIMessage:
    calls = [
        {"name": "weather", "args": {"city": city}, "id": f"c{i}", "type": "tool_call"}
        for i, city in enumerate(cities)
    ]
    return AIMessage(
        content="",
        tool_calls=calls,
        usage_metadata={"input_tokens": 3, "output_tokens": 4, "total_tokens": 7},
    )


def test_an_agent_run_with_parallel_tool_calls_is_one_trajectory(recorder):
    model = FakeMessagesListChatModel(responses=[calling("Rome", "Oslo"), AIMessage(content="Sunny twice.")])
    handler = langchain_handler(recorder, domain="research")
    config: Any = {"callbacks": [handler], "metadata": {"session_id": "s7"}}
    assert agent(model).invoke("Weather in Rome and Oslo?", config=config) == "Sunny twice."
    (trajectory,) = stored(recorder)
    rome, oslo, answer = trajectory.turns
    assert trajectory.task_context.instructions == "Weather in Rome and Oslo?"
    assert (trajectory.session_id, trajectory.task_context.domain) == ("s7", "research")
    assert (rome.action.tool_name, rome.action.tool_args, rome.result.output) == (
        "weather", {"city": "Rome"}, "sunny in Rome",
    )  # fmt: skip
    assert (oslo.action.tool_args, oslo.result.output) == ({"city": "Oslo"}, "sunny in Oslo")
    assert oslo.observation.content == {"same_as_turn": 1}
    assert rome.result.execution_time_ms is not None
    assert (answer.action.type, answer.action.raw_response) == ("response", "Sunny twice.")
    metadata = trajectory.metadata.model_dump()
    assert metadata["capture"] == {"source": "langchain", "closed": "answer"}
    assert metadata["total_tokens"] == 7


async def test_asynchronous_runs(recorder):
    model = FakeMessagesListChatModel(responses=[AIMessage(content="Hi.")])
    config: Any = {"callbacks": [langchain_handler(recorder)]}
    assert (await model.ainvoke("Hello", config=config)).content == "Hi."
    (trajectory,) = stored(recorder)
    assert trajectory.turns[0].observation.content == "Hello"


def test_a_model_that_completes_text(recorder):
    model = FakeListLLM(responses=["done"])
    model.invoke("Do it", config={"callbacks": [langchain_handler(recorder)]})
    (trajectory,) = stored(recorder)
    assert (trajectory.turns[0].observation.content, trajectory.turns[0].action.raw_response) == (
        "Do it",
        "done",
    )


def test_a_streamed_answer(recorder):
    model = FakeMessagesListChatModel(responses=[AIMessage(content="Hi there.")])
    config: Any = {"callbacks": [langchain_handler(recorder)]}
    assert "".join(str(chunk.content) for chunk in model.stream("Hello", config=config)) == "Hi there."
    assert stored(recorder)[0].turns[0].action.raw_response == "Hi there."


def test_a_failing_tool_is_its_turns_result_and_the_run_is_failed(recorder):
    model = FakeMessagesListChatModel(responses=[calling("Atlantis")])
    with pytest.raises(ValueError, match="sunk"):
        agent(model).invoke("Weather?", config={"callbacks": [langchain_handler(recorder)]})
    (trajectory,) = stored(recorder)
    (turn,) = trajectory.turns
    assert (turn.result.success, turn.result.error) == (False, "ValueError: sunk")
    assert trajectory.metadata.outcome is not None and trajectory.metadata.outcome.status == "failed"


def test_a_failing_model_is_recorded_and_its_error_goes_on(recorder):
    def broken(_: Any, config: Any) -> Any:
        return FakeMessagesListChatModel(responses=[]).invoke("x", config)

    with pytest.raises(IndexError):
        RunnableLambda(broken).invoke("x", config={"callbacks": [langchain_handler(recorder)]})
    (trajectory,) = stored(recorder)
    assert trajectory.turns[0].result.success is False


def test_a_chain_without_a_model_is_no_task(recorder):
    RunnableLambda(lambda x: x).invoke("x", config={"callbacks": [langchain_handler(recorder)]})
    assert stored(recorder) == []


@pytest.mark.parametrize("ids", ["own", "same"])
def test_parallel_branches_keep_their_own_results(recorder, ids):
    """Rome asks first, then Oslo asks, and Oslo reports first."""
    first, second, told = (threading.Event() for _ in range(3))

    def branch(city: str) -> Any:
        name = "c0" if ids == "same" else f"id-{city}"
        call = {"name": "weather", "args": {"city": city}, "id": name, "type": "tool_call"}
        model = FakeMessagesListChatModel(responses=[AIMessage("", tool_calls=[call]), AIMessage(f"{city}!")])

        def work(_: Any, config: Any) -> str:
            messages: list[Any] = [HumanMessage("Weather?")]
            assert city == "Rome" or first.wait(10)
            messages.append(model.invoke(messages, config))
            (first if city == "Rome" else second).set()
            assert second.wait(10) and (city == "Oslo" or told.wait(10))
            messages.append(weather.invoke(messages[-1].tool_calls[0], config))
            answer = model.invoke(messages, config)
            told.set()
            return str(answer.content)

        return RunnableLambda(work)

    both = RunnableParallel(a=branch("Rome"), b=branch("Oslo"))
    config: Any = {"callbacks": [langchain_handler(recorder)]}
    assert both.invoke({}, config=config) == {"a": "Rome!", "b": "Oslo!"}
    (trajectory,) = stored(recorder)
    pairs = [
        ((turn.action.tool_args or {})["city"], turn.result.output)
        for turn in trajectory.turns
        if turn.action.type == "tool_call"
    ]
    assert sorted(pairs) == [("Oslo", "sunny in Oslo"), ("Rome", "sunny in Rome")]
    document = trajectory.model_dump(mode="json", exclude_none=True)
    said = [str(message["content"]) for message in conversation(document).messages]
    for part in (said[:4], said[4:]):
        city = part[-1].removesuffix("!")
        assert part == ["Weather?", part[1], f"sunny in {city}", f"{city}!"]


def test_all_generations_of_one_question_are_recorded(recorder):
    handler: Any = langchain_handler(recorder)
    run_id = uuid4()
    handler.on_chat_model_start({}, [[HumanMessage("A tree?")]], run_id=run_id)
    generations: Any = [ChatGeneration(message=AIMessage(word)) for word in ("oak", "elm")]
    handler.on_llm_end(LLMResult(generations=[generations]), run_id=run_id)
    (trajectory,) = stored(recorder)
    action = trajectory.turns[0].action
    others = action.model_dump()["other_choices"]
    assert [action.raw_response, others[0]["raw_response"]] == ["oak", "elm"]


def test_a_stream_that_the_caller_leaves_is_recorded_as_cancelled(recorder):
    model = GenericFakeChatModel(messages=iter([AIMessage("An oak and an elm.")]))
    stream = model.stream("Trees?", config={"callbacks": [langchain_handler(recorder)]})
    assert [next(stream).content for _ in range(3)] == ["An", " ", "oak"]
    stream.close()  # type: ignore[attr-defined]
    (trajectory,) = stored(recorder)
    (turn,) = trajectory.turns
    assert (turn.action.raw_response, turn.result.error) == ("An oak", INTERRUPTED)
    assert trajectory.metadata.outcome is not None and trajectory.metadata.outcome.status == "abandoned"


def test_a_model_inside_a_retriever_belongs_to_the_outermost_run(recorder):
    class Asking(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            model = FakeMessagesListChatModel(responses=[AIMessage("rephrased")])
            answer = model.invoke(query, config={"callbacks": run_manager.get_child()})
            return [Document(str(answer.content))]

    chain = Asking() | RunnableLambda(lambda found: cast(Any, found)[0].page_content)
    assert chain.invoke("q", config={"callbacks": [langchain_handler(recorder)]}) == "rephrased"
    answering = FakeMessagesListChatModel(responses=[AIMessage("done")])
    chain = chain | answering
    assert chain.invoke("q", config={"callbacks": [langchain_handler(recorder)]}).content == "done"
    assert [len(trajectory.turns) for trajectory in stored(recorder)] == [1, 2]


def test_a_handler_for_each_run_is_forgotten_after_it(recorder):
    model = FakeMessagesListChatModel(responses=[AIMessage("Hi.")])
    for _ in range(20):
        model.invoke("Hello", config={"callbacks": [langchain_handler(recorder)]})
    gc.collect()
    langchain_handler(recorder)
    assert len(recorder._before_close) < 6
    assert len(stored(recorder)) == 20


def test_without_the_package_one_sentence_says_what_to_install(recorder, monkeypatch):
    real = builtins.__import__

    def missing(name: str, *more: Any) -> Any:
        if name.startswith("langchain_core"):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingExtraError, match=r"pip install -e '.*\[langchain\]'"):
        langchain_handler(recorder)


THOUGHT = {"type": "thinking", "thinking": "Four is even.", "signature": "s"}


@pytest.mark.parametrize(
    ("message", "thoughts", "text"),
    [
        (AIMessage([THOUGHT, {"type": "text", "text": "Even."}]), ["Four is even."], "Even."),
        (
            AIMessage([{"type": "reasoning", "id": "rs", "summary": []}, {"type": "text", "text": "Even."}]),
            None,
            "Even.",
        ),
        (
            AIMessage("Even.", additional_kwargs={"reasoning_content": "Four is even."}),
            ["Four is even."],
            "Even.",
        ),
    ],
)
def test_content_blocks_and_thoughts_are_recorded(message, thoughts, text, recorder):
    model = FakeMessagesListChatModel(responses=[message])
    model.invoke("Is four even?", config={"callbacks": [langchain_handler(recorder)]})
    (turn,) = stored(recorder)[0].turns
    assert (turn.thought_process, turn.action.raw_response) == (thoughts, text) and turn.result.success


def test_blocks_with_a_call_are_one_call_and_stay_one_task(recorder):
    block = {"type": "tool_use", "id": "c0", "name": "weather", "input": {"city": "Rome"}}
    call = AIMessage(
        [THOUGHT, {"type": "text", "text": "A moment."}, block], tool_calls=calling("Rome").tool_calls
    )
    model = FakeMessagesListChatModel(
        responses=[call, AIMessage([THOUGHT, {"type": "text", "text": "Sunny."}])]
    )
    agent(model).invoke("Weather in Rome?", config={"callbacks": [langchain_handler(recorder)]})
    (trajectory,) = stored(recorder)
    first, last = trajectory.turns
    assert (first.action.tool_name, first.result.output) == ("weather", "sunny in Rome")
    assert first.thought_process == ["Four is even."] and first.action.raw_response == "A moment."
    assert last.observation.type == "tool_result" and last.action.raw_response == "Sunny."


@pytest.mark.parametrize(("field", "reason"), [("finish_reason", "length"), ("stop_reason", "max_tokens")])
def test_an_answer_that_was_cut_is_no_success(field, reason, recorder):
    message = AIMessage("The three reasons are: fir", response_metadata={field: reason})
    model = FakeMessagesListChatModel(responses=[message])
    model.invoke("Three reasons?", config={"callbacks": [langchain_handler(recorder)]})
    (turn,) = stored(recorder)[0].turns
    assert (turn.action.finish_reason, turn.result.success) == (reason, False)
    assert (turn.result.error or "").startswith("truncated")
