"""Runs the loop: starts the embedded parts as children, opens connections, runs roles until cancelled.

A service that is not configured runs embedded. The data folder is locked while it is in use. So a restarted
trainer can take back its own unfinished job at once: the previous run is certainly dead.

Most commands load this module to talk to a running service. What only a start needs (FastAPI, base models) is
imported where it is used.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from onward import extras
from onward.attach import ENDPOINTS, attached, configured_login, is_running, lock_folder, try_lock
from onward.bus import Bus
from onward.bus.logins import Login
from onward.bus.server import NatsServer
from onward.bus.streams import sized
from onward.clock import Clock, SystemClock
from onward.config import Settings
from onward.context import Context
from onward.coordinator import schedule
from onward.errors import ConfigError, ObjectError, hide_login, nothing_runs
from onward.files import OWNER_ALONE, keep_private, write_whole
from onward.health.disk import refuse_full
from onward.health.watch import Watch
from onward.lm import devices
from onward.roles import beside, keep_running, together
from onward.telemetry.alerts import Alerts
from onward.telemetry.metrics import Metrics
from onward.warehouse import EmbeddedWarehouse, Objects, Warehouse
from onward.warehouse import connect as connect_warehouse

log = structlog.get_logger(__name__)

# Role → module with ``async def run(ctx)``. Imported when the role runs.
ROLES: dict[str, str] = {
    "collector": "onward.capture.collecting.collector",
    "archiver": "onward.capture.collecting.event_archiver",
    "rewarder": "onward.reward.role.rewarder",
    "coordinator": "onward.coordinator.coordinator",
    "trainer": "onward.training.role.trainer",
    "releaser": "onward.release.releaser",
    "gateway": "onward.serving.http.gateway",
    "api": "onward.api.service",
}
BESIDE = {"collector": "onward.recovery.service"}
"""Role → module with further work of its process. It never ends by itself, and it is no role."""
NEED_MODEL = frozenset({"trainer", "gateway"})
START_SECONDS = 4.0
"""Time in which NATS and the object store must answer at the start, so that what is missing is known soon."""
END_TRIES = 30
"""Seconds that roles have to finish their current work."""


@dataclass(frozen=True)
class Loop:
    """A running loop. ``endpoints`` are the addresses that were bound."""

    ctx: Context
    endpoints: dict[str, Any]
    roles: dict[str, asyncio.Task[None]]


@asynccontextmanager
async def parts(
    settings: Settings,
    *,
    roles: Sequence[str] = tuple(ROLES),
    join: bool = False,
    clock: Clock | None = None,
) -> AsyncIterator[Context]:
    """Opens every connection that ``roles`` may use, and ends what was started here.

    With ``join`` nothing is started: a service that is not configured must already run on this data folder.
    """
    clock = clock or SystemClock()
    await _check_ports(settings, roles)  # before anything slow is started
    base_model = None
    own = [role for role in roles if role != "gateway" or settings.model.engine != "openai"]
    if NEED_MODEL.intersection(own):  # the model of a gateway with a closed engine is on another server
        extras.require("lm", "torch", "The engine")
        devices.refuse_missing(settings.model.device)
        base_model = _base_model(settings, own)
    from onward.capture.make_redactor import redactor_of  # compiles the rules: not at every command's start

    if "coordinator" in roles:
        schedule.check(settings.training.schedule)
    if {"trainer", "gateway", "releaser"}.intersection(roles):
        from onward.training.signatures import refuse_unsigned_setup

        refuse_unsigned_setup(settings, signs="trainer" in roles)
    if "rewarder" in roles:
        from onward.reward.components import components_of

        components_of(settings.reward)  # a component of the user's own that cannot be used fails here
    rubrics, writers = None, None
    if "rewarder" in roles and settings.reward.rubrics:
        from onward.rubrics.trajectories import needs_released, rubrics_of  # a layer above the rewarder

        if needs_released(settings.reward):
            from onward.training.signatures import refuse_unsigned_setup
            from onward.training.writers import StoredWriters

            refuse_unsigned_setup(settings, signs=False)
            writers = StoredWriters(Objects.open(settings.objects_at), settings)
        rubrics = rubrics_of(settings.reward, writers, logs=settings.data_dir / "logs")
    redactor_of(settings)  # an unknown kind or a missing file fails here, before anything is started
    if roles:
        await check_stores(settings)
    settings.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not join:
        from onward.http.app import local_key

        local_key(settings.run_dir)  # the collector redacts it from its first message on
    async with AsyncExitStack() as stack:
        if join:
            bus, _ = await stack.enter_async_context(attached(settings, roles))
            server = None
        else:
            bus, server = await stack.enter_async_context(_bus(settings, clock))
        if writers is not None:
            writers.read_from(bus)
        volume = settings.streams
        await bus.ensure_streams(specs=sized(volume.expected_gb_per_month, volume.trajectories_bytes))
        warehouse, embedded = await stack.enter_async_context(_warehouse(settings, join))
        metrics = Metrics()
        alerts = bus.unreadable.alerts = Alerts(bus, clock, metrics)
        ctx = Context(
            settings=settings,
            clock=clock,
            bus=bus,
            warehouse=warehouse,
            objects=Objects.open(settings.objects_at),
            metrics=metrics,
            alerts=alerts,
            base_model=base_model,
            rubrics=rubrics,
        )
        for name, part in (("nats-server", server), ("warehouse", embedded)):
            if part is not None:
                ctx.children[name] = part.keeper
        if rubrics is not None:
            ctx.children.update(rubrics.keepers)
        watch = Watch(ctx, server)
        if join:
            yield ctx
        else:
            async with beside(watch.run()):
                yield ctx


async def _check_ports(settings: Settings, roles: Sequence[str]) -> None:
    for role in ("gateway", "api"):
        if role in roles:
            from onward.http.server import check_exposure, check_free

            check_exposure(settings.http.host, settings.api_keys(), settings.http.auth)
            port = getattr(settings.http, f"{role}_port")
            await check_free(settings.http.host, port, f"The {role} (http.{role}_port)")


async def check_stores(settings: Settings) -> None:
    """Lists a prefix of each configured store: a missing bucket answers the look for one object as if only
    that were missing. Raises ObjectError, with what to check, for a store that does not answer or refuses.
    The client itself would repeat its request for minutes."""
    stores = {
        "MODEL_STORAGE_PATH": settings.objects.models_url,
        "TRAJECTORY_STORAGE_PATH": settings.objects.trajectories_url,
    }
    for variable, address in stores.items():
        if address is None:
            continue
        store = Objects.open(address)
        try:
            async with asyncio.timeout(START_SECONDS):
                await store.list("onward-start")
        except (TimeoutError, ObjectError) as error:
            why = f"{START_SECONDS:g} s without an answer" if isinstance(error, TimeoutError) else str(error)
            raise ObjectError(
                f"The object store {address} ({variable}) cannot be used ({why.rstrip('.')}): check the "
                f"address, AWS_ENDPOINT_URL, AWS_REGION and the credentials, or leave it out for a folder."
            ) from None


def _base_model(settings: Settings, roles: Sequence[str]) -> Path:
    """Returns the folder of the base model, checked for what ``roles`` do with it. A vLLM server on another
    machine has the model in its own memory."""
    from onward.serving import base_models
    from onward.serving.engines.vllm_server import command_of, dtype_of

    model, models = settings.model, settings.data_dir / "models"
    if "gateway" in roles and model.engine in ("sglang", "ollama"):
        return base_models.resolve(model.base, models, settings.models)
    if "gateway" in roles and model.engine == "vllm":
        if settings.vllm.url:
            return base_models.resolve(model.base, models, settings.models)
        command_of(settings.vllm)  # a server that cannot be started is reported first
        return base_models.require(
            model.base, models, settings.models,
            purpose="vllm", device=model.device, dtype=dtype_of(settings.vllm),
        )  # fmt: skip
    return base_models.require(
        model.base, models, settings.models,
        purpose="serving" if "gateway" in roles else "lora", device=model.device, dtype=model.dtype,
    )  # fmt: skip


def _make_private(settings: Settings) -> None:
    """Keeps the data folder for its owner. For a folder of another user it logs a warning and goes on."""
    try:
        changed = keep_private(settings.data_dir)
    except OSError as error:
        log.warning(
            "the data folder stays open to others", folder=str(settings.data_dir), cause=error.strerror
        )
        return
    if changed:
        log.warning("others could read the data folder: closed it", changed=changed)


@asynccontextmanager
async def _bus(settings: Settings, clock: Clock) -> AsyncIterator[tuple[Bus, NatsServer | None]]:
    """Yields a connection, and the server if it is embedded."""
    async with AsyncExitStack() as stack:
        url, login, server = settings.nats.url, configured_login(settings), None
        if url is None:
            server = NatsServer(settings.data_dir, port=settings.nats.port, sync=settings.nats.sync)
            await server.start()
            stack.push_async_callback(server.stop)
            url, login = server.url, Login(token=server.token)
        bus = await Bus.connect(url, **login, clock=clock, connect_timeout=START_SECONDS)
        stack.push_async_callback(bus.close)
        yield bus, server


@asynccontextmanager
async def _warehouse(
    settings: Settings, join: bool
) -> AsyncIterator[tuple[Warehouse, EmbeddedWarehouse | None]]:
    """Yields a client, and the child that it talks to if it is embedded in this process."""
    embedded = None if join or settings.warehouse.url else EmbeddedWarehouse(settings.data_dir)
    warehouse = await embedded.start() if embedded else await connect_warehouse(settings)
    try:
        yield warehouse, embedded
    finally:
        if embedded:
            await embedded.stop()
        else:
            await warehouse.close()


@asynccontextmanager
async def running(
    settings: Settings,
    *,
    roles: Sequence[str] = tuple(ROLES),
    join: bool = False,
    clock: Clock | None = None,
) -> AsyncIterator[Loop]:
    """Runs the loop while the block runs.

    A role that fails is started again, and the others go on (``roles.keep_running``). An error for a person
    (OnwardError) before a role was ready for the first time ends the start.
    """
    if not join:
        refuse_full(settings.data_dir)
    _make_private(settings)
    with nullcontext() if join else lock_folder(settings.run_dir):
        async with (
            parts(settings, roles=roles, join=join, clock=clock) as ctx,
            _served_alone(ctx, roles[0]) if join and len(roles) == 1 else nullcontext(),
        ):
            ctx.ready.update(dict.fromkeys(roles, False))
            started: set[str] = set()
            tasks = {
                role: asyncio.create_task(
                    keep_running(
                        ctx, role, partial(_run_role, role, ctx), partial(started.__contains__, role)
                    ),
                    name=role,
                )
                for role in roles
            }
            try:
                await _until_ready(ctx, tasks, started)
                started.update(roles)  # also one that failed: from here on no error ends the service
                if not join:
                    _write_endpoints(ctx)
                    ctx.endpoints.on_change = partial(_rewrite_endpoints, ctx)
                yield Loop(ctx, _bound(ctx), tasks)
            finally:
                ctx.endpoints.on_change = None
                results = await _end(list(tasks.values()))
                if not join:
                    (settings.run_dir / ENDPOINTS).unlink(missing_ok=True)
                failures = [error for error in results if isinstance(error, Exception)]
                if failures:
                    raise failures[0]


def _served_alone(ctx: Context, role: str) -> AbstractAsyncContextManager[None]:
    from onward.health.alone import served_alone

    return served_alone(ctx, role)


def _bound(ctx: Context) -> dict[str, Any]:
    return {**ctx.endpoints, "nats_url": hide_login(ctx.bus.url), "pid": os.getpid()}


def _write_endpoints(ctx: Context) -> None:
    text = json.dumps(_bound(ctx), indent=1)
    write_whole(ctx.settings.run_dir / ENDPOINTS, text.encode(), 0o600)


def _rewrite_endpoints(ctx: Context) -> None:
    """Writes the file again for a role that listens elsewhere now. A failure must not end that role."""
    try:
        _write_endpoints(ctx)
    except OSError as error:
        log.error("endpoints.json keeps an old address", cause=error.strerror, now=dict(ctx.endpoints))


async def up(
    settings: Settings,
    *,
    roles: Sequence[str] = tuple(ROLES),
    join: bool = False,
    announce: Callable[[str], object] = print,
    introduce: Callable[[Loop], object] | None = None,
) -> None:
    """Runs until SIGINT or SIGTERM, also while still starting. A second signal exits at once.

    ``introduce`` is called once, when everything is up.
    """
    main = asyncio.current_task()
    stop = asyncio.Event()
    is_up = False

    def on_signal() -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()
        if not is_up and main is not None:
            main.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        async with running(settings, roles=roles, join=join) as turning:
            is_up = True
            collect_rarely()
            if introduce is not None:
                introduce(turning)
            async with beside(_collect_each_minute(turning.ctx.clock)):
                await stop.wait()
            announce("Stopping: finishing what is in hand.")
        announce("Stopped.")
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        announce("Stopped before it was up.")


def collect_rarely() -> None:
    """Leaves what is alive now out of Python's cyclic garbage collections, and makes full collections rare.

    A full collection stops every call of the process: 60 to 170 ms each, a dozen in 8 s under load.
    """
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, 1000)


async def _collect_each_minute(clock: Clock) -> None:
    """Frees what reference counts do not, at one moment a minute: automatic full collections are rare."""
    while True:
        await clock.sleep(60.0)
        gc.collect()
        await asyncio.to_thread(return_free_memory)


def return_free_memory() -> None:
    """Returns freed memory to the system where the C library can.

    It keeps freed memory, for each thread by itself: the service grew by a seventh in four minutes of load
    although Python's objects did not.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


