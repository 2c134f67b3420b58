"""A start says within seconds, in one sentence, which object store is missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from onward import host
from onward.config import load
from onward.errors import ObjectError

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def _endpoint(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "here",
        "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    try:
        yield
    finally:
        server.close()


async def _says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def _has_no_such_bucket(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    body = b"" if head.startswith(b"HEAD") else b"<Error><Code>NoSuchBucket</Code></Error>"
    writer.write(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
    writer.write(body)
    await writer.drain()
    writer.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [(_says_nothing, "0.5 s without an answer"), (_has_no_such_bucket, "NoSuchBucket|404")],
)
async def test_a_store_that_does_not_answer_or_has_no_such_bucket_is_named(
    answer: Answer, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(host, "START_SECONDS", 0.5 if answer is _says_nothing else 20.0)
    async with _endpoint(answer, monkeypatch):
        settings = load(
            environ={"TRAJECTORY_STORAGE_PATH": "s3://bucket/trajectories/"}, overrides={"data_dir": tmp_path}
        )
        with pytest.raises(ObjectError, match=why) as refused:
            await host.check_stores(settings)
    said = str(refused.value)
    assert said.startswith(
        "The object store s3://bucket/trajectories/ (TRAJECTORY_STORAGE_PATH) cannot be used ("
    )
    assert "check the address, AWS_ENDPOINT_URL" in said and "\n" not in said and "secret" not in said
