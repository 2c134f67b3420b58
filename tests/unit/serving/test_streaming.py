"""The end of a streamed answer, whoever is cancelled in it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from onward.clock import ManualClock
from onward.serving.http.streaming import AnswerStream


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
        lambda: left.append("left"), asyncio.Event(),
    )  # fmt: skip
    answering = asyncio.create_task(stream.response(cast(Any, Request())))
    await engine.works.wait()
    answering.cancel()
    await engine.stops.wait()
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert (capture.freed, left) == (["asked"], ["left"])
