"""The watch of a service: samples disk, store, child processes, streams and consumers, and raises alerts.

It repairs one thing: an embedded nats-server whose store refuses to write is restarted when there is room. An
alert is sent through the bus, but its log line and its counter need no bus.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from functools import partial

import nats.errors
import nats.js.errors
from nats.js import api

from onward.bus import STREAMS, NatsServer
from onward.bus.cancellation import until_cancelled
from onward.bus.streams import stream_infos
from onward.context import Context
from onward.errors import OnwardError
from onward.health.disk import Room, SharedCall, check_writable, room_now
from onward.health.levels import DISK_LEVELS, STREAM_LEVELS, Levels
from onward.health.readiness import READY_SECONDS, answers_within
from onward.retry import Backoff
from onward.telemetry import logs

_log = logs.get("health")
WATCH_SECONDS = 5.0
"""Pause between two samples of disk, store and child processes."""
NATS_AWAY_SECONDS = 300.0
"""Time without a connection to NATS after which an alert is raised."""
STREAM_SECONDS = 15.0
"""The same for streams and consumers, which costs a request for each of them."""
FULL_STREAM = 0.98
"""Share of its byte limit from which a stream counts as full: large messages are refused below 1."""
STUCK_SECONDS = 45.0
"""Seconds in which a consumer with waiting messages must move."""
_AWAY = (OnwardError, nats.errors.Error, OSError, TimeoutError)


@dataclass
class _Position:
    """Position of a consumer: its sequences (acknowledged, delivered), and the time since it has them."""

    at: tuple[int, int]
    since: float


class Watch:
    """One per process; ``run`` is for the process that owns the data folder."""

    def __init__(self, ctx: Context, server: NatsServer | None = None) -> None:
        """``server``: the embedded one, if this process started it. Adds its probes to ``ctx``."""
        self._ctx, self._server = ctx, server
        self._is_writable = SharedCall(partial(check_writable, ctx.settings.run_dir))
        self._disk = Levels(ctx.alerts, "disk", DISK_LEVELS)
        self._streams: dict[str, Levels] = {}
        self._positions: dict[str, _Position] = {}
        self._ends: dict[str, int] = {}
        self._refusing = False
        self._was_full = False
        self._stuck: set[str] = set()
        self._away_since: float | None = None
        self._away_told = False
        self._restarts = Backoff(10.0, 600.0)
        self._next_restart = self._next_streams = ctx.clock.monotonic()
        ctx.probes.update(
            bus=self.bus,
            disk=self.disk,
            streams=self.streams,
            consumers=self.consumers,
            warehouse=self.warehouse,
        )

    async def run(self) -> None:
        """Samples until cancelled. What cannot be sampled now is left for the next time."""
        for _ in until_cancelled():
            checks = [self._watch_bus, self._watch_children, self._watch_disk, self._watch_store]
            if self._ctx.clock.monotonic() >= self._next_streams:
                self._next_streams = self._ctx.clock.monotonic() + STREAM_SECONDS
                checks += [self._watch_streams, self._watch_consumers]
            for check in checks:
                try:
                    await check()
                except _AWAY as error:
                    _log.debug("not sampled", what=check.__name__, why=repr(error))
                except Exception:  # a defect in one check must not end the others
                    _log.exception("a check failed", what=check.__name__)
            await self._ctx.clock.sleep(WATCH_SECONDS)

    # Probes of ``/ready``.

    async def bus(self) -> bool | str:
        """Asks for a stream. One that is missing is an answer as well."""
        if not self._ctx.bus.is_connected:
            return "away"
        with contextlib.suppress(nats.js.errors.NotFoundError):
            await self._ctx.bus.js.stream_info(next(iter(STREAMS)))
        return "refusing" if self._refusing else True

    async def disk(self) -> bool | str:
        try:
            if not (await self._room()).is_full:
                await self._is_writable()
                return True
        except TimeoutError:
            return "hung"
        except OSError as error:
            _log.debug("the disk refuses a file", why=repr(error))
            return "unwritable"
        return "full"

    async def streams(self) -> bool | str:
        shares = await self._shares()
        if not STREAMS.keys() <= shares.keys():
            return "missing"
        return "full" if max(shares.values()) >= FULL_STREAM else True

    async def consumers(self) -> bool | str:
        missing, stuck = await self._sample_consumers()
        return "missing" if missing else "stuck" if stuck else True

    async def warehouse(self) -> bool | str:
        await self._ctx.warehouse.check_alive()
        return True

    # Samples.

    async def _room(self) -> Room:
        """Raises TimeoutError when the disk does not answer: the other samples go on."""
        async with asyncio.timeout(READY_SECONDS):
            return await room_now(self._ctx.settings.data_dir)

    async def _shares(self) -> dict[str, float]:
        """Returns the used share of the byte limit of each declared stream that exists."""
        shares = {}
        for name, info in (await stream_infos(self._ctx.bus)).items():
            limit = info.config.max_bytes or 0
            shares[name] = info.state.bytes / limit if limit > 0 else 0.0
        return shares

    async def _sample_consumers(self) -> tuple[list[str], list[str]]:
        """Returns the consumers of this process that do not exist, and those that do not move."""
        asked = {
            f"{stream}/{durable}": self._ctx.bus.js.consumer_info(stream, durable)
            for stream, durable in self._ctx.bus.consuming
        }
        missing, stuck = [], []
        for name, info in (await answers_within(READY_SECONDS, asked)).items():
            durable = name.partition("/")[2]
            if isinstance(info, nats.js.errors.NotFoundError):
                missing.append(durable)
            elif isinstance(info, Exception):
                raise info
            elif self._is_stuck(name, info):
                stuck.append(durable)
        return sorted(missing), sorted(stuck)

    def _is_stuck(self, name: str, info: api.ConsumerInfo) -> bool:
        waiting = (info.num_pending or 0) + (info.num_ack_pending or 0)
        floor, delivered = info.ack_floor, info.delivered
        at = (floor.stream_seq if floor else 0, delivered.stream_seq if delivered else 0)
        now = self._ctx.clock.monotonic()
        before = self._positions.get(name)
        if before is None or before.at != at or not waiting:
            self._positions[name] = _Position(at, now)
            return False
        return now - before.since > STUCK_SECONDS

    # Alerts.

    async def _watch_bus(self) -> None:
        """Reports a connection to NATS that has been away for five minutes. The alert is in the log and the
        counter at once; over NATS it can only be resolved."""
        now = self._ctx.clock.monotonic()
        if self._ctx.bus.is_connected:
            if self._away_told:
                await self._ctx.alerts.resolve("nats_away", "NATS can be reached again.")
            self._away_since, self._away_told = None, False
            return
        if self._away_since is None:
            self._away_since = now
        if now - self._away_since > NATS_AWAY_SECONDS and not self._away_told:
            self._away_told = True
            await self._ctx.alerts.raise_(
                "nats_away",
                f"NATS has been away for more than {NATS_AWAY_SECONDS / 60:.0f} minutes, and agents' work "
                f"waits in their outboxes: look at the server and at nats.url.",
                "critical",
            )

    async def _watch_children(self) -> None:
        for name, keeper in list(self._ctx.children.items()):
            new = keeper.ends - self._ends.get(name, 0)
            self._ends[name] = keeper.ends
            if new <= 0:  # below zero: the role that keeps the child started again, with a new keeper
                continue
            self._ctx.metrics.child_restarts.labels(name).inc(new)
            await self._ctx.alerts.raise_(
                "child_restarted",
                f"The child process {name} is started again: {keeper.cause}.",
                child=name,
                times=new,
            )

    async def _watch_disk(self) -> None:
        room = await self._room()
        self._was_full = self._was_full or room.is_full
        self._ctx.metrics.disk_used.set(room.used)
        message = f"The disk of the data folder is {room.used:.0%} full ({room.free >> 20:,} MiB free)."
        await self._disk.follow(room.used, message, free_bytes=room.free)
        self._warn("disk", f"{room.used:.0%} full" if self._disk.raised else "")

    async def _watch_store(self) -> None:
        """Restarts a server that refuses to write, or that met a full disk, once there is room.

        The pause between two restarts doubles, because another reason than the disk may come again at once.
        """
        server = self._server
        if server is None:
            return
        streams = server.log.refused_writes()
        if (streams or server.disabled) and not self._refusing:
            self._refusing = True
            await self._ctx.alerts.raise_(
                "store_refuses",
                "nats-server refuses to store messages, so publishers wait: free some space on its disk. "
                "It is restarted when there is room.",
                "critical",
                streams=streams,
            )
        now = self._ctx.clock.monotonic()
        if not (self._refusing or self._was_full):
            if now - self._next_restart > 600.0:
                self._restarts.reset()
            return
        if now < self._next_restart or (await self._room()).is_full:
            return
        self._next_restart = now + self._restarts.next()
        await server.restart("its store may refuse to write since the disk was full")
        if self._refusing:
            await self._ctx.alerts.resolve("store_refuses", "There is room again: nats-server was restarted.")
        self._refusing = self._was_full = False

    async def _watch_streams(self) -> None:
        for name, share in (await self._shares()).items():
            self._ctx.metrics.stream_used.labels(name).set(share)
            levels = self._streams.setdefault(name, Levels(self._ctx.alerts, "stream_full", STREAM_LEVELS))
            await levels.follow(
                share,
                f"Stream {name} has used {share:.0%} of its byte limit; at 100 % its publishers wait: raise "
                f"streams.expected_gb_per_month and start again.",
                stream=name,
            )
            self._warn(name, f"{share:.0%} of its byte limit" if levels.raised else "")

    async def _watch_consumers(self) -> None:
        _, stuck = await self._sample_consumers()
        for durable in sorted(set(stuck) - self._stuck):
            await self._ctx.alerts.raise_(
                "consumer_stuck",
                f"Consumer {durable} has messages and has not moved for {STUCK_SECONDS:g} s.",
                "critical",
                consumer=durable,
            )
        for durable in sorted(self._stuck - set(stuck)):
            await self._ctx.alerts.resolve(
                "consumer_stuck", f"Consumer {durable} moves again.", consumer=durable
            )
        self._stuck = set(stuck)

    def _warn(self, part: str, words: str) -> None:
        if words:
            self._ctx.warnings[part] = words
        else:
            self._ctx.warnings.pop(part, None)
