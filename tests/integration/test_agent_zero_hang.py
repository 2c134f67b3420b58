"""The plugin with a real worker process that hangs, is stopped, or is only slow."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_zero_host import Host
from agent_zero_world import recorded, until
from poisoned_worker import DISK_SECONDS, SLOW_STEPS, interpreter

from onward.integrations.agent_zero.worker import hangs
from onward.integrations.agent_zero.worker.failed import FailedTasks

LIMIT = 4.0
"""Seconds without progress that are a hang in these tests: less than the slow worker needs."""
pytestmark = pytest.mark.slow


@contextmanager
def hosted(folder: Path, monkeypatch: pytest.MonkeyPatch, **config: Any) -> Iterator[Host]:
    with Host(folder / "a0", config={"hang_seconds": LIMIT, **config}) as host:
        monkeypatch.setattr("usr.plugins.onward.helpers.feed.PAUSES", (0.05, 0.2))
        monkeypatch.setattr("usr.plugins.onward.helpers.hang.LEAST", LIMIT)
        yield host


def data_of(host: Host) -> Path:
    return host.plugin / "data"


async def test_a_task_on_which_the_worker_hangs_is_put_aside_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, poison = interpreter(tmp_path, "hangs")
    with hosted(tmp_path, monkeypatch, python=str(program)) as host:
        data, status = data_of(host), host.runtime.status
        assert [await host.ask(text) for text in ("First", "Secret poison", "Second")] == ["done"] * 3
        await until(lambda: status()["recorded"] == 2)
        assert [one["task_context"]["instructions"] for one in recorded(data)] == ["First", "Second"]
        await until(lambda: status()["set_aside"] == 1)
        assert status()["waiting"] == 0 and status()["errors"] == 0
        assert (status()["hangs"]["count"], status()["hangs"]["seconds"]) == (2, LIMIT)
        for path in data.rglob("*"):
            assert not path.is_file() or b"Secret poison" not in path.read_bytes(), path
        (found,) = FailedTasks(data).all()
        assert found.error == "the worker made no progress on it for 4 seconds, 2 times"
        assert "made no progress for 4 seconds, was ended and started again: 2 times" in hangs.sentence(data)
        poison.unlink()
        assert FailedTasks(data).ask_again() == 1
        await until(lambda: status()["recorded"] == 3 and status()["set_aside"] == 0)
    stored = [one["task_context"]["instructions"] for one in recorded(data)]
    assert stored == ["First", "Second", "Secret poison"]


async def test_a_worker_that_was_stopped_is_replaced_and_what_it_had_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path, monkeypatch) as host:
        status, feed = host.runtime.status, host.runtime.feed
        assert await host.ask("Before") == "done"
        await until(lambda: status()["recorded"] == 1)
        stopped = feed.worker_pid
        os.kill(stopped, signal.SIGSTOP)
        host.system = "You are agent 0. " * 16_000  # more than a pipe takes: the feeding thread waits there
        assert [await host.ask(f"Task {number}") for number in range(4)] == ["done"] * 4
        await until(lambda: status()["recorded"] == 5 and not status()["waiting"])
        assert feed.worker_pid != stopped and status()["hangs"]["count"] == 1
        assert (status()["set_aside"], status()["dropped"]) == (0, 0)
        with pytest.raises(ProcessLookupError):
            os.kill(stopped, 0)
    assert len({one["trajectory_id"] for one in recorded(data_of(host))}) == 5


async def test_a_long_task_a_slow_disk_and_a_nats_server_that_never_answers_are_no_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, _ = interpreter(tmp_path, "slow")
    assert SLOW_STEPS > LIMIT > DISK_SECONDS  # one step takes a second
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        hosted(
            tmp_path, monkeypatch, python=str(program), nats_url=f"nats://127.0.0.1:{mute.getsockname()[1]}"
        ) as host,
    ):
        status = host.runtime.status
        assert await host.ask("Slow") == "done"
        await until(lambda: status()["recorded"] == 1)
        assert status()["hangs"]["count"] == 0
        await until(lambda: status()["queued"] == 1)
