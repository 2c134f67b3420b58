"""Files in ``run/`` that a power cut or a person damaged: one sentence, or a repair at the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.cli import main
from onward.config import load
from onward.errors import ConfigError
from onward.files import read_secret
from onward.http.app import local_key
from onward.warehouse import client, embedded

DAMAGE = {"empty": b"", "space": b" \n", "short": b"ok-1", "binary": b"\xff\xfe\x00" * 20, "folder": None}


def write(path: Path, data: bytes | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir() if data is None else path.write_bytes(data)


def sentence_of(folder: Path, capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--dir", str(folder)])
    assert ended.value.code == 2
    lines = capsys.readouterr().err.strip().split("\n")
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize("data", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_key_is_refused_with_a_sentence(tmp_path, data):
    write(tmp_path / "api.key", data)
    with pytest.raises(ConfigError, match=r"api.key .*delete it and a new one is made"):
        local_key(tmp_path)


def test_a_key_is_read_as_it_was_made(tmp_path):
    assert local_key(tmp_path) == local_key(tmp_path)
    assert read_secret(tmp_path / "api.key", "x") == local_key(tmp_path)


@pytest.mark.parametrize("name", [name for name in DAMAGE if name != "folder"])
def test_the_warehouse_gets_a_new_key_for_a_damaged_one(tmp_path, name):
    path = tmp_path / "warehouse.token"
    write(path, DAMAGE[name])
    made = embedded._token(path)
    assert len(made) >= 32 and embedded._token(path) == made
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"pid": 7}', '{"nats_url": 4222}', "\x00" * 64])
@pytest.mark.parametrize("command", [("pause",), ("releases", "list"), ("rescore",)])
def test_half_written_addresses_are_told_in_one_sentence(tmp_path, capsys, text, command):
    write(tmp_path / "run" / "endpoints.json", text.encode())
    assert "endpoints.json is damaged" in sentence_of(tmp_path, capsys, *command)


@pytest.mark.parametrize("name", ["empty", "short", "binary"])
def test_a_damaged_token_of_the_bus_is_told_in_one_sentence(tmp_path, capsys, name):
    write(tmp_path / "run" / "endpoints.json", b'{"nats_url": "nats://127.0.0.1:1"}')
    write(tmp_path / "run" / "nats.token", DAMAGE[name])
    assert "nats.token is damaged" in sentence_of(tmp_path, capsys, "pause")


async def test_a_damaged_key_of_the_warehouse_is_told_to_its_readers(tmp_path):
    write(tmp_path / "run" / "warehouse.token", b"")
    with pytest.raises(ConfigError, match=r"warehouse\.token is damaged"):
        await client.connect(load(environ={}, overrides={"data_dir": tmp_path}))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"socket": "x"}'])
async def test_a_damaged_address_of_the_warehouse_counts_as_away(tmp_path, text):
    write(tmp_path / "run" / "warehouse.json", text.encode())
    warehouse = client.Warehouse(lambda: client.read_address(tmp_path / "run"))
    assert not await warehouse.ping()
    await warehouse.close()
