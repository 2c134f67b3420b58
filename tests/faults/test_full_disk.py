"""A disk that was full and has room again: every store goes on by itself. Needs the right to mount."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from onward import config
from onward.bus import Bus, NatsServer
from onward.clock import SystemClock
from onward.context import Context
from onward.errors import BusError, ObjectError, WarehouseError
from onward.health import watch as watch_module
from onward.health.watch import Watch
from onward.roles import beside
from onward.telemetry.alerts import Alerts
from onward.telemetry.metrics import Metrics
from onward.warehouse import EmbeddedWarehouse, Objects

TRAJECTORY = "agent.rl.trajectory.v1"
MIB = 1 << 20


class SmallDisk:
    """A folder on a file system of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        with (self.path / "fill").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(65536))
            except OSError:
                pass

    def free(self) -> None:
        (self.path / "fill").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", str(path)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a small file system")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


async def test_nats_server_stores_again_when_there_is_room_and_the_alerts_come_and_go(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "WATCH_SECONDS", 0.2)
    settings = config.load(environ={}, overrides={"data_dir": disk.path})
    server, clock, metrics = NatsServer(disk.path), SystemClock(), Metrics()
    await server.start()
    bus = await Bus.connect(server.url, token=server.token, name="test")
    await bus.ensure_streams()
    objects = Objects.open(str(disk.path / "objects"))
    ctx = Context(settings, clock, bus, None, objects, metrics, Alerts(bus, clock, metrics))  # type: ignore[arg-type]
    ctx.children["nats-server"] = server.keeper
    watch = Watch(ctx, server)

    def raised(kind: str) -> float:
        return metrics.alerts.labels(kind)._value.get()

    try:
        async with beside(watch.run()):
            await bus.publish(TRAJECTORY, b"before", msg_id="before")
            disk.fill()
            with pytest.raises(BusError, match="did not acknowledge"):
                for number in range(1000):  # the open block of the stream may still have room
                    await bus.publish(TRAJECTORY, bytes(8000), msg_id=f"m{number}", deadline=2.0)
            async with asyncio.timeout(30):
                while await watch.bus() != "refusing":
                    await asyncio.sleep(0.05)
            assert (await watch.disk(), ctx.warnings) == ("full", {"disk": "100% full"})
            assert (raised("disk"), raised("store_refuses"), server.keeper.ends) == (1, 1, 0)
            disk.free()
            await bus.publish(TRAJECTORY, b"after", msg_id="after", deadline=60.0)
            async with asyncio.timeout(30):
                while not raised("child_restarted"):
                    await asyncio.sleep(0.05)
            assert server.keeper.cause == "its store may refuse to write since the disk was full"
            assert (await watch.bus(), await watch.disk(), ctx.warnings) == (True, True, {})
            assert (await bus.js.get_msg("RL_TRAJECTORIES", seq=1)).data == b"before"
    finally:
        await bus.close()
        await server.stop()


async def test_the_warehouse_and_the_object_store_go_on_when_there_is_room(disk: SmallDisk) -> None:
    embedded = EmbeddedWarehouse(disk.path)
    warehouse = await embedded.start()
    objects = Objects.open(str(disk.path / "objects"))
    try:
        await warehouse.command("CREATE TABLE t (n UInt64, s String) ENGINE = MergeTree ORDER BY n")
        await warehouse.insert("t", [{"n": 1, "s": "before"}])
        await objects.put("before", b"1")
        disk.fill()
        with pytest.raises(WarehouseError):
            await warehouse.insert("t", [{"n": 2, "s": "x" * MIB}], patience=1.0)
        with pytest.raises(ObjectError, match="No space left"):
            await objects.put("while", bytes(MIB))
        pid = embedded.pid
        disk.free()
        await warehouse.insert("t", [{"n": 3, "s": "after"}], patience=30.0)
        await objects.put("while", b"2")
        assert await objects.get("while") == b"2"
        assert [row["n"] for row in await warehouse.query("SELECT n FROM t ORDER BY n")] == [1, 3]
        assert embedded.pid == pid
    finally:
        await embedded.stop()
