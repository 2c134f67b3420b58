"""The engine child before it samples: what it encodes, where, and what it refuses unread."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from onward.lm.chat import Chat
from onward.lm.policy import Policy
from onward.serving.engines import AnswerOptions, RequestRefusedError
from onward.serving.engines.child import EngineServer
from onward.serving.engines.prompts import LONG_TEXT


@pytest.fixture
def engine(policy: Policy) -> EngineServer:
    return EngineServer(SimpleNamespace(tokenizer=policy.tokenizer, max_context=2048))  # type: ignore[arg-type]


def _request(text: str) -> dict[str, Any]:
    return {"session_id": "s", "adapter": None, "messages": [{"role": "user", "content": text}]}


async def test_a_text_that_cannot_fit_is_refused_without_being_encoded(engine, monkeypatch):
    monkeypatch.setattr(engine._chat, "render", lambda *_: pytest.fail("it was encoded"))
    with pytest.raises(
        RequestRefusedError, match=r"context length is 2048 tokens.*at least [0-9]{4,} tokens"
    ):
        await engine._prompts.read(_request("hello world " * 75_000), None)


async def test_a_long_text_is_encoded_in_a_thread_of_its_own_and_a_short_one_at_once(engine, monkeypatch):
    threads, render = [], engine._chat.render

    def seen(*given: Any) -> list[int]:
        threads.append(threading.current_thread() is threading.main_thread())
        return render(*given)

    monkeypatch.setattr(engine._chat, "render", seen)
    for text in ("a" * (LONG_TEXT - 1), "a" * LONG_TEXT):
        before, ids = await engine._prompts.read(_request(text), None)
        assert before is None and ids == render([{"role": "user", "content": text}], [])
    assert threads == [True, False]


@pytest.mark.parametrize("length", [40, LONG_TEXT])
async def test_the_choices_of_one_request_are_encoded_once(engine, monkeypatch, length):
    """Each of them has a session of its own. A caller that leaves takes nothing from the others."""
    texts, render = [], engine._chat.render
    monkeypatch.setattr(
        engine._chat, "render", lambda messages, tools: texts.append(messages) or render(messages, tools)
    )
    asked, other = _request("a" * length), _request("b" * length)
    choices = [
        asyncio.create_task(engine._prompts.read(asked | {"session_id": f"s-{n}"}, None)) for n in range(16)
    ]
    await asyncio.sleep(0)
    choices[0].cancel()
    found = await asyncio.gather(*choices, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert found[1:] == [(None, render(asked["messages"], []))] * 15
    assert await engine._prompts.read(other, None) == (None, render(other["messages"], []))
    tools = [_tool("words")]
    assert await engine._prompts.read(asked | {"tools": tools}, None) == (
        None,
        render(asked["messages"], tools),
    )
    assert texts == [asked["messages"], other["messages"], asked["messages"]]


async def test_a_prompt_that_could_not_be_encoded_is_tried_again(engine, monkeypatch):
    render, failures = engine._chat.render, [MemoryError()]

    def failing_once(*given: Any) -> list[int]:
        if failures:
            raise failures.pop()
        return render(*given)

    monkeypatch.setattr(engine._chat, "render", failing_once)
    asked = _request("hi")
    with pytest.raises(RequestRefusedError):
        await engine._prompts.read(asked, None)
    assert await engine._prompts.read(asked, None) == (None, render(asked["messages"], []))


@pytest.mark.parametrize("prompt", ["hello world " * 75_000, " " * 900_000, [5] * 2049])
async def test_a_raw_prompt_that_cannot_fit_is_refused_without_being_encoded(engine, monkeypatch, prompt):
    monkeypatch.setattr(engine._chat, "encode", lambda *_: pytest.fail("it was encoded"))
    with pytest.raises(RequestRefusedError, match=r"at least [0-9]{4,} tokens") as caught:
        await engine._prompts.read(_request(""), AnswerOptions(prompt=prompt))
    assert caught.value.param == "prompt"


def test_the_bound_of_a_raw_prompt_is_never_above_its_number_of_tokens(policy):
    chat = Chat(policy.tokenizer)
    for text in ("", "a", "hello world " * 50, " " * 99, "\n\t 12 ☃ é<|im_end|>" * 9):
        assert chat.fewest_tokens_of(text) <= len(chat.encode(text))


def _tool(words: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"p": {"type": "string", "description": words}}}
    return {"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}


async def test_tools_that_cannot_fit_are_refused_without_being_encoded(engine, monkeypatch):
    monkeypatch.setattr(engine._chat, "render", lambda *_: pytest.fail("it was encoded"))
    request = _request("hi") | {"tools": [_tool("hello world " * 75_000)]}
    with pytest.raises(RequestRefusedError, match=r"context length is 2048.*at least [0-9]{4,} tokens"):
        await engine._prompts.read(request, None)


async def test_long_tools_and_long_calls_are_encoded_in_a_thread_of_its_own(engine, monkeypatch):
    threads = []
    monkeypatch.setattr(
        engine._chat,
        "render",
        lambda *_: threads.append(threading.current_thread() is threading.main_thread()) or [1],
    )
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"p": "a" * LONG_TEXT}}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    with_calls = _request("hi")
    with_calls["messages"] = [*with_calls["messages"], said, {"role": "tool", "content": "3"}]
    for request in (_request("hi") | {"tools": [_tool("a" * LONG_TEXT)]}, with_calls):
        await engine._prompts.read(request, None)
    assert threads == [False, False]


def test_the_bound_of_tools_is_never_above_the_number_of_tokens(policy):
    chat, messages = Chat(policy.tokenizer), [{"role": "user", "content": "hi"}]
    for words in ("a", "hello world " * 50, '" \n ☃' * 40):
        tools = [_tool(words)] * 3
        assert chat.fewest_tokens(messages, tools) <= len(chat.render(messages, tools))
