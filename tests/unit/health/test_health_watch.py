"""The watch: restarts a store that refuses, tells about children, streams and consumers."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats.js.errors
import pytest
from nats.js import api

from onward import config
from onward.bus import STREAMS
from onward.clock import ManualClock
from onward.health import disk
from onward.health import watch as watch_module
from onward.health.disk import Room
from onward.health.watch import Watch
from onward.telemetry.alerts import Alerts
from onward.telemetry.metrics import Metrics

ROOMY, FULL = Room(900 << 20, 1000 << 20), Room(1 << 20, 1000 << 20)


class Server:
    """Stands for the embedded server: refuses what the test says, counts restarts."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.disabled = False
        self.restarts = 0
        self.log = self

    def refused_writes(self) -> list[str]:
        found, self.refused = self.refused, []
        return found

    async def restart(self, cause: str) -> None:
        self.restarts += 1


class JetStream:
    """Answers with streams and consumers that the test sets."""

    def __init__(self) -> None:
        self.used = dict.fromkeys(STREAMS, 0.1)
        self.consumers: dict[tuple[str, str], tuple[int, int, int] | None] = {}

    async def stream_info(self, name: str) -> Any:
        if name not in self.used:
            raise nats.js.errors.NotFoundError
        return SimpleNamespace(
            config=SimpleNamespace(max_bytes=1000),
            state=SimpleNamespace(bytes=int(1000 * self.used[name])),
        )

    async def consumer_info(self, stream: str, durable: str) -> Any:
        at = self.consumers[stream, durable]
        if at is None:
            raise nats.js.errors.NotFoundError
        pending, floor, delivered = at
        return SimpleNamespace(
            num_pending=pending,
            num_ack_pending=0,
            ack_floor=api.SequenceInfo(consumer_seq=0, stream_seq=floor),
            delivered=api.SequenceInfo(consumer_seq=0, stream_seq=delivered),
        )


class World:
    def __init__(self, folder: Path) -> None:
        self.clock, self.metrics, self.server, self.js = ManualClock(), Metrics(), Server(), JetStream()
        self.told: list[tuple[str, str]] = []
        told = self.told

        class Told(Alerts):
            async def _send(self, kind, message, severity, facts) -> None:
                told.append((kind, severity))

        self.ctx: Any = SimpleNamespace(
            settings=config.load(environ={}, overrides={"data_dir": folder}),
            clock=self.clock,
            metrics=self.metrics,
            alerts=Told(None, self.clock, self.metrics),
            bus=SimpleNamespace(js=self.js, is_connected=True, consuming=set()),
            probes={},
            warnings={},
            children={},
        )
        self.room = ROOMY
        self.watch = Watch(self.ctx, self.server)  # type: ignore[arg-type]
        self.watch._room = self._room  # type: ignore[method-assign]

    async def _room(self) -> Room:
        return self.room

    async def tick(self, seconds: float = 0.0) -> None:
        self.clock._elapsed += seconds
        await self.watch._watch_disk()
        await self.watch._watch_store()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_store_that_refuses_is_restarted_when_there_is_room_and_not_before(world: World) -> None:
    world.room, world.server.refused = FULL, ["RL_TRAJECTORIES"]
    await world.tick()
    await world.tick(3600)
    assert world.server.restarts == 0
    assert world.told == [("disk", "critical"), ("store_refuses", "critical")]
    assert world.ctx.warnings == {"disk": "100% full"}
    world.room = ROOMY
    await world.tick(5)
    assert world.server.restarts == 1
    assert world.told[2:] == [("disk", "resolved"), ("store_refuses", "resolved")]
    assert world.ctx.warnings == {}
    await world.tick(5)
    assert world.server.restarts == 1


async def test_a_store_that_met_a_full_disk_is_restarted_although_its_log_says_nothing(world: World) -> None:
    world.room = FULL
    await world.tick()
    world.room = ROOMY
    await world.tick(5)
    assert world.server.restarts == 1


async def test_restarts_that_do_not_help_come_less_and_less_often(world: World) -> None:
    times = []
    for _ in range(200):
        world.server.refused = ["RL_TRAJECTORIES"]
        before = world.server.restarts
        await world.tick(5)
        if world.server.restarts > before:
            times.append(world.clock.monotonic())
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps == [10, 20, 40, 80, 160, 320]


async def test_jetstream_that_switched_itself_off_counts_as_refusing(world: World) -> None:
    world.server.disabled = True
    await world.tick()
    assert world.server.restarts == 1


