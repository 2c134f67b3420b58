"""A service of its own process: what others on the machine can read, and what its children are given."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from commands import run_text

from onward.bus.server import find_binary

SERVICE = """
import asyncio, os, sys
from onward import config, host
from onward.telemetry import logs
os.umask(0)
logs.setup("debug", json=True)
roles = ["collector", "archiver", "rewarder", "api"]
asyncio.run(host.up(config.load(), roles=roles, introduce=lambda loop: print("endpoints", loop.endpoints)))
"""
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "onlytheservice1",
    "ONWARD_NATS__TOKEN": "onlytheservice2",
    "OPENAI_API_KEY": "onlytheservice3",
}
PASSWORD = "mysecretword"


class Service:
    """``onward up`` without the roles that need a model."""

    def __init__(self, folder: Path, settings: str, **environment: str) -> None:
        self.folder, self.log = folder, folder / "up.log"
        self.data = folder / "onward-data"
        (folder / "onward.toml").write_text(settings)
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVICE],
                cwd=folder, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **environment},
            )  # fmt: skip

    def wait(self) -> dict[str, object]:
        end = time.monotonic() + 120
        while not (self.data / "run" / "endpoints.json").exists():
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()
            time.sleep(0.05)
        return json.loads((self.data / "run" / "endpoints.json").read_text())

    def command(self, *words: str) -> str:
        """Returns what a command prints."""
        ran = run_text(self.folder, *words)
        return ran.stdout + ran.stderr

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def own_nats(tmp_path: Path) -> Iterator[str]:
    """The address of a server that wants a user and a password."""
    config = tmp_path / "nats.conf"
    config.write_text(
        f'port: -1\nhost: "127.0.0.1"\nmax_payload: 8MB\nports_file_dir: "{tmp_path}"\n'
        f'authorization {{ user: bob, password: "{PASSWORD}" }}\n'
        f'jetstream {{ store_dir: "{tmp_path}/nats", sync_interval: always, max_file_store: 32GB }}\n'
    )
    server = subprocess.Popen([find_binary(), "-c", str(config)], stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not (found := [path for path in tmp_path.glob("*.ports") if path.read_text().endswith("}")]):
        assert time.monotonic() < end
        time.sleep(0.02)
    yield json.loads(found[0].read_text())["nats"][0].removeprefix("nats://")
    server.terminate()
    server.wait()


def test_nobody_else_can_read_the_data_folder_and_no_child_gets_the_keys_of_the_service(
    tmp_path: Path,
) -> None:
    service = Service(tmp_path, "[nats]\nport = 0\n[http]\ngateway_port = 0\napi_port = 0\n", **SECRETS)
    try:
        service.wait()
        wide = [
            f"{path} {path.lstat().st_mode:o}"
            for path in (service.data, *service.data.rglob("*"))
            if not path.is_symlink() and path.stat().st_mode & 0o077
        ]
        kinds = {path.name for path in service.data.iterdir()}
        children = psutil.Process(service.process.pid).children(recursive=True)
        given = {child.name(): Path(f"/proc/{child.pid}/environ").read_text() for child in children}
    finally:
        service.stop()
    assert wide == []
    assert {"run", "nats", "chdb", "logs"} <= kinds
    assert "nats-server" in given and len(given) >= 2
    for name, environment in given.items():
        assert "onlytheservice" not in environment, name
        assert "PATH=" in environment, name


def test_the_password_of_a_server_of_ones_own_is_shown_nowhere(tmp_path: Path, own_nats: str) -> None:
    settings = '[nats]\nurl = "nats://bob:{}@{}"\n[http]\ngateway_port = 0\napi_port = 0\n'
    service = Service(tmp_path, settings.format(PASSWORD, own_nats))
    try:
        endpoints = service.wait()
        status = service.command("status", "--json")
        (tmp_path / "onward.toml").write_text(settings.format(f"{PASSWORD}wrong", own_nats))
        refused = service.command("status")
    finally:
        service.stop()
    assert endpoints["nats_url"] == f"nats://{own_nats}"
    assert json.loads(status)["endpoints"]["nats_url"] == f"nats://{own_nats}"
    assert refused == (
        f"NATS at nats://{own_nats} refused the login: check the token or user in onward.toml.\n"
    )
    everything = [service.log, *(path for path in service.data.rglob("*") if path.is_file())]
    assert [path for path in everything if PASSWORD.encode() in path.read_bytes()] == []
    assert f"nats://{own_nats}" in service.log.read_text()
