"""The gateway: an OpenAI-compatible endpoint whose answers carry signed generation records.

This module has the role's life cycle, its HTTP surface, pause and drain. ``calls.py`` serves a call;
``recording/capture.py`` turns it into training data.

Invariants: stopping ends the calls first, then records what they left open.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.routing import Route

from onward.bus import load_entry
from onward.capture import provenance
from onward.capture.collecting.quarantine import Quarantine, QuarantineKeys
from onward.capture.make_redactor import inspector_of
from onward.clock import is_set_within, read_time
from onward.context import Context
from onward.contracts.buckets import Traffic
from onward.feedback.tokens import MAX_SESSION, Subject, TokenKeys
from onward.health.readiness import Probe, Readiness
from onward.http.app import (
    HttpError,
    authorize,
    load_keys,
    local_key,
    make_app,
    read_json,
)
from onward.http.server import GRACE_SECONDS, Server, check_exposure
from onward.ids import is_id
from onward.roles import to_the_end
from onward.serving.engines import Engine
from onward.serving.engines.local import EngineProcess
from onward.serving.engines.registry import AdapterRegistry
from onward.serving.http import paths
from onward.serving.http.calls import Call, Calls
from onward.serving.http.streaming import AnswerStream, stopping, while_connected
from onward.serving.metrics import gateway_metrics
from onward.serving.place import Place
from onward.serving.protocol import openai
from onward.serving.recording.capture import Capture, CapturedCall
from onward.serving.recording.closing import parse_close
from onward.serving.recording.outcome_publisher import OutcomePublisher
from onward.serving.recording.passed_closes import PassedCloses
from onward.serving.recording.recording import Recording
from onward.serving.routing.arms import Routes
from onward.serving.routing.assignments import Assignments
from onward.serving.routing.opted_out import OptedOut
from onward.serving.routing.route_switcher import RouteSwitcher
from onward.serving.routing.session_ids import session_of
from onward.telemetry import logs

_log = logs.get("gateway")
RETRY_AFTER_SECONDS = 1
SWITCH_SECONDS = 0.0005
"""Time after which a thread that redacts lets the event loop run. With Python's 5 ms, each of the four sends
and receives of a call would wait that long."""
ADOPT_SECONDS = 10.0
"""Seconds between two searches for dead gateways on this data folder."""
TOKEN_HEADER = "Onward-Feedback-Token"


class Gateway:
    """The role's state and its HTTP app. Tests use ``start`` and ``stop``, the service uses ``run(ctx)``."""

    def __init__(self, ctx: Context, engine: Engine, place: Place | None = None) -> None:
        """``place``: the files of this process; None takes the first free one. ``stop`` frees it."""
        settings = ctx.settings
        check_exposure(settings.http.host, settings.http.keys)
        self._ctx, self._engine, self._clock = ctx, engine, ctx.clock
        run_dir = settings.run_dir
        run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.place = place or Place.take(settings)
        self.gateway_id = self.place.gateway_id
        self._signing_key = provenance.load_key(run_dir, create=True)
        self._metrics = gateway_metrics(ctx.metrics)
        self.assignments = Assignments(ctx.bus, ctx.clock)
        self.state = RouteSwitcher(
            bus=ctx.bus,
            clock=ctx.clock,
            alerts=ctx.alerts,
            engine=engine,
            registry=AdapterRegistry(ctx.bus, ctx.objects, settings.data_dir / "models"),
            gateway_id=self.gateway_id,
            base_model_id=settings.model.base if is_id(settings.model.base) else "base",
            file=self.place.routes,
            on_switch=self._on_switch,
        )
        self.outcomes = OutcomePublisher(
            ctx.bus,
            ctx.clock,
            self.assignments,
            self._metrics,
            lambda: self.state.routes,
            lost_after_seconds=settings.release.lost_after_seconds,
            signing_key=self._signing_key,
        )
        self.calls = Calls(
            clock=ctx.clock,
            engine=engine,
            state=self.state,
            assignments=self.assignments,
            outcomes=self.outcomes,
            metrics=self._metrics,
            signing_key=self._signing_key,
        )
        self._opted_out = OptedOut(ctx.bus, ctx.clock, ctx.metrics)
        self.capture = Capture(
            settings.capture,
            self._make_recording,
            clock=ctx.clock,
            metrics=self._metrics,
            user_key=self._signing_key,
            on_answered=self.outcomes.note_answered,
            on_opted_out=self._opted_out.count,
        )
        self._passed_closes = PassedCloses(ctx.bus, ctx.clock, self.gateway_id, self.capture.close_for_other)
        self.capture.ask_others = self._passed_closes.ask
        self._feedback_keys = TokenKeys(run_dir) if settings.feedback.hand_out_tokens else None
        self._resume_at: datetime | None = None
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False
        self._ending = asyncio.Event()
        """Set when the calls that still run are ended."""
        self.app = self._make_app()
        self.server = Server(
            self.app,
            settings.http.host,
            settings.http.gateway_port,
            what="The gateway (http.gateway_port)",
            max_connections=settings.http.max_connections,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def _make_recording(self, on_error: Callable[[str, Exception], None]) -> Recording:
        settings = self._ctx.settings
        local_key(settings.run_dir)  # created before it is read as a known secret
        inspector = inspector_of(settings)
        return Recording(
            self.place.outbox_folder,
            self.place.name,
            clock=self._clock,
            quarantine=Quarantine(self._ctx.objects, QuarantineKeys.from_settings(settings), self._clock),
            redactor=inspector.redactor,
            opt_out=inspector.opt_out,
            on_error=on_error,
            on_held=self._held,
        )

    def _held(self, reason: str) -> None:
        """Reports a trajectory that is now in the quarantine. Called in the thread that writes."""
        self._ctx.metrics.held.labels(reason).inc()
        telling = self._ctx.alerts.raise_(
            "quarantine",
            "What the gateway recorded could not be redacted and is held encrypted: "
            "see 'onward quarantine list'.",
            reasons=[reason],
        )
        if self._loop is None:
            telling.close()
        else:
            asyncio.run_coroutine_threadsafe(telling, self._loop)

    # Life cycle.

    async def start(self) -> None:
        """Loads the desired state, then serves. Raises PortBusyError, ConfigError."""
        self._loop = asyncio.get_running_loop()
        await self.state.start()
        await self.capture.start()
        await self.server.start()
        self._ctx.endpoints["gateway_url"] = self.server.url
        self._tasks = [
            asyncio.create_task(work, name=f"gateway-{name}")
            for name, work in (
                ("desired", self.state.run()),
                ("outcomes", self.outcomes.run()),
                ("control", self._follow_control()),
                ("capture", self.capture.run()),
                ("closes", self._passed_closes.run()),
                ("adoption", self._adopt()),
                ("opted-out", self._opted_out.run()),
                ("outbox", self.capture.writer.deliver(self._ctx.bus)),
            )
        ]
        self._ctx.ready["gateway"] = True

    async def stop(self) -> None:
        """Refuses new calls, ends the running ones, then records what is open and closes the files. Frees the
        place also after an error."""
        with ExitStack() as held:
            held.callback(self.place.release)
            try:
                await self._stop()
            finally:
                await self._end_tasks()

    async def _stop(self) -> None:
        self._ctx.ready["gateway"] = False
        self._stopping = True
        if not await is_set_within(self._idle, GRACE_SECONDS, self._clock):
            _log.warning("calls are ended before their answer", calls=self._in_flight)
        self._ending.set()
        await self.server.stop()
        # A client that reads nothing was cut off by the server: its call ends a little later.
        await is_set_within(self._idle, GRACE_SECONDS, self._clock)
        await self._end_tasks()
        await self.capture.stop()
        await self._opted_out.write()
        await self.state.withdraw()

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _adopt(self) -> None:
        """Takes over what dead gateways left on this data folder, until cancelled."""
        while True:
            for place in self.place.left_by_others():
                await self.capture.writer.adopt(place.name)
            await self._clock.sleep(ADOPT_SECONDS)

    async def wait(self) -> None:
        """Waits until one of the background tasks ends, which only a defect or cancellation causes."""
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
        """Refuses new calls with 429 until ``resume`` (or ``until``); running calls go on."""
        self.state.paused, self._resume_at = True, until

    def resume(self) -> None:
        self.state.paused, self._resume_at = False, None

    async def drain(self) -> None:
        """Waits until no call runs. Pause first."""
        await self._idle.wait()

    async def _follow_control(self) -> None:
        """Follows the operator's switch ``Traffic``."""
        bucket = self._ctx.bus.bucket(Traffic.BUCKET)
        async for entry in bucket.watch(Traffic.KEY, deletes=True):
            asked = Traffic() if entry.deleted else (await load_entry(bucket, Traffic, entry)).document
            if asked is None:
                continue
            if asked.paused:
                self.pause(read_time(asked.until) if asked.until else None)
                await self.drain()
            else:
                self.resume()
            await self.state.report()

    # HTTP.

    def _make_app(self) -> FastAPI:
        http = self._ctx.settings.http
        app = make_app(
            "gateway",
            keys=load_keys(http.keys, self._ctx.settings.run_dir),
            ready=Readiness(self._probes(), {}),
            warnings=self._ctx.warnings,
            metrics=self._ctx.metrics,
            hosts=[http.host, *http.names],
            wrong_keys_per_minute=http.wrong_keys_per_minute,
            clock=self._ctx.clock,
        )

        # A route of Starlette: what FastAPI adds to a route costs as much as all the work on a call.
        app.router.routes.insert(0, Route("/v1/chat/completions", self._chat, methods=["POST"]))

        @app.post("/sessions/{name}/close")
        @app.post("/v1/sessions/{name}/close")
        async def close_session(name: str, request: Request) -> dict[str, Any]:
            return await self._close_session(name, request)

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

    def _model_names(self) -> list[str]:
        """Returns the names that a call may give as its model: first the one that follows releases."""
        return [openai.ROUTED, *dict.fromkeys(arm.model_id for arm in self.state.serving().arms)]

    def _probes(self) -> dict[str, Probe]:
        """Returns what answering a call needs. The rest of the loop may be away: outboxes wait for it."""

        async def routes() -> bool | str:
            return self.state.ready

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
        started = self._clock.monotonic()
        caller = authorize(request, "chat")
        if self._stopping:
            raise stopping()
        if self.paused:
            raise HttpError(
                429,
                "Traffic is paused for a moment: try again.",
                type="paused",
                headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        chat = openai.parse_chat(await read_json(request))
        session = session_of(request, chat, caller, self._signing_key)
        asked = self.capture.begin_call(request.headers, caller, chat, session)
        call = Call(chat, asked.session_id, asked.scope, asked.messages, asked.trajectory_id)
        leave = self._enter()
        if chat.stream:
            stream = AnswerStream(self.calls, self.capture, call, asked, self._clock, leave, self._ending)
            streamed = await stream.response(request)
            streamed.headers.update(self._feedback_token(asked))
            return streamed
        try:
            work = self.calls.answer(call)
            answer, text, engine_seconds = await while_connected(request, work, self._ending)
            self.capture.record_answer(asked, answer, text)
        finally:
            self.capture.free_conversation(asked)
            leave()
        response = JSONResponse(answer, headers=self._feedback_token(asked))
        self._metrics.seconds.observe(max(0.0, self._clock.monotonic() - started - engine_seconds))
        return response

    def _feedback_token(self, asked: CapturedCall) -> dict[str, str]:
        """Returns the header that lets a chat page vote on this conversation, if tokens are handed out."""
        unfit = len(asked.session_id) > MAX_SESSION or self.capture.is_opted_out(asked)
        if self._feedback_keys is None or unfit:
            return {}
        lifetime = timedelta(days=self._ctx.settings.feedback.token_days)
        subject = Subject(asked.session_id, asked.trajectory_id)
        return {TOKEN_HEADER: self._feedback_keys.issue(subject, self._clock.now(), lifetime)}

    async def _close_session(self, name: str, request: Request) -> dict[str, Any]:
        caller = authorize(request, "chat")
        outcome, feedback = parse_close(await read_json(request) if await request.body() else {})
        owner = None if "admin" in caller.scopes else caller.key_hash
        closed = await self.capture.close(name, owner, outcome, feedback)
        return {"session_id": closed[0]["session_id"], "closed": closed}

    def _enter(self) -> Callable[[], None]:
        """Counts a running call. Returns a function that ends it, once."""
        self._in_flight += 1
        self._idle.clear()
        running = [True]

        def leave() -> None:
            if running:
                running.clear()
                self._in_flight -= 1
                if not self._in_flight:
                    self._idle.set()

        return leave

    def _on_switch(self, routes: Routes) -> None:
        self._metrics.model_traffic.clear()
        for arm in routes.arms:
            share = routes.weight if arm.arm == "candidate" else 1.0 - routes.weight
            self._metrics.model_traffic.labels(model_version=arm.model_id).set(100.0 * share)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "onward"}


async def run(ctx: Context) -> None:
    """Runs the gateway role (engine child, routes, endpoint) until it is cancelled."""
    sys.setswitchinterval(min(SWITCH_SECONDS, sys.getswitchinterval()))
    with ExitStack() as held:
        place = Place.take(ctx.settings)
        held.callback(place.release)
        process = EngineProcess(ctx.settings, clock=ctx.clock, name=place.engine)
        gateway = Gateway(ctx, process.engine, place)
        ctx.children["engine"] = process.keeper
        ctx.probes["engine"] = gateway.engine_answers
        try:
            gateway.server.reserve()  # a busy port is reported before the model is loaded
            await process.start()
            await gateway.start()
            _log.info("gateway serves", gateway=gateway.gateway_id, url=gateway.server.url)
            await gateway.wait()
        finally:
            await to_the_end(_stop(gateway, process))


async def _stop(gateway: Gateway, process: EngineProcess) -> None:
    try:
        await gateway.stop()
    finally:
        await process.stop()
