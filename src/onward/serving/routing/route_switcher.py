"""Applies the desired state: fetch, verify, load, probe, then switch routes, in that order.

Routes change in one assignment, and only after every adapter of the new routes answered a probe. If a state
cannot be reached, the old routes go on serving, one alert is raised, and the state is tried again. A newer
state interrupts an older one that is still being loaded, so a rollback never waits for a download.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from onward.bus import Bus, Stored, load_entry, read_stored
from onward.clock import Clock, utc_text
from onward.contracts.buckets import GATEWAY_LEASE_SECONDS, Desired, GatewayReport
from onward.errors import BusError, EngineError, NotFoundError, OnwardError, TamperedError
from onward.files import write_whole
from onward.roles import together
from onward.serving.engines import Engine
from onward.serving.engines.registry import AdapterRegistry
from onward.serving.routing.arms import Arm, Routes, base_routes, desired_of, routes_of
from onward.telemetry import logs
from onward.telemetry.alerts import Alerts

_log = logs.get("gateway")
POLL_SECONDS = 5.0
REPORT_SECONDS = 5.0
PROBE = [{"role": "user", "content": "Say one word."}]


class RouteSwitcher:
    """Keeps ``routes`` equal to the desired state in ``rl_releases``; reports them in ``rl_gateways``."""

    def __init__(
        self,
        *,
        bus: Bus,
        clock: Clock,
        alerts: Alerts,
        engine: Engine,
        registry: AdapterRegistry,
        gateway_id: str,
        base_model_id: str,
        file: Path,
        on_switch: Callable[[Routes], None] = lambda _: None,
        providers: Callable[[], dict[str, str]] = dict,
    ) -> None:
        """``file``: stores the last state that was really served, for a start without the bus.
        ``providers``: returns the state of each provider's circuit, which is reported too."""
        self._providers = providers
        self._bus, self._clock, self._alerts = bus, clock, alerts
        self._engine, self._registry = engine, registry
        self._gateway_id, self._file, self._on_switch = gateway_id, file, on_switch
        self.routes = base_routes(base_model_id)
        self.in_flight: Counter[str | None] = Counter()
        """Calls that run now, by adapter digest."""
        self.paused = False
        self._resident: set[str] = set()
        self._probes: dict[str, float] = {}
        self._target: Routes | None = None
        self._applying: asyncio.Task[None] | None = None
        self._applied = False
        self._seen_revision = 0
        self._error: str | None = None
        self._alerted: tuple[int, str] | None = None
        self._alerting: set[asyncio.Task[None]] = set()
        self._confirmed = clock.monotonic()
        self._unsaved: Routes | None = None
        """Routes that serve and could not be written to the file."""

    @property
    def ready(self) -> bool | str:
        if self._error is not None:
            return self._error
        return True if self._applied else "no adapter was loaded yet"

    def serving(self) -> Routes:
        """Returns the routes for a new call; no candidate after 15 s without reading the desired state."""
        if self.routes.open and self._clock.monotonic() - self._confirmed > GATEWAY_LEASE_SECONDS:
            current = self.routes.current
            return Routes(self.routes.revision, None, self.routes.step, current)
        return self.routes

    async def start(self) -> None:
        """Sets routes before the first call: the desired state, else the last file, else the base model."""
        try:
            async with asyncio.timeout(POLL_SECONDS):
                stored = await read_stored(self._bus.bucket(Desired.BUCKET), Desired)
        except (TimeoutError, BusError):
            stored = None
        if stored is not None:
            self._start_applying(stored)
            if self._applying is not None:
                await self._applying
        if not self._applied:
            await self._restore()
        self._applied = True
        await self.report()

    async def run(self) -> None:
        """Watches and polls until cancelled."""
        try:
            await together(self._watch(), self._poll(), self._report_regularly())
        finally:
            if self._applying is not None:
                self._applying.cancel()
                await asyncio.gather(self._applying, return_exceptions=True)

    async def _watch(self) -> None:
        bucket = self._bus.bucket(Desired.BUCKET)
        async for entry in bucket.watch(Desired.KEY, poll_seconds=POLL_SECONDS):
            self._confirmed = self._clock.monotonic()
            self._start_applying(await load_entry(bucket, Desired, entry))

    async def _poll(self) -> None:
        """Confirms the desired state, and detects an engine that lost its adapters."""
        while True:
            await self._clock.sleep(POLL_SECONDS)
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    stored = await read_stored(self._bus.bucket(Desired.BUCKET), Desired)
                self._confirmed = self._clock.monotonic()
                lost = self.routes.digests - set(await self._engine.adapters())
            except (TimeoutError, BusError, EngineError):
                continue
            self._start_applying(stored, again=bool(lost) or self._error is not None)

    def _start_applying(self, stored: Stored[Desired], *, again: bool = False) -> None:
        """Starts to apply a desired state unless it is old, serves already or is being loaded."""
        if stored.document is None or stored.revision < self._seen_revision:
            return  # none that can be read, or a slow watcher after a quick poll
        self._seen_revision = stored.revision
        wanted = routes_of(stored.document)
        busy = self._applying is not None and not self._applying.done()
        if wanted == self._target and (busy or not again):
            return
        if busy and self._applying is not None:
            self._applying.cancel()
        self._target = wanted
        self._applying = asyncio.create_task(self._apply(wanted), name="gateway-apply")

    async def _apply(self, wanted: Routes) -> None:
        try:
            await self._load(wanted)
        except (OnwardError, OSError) as error:
            if isinstance(error, OSError):  # a full disk: tried again until there is room
                error = EngineError(f"The adapter cannot be stored on this machine ({error.strerror}).")
            self._fail(wanted.revision, error)
            await self.report()
            return
        self._error = None
        if wanted != self.routes:
            self._switch(wanted)
        self._applied = True
        self._save(wanted)
        await self.report()
        await self._unload_others(wanted)

    async def _load(self, wanted: Routes) -> None:
        held = set(await self._engine.adapters()) if wanted.digests else set()
        for arm in wanted.arms:
            if arm.adapter_digest is not None and arm.adapter_digest not in held & self._probes.keys():
                folder = await self._registry.fetch(arm.model_id, arm.adapter_digest)
                await self._load_one(arm, folder)
        missing = wanted.digests - set(await self._engine.adapters())
        if missing:
            raise EngineError(f"The engine does not hold adapter {min(missing)[:12]} after loading it.")

    async def _load_one(self, arm: Arm, folder: Path) -> None:
        digest = arm.adapter_digest
        assert digest is not None
        await self._engine.load_adapter(digest, folder)
        self._resident.add(digest)
        answer = await self._engine.generate(
            PROBE, session_id=f"probe-{self._gateway_id}", adapter=digest, temperature=0.0, max_tokens=4
        )
        logprobs = answer.sampling["logprobs"]
        if answer.sampling["model_digest"] != digest or not all(math.isfinite(value) for value in logprobs):
            raise EngineError(f"The probe of {arm.model_id} was not answered by adapter {digest[:12]}.")
        self._probes[digest] = sum(logprobs) / max(1, len(logprobs))

    def _switch(self, routes: Routes) -> None:
        self.routes = routes
        self._on_switch(routes)
        _log.info(
            "routes switched",
            revision=routes.revision,
            release_id=routes.release_id,
            arms={arm.arm: f"{arm.model_id}@{arm.weight:g}" for arm in routes.arms},
        )

    async def _unload_others(self, routes: Routes) -> None:
        """Unloads adapters that no route names, each after its last call has ended."""
        for digest in list(self._resident - routes.digests):
            while self.in_flight[digest]:
                await self._clock.sleep(0.05)
            try:
                await self._engine.unload_adapter(digest)
            except EngineError:
                pass  # a new engine does not have it
            self._resident.discard(digest)
            self._probes.pop(digest, None)

    def _fail(self, revision: int, error: Exception) -> None:
        self._error = str(error)
        if self._alerted == (revision, self._error):
            return
        self._alerted = (revision, self._error)
        kind = "adapter_refused" if isinstance(error, TamperedError | NotFoundError) else "routes_not_reached"
        alert = self._alerts.raise_(
            kind, self._error, "critical", revision=revision, gateway=self._gateway_id
        )
        task = asyncio.create_task(alert)  # an error is logged there
        self._alerting.add(task)
        task.add_done_callback(self._alerting.discard)

    # The file for a start without the bus.

    def _save(self, routes: Routes) -> None:
        """Writes the file, or leaves it for a later try: routes are served also on a full disk."""
        try:
            write_whole(self._file, desired_of(routes).dump())
            self._unsaved = None
        except OSError as error:
            self._unsaved = routes
            _log.warning("routes not saved for a start without the bus", reason=error.strerror)

    async def _restore(self) -> None:
        """Restores the last verified state: its current arm alone, as no release is watched meanwhile."""
        try:
            saved = routes_of(Desired.load(self._file.read_bytes()))
            arm = saved.current
            if arm.adapter_digest is not None:
                await self._load_one(arm, await self._registry.cached(arm.adapter_digest))
        except FileNotFoundError:
            return
        except (OSError, ValueError, OnwardError) as error:
            _log.warning("last state not usable, the base model serves", reason=str(error))
            return
        self._switch(
            Routes(saved.revision, None, saved.step, Arm("current", arm.model_id, arm.adapter_digest, 1.0))
        )

    # Reports of the routes that are really served.

    async def report(self) -> None:
        """Writes ``rl_gateways.<id>``. Without the bus the report is skipped until the next one."""
        routes = self.routes
        report = GatewayReport(
            gateway_id=self._gateway_id,
            revision=routes.revision,
            release_id=routes.release_id,
            step=routes.step,
            arms=desired_of(routes).arms,
            probes={digest: round(value, 6) for digest, value in self._probes.items()},
            paused=self.paused,
            in_flight=sum(self.in_flight.values()),
            error=self._error,
            providers=self._providers(),
            updated_at=utc_text(self._clock.now()),
        )
        if not self._bus.is_connected:
            return
        try:
            held = set(await self._engine.adapters())
        except EngineError:
            held = set[str]()
        report = report.model_copy(update={"served": sorted(routes.digests & held)})
        try:
            bucket = self._bus.bucket(GatewayReport.BUCKET)
            await bucket.put(self._gateway_id, report.dump(), deadline=5.0)
        except BusError as error:
            _log.warning("gateway state not reported", reason=str(error))

    async def withdraw(self) -> None:
        """Deletes this gateway's report at a clean end."""
        if self._bus.is_connected:
            try:
                async with asyncio.timeout(2.0):
                    await self._bus.bucket(GatewayReport.BUCKET).delete(self._gateway_id)
            except (TimeoutError, BusError):
                pass

    async def _report_regularly(self) -> None:
        while True:
            await self._clock.sleep(REPORT_SECONDS)
            if self._unsaved is not None:
                self._save(self._unsaved)
            await self.report()
