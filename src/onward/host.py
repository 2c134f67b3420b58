"""Runs the loop: starts the embedded parts as children, opens connections, runs roles until cancelled.

A service that is not configured runs embedded. The data folder is locked while it is in use. So a restarted
trainer can take back its own unfinished job at once: the previous run is certainly dead.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from onward import extras
from onward.bus import Bus
from onward.bus.server import NatsServer
from onward.clock import Clock, SystemClock
from onward.config import Settings
from onward.context import Context
from onward.errors import ConfigError, folder_advice
from onward.files import locked, write_whole
from onward.http.app import local_key
from onward.http.server import check_exposure, check_free
from onward.roles import keep_running
from onward.serving import base_models
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
NEED_MODEL = frozenset({"trainer", "gateway"})
ENDPOINTS = "endpoints.json"
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
    for role in ("gateway", "api"):  # before anything slow is started
        if role in roles:
            check_exposure(settings.http.host, settings.http.keys)
            port = getattr(settings.http, f"{role}_port")
            await check_free(settings.http.host, port, f"The {role} (http.{role}_port)")
    from onward.capture.make_redactor import redactor_of  # compiles the rules: not at every command's start

    redactor_of(settings)  # an unknown kind or a missing file fails here, before anything is started
    if NEED_MODEL.intersection(roles):
        extras.require("lm", "torch", "The engine")
    base_model = (
        base_models.resolve(settings.model.base, settings.data_dir / "models")
        if NEED_MODEL.intersection(roles)
        else None
    )
    settings.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not join:
        local_key(settings.run_dir)  # the collector redacts it from its first message on
    async with AsyncExitStack() as stack:
        if join:
            bus, _ = await stack.enter_async_context(attached(settings))
        else:
            bus = await stack.enter_async_context(_bus(settings, clock))
        await bus.ensure_streams()
        warehouse = await stack.enter_async_context(_warehouse(settings, join))
        metrics = Metrics()
        alerts = bus.unreadable.alerts = Alerts(bus, clock, metrics)
        yield Context(
            settings=settings,
            clock=clock,
            bus=bus,
            warehouse=warehouse,
            objects=Objects.open(settings.objects_at),
            metrics=metrics,
            alerts=alerts,
            base_model=base_model,
        )


@asynccontextmanager
async def _bus(settings: Settings, clock: Clock) -> AsyncIterator[Bus]:
    async with AsyncExitStack() as stack:
        url, token = settings.nats.url, _secret(settings)
        if url is None:
            server = NatsServer(settings.data_dir, port=settings.nats.port, sync=settings.nats.sync)
            await server.start()
            stack.push_async_callback(server.stop)
            url, token = server.url, server.token
        bus = await Bus.connect(url, token=token, clock=clock)
        stack.push_async_callback(bus.close)
        yield bus


@asynccontextmanager
async def _warehouse(settings: Settings, join: bool) -> AsyncIterator[Warehouse]:
    embedded = None if join or settings.warehouse.url else EmbeddedWarehouse(settings.data_dir)
    warehouse = await embedded.start() if embedded else await connect_warehouse(settings)
    try:
        yield warehouse
    finally:
        if embedded:
            await embedded.stop()
        else:
            await warehouse.close()


def _secret(settings: Settings) -> str | None:
    return settings.nats.token.get_secret_value() if settings.nats.token else None


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
    with nullcontext() if join else _locked(settings.run_dir):
        async with parts(settings, roles=roles, join=join, clock=clock) as ctx:
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
                endpoints = {**ctx.endpoints, "nats_url": ctx.bus.url, "pid": os.getpid()}
                if not join:
                    text = json.dumps(endpoints, indent=1)
                    write_whole(settings.run_dir / ENDPOINTS, text.encode(), 0o600)
                yield Loop(ctx, endpoints, tasks)
            finally:
                results = await _end(list(tasks.values()))
                if not join:
                    (settings.run_dir / ENDPOINTS).unlink(missing_ok=True)
                failures = [error for error in results if isinstance(error, Exception)]
                if failures:
                    raise failures[0]


async def up(
    settings: Settings,
    *,
    roles: Sequence[str] = tuple(ROLES),
    join: bool = False,
    announce: Callable[[str], object] = print,
    introduce: Callable[[Loop], object] = lambda _: None,
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
            introduce(turning)
            await stop.wait()
            announce("Stopping: finishing what is in hand.")
        announce("Stopped.")
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        announce("Stopped before it was up.")


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
    await importlib.import_module(ROLES[name]).run(ctx)


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


def is_running(settings: Settings) -> bool:
    """Returns whether there is a loop to attach to: one on this data folder, or a configured NATS."""
    return settings.nats.url is not None or (settings.run_dir / ENDPOINTS).exists()


@asynccontextmanager
async def attached(settings: Settings) -> AsyncIterator[tuple[Bus, dict[str, Any]]]:
    """Opens a bus connection to the loop that runs on this data folder (for the command line)."""
    path = settings.run_dir / ENDPOINTS
    if not is_running(settings):
        raise ConfigError(
            f"Nothing runs on {settings.data_dir}: start it with 'onward up', or "
            f"{folder_advice(settings.data_dir)}."
        )
    endpoints: dict[str, Any] = (
        json.loads(path.read_text()) if path.exists() else {"nats_url": settings.nats.url}
    )
    token = _secret(settings)
    token_file = settings.run_dir / "nats.token"
    if settings.nats.url is None and token_file.exists():
        token = token_file.read_text().strip()
    bus = await Bus.connect(endpoints["nats_url"], token=token, clock=SystemClock(), name="onward-cli")
    try:
        yield bus, endpoints
    finally:
        await bus.close()


def has_records(settings: Settings) -> bool:
    """Returns whether something runs or ever ran here, so that ``records`` has something to read."""
    return is_running(settings) or (settings.data_dir / "nats").is_dir()


@asynccontextmanager
async def records(settings: Settings) -> AsyncIterator[Bus]:
    """Opens the bus of this data folder to read its records, even while nothing runs.

    If nothing runs, nats-server is started on the folder for this block, and the folder is locked. Raises
    ConfigError if nothing ever ran.
    """
    async with AsyncExitStack() as stack:
        if settings.nats.url is None and (settings.data_dir / "nats").is_dir() and _hold(settings, stack):
            server = NatsServer(settings.data_dir, port=0, sync=settings.nats.sync)
            await server.start()
            stack.push_async_callback(server.stop)
            bus = await Bus.connect(server.url, token=server.token, clock=SystemClock(), name="onward-cli")
            stack.push_async_callback(bus.close)
        else:
            bus, _ = await stack.enter_async_context(attached(settings))
        yield bus


def _hold(settings: Settings, stack: AsyncExitStack) -> bool:
    """Locks the data folder until ``stack`` ends; returns False if a running Onward has it."""
    try:
        stack.enter_context(_locked(settings.run_dir))
    except ConfigError:
        return False
    return True


def _locked(run_dir: Path) -> AbstractContextManager[None]:
    """Locks the data folder: one loop per folder."""
    return locked(
        run_dir / "lock", f"{run_dir.parent} is in use by another Onward: stop it, or choose another --dir."
    )
