import asyncio
import stat
from pathlib import Path

import pytest

from onward.errors import ConfigError
from onward.serving.engines import wire


async def _read(data: bytes):
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return await wire.read_frame(reader)


async def test_documents_go_through_whole_or_not_at_all():
    data = wire.frame({"text": "ü", "ids": [1, 2]})
    assert await _read(data) == {"text": "ü", "ids": [1, 2]}
    assert await _read(data[:-1]) is None
    assert await _read(b"") is None
    assert await _read(b"\xff\xff\xff\xff" + data) is None


def test_a_long_path_gets_a_private_socket_elsewhere(tmp_path):
    short = wire.socket_path(tmp_path / "run") if len(str(tmp_path)) < 80 else None
    assert short is None or short.parent == tmp_path / "run"
    long = wire.socket_path(tmp_path / ("x" * 100))
    assert len(str(long)) < 100 and stat.S_IMODE(long.parent.stat().st_mode) == 0o700
    assert long == wire.socket_path(tmp_path / ("x" * 100))
    long.parent.chmod(0o755)
    with pytest.raises(ConfigError):
        wire.socket_path(tmp_path / ("x" * 100))
    Path(long.parent).rmdir()
