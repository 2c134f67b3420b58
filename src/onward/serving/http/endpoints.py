"""HTTP surface of the gateway: its paths, and how a request is answered.

``calls.py`` samples an answer; ``recording/capture.py`` turns the call into training data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.routing import Route

from onward.context import Context
from onward.feedback.tokens import MAX_SESSION, Subject, TokenKeys
from onward.health.readiness import Probe, Readiness
from onward.http.app import Caller, HttpError, authorize, make_app, read_json
from onward.http.direct import Endpoint, FastJson
from onward.http.protection import protection
from onward.serving.engines import Engine
from onward.serving.http import paths
from onward.serving.http.admin import AdminApi
from onward.serving.http.admission import Admission
from onward.serving.http.calls import Call, Calls
from onward.serving.http.coalescing import IDEMPOTENCY_HEADER, Coalescing
from onward.serving.http.provider_endpoints import PassOn, ProviderEndpoints
from onward.serving.http.proxy import Proxy
from onward.serving.http.quota import Quota
from onward.serving.http.streaming import AnswerStream, while_connected
from onward.serving.metrics import GatewayMetrics
from onward.serving.protocol import completions, openai, responses
from onward.serving.protocol.events import Chunks, MakeChunks
from onward.serving.providers import standby
from onward.serving.providers.catalog import Catalog, Provider
from onward.serving.providers.messages import error as anthropic_error
from onward.serving.recording.capture import Capture, CapturedCall
from onward.serving.recording.closing import parse_close
from onward.serving.routing.route_switcher import RouteSwitcher
from onward.serving.routing.session_ids import session_of

TOKEN_HEADER = "Onward-Feedback-Token"


class Endpoints:
    """The endpoints of one gateway; ``app`` puts them on their paths."""

    def __init__(
        self,
        ctx: Context,
        engine: Engine,
        *,
        state: RouteSwitcher,
        calls: Calls,
        capture: Capture,
        admission: Admission,
        metrics: GatewayMetrics,
        signing_key: bytes,
        catalog: Catalog,
    ) -> None:
        self._ctx, self._clock, self._engine = ctx, ctx.clock, engine
        self._state, self._calls, self._capture, self._admission = state, calls, capture, admission
        self._metrics, self._signing_key = metrics, signing_key
        self._providers = ProviderEndpoints(Proxy(capture, admission, signing_key), ctx.clock)
        self._catalog = catalog
        limits = ctx.settings.http.key_limits
        self._quota = Quota(limits, ctx.clock) if limits else None
        self._coalescing = Coalescing()
        hands_out = ctx.settings.feedback.hand_out_tokens
        self._feedback_keys = TokenKeys(ctx.settings.run_dir) if hands_out else None

    def app(self) -> FastAPI:
        """Makes the app with all paths of the gateway."""
        app = make_app(
            "gateway",
            **protection(self._ctx.settings),
            ready=Readiness(self._probes(), {}),
            warnings=self._ctx.warnings,
            metrics=self._ctx.metrics,
            clock=self._clock,
        )

        # A route of Starlette: what FastAPI adds to a route costs as much as all the work on a call.
        for path, endpoint in self.calls().items():
            app.router.routes.insert(0, Route(path, endpoint, methods=["POST"]))

        @app.post("/sessions/{name}/close")
        @app.post("/v1/sessions/{name}/close")
        async def close_session(name: str, request: Request) -> dict[str, Any]:
            return await self._close_session(name, request)

        @app.get("/v1/records/{name}")
        async def records(name: str, request: Request) -> dict[str, Any]:
            """Returns the generation records of the calls that named themselves so. Scope: chat."""
            caller = authorize(request, "chat")
            return {"records": self._capture.kept_records.get(caller.key_hash, name)}

        @app.get("/v1/models")
        async def models(request: Request) -> dict[str, Any]:
            authorize(request, "chat")
            return {"object": "list", "data": [_model(name) for name in self._model_names()]}

        @app.get("/v1/models/{name:path}")
        async def model(name: str, request: Request) -> dict[str, Any]:
            authorize(request, "chat")
            names = self._model_names()
            if name not in names:
                raise openai.unknown_model(name, names[1:])
            return _model(name)

        AdminApi(self._ctx, self._state).add_to(app)

        @app.exception_handler(404)
        async def unknown_path(request: Request, _: Exception) -> Response:
            message = paths.not_found(request.url.path, str(request.base_url), served)
            return HttpError(404, message, type="not_found_error").response()

        @app.exception_handler(405)
        async def unknown_method(request: Request, _: Exception) -> Response:
            message = paths.wrong_method(request.method, request.url.path, served)
            return HttpError(405, message).response()

        served = paths.served_by(app)
        return app

    def calls(self) -> dict[str, Endpoint]:
        """Returns path → endpoint of the calls of models."""
        return {
            "/v1/responses": self._respond,
            "/v1/completions": self._complete,
            "/v1/chat/completions": self._chat,
            "/v1/messages": self._messages,
            "/v1/messages/count_tokens": self._count_tokens,
        }

    def _model_names(self) -> list[str]:
        """Returns the names that a call may give as its model: first the one that follows releases."""
        served = (arm.model_id for arm in self._state.serving().arms)
        aliases = self._ctx.settings.gateway.model_aliases
        return list(dict.fromkeys((openai.ROUTED, *served, *aliases, *self._catalog.names())))

    def _probes(self) -> dict[str, Probe]:
        """Returns what answering a call needs. The rest of the loop may be away: outboxes wait for it."""

        async def routes() -> bool | str:
            return self._state.ready

        async def bus() -> bool | str:
            return True if self._ctx.bus.is_connected else "away"

        found: dict[str, Probe] = {"engine": self.engine_answers, "routes": routes, "bus": bus}
        if (disk := self._ctx.probes.get("disk")) is not None:
            found["disk"] = disk
        return found

    async def engine_answers(self) -> bool | str:
        """The probe of the engine for ``/ready``."""
        await self._engine.health()
        return True

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, openai.parse_chat, pass_on=self._providers.chat)

    async def _respond(self, request: Request) -> Response:
        """Answers a call of the responses API, which is recorded as the chat that it amounts to."""
        try:
            return await self._answer(
                request,
                responses.parse,
                responses.response,
                lambda document: partial(responses.ResponseChunks, request=document),
                pass_on=self._providers.responses,
            )
        except HttpError as error:
            raise responses.renamed(error) from None

    async def _complete(self, request: Request) -> Response:
        """Answers a call of the legacy completions API: a raw prompt, which becomes no trajectory."""
        return await self._answer(
            request,
            completions.parse,
            lambda answer, _: completions.completion(answer),
            lambda _: completions.CompletionChunks,
        )

    async def _messages(self, request: Request) -> Response:
        """Answers a call of Anthropic's API, which a provider serves."""
        return await self._of_provider(request, self._providers.messages)

    async def _count_tokens(self, request: Request) -> Response:
        return await self._of_provider(request, self._providers.count_tokens)

    async def _of_provider(self, request: Request, pass_on: PassOn) -> Response:
        try:
            caller = authorize(request, "chat")
            self._admission.check()
            limits = {} if self._quota is None else self._quota.admit(caller)
            document = await read_json(request)
            found = self._catalog.find(document.get("model"))
            if found is None or found[0].settings.kind != "anthropic":
                names = [name for name in self._catalog.names() if "/" in name]
                raise openai.unknown_model(str(document.get("model")), names)
            return await self._passed_on(request, caller, document, found, pass_on, limits)
        except HttpError as error:
            return JSONResponse(anthropic_error(error.status, error.message), error.status, error.headers)

    async def _passed_on(
        self,
        request: Request,
        caller: Caller,
        document: dict[str, Any],
        found: tuple[Provider, str],
        pass_on: PassOn,
        limits: Mapping[str, str],
    ) -> Response:
        async def answer() -> Response:
            return await pass_on(request, caller, document, found, partial(self._spend, caller))

        is_shared = IDEMPOTENCY_HEADER in request.headers and document.get("stream") is not True
        response = await (self._coalescing.shared(request, caller, answer) if is_shared else answer())
        response.headers.update(limits)
        return response

    async def _answer(
        self,
        request: Request,
        parse: Callable[[dict[str, Any]], openai.ChatRequest],
        shape: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] | None = None,
        chunks: Callable[[dict[str, Any]], MakeChunks] | None = None,
        pass_on: PassOn | None = None,
    ) -> Response:
        """Answers a call. ``shape`` makes a chat completion, with the request's document, an answer of
        another API, and ``chunks`` the events of its stream; None: the chat API. ``pass_on`` answers a
        call of a provider's model."""
        started = self._clock.monotonic()
        caller = authorize(request, "chat")
        self._admission.check()
        limits = {} if self._quota is None else self._quota.admit(caller)
        document = await read_json(request)
        if pass_on is not None and self._catalog:
            passed = await standby.answer(
                self._catalog,
                request,
                document,
                self._state.serving().current.model_id,
                lambda found, asked: self._passed_on(request, caller, asked, found, pass_on, limits),
            )
            if isinstance(passed, Response):
                return passed
            document = passed
        chat = parse(document)

        async def answer() -> Response:
            response = await self._sampled(request, caller, chat, document, shape, chunks, started)
            response.headers.update({**limits, **standby.headers(request)})
            return response

        if chat.stream or IDEMPOTENCY_HEADER not in request.headers:
            return await answer()
        return await self._coalescing.shared(request, caller, answer)

    async def _sampled(
        self,
        request: Request,
        caller: Caller,
        chat: openai.ChatRequest,
        document: dict[str, Any],
        shape: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] | None,
        chunks: Callable[[dict[str, Any]], MakeChunks] | None,
        started: float,
    ) -> Response:
        """Returns the answer that the engine samples."""
        session = session_of(request, chat, caller, self._signing_key)
        if chat.is_raw:
            asked = self._capture.uncaptured(chat, session)
        else:
            asked = self._capture.begin_call(request.headers, caller, chat, session)
            standby.mark(request, asked)
        leave, ending = self._admission.enter(), self._admission.ending
        if chat.stream:
            stream = AnswerStream(
                self._calls, self._capture, _call(asked, chat), asked, self._clock, leave, ending,
                Chunks if chunks is None else chunks(document), spent=partial(self._spend, caller),
            )  # fmt: skip
            streamed = await stream.response(request)
            streamed.headers.update(self._feedback_token(asked))
            return streamed
        branches = [asked]
        try:
            if chat.n == 1:
                work = self._calls.answer(_call(asked, chat))
                answer, text, engine_seconds = await while_connected(request, work, ending)
                self._capture.record_answer(asked, answer, text)
            else:
                branches += self._capture.begin_branches(asked, chat.n - 1)
                calls = [_call(branch, chat.choice(index)) for index, branch in enumerate(branches)]
                answers = await while_connected(
                    request, self._calls.answer_all(calls), self._admission.ending
                )
                for branch, (one, text, _) in zip(branches, answers, strict=True):
                    self._capture.record_answer(branch, one, text)
                answer = openai.several([one for one, _, _ in answers])
                engine_seconds = max(seconds for _, _, seconds in answers)
            self._spend(caller, answer["usage"]["total_tokens"])
        finally:
            for branch in branches:
                self._capture.free_conversation(branch)
            leave()
        shaped = answer if shape is None else shape(answer, document)
        response = FastJson(shaped, headers=self._feedback_token(asked))
        self._metrics.seconds.observe(max(0.0, self._clock.monotonic() - started - engine_seconds))
        return response

    def _spend(self, caller: Caller, tokens: int) -> None:
        if self._quota is not None:
            self._quota.spend(caller, tokens)

    def _feedback_token(self, asked: CapturedCall) -> dict[str, str]:
        """Returns the header that lets a chat page vote on this conversation, if tokens are handed out."""
        unfit = len(asked.session_id) > MAX_SESSION or self._capture.is_opted_out(asked)
        if self._feedback_keys is None or unfit:
            return {}
        lifetime = timedelta(days=self._ctx.settings.feedback.token_days)
        subject = Subject(asked.session_id, asked.trajectory_id)
        return {TOKEN_HEADER: self._feedback_keys.issue(subject, self._clock.now(), lifetime)}

    async def _close_session(self, name: str, request: Request) -> dict[str, Any]:
        caller = authorize(request, "chat")
        outcome, feedback = parse_close(await read_json(request) if await request.body() else {})
        owner = None if "admin" in caller.scopes else caller.key_hash
        closed = await self._capture.closer.close(name, owner, outcome, feedback)
        return {"session_id": closed[0]["session_id"], "closed": closed}


def _call(asked: CapturedCall, chat: openai.ChatRequest) -> Call:
    return Call(chat, asked.session_id, asked.scope, asked.messages, asked.trajectory_id)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "onward"}
