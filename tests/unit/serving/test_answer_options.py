"""The forms of answers are compiled apart from all other work, and not for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from onward.errors import EngineError
from onward.lm.constrained import Grammar
from onward.serving.engines import AnswerOptions, RequestRefusedError, answer_options
from onward.serving.engines.answer_options import OptionReader


class Slow:
    """A sampler whose grammars are compiled once ``go`` is set."""

    json_only, vocab = False, 290

    def __init__(self) -> None:
        self.go = threading.Event()
        self.threads: set[str] = set()

    def compiled(self, grammar: Grammar, stop_ids: Any) -> Grammar:
        self.threads.add(threading.current_thread().name)
        self.go.wait(60)
        return grammar


@pytest.fixture
def slow() -> Iterator[Slow]:
    sampler = Slow()
    yield sampler
    sampler.go.set()


def _reader(sampler: Slow) -> OptionReader:
    chat: Any = SimpleNamespace(stop_ids=(1,), call_style="words")
    return OptionReader(sampler, chat)


WISH = AnswerOptions(schema={"type": "integer"})


async def test_a_grammar_that_takes_too_long_is_refused_and_other_calls_are_answered_meanwhile(
    slow, monkeypatch
):
    monkeypatch.setattr(answer_options, "COMPILE_SECONDS", 0.05)
    reader = _reader(slow)
    waiting = [asyncio.create_task(reader.read(WISH, [])) for _ in range(6)]
    await asyncio.sleep(0)
    assert (await reader.read(AnswerOptions(presence_penalty=1.0), []))[0]["grammar"] is None
    assert await asyncio.to_thread(lambda: 5) == 5
    for refused in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(refused, RequestRefusedError) and refused.param == "response_format"
        assert "not compiled within 0.05 s" in str(refused)
    slow.go.set()
    monkeypatch.setattr(answer_options, "COMPILE_SECONDS", 60)
    assert (await reader.read(WISH, []))[1]["constraint"]["kind"] == "json_schema"
    assert len(slow.threads) == 1


async def test_only_so_many_grammars_wait_to_be_compiled(slow, monkeypatch):
    monkeypatch.setattr(answer_options, "MOST_COMPILING", 2)
    reader = _reader(slow)
    waiting = [asyncio.create_task(reader.read(WISH, [])) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(EngineError, match="ask again later"):
        await reader.read(WISH, [])
    slow.go.set()
    assert all(fields["grammar"] is not None for fields, _ in await asyncio.gather(*waiting))


async def test_the_compiler_is_built_before_the_first_call_with_a_grammar(slow):
    slow.go.set()
    reader = _reader(slow)
    reader.begin()
    await asyncio.to_thread(reader._compiler.shutdown)
    assert slow.threads == {"grammars_0"}
