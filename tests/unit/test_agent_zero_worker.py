"""The plugin's worker: how it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onward.capture.recorder import Recorder
from onward.integrations.agent_zero.worker.service import Worker

OPENED = {
    "op": "open",
    "t": "task-1",
    "root": "chat",
    "chat": "chat",
    "agent": 0,
    "at": 1.0,
    "content": {"user_message": "Count."},
}
CLOSED = {"op": "close", "t": "task-1", "at": 2.0, "status": "success", "result": "Three."}


def test_a_worker_that_cannot_store_ends_with_agent_zero_and_confirms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[dict[str, Any]] = []
    tries: list[str] = []

    def full(recorder: Recorder, document: dict[str, Any]) -> None:
        tries.append(document["metadata"]["outcome"]["status"])
        if len(tries) > 9:
            pytest.fail("the worker tries forever")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Recorder, "accept", full)
    worker = Worker(tmp_path, tmp_path, heard.append)
    worker.take({"op": "settings"})
    worker.take(OPENED)
    worker.take(CLOSED)
    worker.take({**OPENED, "t": "task-2"})
    worker.end()
    assert tries == ["completed_successfully", "completed_successfully", "abandoned"]
    assert not [one for one in heard if one["op"] == "done"]