async def _end(tasks: list[asyncio.Task[None]]) -> list[BaseException | None]:
    """Cancels the tasks until every one has ended, again each second: a library may swallow a cancellation.

    Loops that roles run by ``together`` or ``lead`` get the first one alone.
    """
    for _ in range(END_TRIES):
        for task in tasks:
            task.cancel()
        _, alive = await asyncio.wait(tasks, timeout=1.0)
        if not alive:
            break
        log.warning("roles are still ending", roles=sorted(task.get_name() for task in alive))
    return [None if not task.done() or task.cancelled() else task.exception() for task in tasks]


async def _run_role(name: str, ctx: Context) -> None:
    modules = [ROLES[name], BESIDE[name]] if name in BESIDE else [ROLES[name]]
    await together(*(importlib.import_module(module).run(ctx) for module in modules))


async def _until_ready(ctx: Context, tasks: dict[str, asyncio.Task[None]], started: set[str]) -> None:
    """Waits until each role is ready, or has failed and waits to start again. Adds the ready ones to
    ``started``."""
    while True:
        started.update(role for role in tasks if ctx.ready.get(role) is True)
        for task in tasks.values():
            if task.done():
                task.result()
        if all(role in started or isinstance(ctx.ready.get(role), str) for role in tasks):
            return
        await asyncio.sleep(0.02)


