"""The place of a gateway: no two living gateways have one identity or one file."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from onward.config import Settings
from onward.errors import ConfigError, EngineError
from onward.serving import place as places
from onward.serving.engines import wire
from onward.serving.engines.local import LocalEngine
from onward.serving.http import gateway
from onward.serving.place import Place, any_engine
from onward.serving.recording.recording import outbox_of


def settings(folder) -> Settings:
    return Settings.model_validate({"data_dir": folder})


def test_two_gateways_on_one_folder_share_neither_identity_nor_file(tmp_path):
    one, two = Place.take(settings(tmp_path)), Place.take(settings(tmp_path))
    assert [one.name, two.name] == ["gateway", "gateway-2"]
    for what in ("gateway_id", "engine", "routes"):
        assert getattr(one, what) != getattr(two, what), what


def test_a_restarted_gateway_has_the_place_and_the_identity_that_it_had(tmp_path):
    first = Place.take(settings(tmp_path))
    name, gateway_id = first.name, first.gateway_id
    first.release()
    again = Place.take(settings(tmp_path))
    assert (again.name, again.gateway_id) == (name, gateway_id)


def test_a_copied_folder_and_another_machine_have_identities_of_their_own(tmp_path, monkeypatch):
    one = Place.take(settings(tmp_path / "one"))
    ids = {one.gateway_id}
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    ids.add(Place.take(settings(tmp_path / "two")).gateway_id)
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    ids.add(one.gateway_id)
    assert len(ids) == 3


def test_only_what_a_dead_gateway_left_is_found(tmp_path):
    one, two, three = (Place.take(settings(tmp_path)) for _ in range(3))
    for place in (one, two, three):
        place.outbox_folder.mkdir(exist_ok=True)
        (place.outbox_folder / outbox_of(place.name)).touch()
    assert list(one.left_by_others()) == []
    two.release()
    for found in one.left_by_others():
        assert found.name == "gateway-2"
        assert list(three.left_by_others()) == [], "while one gateway has it, no other one does"
        assert Place.take(settings(tmp_path)).name == "gateway-4"
    assert [found.name for found in three.left_by_others()] == ["gateway-2"]


def test_a_killed_process_frees_its_place(tmp_path):
    code = (
        "import sys; from onward.config import Settings; from onward.serving.place import Place;"
        f"place = Place.take(Settings.model_validate({{'data_dir': {str(tmp_path)!r}}}));"
        "print(place.name, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline().strip() == "gateway"
        second = Place.take(settings(tmp_path))
        assert second.name == "gateway-2"
        child.kill()
        child.wait()
    assert Place.take(settings(tmp_path)).name == "gateway"


def test_one_gateway_too_many_is_refused_with_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "MOST_PLACES", 2)
    held = [Place.take(settings(tmp_path)) for _ in range(2)]
    with pytest.raises(ConfigError, match=r"2 gateways run on .*: give this one a folder of its own"):
        Place.take(settings(tmp_path))
    assert len(held) == 2


@pytest.mark.parametrize("what", ["EngineProcess", "Gateway"])
async def test_a_role_that_fails_while_it_is_built_frees_its_place(tmp_path, monkeypatch, what):
    def broken(*_: Any, **__: Any) -> Any:
        raise ConfigError("no")

    monkeypatch.setattr(gateway, "SWITCH_SECONDS", sys.getswitchinterval())
    monkeypatch.setattr(gateway, "EngineProcess", lambda *_, **__: SimpleNamespace(engine=None))
    monkeypatch.setattr(gateway, what, broken)
    with pytest.raises(ConfigError, match="no") as kept:  # its frames keep the place from being collected
        await gateway.run(SimpleNamespace(settings=settings(tmp_path), clock=None))  # type: ignore[arg-type]
    assert Place.take(settings(tmp_path)).name == "gateway" and kept.tb is not None


class FakeEngine:
    """Answers each operation on an engine's socket, and keeps what was loaded."""

    def __init__(self, run_dir: Path, name: str) -> None:
        self.name, self.path, self.loaded = name, wire.socket_path(run_dir, name), []
        self.writers: list[asyncio.StreamWriter] = []

    async def start(self) -> Self:
        self.server = await asyncio.start_unix_server(self._serve, path=str(self.path))
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        while (call := await wire.read_frame(reader)) is not None:
            if call["op"] == "load":
                self.loaded.append(call["digest"])
            writer.write(wire.frame({"id": call["id"], "result": {"engine": self.name}}))
        writer.close()

    async def die(self) -> None:
        """Leaves the socket's file, as a killed process does."""
        self.server.close()
        for writer in self.writers:
            writer.close()
        await asyncio.sleep(0)


@pytest.mark.parametrize("folder", ["short", "x" * 100])
async def test_while_the_first_gateways_engine_is_away_another_living_one_is_used(
    tmp_path: Path, folder: str
) -> None:
    run = tmp_path / folder
    engines = [await FakeEngine(run, name).start() for name in ("engine", "engine-2", "engine-4")]
    client = any_engine(run)
    await client.load_adapter("d1", tmp_path / "d1")
    served = [await _answering(client)]
    for engine in engines[:2]:
        await engine.die()
        served.append(await _answering(client))
    assert served == ["engine", "engine-2", "engine-4"]
    assert [engine.loaded for engine in engines] == [["d1"]] * 3
    await client.close()
    for engine in engines:
        await engine.die()
        engine.path.unlink()
        if folder != "short":
            engine.path.parent.rmdir()


async def _answering(client: LocalEngine) -> str:
    async with asyncio.timeout(10):
        while True:
            try:
                return (await client.health())["engine"]
            except EngineError:  # the call in flight
                await asyncio.sleep(0.01)


async def test_without_any_engine_the_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="The engine is away"):
        await any_engine(tmp_path).health()