async def test_a_disk_that_hangs_is_named_and_takes_one_thread_however_often_is_asked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, go_on = [], threading.Event()

    def hangs(_: Path) -> Room:
        calls.append(1)
        go_on.wait()
        return ROOMY

    monkeypatch.setattr(disk, "least_room", hangs)
    monkeypatch.setattr(watch_module, "READY_SECONDS", 0.05)
    del world.watch._room
    for _ in range(5):
        assert await world.watch.disk() == "hung"
        with pytest.raises(TimeoutError):  # the other samples of the watch go on
            await world.watch._watch_disk()
    assert len(calls) == 1
    go_on.set()


async def test_ready_says_full_or_unwritable_of_the_disk(world: World, tmp_path: Path) -> None:
    assert await world.watch.disk() == "unwritable", "the folder is missing"
    (tmp_path / "run").mkdir()
    assert await world.watch.disk() is True
    world.room = FULL
    assert await world.watch.disk() == "full"


async def test_a_child_that_ended_is_told_and_counted(world: World) -> None:
    keeper = SimpleNamespace(ends=0, cause="")
    world.ctx.children["warehouse"] = keeper
    await world.watch._watch_children()
    keeper.ends, keeper.cause = 2, "it did not answer 6 times in a row"
    await world.watch._watch_children()
    await world.watch._watch_children()
    assert world.told == [("child_restarted", "warning")]
    assert world.metrics.child_restarts.labels("warehouse")._value.get() == 2


async def test_a_stream_is_told_of_at_70_and_90_percent_and_a_full_one_is_not_ready(
    world: World,
) -> None:
    for share in (0.69, 0.71, 0.95, 0.95):
        world.js.used["RL_TRAJECTORIES"] = share
        await world.watch._watch_streams()
    assert world.told == [("stream_full", "warning"), ("stream_full", "critical")]
    assert world.ctx.warnings == {"RL_TRAJECTORIES": "95% of its byte limit"}
    assert world.metrics.stream_used.labels("RL_TRAJECTORIES")._value.get() == 0.95
    assert await world.watch.streams() is True
    world.js.used["RL_TRAJECTORIES"] = 0.985
    assert await world.watch.streams() == "full"
    world.js.used["RL_TRAJECTORIES"] = 0.1
    await world.watch._watch_streams()
    assert world.told[2:] == [("stream_full", "resolved")] and world.ctx.warnings == {}
    del world.js.used["RL_AUDIT"]
    assert await world.watch.streams() == "missing"


async def test_a_consumer_is_stuck_when_messages_wait_and_it_does_not_move(world: World) -> None:
    collector = ("RL_TRAJECTORIES", "collector")
    world.ctx.bus.consuming.add(collector)
    world.js.consumers[collector] = (0, 20, 20)
    for pending, floor, later, expected in (
        (0, 20, 600, True),  # nothing to do
        (5, 20, 0, True),
        (5, 20, 44, True),
        (5, 21, 44, True),  # it moved
        (9, 21, 44, True),
        (9, 21, 2, "stuck"),
        (9, 22, 0, True),
    ):
        world.clock._elapsed += later
        world.js.consumers[collector] = (pending, floor, floor)
        assert await world.watch.consumers() == expected, (pending, floor)
    world.js.consumers[collector] = None
    assert await world.watch.consumers() == "missing"


async def test_a_stuck_consumer_is_told_once_and_again_when_it_moves(world: World) -> None:
    collector = ("RL_TRAJECTORIES", "collector")
    world.ctx.bus.consuming.add(collector)
    for floor, later in ((1, 0), (1, 60), (1, 60), (2, 1)):
        world.clock._elapsed += later
        world.js.consumers[collector] = (3, floor, floor)
        await world.watch._watch_consumers()
    assert world.told == [("consumer_stuck", "critical"), ("consumer_stuck", "resolved")]


async def test_one_check_that_fails_does_not_end_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = SimpleNamespace(ends=1, cause="it ended with code 1")
    world.ctx.children["engine"] = keeper

    async def fails() -> None:
        raise ZeroDivisionError

    async def ends(seconds: float) -> None:
        raise InterruptedError(seconds)

    monkeypatch.setattr(world.watch, "_watch_children", fails)
    monkeypatch.setattr(world.clock, "sleep", ends)
    world.server.refused = ["RL_DLQ"]
    with pytest.raises(InterruptedError, match=str(int(watch_module.WATCH_SECONDS))):
        await world.watch.run()
    assert world.server.restarts == 1


async def test_nats_that_is_away_for_five_minutes_is_one_alert_and_its_return_ends_it(world: World) -> None:
    async def look(seconds: float) -> None:
        world.clock._elapsed += seconds
        await world.watch._watch_bus()

    await look(0)
    world.ctx.bus.is_connected = False
    await look(5)
    await look(300)
    assert world.told == []
    await look(1)
    await look(600)
    assert world.told == [("nats_away", "critical")]
    world.ctx.bus.is_connected = True
    await look(5)
    assert world.told[1:] == [("nats_away", "resolved")]