def has_records(settings: Settings) -> bool:
    """Returns whether something runs or ever ran here, so that ``records`` has something to read."""
    return is_running(settings) or (settings.data_dir / "nats").is_dir()


@asynccontextmanager
async def records(settings: Settings) -> AsyncIterator[Bus]:
    """Opens the bus of this data folder to read its records, even while nothing runs.

    If nothing runs, nats-server is started on the folder for this block, and the folder is locked. Raises
    ConfigError if nothing ever ran.
    """
    os.umask(OWNER_ALONE)
    async with AsyncExitStack() as stack:
        if settings.nats.url is None and (settings.data_dir / "nats").is_dir() and try_lock(settings, stack):
            server = NatsServer(settings.data_dir, port=0, sync=settings.nats.sync)
            await server.start()
            stack.push_async_callback(server.stop)
            bus = await Bus.connect(server.url, token=server.token, clock=SystemClock(), name="onward-cli")
            stack.push_async_callback(bus.close)
        else:
            bus, _ = await stack.enter_async_context(attached(settings))
        yield bus


@asynccontextmanager
async def at_rest(settings: Settings) -> AsyncIterator[Context | None]:
    """Opens the parts of a data folder on which nothing runs, and locks it for the block. Yields None if
    something runs there, or if NATS is configured. Raises ConfigError if nothing ever ran."""
    if not has_records(settings):
        raise ConfigError(nothing_runs(settings.data_dir))
    async with AsyncExitStack() as stack:
        if settings.nats.url is not None or not try_lock(settings, stack):
            yield None
            return
        yield await stack.enter_async_context(parts(settings, roles=()))
