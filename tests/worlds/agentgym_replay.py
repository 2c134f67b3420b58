"""Transcripts of AgentGym's own servers, and a server that plays them back over real HTTP.

The files in ``agentgym/`` follow recordings of its TextCraft and BabyAI servers (commit 3ef9235) entry by
entry: the same requests, status codes, fields, types and quirks, with observations cut short. With the
variable AGENTGYM_TRANSCRIPTS set to a folder of whole recordings, those are played too.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from onward.http.server import Server

_FOLDERS = [
    Path(__file__).parents[1] / "integration" / "agentgym",
    Path(os.environ.get("AGENTGYM_TRANSCRIPTS", "/nowhere")),
]


@dataclass(frozen=True)
class Entry:
    method: str
    path: str
    body: Any
    status: int
    response: Any


@dataclass(frozen=True)
class Transcript:
    name: str
    entries: tuple[Entry, ...]

    @property
    def dialect(self) -> str:
        return self.name.split("-")[0]


def _read(file: Path) -> Transcript:
    rows = json.loads(file.read_text(encoding="utf-8"))
    entries = tuple(Entry(**row["request"], status=row["status"], response=row["response"]) for row in rows)
    return Transcript(file.stem, entries)


TRANSCRIPTS = [_read(file) for folder in _FOLDERS for file in sorted(folder.glob("*.json"))]


class Replay:
    """``async with Replay(transcript) as replay``: ``url``; ``unknown`` lists what was not recorded.

    Equal requests get their recorded answers in turn, the last one again and again.
    """

    def __init__(self, transcript: Transcript) -> None:
        self._answers: defaultdict[tuple[str, str, str], list[Entry]] = defaultdict(list)
        for entry in transcript.entries:
            self._answers[_key(entry.method, entry.path, entry.body)].append(entry)
        self.unknown: list[tuple[str, str, Any]] = []

    async def __aenter__(self) -> Replay:
        app = FastAPI()

        @app.api_route("/{path:path}", methods=["GET", "POST"])
        async def answer(request: Request, path: str) -> Response:
            raw = await request.body()
            body = json.loads(raw) if raw else None
            where = f"/{path}" + (f"?{request.url.query}" if request.url.query else "")
            found = self._answers.get(_key(request.method, where, body))
            if found is None and where == "/create":  # BabyAI's reads no body, so that any will do
                found = self._answers.get(_key("POST", "/create", None))
            if found is None:
                self.unknown.append((request.method, where, body))
                return JSONResponse({"detail": "Not Found"}, status_code=404)
            entry = found.pop(0) if len(found) > 1 else found[0]
            return JSONResponse(entry.response, status_code=entry.status)

        self._server = Server(app, "127.0.0.1", 0)
        await self._server.start()
        self.url = self._server.url
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()


def _key(method: str, path: str, body: Any) -> tuple[str, str, str]:
    return method, path, json.dumps(body, sort_keys=True)
