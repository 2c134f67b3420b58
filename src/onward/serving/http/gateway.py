"""The gateway: an OpenAI-compatible endpoint whose answers carry signed generation records.

This module has the role's parts and life cycle. ``endpoints.py`` is its HTTP surface, ``admission.py`` pauses
and drains traffic, ``calls.py`` serves a call, and ``recording/capture.py`` turns it into training data.

Invariants: stopping ends the calls first, then records what they left open.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import ExitStack

from onward.capture import provenance
from onward.capture.collecting.quarantine import Quarantine, QuarantineKeys
from onward.capture.make_redactor import inspector_of
from onward.context import Context
from onward.http.app import local_key
from onward.http.direct import Direct
from onward.http.server import Server, check_exposure
from onward.roles import to_the_end
from onward.serving.engines import Engine
from onward.serving.engines.capabilities import ENGINES
from onward.serving.engines.closed import ClosedProcess
from onward.serving.engines.local import EngineProcess
from onward.serving.engines.registry import AdapterRegistry
from onward.serving.http.admission import Admission
from onward.serving.http.calls import Calls
from onward.serving.http.endpoints import Endpoints
from onward.serving.metrics import gateway_metrics
from onward.serving.place import Place
from onward.serving.providers.catalog import Catalog
from onward.serving.recording.capture import Capture
from onward.serving.recording.outcome_publisher import OutcomePublisher
from onward.serving.recording.passed_closes import PassedCloses
from onward.serving.recording.recording import Recording
from onward.serving.routing.arms import Routes
from onward.serving.routing.assignments import Assignments
from onward.serving.routing.opted_out import OptedOut
from onward.serving.routing.route_switcher import RouteSwitcher
from onward.telemetry import logs
from onward.training.signatures import Trust

_log = logs.get("gateway")
SWITCH_SECONDS = 0.0005
"""Time after which a thread that redacts lets the event loop run. With Python's 5 ms, each of the four sends
and receives of a call would wait that long."""
ADOPT_SECONDS = 10.0
"""Seconds between two searches for dead gateways on this data folder."""


class Gateway:
    """The role's state and its HTTP app. Tests use ``start`` and ``stop``, the service uses ``run(ctx)``."""

    def __init__(self, ctx: Context, engine: Engine, place: Place | None = None) -> None:
        """``place``: the files of this process; None takes the first free one. ``stop`` frees it."""
        settings = ctx.settings
        check_exposure(settings.http.host, settings.api_keys(), settings.http.auth)
        self._ctx, self._clock = ctx, ctx.clock
        run_dir = settings.run_dir
        run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.place = place or Place.take(settings)
        self.gateway_id = self.place.gateway_id
        self._signing_key = provenance.load_key(run_dir, create=True)
        self._metrics = gateway_metrics(ctx.metrics)
        self.assignments = Assignments(ctx.bus, ctx.clock)
        self.catalog = Catalog(settings, ctx.clock, self._metrics)
        self.state = RouteSwitcher(
            bus=ctx.bus,
            clock=ctx.clock,
            alerts=ctx.alerts,
            engine=engine,
            registry=AdapterRegistry(
                ctx.bus, ctx.objects, settings.data_dir / "models", Trust.from_settings(settings)
            ),
            gateway_id=self.gateway_id,
            base_model_id=settings.base_model_id,
            file=self.place.routes,
            on_switch=self._on_switch,
            providers=self.catalog.states,
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
            aliases=settings.gateway.model_aliases,
            listed=self.catalog.names(),
            offered=ENGINES[settings.model.engine],
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
            engine=ENGINES[settings.model.engine].described(settings.model.engine),
        )
        closer = self.capture.closer
        self._passed_closes = PassedCloses(ctx.bus, ctx.clock, self.gateway_id, closer.close_for_other)
        closer.ask_others = self._passed_closes.ask
        self.admission = Admission(self.state, ctx.bus, ctx.clock)
        self.endpoints = Endpoints(
            ctx,
            engine,
            state=self.state,
            calls=self.calls,
            capture=self.capture,
            admission=self.admission,
            metrics=self._metrics,
            signing_key=self._signing_key,
            catalog=self.catalog,
        )
        self.app = self.endpoints.app()
        self.server = Server(
            Direct(self.app, self.endpoints.calls()),
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
                ("control", self.admission.follow_control()),
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
        admission = self.admission
        admission.is_stopping = True
        if not await admission.is_idle_soon():
            _log.warning("calls are ended before their answer", calls=admission.in_flight)
        admission.ending.set()
        await self.server.stop()
        # A client that reads nothing was cut off by the server: its call ends a little later.
        await admission.is_idle_soon()
        await self._end_tasks()
        await self.capture.stop()
        await self._opted_out.write()
        await self.state.withdraw()
        await self.catalog.close()

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

    def _on_switch(self, routes: Routes) -> None:
        self._metrics.model_traffic.clear()
        for arm in routes.arms:
            share = routes.weight if arm.arm == "candidate" else 1.0 - routes.weight
            self._metrics.model_traffic.labels(model_version=arm.model_id).set(100.0 * share)


async def run(ctx: Context) -> None:
    """Runs the gateway role (engine child, routes, endpoint) until it is cancelled."""
    sys.setswitchinterval(min(SWITCH_SECONDS, sys.getswitchinterval()))
    with ExitStack() as held:
        place = Place.take(ctx.settings)
        held.callback(place.release)
        process = _engine_process(ctx, place)
        gateway = Gateway(ctx, process.engine, place)
        if process.keeper is not None:
            ctx.children["engine"] = process.keeper
        ctx.probes["engine"] = gateway.endpoints.engine_answers
        try:
            gateway.server.reserve()  # a busy port is reported before the model is loaded
            await process.start()
            await gateway.start()
            _log.info("gateway serves", gateway=gateway.gateway_id, url=gateway.server.url)
            await gateway.wait()
        finally:
            await to_the_end(_stop(gateway, process))


def _engine_process(ctx: Context, place: Place) -> EngineProcess | ClosedProcess:
    if ctx.settings.model.engine == "openai":
        return ClosedProcess(ctx.settings)
    return EngineProcess(ctx.settings, clock=ctx.clock, name=place.engine)


async def _stop(gateway: Gateway, process: EngineProcess | ClosedProcess) -> None:
    try:
        await gateway.stop()
    finally:
        await process.stop()
