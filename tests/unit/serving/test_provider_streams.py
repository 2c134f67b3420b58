"""What passes between a provider and a client: the bytes of its events, the words of its errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import pytest

from onward.clock import ManualClock
from onward.config import ProviderSettings
from onward.http.app import HttpError
from onward.serving.http import proxy
from onward.serving.providers.upstream import Upstream


class Pieces(httpx.AsyncByteStream):
    """A body that arrives in single bytes."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for number in self._body:
            yield bytes([number])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
async def test_a_line_separator_within_a_text_does_not_tear_its_event(end: str) -> None:
    """U+2028, U+2029 and U+0085 are letters of a JSON text, and ends of a line for str.splitlines."""
    said = {"choices": [{"index": 0, "delta": {"content": "a\u2028b\u2029c\x85d"}}]}
    lines = ["event: x", f"data: {json.dumps(said, ensure_ascii=False)}", "", "data: [DONE]", ""]
    response = httpx.Response(200, stream=Pieces((end.join(lines) + end).encode()))
    blocks = [block async for block in proxy._blocks(response)]
    assert len(blocks) == 2 and blocks[1] == b"data: [DONE]\n\n"
    assert proxy._parsed(blocks[0]) == ("x", said)


class Uncounted:
    """Takes the place of the metrics."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: Any, **__: Any) -> Uncounted:
        return self


async def test_no_field_of_a_providers_error_repeats_its_key() -> None:
    key = "sk-" + "secret" * 5
    error = {"message": f"bad {key}", "type": f"t {key}", "param": key, "code": f"c-{key}"}
    upstream = Upstream("far", ProviderSettings(retries=0), key, ManualClock(), cast(Any, Uncounted()))
    answer = httpx.MockTransport(lambda _: httpx.Response(400, json={"error": error}))
    upstream._client = httpx.AsyncClient(transport=answer, base_url="http://far")
    with pytest.raises(HttpError) as refused:
        await upstream.post("/chat/completions", {}, {})
    assert refused.value.status == 400
    assert key not in bytes(refused.value.response().body).decode()
