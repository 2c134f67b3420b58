"""The end of a streamed answer, whoever is cancelled in it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from onward.clock import ManualClock
from onward.serving.engines import Progress
from onward.serving.http.streaming import AnswerStream, Ending


class Engine:
    """Takes time to stop once it is cancelled."""

    def __init__(self) -> None:
        self.works, self.stops = asyncio.Event(), asyncio.Event()

    async def stream(self, call: Any, live: Any) -> Any:
        try:
            self.works.set()
            await asyncio.Event().wait()
        finally:
            self.stops.set()
            await asyncio.Event().wait()


class Request:
    async def receive(self) -> Any:
        await asyncio.Event().wait()


class Capture:
    def __init__(self) -> None:
        self.freed: list[Any] = []

    def free_conversation(self, asked: Any) -> None:
        self.freed.append(asked)


async def test_a_second_cancellation_at_the_end_of_a_stream_still_frees_its_conversation_and_its_place():
    engine, capture, left = Engine(), Capture(), list[str]()
    stream = AnswerStream(
        cast(Any, engine), cast(Any, capture), cast(Any, None), cast(Any, "asked"), ManualClock(),
        lambda: left.append("left"), Ending(),
    )  # fmt: skip
    answering = asyncio.create_task(stream.response(cast(Any, Request())))
    await engine.works.wait()
    answering.cancel()
    await engine.stops.wait()
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert (capture.freed, left) == (["asked"], ["left"])


class Answering:
    """Samples three tokens; ``whole``: the answer then ends, else it goes on for ever."""

    def __init__(self, whole: bool) -> None:
        self._whole = whole

    async def stream(self, call: Any, live: Any) -> Any:
        live.add_progress(Progress("a b c", [1, 2, 3], [0.0, 0.0, 0.0]))
        if not self._whole:
            await asyncio.Event().wait()
        return {"usage": {"total_tokens": 40}}, "a b c", 0.1


@pytest.mark.parametrize(("whole", "tokens"), [(True, 40), (False, 3)])
async def test_a_streamed_answer_counts_for_the_tokens_of_its_key_also_if_the_client_leaves(whole, tokens):
    spent: list[int] = []
    stream = AnswerStream(
        cast(Any, Answering(whole)), cast(Any, Capture()), cast(Any, None), cast(Any, "asked"), ManualClock(),
        lambda: None, Ending(), spent=spent.append,
    )  # fmt: skip
    response = await stream.response(cast(Any, Request()))
    await cast(Any, response)._on_end()
    assert spent == [tokens]
