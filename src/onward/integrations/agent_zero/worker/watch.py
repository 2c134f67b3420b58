"""The worker's tasks beside recording: it delivers votes, hears which model is deployed, asks the gateway.

It has a thread with an event loop of its own. Nothing here delays a task: NATS and the gateway may be away.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from onward.bus import Bus
from onward.capture.opt_out import OptOut
from onward.capture.retrying import loggable
from onward.clock import Clock, SystemClock
from onward.contracts import ModelDeployed, decode, subjects
from onward.errors import OnwardError
from onward.feedback.intake import FeedbackIntake
from onward.redaction import Redactor
from onward.retry import Backoff
from onward.telemetry import logs

CONNECT_SECONDS = 2.0
GATEWAY_SECONDS = 5.0
LOOK_SECONDS = 60.0
"""Pause between two looks at the gateway; the start of a task causes one, too."""
CURRENT_PATH = "/admin/models/current/metrics"
MOST_REPORTS = 100
LONGEST_REPORT = 2000
NOTHING: dict[str, Any] = {"id": None, "version": None, "deployed_at": None, "event": None}
_log = logs.get("agent_zero")


class Watch:
    """One thread. ``accept`` blocks its caller until the vote is on disk."""

    def __init__(
        self,
        folder: Path,
        *,
        nats_url: str | None,
        nats_token: str | None,
        gateway_url: str,
        api_key: str | None,
        redactor: Redactor,
        opt_out: OptOut,
        clock: Clock | None = None,
    ) -> None:
        """Raises BusError for an outbox that cannot be used."""
        self._clock = clock or SystemClock()
        self._intake = FeedbackIntake(folder, clock=self._clock, redactor=redactor, opt_out=opt_out)
        self._nats = (nats_url, nats_token)
        self._gateway, self._key = gateway_url.rstrip("/"), api_key
        self.model: dict[str, Any] = dict(NOTHING)
        self._reports: deque[dict[str, str]] = deque(maxlen=MOST_REPORTS)
        self.nats = "offline" if nats_url else "not configured"
        self._look = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name="onward-watch", daemon=True)
        self._stop = asyncio.Event()
        self._thread.start()

    def accept(self, feedback_id: str, said: Mapping[str, Any]) -> bool:
        """Makes a vote durable; False if its session opted out. A vote that hangs ends the worker, like any
        other task, so there is no time limit. Raises OnwardError."""
        sent = asyncio.run_coroutine_threadsafe(self._intake.accept(feedback_id, dict(said)), self._loop)
        return sent.result()

    def pending(self) -> int:
        return self._intake.pending()

    def take_reports(self) -> Iterator[dict[str, str]]:
        """Yields the reports to the superior agent that have arrived, each once."""
        while self._reports:
            yield self._reports.popleft()

    def look(self) -> None:
        """Asks the gateway soon which model serves. Never waits."""
        self._loop.call_soon_threadsafe(self._look.set)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5.0)
        self._intake.close()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._run())

    async def _run(self) -> None:
        work = [asyncio.ensure_future(self._again(each)) for each in (self._with_bus, self._with_gateway)]
        await self._stop.wait()
        for each in work:
            each.cancel()
        await asyncio.gather(*work, return_exceptions=True)

    async def _again(self, work: Callable[[], Awaitable[None]]) -> None:
        """Runs ``work`` to its end, and once more after a pause if it fails: nothing may end the delivery."""
        backoff = Backoff(0.5, 10.0)
        while True:
            try:
                return await work()
            except Exception as error:
                _log.warning("the work beside recording failed", reason=loggable(error))
                await self._clock.sleep(backoff.next())

    async def _with_bus(self) -> None:
        url, token = self._nats
        if url is None:
            return
        backoff = Backoff(0.5, 10.0)
        while True:
            try:
                bus = await Bus.connect(
                    url,
                    token=token,
                    name="onward-agent-zero",
                    clock=self._clock,
                    connect_timeout=CONNECT_SECONDS,
                )
            except OnwardError as error:
                _log.warning("NATS cannot be reached", reason=str(error))
                await self._clock.sleep(backoff.next())
                continue
            self.nats = "connected"
            backoff.reset()
            try:
                await bus.nc.subscribe(subjects.MODEL_DEPLOYED, cb=self._deployed)
                await bus.nc.subscribe(subjects.REPORT, cb=self._reported)
                delivering = asyncio.ensure_future(self._intake.deliver(bus))
                try:
                    while not delivering.done():
                        self.nats = "connected" if bus.is_connected else "offline"
                        await self._clock.sleep(1.0)
                    await delivering  # raises what ended it
                finally:
                    delivering.cancel()
                    await asyncio.gather(delivering, return_exceptions=True)
            finally:
                self.nats = "offline"
                await bus.close()

    async def _deployed(self, message: Any) -> None:
        try:
            told = decode(message.data, ModelDeployed)
        except OnwardError as error:
            _log.warning("a deployment could not be read", reason=type(error).__name__)
            return
        facts = told.metadata
        self.model = {
            "id": told.model_info.model_id,
            "version": told.deployment_id,
            "deployed_at": told.timestamp.isoformat(),
            "event": facts.event if facts is not None else None,
        }
        self._look.set()

    async def _reported(self, message: Any) -> None:
        try:
            body = json.loads(message.data)
            sentence = str(body["message"])[:LONGEST_REPORT]
            self._reports.append({"message": sentence, "timestamp": str(body.get("timestamp", ""))[:64]})
        except (ValueError, KeyError, TypeError, AttributeError):
            _log.warning("a report could not be read")

    async def _with_gateway(self) -> None:
        if not self._gateway:
            return
        import httpx

        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        async with httpx.AsyncClient(timeout=GATEWAY_SECONDS, headers=headers, trust_env=False) as client:
            while True:
                self._look.clear()
                try:
                    async with asyncio.timeout(GATEWAY_SECONDS):  # the client's limit is one for each read
                        answer = await client.get(self._gateway + CURRENT_PATH)
                    told = answer.json() if answer.status_code == 200 else {}
                    name = told.get("model_id") if isinstance(told, dict) else None
                    if isinstance(name, str) and name != self.model["id"]:
                        self.model = {**NOTHING, "id": name}
                except (httpx.HTTPError, ValueError, TimeoutError) as error:
                    _log.warning("the gateway did not tell its model", reason=type(error).__name__)
                await self._pause()

    async def _pause(self) -> None:
        """Waits for a request to look: at least a second, at most a minute."""
        await self._clock.sleep(1.0)
        try:
            await asyncio.wait_for(self._look.wait(), LOOK_SECONDS)
        except TimeoutError:
            pass
