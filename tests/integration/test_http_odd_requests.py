"""Requests that no client should send, to both ports: a sentence with 400, never 500."""

from __future__ import annotations

import pytest
from serving_world import World

HALF = rb'"\ud800"'
TOOL_CALL = (
    rb'{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y","tool_calls":[{"id":%s,'
    rb'"type":"function","function":{"name":"f","arguments":%s}}]},'
    rb'{"role":"tool","tool_call_id":%s,"content":"z"}]}'
)
REFUSED = [
    TOOL_CALL % (HALF, b'"{}"', HALF),
    TOOL_CALL % (b'"c"', rb'"{\"a\": \"\\ud800\"}"', b'"c"'),
    TOOL_CALL % (b'"c"', b'"{\\"a\\": NaN}"', b'"c"'),
    rb'{"messages":[{"role":"user","content":%s}]}' % HALF,
    rb'{"messages":[{"role":"user","content":"x"}],%s:1}' % HALF,
    rb'{"messages":[{"role":"user","content":"x"}],"user":%s}' % HALF,
    rb'{"messages":[{"role":"user","content":"x"}],"model":%s}' % HALF,
    rb'{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","x":%s}}]}'
    % HALF,
    b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}',
    b'{"messages":[{"role":"user","content":"x"}],"temperature":1e400}',
    b'{"messages":[{"role":"user","content":"x"}],"seed":' + b"9" * 400 + b"}",
    b'{"messages":[{"role":{"a":1},"content":"x"}]}',
    b'{"messages":' + b"[" * 500_000,
    b'{"a":' * 150_000,
    b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
]
SERVED = [
    rb'{"messages":[{"role":"user","content":"\ud83d\ude00 \u0000 \u001b[31m"}]}',
    TOOL_CALL % (rb'"\u0000"', rb'"not JSON \ud83d\ude00"', rb'"\u0000"'),
    rb'{"messages":[{"role":"user","content":"x"}],"user":"\u0000[/no]"}',
]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_gateway_refuses_or_serves_every_odd_chat(world: World, stream: bool) -> None:
    for body in REFUSED:
        if stream and body.startswith(b'{"messages":[{'):
            body = b'{"stream":true,' + body[1:]
        answer = await world.client.post("/v1/chat/completions", content=body)
        assert answer.status_code == 400, (body[:80], answer.text[:200])
        assert answer.json()["error"]["message"]
    for body in SERVED:
        body = b'{"stream":%s,' % str(stream).lower().encode() + body[1:]
        answer = await world.client.post("/v1/chat/completions", content=body)
        assert answer.status_code == 200, (body[:80], answer.text[:200])


async def test_odd_bytes_in_header_query_and_path_are_no_defect(world: World) -> None:
    body = b'{"messages":[{"role":"user","content":"x"}]}'
    for odd in (b"\xed\xa0\x80", b"\xff", "é".encode()):
        answer = await world.client.post(
            "/v1/chat/completions", content=body, headers={b"Onward-Session": odd}
        )
        assert answer.status_code == 400, odd
        answer = await world.client.get("/v1/models", headers={b"Authorization": b"Bearer " + odd})
        assert answer.status_code == 401
    for path in (
        "/sessions/%ED%A0%80/close",
        "/sessions/%00/close",
        "/%ED%A0%80",
        "/v1/models?a=%ED%A0%80&%FF=1",
    ):
        answer = await world.client.request("POST" if "close" in path else "GET", path)
        assert answer.status_code in (200, 400, 404), path
    answer = await world.client.post(
        "/sessions/s1/close", content=rb'{"feedback":{"signal":"thumbs_up","comment":"\ud800"}}'
    )
    assert answer.status_code == 400
