"""Serves one policy at a loopback address, so that any suite can ask it like an OpenAI-compatible model.

The address exists for as long as the context is open and accepts one random key. Nothing is recorded, routed
or counted: what is asked here is no session of a release.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI, Request

from onward.capture.conversations.answers import read_answer
from onward.clock import Clock, SystemClock
from onward.errors import EngineError
from onward.http.app import ApiKeys, HttpError, make_app, read_json, require
from onward.http.server import Server
from onward.lm.stop_text import cut
from onward.serving.engines import Engine, RequestRefusedError
from onward.serving.protocol import openai
from onward.suites.suite import Endpoint

MAX_BODY = 8 << 20
"""Bytes of a request: a suite may ask with long documents."""


@asynccontextmanager
async def serve_policy(
    engine: Engine, digest: str | None, *, max_tokens: int | None = None, clock: Clock | None = None
) -> AsyncIterator[Endpoint]:
    """Yields an endpoint that answers with one adapter (None: the base model), which ``engine`` has loaded.

    ``max_tokens`` limits answers for which the caller gives no limit.
    """
    key = secrets.token_urlsafe(32)
    name = (digest or "base")[:12]
    answers = _Answers(engine, digest, name, max_tokens, clock or SystemClock())
    server = Server(answers.app(key), "127.0.0.1", 0, what="The address of a policy under validation")
    await server.start()
    try:
        yield Endpoint(f"{server.url}/v1", name, key)
    finally:
        await server.stop()


class _Answers:
    def __init__(
        self, engine: Engine, digest: str | None, name: str, max_tokens: int | None, clock: Clock
    ) -> None:
        self._engine, self._digest, self._name = engine, digest, name
        self._max_tokens, self._clock = max_tokens, clock

    def app(self, key: str) -> FastAPI:
        keys = ApiKeys({hashlib.sha256(key.encode()).hexdigest(): ["chat"]})
        app = make_app("evaluation", keys=keys, ready=lambda: {}, max_body=MAX_BODY, clock=self._clock)
        mine = [Depends(require("chat"))]

        @app.get("/v1/models", dependencies=mine)
        async def models() -> dict[str, Any]:
            """Lists the one policy."""
            return {"object": "list", "data": [{"id": self._name, "object": "model", "owned_by": "onward"}]}

        @app.post("/v1/chat/completions", dependencies=mine)
        async def chat(request: Request) -> dict[str, Any]:
            """Answers a chat request."""
            return await self._chat(await read_json(request))

        return app

    async def _chat(self, document: dict[str, Any]) -> dict[str, Any]:
        asked = openai.parse_chat(document)
        if asked.stream:
            raise HttpError(
                400, "A policy under validation does not stream: leave out 'stream'.", param="stream"
            )
        if asked.model not in (self._name, openai.ROUTED):
            raise openai.unknown_model(asked.model, [self._name])
        choices = [self._answer(asked.choice(index)) for index in range(asked.n)]
        answers = await asyncio.gather(*choices)
        return answers[0] if len(answers) == 1 else openai.several(answers)

    async def _answer(self, chat: openai.ChatRequest) -> dict[str, Any]:
        session = f"eval-{self._name}-{chat.user or secrets.token_hex(8)}"
        try:
            generation = await self._engine.generate(
                chat.messages,
                session_id=session,
                adapter=self._digest,
                temperature=chat.temperature,
                top_p=chat.top_p,
                top_k=chat.top_k,
                max_tokens=chat.max_tokens or self._max_tokens,
                seed=chat.seed,
                tools=chat.tools,
                options=chat.options,
            )
        except RequestRefusedError as error:
            raise HttpError(400, str(error), param=error.param or "messages") from None
        except EngineError as error:
            raise HttpError(503, str(error), type="engine_error") from None
        text = cut(generation.text, chat.stops) if chat.stops else generation.text
        number = generation.sampling["generation_id"]
        said = read_answer(text, chat.callable, number, parallel=chat.parallel)
        onward = {"model_id": self._name, "generation_id": number}
        created = int(self._clock.now().timestamp())
        return openai.completion(generation, said, onward, created, chat.options)
