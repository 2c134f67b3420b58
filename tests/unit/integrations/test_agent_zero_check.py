"""``onward agent-zero check`` and ``retry``: the gateway, where work waits, tasks that were put aside."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from agent_zero_page import make_agent_zero
from commands import run_bytes

from onward.integrations.agent_zero import install
from onward.integrations.agent_zero.check import check_gateway
from onward.integrations.agent_zero.worker import hangs
from onward.integrations.agent_zero.worker.failed import FailedTasks

PLUGIN = "usr/plugins/onward"


@pytest.fixture
def zero(tmp_path: Path) -> Path:
    return make_agent_zero(tmp_path / "a0")


def run(*words: object) -> tuple[int, str]:
    done = run_bytes(Path("/"), "agent-zero", *map(str, words))
    return done.returncode, (done.stdout + done.stderr).decode()


def test_a_check_before_the_installation_asks_for_it_once(zero: Path) -> None:
    closed = "http://127.0.0.1:1", "nats://127.0.0.1:1"
    code, output = run("check", "--path", zero, "--gateway", closed[0], "--nats", closed[1])
    assert code == 1 and "FAIL files: The plugin is not installed: run onward agent-zero install." in output
    assert "None" not in output and "version" not in output
    assert f"wait in {zero / PLUGIN / 'data'} (outbox.db, up to 1024 MiB, and feedback.db)" in output
    assert "for as long as it is away" in output and "everything" not in output
    assert output.count("nats://127.0.0.1:1") == 1


def test_tasks_that_were_put_aside_are_named_by_the_check_and_tried_again_by_a_command(zero: Path) -> None:
    data = zero / PLUGIN / "data"
    install.install(zero)
    assert run("retry", "--path", zero) == (0, "No task was put aside.\n")
    data.mkdir()
    failed = FailedTasks(data)
    for name in ("task-1", "task-2"):
        reason = "the worker ended with signal 9 on it 3 times"
        failed.put(name, ['{"op":"close"}'], reason, datetime(2026, 3, 28, tzinfo=UTC))
    closed = "--gateway", "http://127.0.0.1:1", "--nats", "nats://127.0.0.1:1"
    code, output = run("check", "--path", zero, *closed)
    (line,) = [line for line in output.splitlines() if "failed tasks" in line]
    assert code == 1 and line.startswith("FAIL failed tasks: 2 put aside, encrypted, in ")
    assert "(task-1, 2026-03-28T00:00:00" in line and "ended with signal 9 on it 3 times. Try again" in line
    command = line.rpartition("Try again with onward agent-zero ")[2].removesuffix(".").split()
    code, output = run(*command)
    assert code == 0 and output.startswith("2 put aside: the worker tries each once more")
    tried = [failed.next_again(), failed.next_again(), failed.next_again()]
    assert tried == [("task-1", [{"op": "close"}]), ("task-2", [{"op": "close"}]), None]
    assert failed.count() == 2  # until they are recorded


def test_a_worker_that_hung_is_named_by_the_check_in_plain_words(zero: Path) -> None:
    install.install(zero)
    closed = "--gateway", "http://127.0.0.1:1", "--nats", "nats://127.0.0.1:1"
    _, output = run("check", "--path", zero, *closed)
    (before,) = [line for line in output.splitlines() if " worker: " in line]
    assert before.startswith("ok   worker: The worker runs with ") and "progress" not in before
    data = zero / PLUGIN / "data"
    data.mkdir()
    hangs.save(data, {"count": 1, "at": "2026-03-28T12:00:00Z", "seconds": 300.0})
    _, output = run("check", "--path", zero, *closed)
    assert (
        f"{before} It made no progress for 300 seconds, was ended and started again: once in one run of "
        f"Agent Zero, the last time at 2026-03-28T12:00:00Z.\n"
    ) in output


def test_a_login_in_the_settings_which_agents_can_read_fails_the_check(zero: Path) -> None:
    install.install(zero)
    closed = "--gateway", "http://127.0.0.1:1"
    for login, fails in (("", False), ("agent:" + "pass" * 3 + "@", True)):
        url = f"nats://{login}127.0.0.1:1"
        (zero / PLUGIN / "config.json").write_text(json.dumps({"nats_url": url}))
        _, output = run("check", "--path", zero, *closed)
        assert ("FAIL settings: The setting nats_url has a login, and agents can read" in output) == fails
        assert "passpass" not in output


def test_an_address_that_cannot_be_read_is_refused_without_its_password(zero: Path) -> None:
    for password in ("pa[ss", "pa\u2100ss"):
        url = f"nats://agent:{password}@127.0.0.1:4222"
        code, output = run("check", "--path", zero, "--gateway", "http://127.0.0.1:1", "--nats", url)
        assert code == 1 and "FAIL bus: The address nats://127.0.0.1:4222 cannot be read: " in output
        assert "ss@" not in output and password not in output and "Traceback" not in output


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((200, b'{"status": "ok", "service": "gateway"}'), None),
        ((200, b'{"status": "ok", "service": "api"}'), "the service 'api' answers there"),
        (
            (200, b"<html>\n<b>Grafana</b></html>"),
            "/health is answered by 200 and '<html> <b>Grafana</b></html>'",
        ),
        ((200, b""), "/health is answered by 200 and nothing"),
        ((404, b"x" * 900), f"/health is answered by 404 and '{'x' * 60}…'"),
        ((200, b'{"gateway": "ok"}'), '/health is answered by 200 and \'{"gateway": "ok"}\''),
    ],
)
async def test_only_onwards_gateway_passes_for_it_and_anything_else_is_described(
    answer: tuple[int, bytes], words: str | None
) -> None:
    """TensorZero's own gateway, which answers the last one, is not Onward's either."""

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer[0])
            self.send_header("Content-Length", str(len(answer[1])))
            self.end_headers()
            self.wfile.write(answer[1])

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        gateway = await check_gateway(url)
    finally:
        server.shutdown()
        server.server_close()
    assert gateway.passed == (words is None)
    assert words is None or f"{url} is not Onward's gateway: {words}" in gateway.message
