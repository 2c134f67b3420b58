"""Forks while other threads open outboxes and abandon them: SQLite's locks must not reach a child locked."""

from __future__ import annotations

import faulthandler
import gc
import os
import threading

import pytest

from onward.bus import Outbox

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork with threads is the point


def test_a_fork_while_threads_open_and_abandon_outboxes_leaves_no_child_stuck(tmp_path):
    """Without a gate around opening and closing, a child in ten waited without end for SQLite's own lock."""
    outbox, stop = Outbox(tmp_path / "kept.db"), threading.Event()

    def abandon(name: str) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            Outbox(tmp_path / f"{name}-{number}.db").put("s", b"x", "first")
            gc.collect(0)

    threads = [threading.Thread(target=abandon, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    statuses = []
    try:
        for number in range(30):
            child = os.fork()
            if child == 0:
                faulthandler.dump_traceback_later(60, exit=True)  # shows where a child is stuck, and ends it
                outbox.put("s", b"x", f"child-{number}")
                os._exit(0)
            statuses.append(os.waitpid(child, 0)[1])
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert statuses == [0] * 30
    assert [receipt.msg_id for receipt in outbox.receipts()] == [f"child-{number}" for number in range(30)]
    outbox.close()


def test_an_abandoned_connection_is_closed_by_the_next_outbox_of_this_process(tmp_path):
    outbox = Outbox(tmp_path / "abandoned.db")
    connections = list(outbox._file._connections.values())
    assert len(connections) == 2
    del outbox
    gc.collect()
    assert all(connection.execute("SELECT 1").fetchone() == (1,) for connection in connections)
    Outbox(tmp_path / "next.db").close()
    for connection in connections:
        with pytest.raises(Exception, match="closed database"):
            connection.execute("SELECT 1")
