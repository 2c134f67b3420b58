"""Runs the loop: starts the embedded parts as children, opens connections, runs roles until cancelled.

What is not configured is embedded. The data folder is locked while it is in use, which is also what
lets a restarted trainer take back its own unfinished job at once: the run before it is surely dead.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from onward.bus import Bus
from onward.bus.server import NatsServer
from onward.clock import Clock, SystemClock
from onward.config import Settings
from onward.context import Context
from onward.errors import ConfigError
from onward.telemetry.alerts import Alerts
from onward.telemetry.metrics import Metrics
from onward.warehouse import Objects
from onward.warehouse import client as warehouse_client
from onward.warehouse.embedded import EmbeddedWarehouse

log = structlog.get_logger(__name__)

# Role → module with ``async def run(ctx)``. Imported when the role runs.
ROLES: dict[str, str] = {
    "collector": "onward.capture.collector",
    "rewarder": "onward.reward.rewarder",
    "coordinator": "onward.coordinator.coordinator",
    "trainer": "onward.training.service",
    "releaser": "onward.release.controller",
    "gateway": "onward.serving.gateway",
    "api": "onward.api.service",
}
ENDPOINTS = "endpoints.json"


@dataclass(frozen=True)
class Loop:
    """A running loop. ``endpoints`` are the addresses that were really bound."""

    ctx: Context
    endpoints: dict[str, Any]
    roles: dict[str, asyncio.Task[None]]


@asynccontextmanager
async def parts(settings: Settings, clock: Clock | None = None) -> AsyncIterator[Context]:
    """Open every connection that a role may use; start what is not configured. Ends what it started."""
    clock = clock or SystemClock()
    settings.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(_bus(settings, clock))
        metrics = Metrics()
        warehouse = await stack.enter_async_context(_warehouse(settings))
        objects = Objects.open(settings.objects.models_url or settings.data_dir / "objects")
        yield Context(
            settings=settings,
            clock=clock,
            bus=bus,
            warehouse=warehouse,
            objects=objects,
            metrics=metrics,
            alerts=Alerts(bus, clock, metrics),
        )


@asynccontextmanager
async def _bus(settings: Settings, clock: Clock) -> AsyncIterator[Bus]:
    async with AsyncExitStack() as stack:
        token = settings.nats.token.get_secret_value() if settings.nats.token else None
        url = settings.nats.url
        if url is None:
            server = NatsServer(settings.data_dir, sync=settings.nats.sync)
            await server.start()
            stack.push_async_callback(server.stop)
            url, token = server.url, server.token
        bus = await Bus.connect(url, token=token, clock=clock)
        stack.push_async_callback(bus.close)
        await bus.ensure_streams()
        yield bus


@asynccontextmanager
async def _warehouse(settings: Settings) -> AsyncIterator[Any]:
    if settings.warehouse.url is not None:
        remote = await warehouse_client.connect(settings)
        try:
            yield remote
        finally:
            await remote.close()
        return
    embedded = EmbeddedWarehouse(settings.data_dir)
    warehouse = await embedded.start()
    try:
        yield warehouse
    finally:
        await warehouse.close()
        await embedded.stop()


@asynccontextmanager
async def running(
    settings: Settings, *, roles: Sequence[str] = tuple(ROLES), clock: Clock | None = None
) -> AsyncIterator[Loop]:
    """The loop, turning, while the block runs. A role that fails ends the block with its error."""
    with _locked(settings.run_dir):
        async with parts(settings, clock) as ctx:
            for role in roles:
                ctx.ready[role] = False
            tasks = {role: asyncio.create_task(_role(role)(ctx), name=role) for role in roles}
            watcher = asyncio.create_task(_fail_together(tasks, asyncio.current_task()))
            try:
                await _until_ready(ctx, tasks)
                endpoints = _write_endpoints(settings, ctx)
                yield Loop(ctx, endpoints, tasks)
            finally:
                watcher.cancel()
                for task in tasks.values():
                    task.cancel()
                results = await asyncio.gather(*tasks.values(), return_exceptions=True)
                (settings.run_dir / ENDPOINTS).unlink(missing_ok=True)
                failures = [e for e in results if isinstance(e, Exception)]
                if failures:
                    raise failures[0]


async def up(
    settings: Settings,
    *,
    roles: Sequence[str] = tuple(ROLES),
    announce: Callable[[str], object] = print,
) -> None:
    """Run until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with running(settings, roles=roles) as turning:
        for name, address in turning.endpoints.items():
            if name.endswith("_url"):
                announce(f"{name.removesuffix('_url')}: {address}")
        announce("Onward is up. Ctrl-C stops it.")
        await stop.wait()
        announce("Stopping: finishing what is in hand.")


def _role(name: str) -> Callable[[Context], Awaitable[None]]:
    run: Callable[[Context], Awaitable[None]] = importlib.import_module(ROLES[name]).run
    return run


async def _until_ready(ctx: Context, tasks: dict[str, asyncio.Task[None]]) -> None:
    while not all(ctx.ready.get(role) for role in tasks):
        for task in tasks.values():
            if task.done():
                task.result()
                raise RuntimeError(f"role {task.get_name()} ended before it was ready")
        await asyncio.sleep(0.02)


async def _fail_together(tasks: dict[str, asyncio.Task[None]], owner: asyncio.Task[Any] | None) -> None:
    """When one role ends by an error, cancel the block that uses the loop: half a loop serves nobody."""
    done, _ = await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        if not task.cancelled() and task.exception() is not None:
            log.error("role failed", role=task.get_name(), error=repr(task.exception()))
    if owner is not None:
        owner.cancel()


@asynccontextmanager
async def attached(settings: Settings) -> AsyncIterator[tuple[Bus, dict[str, Any]]]:
    """A bus connection to the loop that runs on this data folder (for the command line)."""
    path = settings.run_dir / ENDPOINTS
    if settings.nats.url is None and not path.exists():
        raise ConfigError(
            f"Nothing runs on {settings.data_dir}: start it with 'onward up', or name its folder with --dir."
        )
    endpoints: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"nats_url": settings.nats.url}
    token = settings.nats.token.get_secret_value() if settings.nats.token else None
    token_file = settings.run_dir / "nats.token"
    if settings.nats.url is None and token_file.exists():
        token = token_file.read_text().strip()
    bus = await Bus.connect(endpoints["nats_url"], token=token, clock=SystemClock(), name="onward-cli")
    try:
        yield bus, endpoints
    finally:
        await bus.close()


def _write_endpoints(settings: Settings, ctx: Context) -> dict[str, Any]:
    endpoints = {**ctx.endpoints, "nats_url": ctx.bus.url, "pid": os.getpid()}
    path = settings.run_dir / ENDPOINTS
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(endpoints, indent=1))
    temporary.chmod(0o600)
    temporary.rename(path)
    return endpoints


@contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """One loop per data folder. The kernel frees the lock however the process ends."""
    run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(run_dir / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{run_dir.parent} is in use by another Onward: stop it, or choose another --dir."
            ) from None
        yield
