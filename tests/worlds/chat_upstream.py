"""An OpenAI-compatible engine for gateways under test: it answers at once with the name of the model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from onward.http.server import Server


@dataclass
class Upstream:
    url: str = ""
    seconds: float = 0.0
    """Time that each answer takes."""
    broken: set[str] = field(default_factory=set)
    """Models that answer 500; ``*`` means all."""
    asked: list[str] = field(default_factory=list)


@asynccontextmanager
async def chat_upstream() -> AsyncIterator[Upstream]:
    upstream, app = Upstream(), FastAPI()

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body: dict[str, Any] = await request.json()
        model = body["model"]
        upstream.asked.append(model)
        await asyncio.sleep(upstream.seconds)
        if upstream.broken & {model, "*"}:
            return JSONResponse({"error": {"message": "broken", "type": "x"}}, 500)
        message = {"role": "assistant", "content": f"{model} answers"}
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse(
            {"id": "x", "object": "chat.completion", "created": 1, "model": model, "choices": [choice],
             "usage": usage}
        )  # fmt: skip

    server = Server(app, "127.0.0.1", 0, what="The stub")
    await server.start()
    upstream.url = f"{server.url}/v1"
    try:
        yield upstream
    finally:
        await server.stop()
