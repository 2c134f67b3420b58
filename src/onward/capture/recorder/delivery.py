"""The drainer: a thread with its own event loop that publishes the outbox to NATS, and survives every failure
of NATS.

Invariants: network errors are handled here and never reach the agent. It must work while the interpreter
exits, when no thread pool accepts work any more; so its loop has none.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from onward.bus.outbox import Outbox
from onward.clock import Clock, SystemClock
from onward.errors import BusError, ObjectError, OnwardError
from onward.forks import IMPORTING
from onward.retry import Backoff
from onward.telemetry import alerts, logs

if TYPE_CHECKING:
    from onward.bus.connection import Bus
    from onward.bus.outbox import Send, Waiting
    from onward.warehouse.objects import Objects

RETRY_SECONDS = (0.2, 5.0)
"""First and longest pause after a failure; it doubles in between."""
CONNECT_SECONDS = 2.0
_log = logs.get("recorder")


class Delivery:
    """Connects and drains, repeatedly, until cancelled. ``clock`` paces the tries."""

    def __init__(
        self,
        outbox: Outbox,
        url: str,
        token: str | None,
        objects: str | None,
        clock: Clock | None = None,
        *,
        attachments: Outbox | None = None,
    ) -> None:
        self._outboxes = [outbox] if attachments is None else [outbox, attachments]
        self._url = url
        self._token = token
        self._where = objects
        self._objects: Objects | None = None
        self._clock = clock or SystemClock()
        self._bus: Bus | None = None
        self._failed = False
        self._sent = False
        """True if a message of the present try was acknowledged."""

    @property
    def is_offline(self) -> bool:
        """Returns whether NATS was tried and is unavailable now."""
        bus = self._bus
        return self._failed if bus is None else not bus.is_connected

    async def run(self) -> None:
        with IMPORTING:
            from onward.bus import draining  # noqa: F401  (the outbox imports it from there)
            from onward.bus.connection import Bus
            from onward.capture import claim_check  # noqa: F401  (imported again in ``_sender``)

        backoff = Backoff(*RETRY_SECONDS)
        while True:
            self._sent, began = False, self._clock.monotonic()
            try:
                self._bus = await Bus.connect(
                    self._url,
                    token=self._token,
                    name="onward-recorder",
                    clock=self._clock,
                    connect_timeout=CONNECT_SECONDS,
                )
                self._failed = False
                await self._drain(self._bus)
            except BusError as error:
                _log.warning("the outbox waits for NATS", reason=str(error))
            except OnwardError as error:
                _log.error("the outbox cannot be drained", reason=str(error))
            except Exception as error:  # any error: the agent and this loop go on
                _log.error("the outbox could not be drained", reason=type(error).__name__)
            finally:
                self._failed = True
                bus, self._bus = self._bus, None
                if bus is not None:
                    await bus.close()
            # A connection alone is no success.
            if self._sent or self._clock.monotonic() - began > RETRY_SECONDS[1]:
                backoff.reset()
            await self._clock.sleep(backoff.next())

    async def _drain(self, bus: Bus) -> None:
        """Drains all outboxes until one of them fails."""
        send = self._sender(bus)
        drains = [asyncio.ensure_future(outbox.drain(bus, send=send)) for outbox in self._outboxes]
        try:
            await asyncio.gather(*drains)
        finally:
            for each in drains:
                each.cancel()
            await asyncio.gather(*drains, return_exceptions=True)

    async def notify(self, kind: str, message: str) -> None:
        """Sends an alert as the roles do: lost while NATS is unavailable, but in the log in any case."""
        if self._bus is not None:
            facts = {"source": "recorder"}
            await alerts.notify(self._bus, self._clock, kind, message, "critical", facts)

    def _sender(self, bus: Bus) -> Send:
        """Returns the function that publishes a message. The store is opened for the first message that needs
        it, so that a wrong address or a missing client delays no other message."""
        from onward.capture import claim_check

        async def send(message: Waiting) -> None:
            large = claim_check.needs_store(bus, message.subject, message.body)
            await claim_check.outbox_sender(bus, self._store() if large else None, self._clock)(message)
            self._sent = True

        return send

    def _store(self) -> Objects | None:
        """Opens the store, if one is configured. Raises ObjectError if it cannot be opened."""
        if self._objects is None and self._where is not None:
            with IMPORTING:
                from onward.warehouse.objects import Objects

            try:
                self._objects = Objects.open(self._where)
            except OnwardError as error:
                raise ObjectError(str(error)) from None
            except Exception as error:
                raise ObjectError(
                    f"The object store cannot be opened ({type(error).__name__}): look at the address in "
                    "objects= and its credentials."
                ) from None
        return self._objects


class Drainer:
    """Runs ``Delivery`` in a daemon thread."""

    def __init__(
        self,
        outbox: Outbox,
        url: str,
        token: str | None,
        objects: str | None,
        *,
        attachments: Outbox | None = None,
    ) -> None:
        self._delivery = Delivery(outbox, url, token, objects, attachments=attachments)
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_InPlace())
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name="onward-outbox", daemon=True)
        self._thread.start()

    @property
    def is_offline(self) -> bool:
        return self._delivery.is_offline

    def alert(self, kind: str, message: str) -> None:
        """Sends an alert in the background; never waits, never raises."""

        def send() -> None:
            self._loop.create_task(self._delivery.notify(kind, message)).add_done_callback(report)

        def report(sent: asyncio.Task[None]) -> None:
            error = None if sent.cancelled() else sent.exception()
            if error is not None:
                _log.warning("an alert was not sent", kind=kind, reason=type(error).__name__)

        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(send)

    def stop(self) -> None:
        self._stopping = True
        if self._thread.is_alive():
            with suppress(RuntimeError):  # its loop has just closed
                self._loop.call_soon_threadsafe(self._cancel)
            self._thread.join(5.0)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._delivery.run())
        try:
            if not self._stopping:
                self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        finally:
            self._task.cancel()
            self._loop.run_until_complete(asyncio.gather(self._task, return_exceptions=True))
            while left := asyncio.all_tasks(self._loop):  # tasks of a client that was connecting
                for task in left:
                    task.cancel()
                self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.close()


class _InPlace(concurrent.futures.ThreadPoolExecutor):
    """Runs each call at once, in the caller's thread: the drainer's loop has its thread to itself, and a
    thread pool refuses work while the interpreter exits."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
