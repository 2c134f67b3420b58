"""Room on a disk, alerts at its thresholds, and refused writes in the log of nats-server."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from onward.bus.server_log import ServerLog
from onward.clock import ManualClock
from onward.errors import ConfigError
from onward.health import disk
from onward.health.levels import Levels
from onward.telemetry.alerts import Alerts
from onward.telemetry.metrics import Metrics

LINES = """\
[7] 2026/11/29 15:34:18.1 [ERR] Filestore [RL_REWARDS] Critical write error: write 1.blk: no space
[7] 2026/11/29 15:34:18.2 [ERR] JetStream failed to store a msg on stream '$G > RL_TRAJECTORIES': no space
"""


class Told(Alerts):
    """Keeps the kinds and severities of alerts."""

    def __init__(self) -> None:
        super().__init__(None, ManualClock(), Metrics())
        self.told: list[tuple[str, str]] = []

    async def _send(self, kind, message, severity, facts) -> None:
        self.told.append((kind, severity))


async def test_calls_on_a_disk_that_hangs_share_one_thread_and_its_answer() -> None:
    started, go_on = [], threading.Event()

    def hangs() -> int:
        started.append(threading.current_thread().daemon)
        go_on.wait()
        return len(started)

    shared = disk.SharedCall(hangs)
    for _ in range(20):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(shared(), 0.001)
    waiting = [asyncio.create_task(shared()) for _ in range(3)]
    await asyncio.sleep(0)
    assert started == [True]
    go_on.set()
    assert await asyncio.gather(*waiting) == [1, 1, 1]
    assert await shared() == 2, "one that has ended is no answer for later calls"


async def test_an_error_of_a_shared_call_is_raised_for_each_of_its_callers() -> None:
    def fails() -> None:
        raise PermissionError("no")

    shared = disk.SharedCall(fails)
    for found in await asyncio.gather(shared(), shared(), return_exceptions=True):
        assert isinstance(found, PermissionError)


async def test_each_threshold_is_told_once_and_the_alert_is_resolved_below_the_first() -> None:
    alerts = Told()
    levels = Levels(alerts, "disk", (0.80, 0.90, 0.95))
    for share in (0.5, 0.81, 0.79, 0.82, 0.91, 0.89, 0.97, 0.96):
        await levels.follow(share, "The disk fills up.")
    assert alerts.told == [("disk", "warning"), ("disk", "warning"), ("disk", "critical")]
    assert levels.raised
    for share in (0.85, 0.79, 0.77, 0.5):
        await levels.follow(share, "The disk has room.")
    assert alerts.told[3:] == [("disk", "resolved")] and not levels.raised
    await levels.follow(0.80, "The disk fills up.")
    assert alerts.told[4:] == [("disk", "warning")], "it may rise again"


@pytest.mark.parametrize(
    ("free", "total", "full"),
    [
        (64 << 20, 252 << 30, False),
        ((64 << 20) - 1, 252 << 30, True),
        (21 << 20, 400 << 20, False),  # a small disk: 5 % of 400 MiB are 20 MiB
        (19 << 20, 400 << 20, True),
        (0, 0, False),  # a file system that counts nothing
    ],
)
def test_a_disk_is_full_while_there_is_no_room_for_a_block(free: int, total: int, full: bool) -> None:
    assert disk.Room(free, total).is_full is full


def test_the_used_share_is_the_one_of_df_and_the_fullest_file_system_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nats").mkdir()
    real = Path.stat
    monkeypatch.setattr(
        Path, "stat", lambda self, **k: SimpleNamespace(st_dev=2) if self.name == "nats" else real(self, **k)
    )
    facts = {
        str(tmp_path): os.statvfs_result((4096, 4096, 1000, 500, 400, 0, 0, 0, 0, 255)),
        str(tmp_path / "nats"): os.statvfs_result((4096, 4096, 1000, 100, 100, 0, 0, 0, 0, 255)),
    }
    monkeypatch.setattr(disk.os, "statvfs", lambda path: facts[str(path)])
    room = disk.least_room(tmp_path)
    assert (room.free, room.used) == (100 * 4096, 0.9)
    del facts[str(tmp_path / "nats")]
    (tmp_path / "nats").rmdir()
    monkeypatch.setattr(Path, "stat", real)
    assert disk.least_room(tmp_path).used == pytest.approx(500 / 900), "reserved blocks are not free"


def test_a_folder_that_takes_no_file_is_told_and_nothing_stays_in_one_that_does(tmp_path: Path) -> None:
    disk.check_writable(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="No such file"):
        disk.check_writable(tmp_path / "missing")


def test_a_start_on_a_full_or_read_only_disk_is_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "not" / "there"
    disk.refuse_full(folder)
    assert not (tmp_path / "not").exists(), "nothing is created by the check"

    def read_only(_: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(disk, "check_writable", read_only)
        with pytest.raises(ConfigError, match="takes no file \\(Read-only file system\\)"):
            disk.refuse_full(folder)
    monkeypatch.setattr(disk, "least_room", lambda _: disk.Room(3 << 20, 10 << 30))
    with pytest.raises(ConfigError, match=r"there is full \(3 MiB are free\): free some space"):
        disk.refuse_full(folder)


def test_refused_writes_are_found_once_also_when_the_server_starts_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "nats-server.log"
    path.write_text(LINES)
    log = ServerLog(path)
    assert log.refused_writes() == [], "it was there before"
    with path.open("a") as file:
        file.write("[7] [INF] Server is ready\n")
    assert log.refused_writes() == []
    with path.open("a") as file:
        file.write(LINES)
    assert log.refused_writes() == ["RL_REWARDS", "RL_TRAJECTORIES"]
    assert log.refused_writes() == []
    path.write_text(LINES.splitlines()[0])  # shorter: a new file
    assert log.refused_writes() == ["RL_REWARDS"]
    with path.open("a") as file:
        file.write(LINES)
    log.skip()
    assert log.refused_writes() == []
    path.unlink()
    assert log.refused_writes() == []
