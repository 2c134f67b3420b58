"""The gateway: an OpenAI-compatible endpoint whose answers carry signed generation records.

A call is served by the arm its session was assigned to, or it fails: a retry never moves to another
arm, or a broken candidate would look healthy. Change the order of steps in ``_answer`` with care: the
assignment must be durable before the caller sees an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from onward.capture import provenance
from onward.clock import utc_text
from onward.context import Context
from onward.errors import BusError, EngineError
from onward.httpbase import (
    HttpError,
    Server,
    authorize,
    check_exposure,
    load_keys,
    make_app,
    read_json,
    read_or_create_secret,
)
from onward.ids import check_id, is_id
from onward.serving import openai
from onward.serving.assignments import Assignments
from onward.serving.desired import DesiredState
from onward.serving.engines import Engine, Generation, RequestRefusedError
from onward.serving.engines.local import EngineProcess
from onward.serving.metrics import gateway_metrics
from onward.serving.outcomes import Outcomes
from onward.serving.registry import AdapterRegistry
from onward.serving.router import Arm, Assignment, Routes
from onward.serving.session_ids import session_of
from onward.telemetry import logs

_log = logs.get("gateway")
RETRY_AFTER_SECONDS = 1
ENGINE_PATIENCE_SECONDS = 20.0
"""How long the one retry waits for an engine that is being started again."""


class Gateway:
    """The role's state and its HTTP app; ``start`` and ``stop`` for tests, ``run(ctx)`` for the service."""

    def __init__(self, ctx: Context, engine: Engine) -> None:
        settings = ctx.settings
        check_exposure(settings.http.host, settings.http.keys)
        self._ctx, self._engine, self._clock = ctx, engine, ctx.clock
        run_dir = settings.run_dir
        run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.gateway_id = check_id(
            read_or_create_secret(run_dir / "gateway.id", lambda: "gw-" + secrets.token_hex(4)), "gateway id"
        )
        self._signing_key = provenance.load_key(run_dir, create=True)
        self._metrics = gateway_metrics(ctx.metrics)
        self.assignments = Assignments(ctx.bus, ctx.clock)
        self.state = DesiredState(
            bus=ctx.bus,
            clock=ctx.clock,
            alerts=ctx.alerts,
            engine=engine,
            registry=AdapterRegistry(ctx.bus, ctx.objects, settings.data_dir / "models"),
            gateway_id=self.gateway_id,
            base_model_id=settings.model.base if is_id(settings.model.base) else "base",
            file=run_dir / "gateway-routes.json",
            on_switch=self._on_switch,
        )
        self.outcomes = Outcomes(
            ctx.bus,
            ctx.clock,
            self.assignments,
            self._metrics,
            lambda: self.state.routes,
            lost_after_seconds=settings.release.lost_after_seconds,
        )
        self._resume_at: datetime | None = None
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.app = self._make_app()
        self.server = Server(
            self.app, settings.http.host, settings.http.gateway_port, what="The gateway (http.gateway_port)"
        )
        self._tasks: list[asyncio.Task[None]] = []

    # Life.

    async def start(self) -> None:
        """Load what is desired, then answer. Raises PortBusyError, ConfigError."""
        await self.state.start()
        await self.server.start()
        self._ctx.endpoints["gateway_url"] = self.server.url
        self._tasks = [
            asyncio.create_task(work, name=f"gateway-{name}")
            for name, work in (
                ("desired", self.state.run()),
                ("outcomes", self.outcomes.run()),
                ("control", self._follow_control()),
            )
        ]
        self._ctx.ready["gateway"] = True

    async def stop(self) -> None:
        self._ctx.ready["gateway"] = False
        await self.server.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.state.withdraw()

    async def wait(self) -> None:
        """Until one of the background tasks ends, which only a defect or cancellation does."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    # Pause and drain.

    @property
    def paused(self) -> bool:
        if self.state.paused and self._resume_at is not None and self._clock.now() >= self._resume_at:
            self.resume()
        return self.state.paused

    def pause(self, until: datetime | None = None) -> None:
        """Refuse new calls with 429 until ``resume`` (or ``until``); running calls go on."""
        self.state.paused, self._resume_at = True, until

    def resume(self) -> None:
        self.state.paused, self._resume_at = False, None

    async def drain(self) -> None:
        """Wait until no call runs. Pause first."""
        await self._idle.wait()

    async def _follow_control(self) -> None:
        """``rl_control`` key ``traffic``: {"paused": bool, "until"?: time}."""
        async for entry in self._ctx.bus.bucket("rl_control").watch("traffic", deletes=True):
            try:
                asked = json.loads(entry.value or b"{}")
                until = asked.get("until")
                if asked.get("paused") is True:
                    self.pause(datetime.fromisoformat(until) if until else None)
                    await self.drain()
                else:
                    self.resume()
            except (ValueError, AttributeError, TypeError):
                _log.warning("traffic switch not readable", revision=entry.revision)
                continue
            await self.state.report()

    # HTTP.

    def _make_app(self) -> FastAPI:
        http = self._ctx.settings.http
        app = make_app(
            "gateway",
            keys=load_keys(http.keys, self._ctx.settings.run_dir),
            ready=self._readiness,
            metrics=self._ctx.metrics,
            hosts=[http.host, *http.names],
        )

        @app.post("/v1/chat/completions")
        async def chat_completions(request: Request) -> Response:
            return await self._chat(request)

        @app.get("/v1/models")
        async def models(request: Request) -> dict[str, Any]:
            authorize(request, "chat")
            names = [openai.ROUTED, *dict.fromkeys(arm.model_id for arm in self.state.serving().arms)]
            data = [{"id": name, "object": "model", "created": 0, "owned_by": "onward"} for name in names]
            return {"object": "list", "data": data}

        return app

    async def _readiness(self) -> dict[str, bool | str]:
        try:
            await self._engine.health()
            engine: bool | str = True
        except EngineError as error:
            engine = str(error)
        bus: bool | str = True if self._ctx.bus.is_connected else "NATS is away"
        return {"engine": engine, "routes": self.state.ready, "bus": bus}

    async def _chat(self, request: Request) -> Response:
        started = self._clock.monotonic()
        caller = authorize(request, "chat")
        if self.paused:
            raise HttpError(
                429,
                "Traffic is paused for a moment: try again.",
                type="paused",
                headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        chat = openai.parse_chat(await read_json(request))
        session_id = session_of(request, chat, caller)
        async with self._counted():
            answer, engine_seconds = await self._answer(chat, session_id)
        if chat.stream:
            response: Response = Response(openai.chunks(answer), media_type="text/event-stream")
        else:
            response = JSONResponse(answer)
        self._metrics.seconds.observe(max(0.0, self._clock.monotonic() - started - engine_seconds))
        return response

    @contextlib.asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        self._in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    # One call.

    async def _answer(self, chat: openai.ChatRequest, session_id: str) -> tuple[dict[str, Any], float]:
        routes = self.state.serving()
        arm, assignment, writing = await self._route(chat.model, routes, session_id)
        try:
            generation, seconds = await self._generate(chat, session_id, arm, assignment)
        except BaseException:
            if writing is not None:
                await asyncio.gather(writing, return_exceptions=True)
            raise
        if writing is not None:
            recorded = await self._recorded(writing)
            if recorded is None:  # what nobody can count must not come from a candidate
                assignment = None
                if arm != routes.current:
                    arm = routes.current
                    generation, more = await self._generate(chat, session_id, arm, assignment)
                    seconds += more
            elif recorded.arm != arm.arm:  # another gateway was first: its record counts
                assignment, arm = recorded, routes.arm(recorded.arm)
                generation, more = await self._generate(chat, session_id, arm, assignment)
                seconds += more
            else:
                assignment = recorded
        if assignment is not None:
            self.outcomes.opened(assignment)
        return self._completion(generation, session_id, arm, assignment, routes), seconds

    async def _route(
        self, model: str, routes: Routes, session_id: str
    ) -> tuple[Arm, Assignment | None, asyncio.Task[Assignment] | None]:
        """The arm for this call. A call for a model id by name is not part of any release."""
        if model != openai.ROUTED:
            for arm in routes.arms:
                if arm.model_id == model:
                    return arm, None, None
            served = ", ".join(arm.model_id for arm in routes.arms)
            raise HttpError(
                404,
                f"Model {model[:64]!r} is not served: use {openai.ROUTED!r}, which follows releases, "
                f"or one of {served}.",
                type="not_found_error",
                param="model",
            )
        if not routes.open:
            return routes.current, None, None
        known = self.assignments.known(routes, session_id)
        if known is not None:
            return routes.arm(known.arm), known, None
        try:
            assignment, writing = await self.assignments.begin(routes, session_id)
        except BusError:
            self._metrics.unassigned.inc()
            return routes.current, None, None
        return routes.arm(assignment.arm), assignment, writing

    async def _recorded(self, writing: asyncio.Task[Assignment]) -> Assignment | None:
        try:
            return await writing
        except BusError:
            self._metrics.unassigned.inc()
            return None

    async def _generate(
        self, chat: openai.ChatRequest, session_id: str, arm: Arm, assignment: Assignment | None
    ) -> tuple[Generation, float]:
        """The answer of this arm and the seconds its engine took. One retry, on the same arm."""
        started = self._clock.monotonic()
        self.state.in_flight[arm.adapter_digest] += 1
        try:
            for attempt in (1, 2):
                try:
                    generation = await self._engine.generate(
                        chat.messages,
                        session_id=session_id,
                        adapter=arm.adapter_digest,
                        temperature=chat.temperature,
                        top_p=chat.top_p,
                        top_k=chat.top_k,
                        max_tokens=chat.max_tokens,
                        seed=chat.seed,
                    )
                    self._metrics.attempts.labels(arm=arm.arm, result="ok").inc()
                    return generation, self._clock.monotonic() - started
                except RequestRefusedError as error:
                    self._metrics.attempts.labels(arm=arm.arm, result="refused").inc()
                    raise HttpError(400, str(error), param="messages") from None
                except EngineError as error:
                    self._metrics.attempts.labels(arm=arm.arm, result="error").inc()
                    await self._engine_failed(assignment, error)
                    if attempt == 2 or not await self._engine_is_back():
                        raise HttpError(503, str(error), type="engine_error") from None
            raise AssertionError("unreachable")
        finally:
            self.state.in_flight[arm.adapter_digest] -= 1

    async def _engine_failed(self, assignment: Assignment | None, error: EngineError) -> None:
        _log.warning("engine failed", reason=str(error), arm=assignment.arm if assignment else None)
        if assignment is not None:
            try:
                self.outcomes.opened(assignment)
                await self.outcomes.failed(assignment)
            except BusError:
                _log.error("error outcome not published", release_id=assignment.release_id)

    async def _engine_is_back(self) -> bool:
        until = self._clock.monotonic() + ENGINE_PATIENCE_SECONDS
        while True:
            try:
                await self._engine.health()
                return True
            except EngineError:
                if self._clock.monotonic() >= until:
                    return False
                await self._clock.sleep(0.25)

    def _completion(
        self,
        generation: Generation,
        session_id: str,
        arm: Arm,
        assignment: Assignment | None,
        routes: Routes,
    ) -> dict[str, Any]:
        sampling = dict(generation.sampling)
        sampling["signature"] = provenance.sign(sampling, self._signing_key)
        release = None
        if assignment is not None:
            release = {"release_id": assignment.release_id, "arm": arm.arm, "weight": assignment.weight}
        onward = {
            "session_id": session_id,
            "generation_id": sampling["generation_id"],
            "release": release,
            "model_id": arm.model_id,
            "sampling": sampling,
        }
        return openai.completion(generation, onward, int(self._clock.now().timestamp()))

    def _on_switch(self, routes: Routes) -> None:
        self._metrics.model_traffic.clear()
        for arm in routes.arms:
            share = routes.weight if arm.arm == "candidate" else 1.0 - routes.weight
            self._metrics.model_traffic.labels(model_version=arm.model_id).set(100.0 * share)


async def run(ctx: Context) -> None:
    """The gateway role: the engine child, the routes, the endpoint. Works until it is cancelled."""
    process = EngineProcess(ctx.settings, clock=ctx.clock)
    gateway = Gateway(ctx, process.engine)
    gateway.server.reserve()  # a busy port is said before the model is loaded
    try:
        await process.start()
        await gateway.start()
        _log.info("gateway serves", url=gateway.server.url, at=utc_text(ctx.clock.now()))
        await gateway.wait()
    finally:
        await gateway.stop()
        await process.stop()
