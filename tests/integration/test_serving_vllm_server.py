"""The vLLM server that the gateway starts itself: here the fake one, by the command in the settings."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import vllm_fake
from model_folders import good_model

from onward import host, processes
from onward.clock import SystemClock
from onward.config import Settings
from onward.errors import ConfigError, EngineError
from onward.serving.engines import vllm_server
from onward.serving.engines.local import EngineProcess
from onward.serving.engines.vllm_server import VllmServer, command_of

FAKE = [sys.executable, str(Path(vllm_fake.__file__))]
HAS_A_WORKER = """
import os, signal, subprocess, sys, time
from pathlib import Path
before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
worker = subprocess.Popen(["sleep", "600"])  # it keeps ignoring SIGTERM
signal.signal(signal.SIGTERM, before)
partial = Path(sys.argv[1] + ".partial")
partial.write_text(f"{os.getpid()} {worker.pid}")
partial.rename(sys.argv[1])
time.sleep(float(sys.argv[2]))
"""
"""A server that never answers: arguments are a file for the ids of both, and the seconds until it ends."""
ASKED: dict[str, Any] = {"session_id": "s", "adapter": None, "max_tokens": 6, "temperature": 1.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return good_model(tmp_path_factory.mktemp("model") / "base")


def settings(folder: Path, *command: str, **vllm: Any) -> Settings:
    return Settings.model_validate({
        "data_dir": folder,
        "model": {"engine": "vllm", "max_context": 256, "threads": 1},
        "vllm": {"command": list(command or FAKE), **vllm},
    })  # fmt: skip


async def test_the_server_is_started_on_loopback_with_a_key_and_restarted_on_its_port(
    model: Path, tmp_path: Path
) -> None:
    process = EngineProcess(settings(tmp_path), clock=SystemClock(), folder=model)
    engine = await process.start()
    try:
        server = process._vllm
        assert server is not None and server.keeper.pid is not None
        answer = await engine.generate([{"role": "user", "content": "Add 2 and 3."}], **ASKED)
        assert answer.sampling["token_ids"]
        command = Path(f"/proc/{server.keeper.pid}/cmdline").read_text()
        assert server.url.startswith("http://127.0.0.1:") and server.key not in command
        assert len(server.key) == 64
        first, url = server.keeper.pid, server.url
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(60):
            while server.keeper.pid in (None, first):
                await asyncio.sleep(0.05)
            while True:
                try:
                    again = await engine.generate([{"role": "user", "content": "Add 2 and 4."}], **ASKED)
                    break
                except EngineError:
                    await asyncio.sleep(0.05)
        assert again.sampling["token_ids"]
        assert (server.url, server.keeper.restarts) == (url, 1)
    finally:
        await process.stop()
    assert server.keeper.pid is None and (tmp_path / "logs" / "engine-vllm.log").exists()


async def test_a_server_whose_port_was_taken_is_restarted_on_another_that_the_engine_learns(
    model: Path, tmp_path: Path
) -> None:
    process = EngineProcess(settings(tmp_path), clock=SystemClock(), folder=model)
    engine = await process.start()
    try:
        server = process._vllm
        assert server is not None and server.keeper.pid is not None
        first, url, key = server.keeper.pid, server.url, server.key
        os.kill(first, signal.SIGKILL)
        with _take(int(url.rpartition(":")[2])):
            async with asyncio.timeout(120):
                while True:
                    try:
                        answer = await engine.generate([{"role": "user", "content": "Add 2 and 3."}], **ASKED)
                        break
                    except EngineError:
                        await asyncio.sleep(0.05)
        assert answer.sampling["token_ids"]
        assert server.url != url and server.key != key and server.keeper.restarts == 1
    finally:
        await process.stop()


def _take(port: int) -> socket.socket:
    """Listens on a port as soon as its server is gone."""
    while True:
        taker = socket.socket()
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taker.bind(("127.0.0.1", port))
            taker.listen()
            return taker
        except OSError:
            taker.close()


@pytest.mark.parametrize("status", [200, 401])
async def test_a_stranger_on_the_port_is_not_taken_for_the_server(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    asked: list[tuple[str, bool]] = []

    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, "Authorization" in self.headers))
            self.send_response(200 if self.path == "/health" else status)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        monkeypatch.setattr(vllm_server, "_free_port", lambda: stranger.server_port)
        idle = settings(tmp_path, sys.executable, "-c", "import time; time.sleep(600)")
        for seconds in (1, 5, 30):  # on a busy machine it is asked for its health alone in one second
            with pytest.raises(EngineError, match="not become ready"):
                await VllmServer(idle, model, clock=SystemClock(), start_seconds=seconds).start()
            if ("/v1/models", False) in asked:
                break
        stranger.shutdown()
    assert ("/v1/models", False) in asked
    assert status == 401 or ("/v1/models", True) not in asked


async def test_a_server_that_does_not_start_is_one_sentence_with_its_last_line(
    model: Path, tmp_path: Path
) -> None:
    asked = settings(tmp_path, options=["--fail-with", "No memory for the cache"])
    process = EngineProcess(asked, clock=SystemClock(), folder=model)
    with pytest.raises(EngineError, match=r"ended at its start with code 1: No memory for the cache\. See"):
        await process.start()


async def test_a_large_log_is_replaced_and_only_its_end_is_read(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_server, "_LARGEST_LOG", 5000)
    words = "import sys; print('x' * 9000); sys.exit('No memory for the cache')"
    server = VllmServer(
        settings(tmp_path, sys.executable, "-c", words), model, clock=SystemClock(), start_seconds=60
    )
    log = tmp_path / "logs" / "vllm.log"
    for _ in range(3):
        with pytest.raises(EngineError, match=r"with code 1: No memory for the cache\. See"):
            await server.start()
        assert 9000 < log.stat().st_size < 10_000
    assert sorted(path.name for path in log.parent.iterdir()) == ["vllm.log", "vllm.log.1"]
    monkeypatch.setattr(vllm_server, "_TAIL", 10)
    log.write_text("one\ntwo and three\n")
    assert vllm_server._last_line(log) == "and three."


async def test_a_server_that_never_answers_is_ended_with_its_workers(model: Path, tmp_path: Path) -> None:
    told = tmp_path / "pids"
    asked = settings(tmp_path, sys.executable, "-c", HAS_A_WORKER, str(told), "600")
    server = VllmServer(asked, model, clock=SystemClock(), start_seconds=5)
    with pytest.raises(EngineError, match=r"not become ready within 5 s"):
        await server.start()
    await _until_gone(told)
    assert not list((tmp_path / "logs").glob("*.pid"))


async def test_the_workers_of_a_server_that_ends_at_its_start_are_ended(model: Path, tmp_path: Path) -> None:
    told = tmp_path / "pids"
    asked = settings(tmp_path, sys.executable, "-c", HAS_A_WORKER, str(told), "0")
    server = VllmServer(asked, model, clock=SystemClock(), start_seconds=60)
    with pytest.raises(EngineError, match="ended at its start with code 0"):
        await server.start()
    await _until_gone(told)


async def test_the_workers_that_a_killed_gateway_left_are_ended_at_the_next_start(
    model: Path, tmp_path: Path
) -> None:
    (tmp_path / "logs").mkdir()
    told, record = tmp_path / "pids", tmp_path / "logs" / "vllm.pid"
    with (tmp_path / "logs" / "vllm.log").open("ab") as log:
        former = subprocess.Popen(
            [sys.executable, "-c", HAS_A_WORKER, str(told), "600"], stdout=log, start_new_session=True
        )
    while not told.exists():
        await asyncio.sleep(0.02)
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    born = processes.birth(former.pid)
    assert born is not None and born != processes.birth(stranger.pid)
    former.kill()
    former.wait()
    try:
        asked = settings(tmp_path, sys.executable, "-c", "")
        for leader in (stranger.pid, former.pid):  # the id of the first is in use again
            record.write_text(f"{leader} {born}")
            with pytest.raises(EngineError):
                await VllmServer(asked, model, clock=SystemClock(), start_seconds=60).start()
        await _until_gone(told)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def _until_gone(told: Path) -> None:
    """Waits until no process of the server whose ids are in ``told`` runs; fails if one stays."""
    async with asyncio.timeout(30):
        for pid in map(int, told.read_text().split()):
            while processes.birth(pid) and "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
                await asyncio.sleep(0.02)


def test_options_of_the_user_come_last(model: Path, tmp_path: Path) -> None:
    server = VllmServer(
        settings(tmp_path, options="--dtype float32"), model, clock=SystemClock(), start_seconds=1
    )
    words = server.options()
    assert words[-2:] == ["--dtype", "float32"]
    assert words[words.index("--max-model-len") + 1] == "256"


def test_a_server_that_cannot_be_started_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"vllm\.command or|set vllm\.command"):
        command_of(Settings.model_validate({"model": {"engine": "vllm"}}).vllm)
    with pytest.raises(ConfigError, match=r"'/no/python', which is no program here"):
        command_of(settings(tmp_path, "/no/python").vllm)


async def test_the_service_reports_it_before_it_starts_anything(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_bus", lambda *_: pytest.fail("something was started"))
    asked = Settings.model_validate({
        "data_dir": tmp_path / "data", "nats": {"port": 0}, "http": {"gateway_port": 0, "api_port": 0},
        "model": {"engine": "vllm", "base": str(model)},
    })  # fmt: skip
    with pytest.raises(ConfigError, match="vLLM is not installed beside Onward"):
        async with host.parts(asked):
            pass
