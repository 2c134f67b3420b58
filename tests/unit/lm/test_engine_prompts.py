"""The engine child before it samples: what it encodes, where, and what it refuses unread."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from onward.lm.policy import Policy
from onward.serving.engines import RequestRefusedError
from onward.serving.engines.child import LONG_TEXT, EngineServer


@pytest.fixture
def engine(policy: Policy) -> EngineServer:
    return EngineServer(SimpleNamespace(tokenizer=policy.tokenizer, max_context=2048))  # type: ignore[arg-type]


def _request(text: str) -> dict[str, Any]:
    return {"session_id": "s", "adapter": None, "messages": [{"role": "user", "content": text}]}


async def test_a_text_that_cannot_fit_is_refused_without_being_encoded(engine, monkeypatch):
    monkeypatch.setattr(engine._chat, "render", lambda *_: pytest.fail("it was encoded"))
    with pytest.raises(RequestRefusedError, match=r"at least [0-9]{4,} tokens, but the context holds 2048"):
        await engine._prompt(_request("hello world " * 75_000))


async def test_a_long_text_is_encoded_in_a_thread_of_its_own_and_a_short_one_at_once(engine, monkeypatch):
    threads, render = [], engine._chat.render

    def seen(*given: Any) -> list[int]:
        threads.append(threading.current_thread() is threading.main_thread())
        return render(*given)

    monkeypatch.setattr(engine._chat, "render", seen)
    for text in ("a" * (LONG_TEXT - 1), "a" * LONG_TEXT):
        before, ids = await engine._prompt(_request(text))
        assert before is None and ids == render([{"role": "user", "content": text}], [])
    assert threads == [True, False]
