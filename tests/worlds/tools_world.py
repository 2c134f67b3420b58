"""A toolbox on the api of a real bus: the loop's files say where it runs, as ``onward up`` writes them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training_service import TrainingService, training_service

from onward.attach import ENDPOINTS
from onward.bus import Bus, NatsServer
from onward.config import Settings
from onward.tools import Scope, Toolbox

EVERY_SCOPE: tuple[Scope, ...] = ("read", "train", "release")


@dataclass
class ToolsWorld:
    box: Toolbox
    served: TrainingService
    folder: Path

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The document of an answer that is no error."""
        answer = await self.box.call(name, arguments)
        assert not answer.is_error, answer.text
        return json.loads(answer.text)

    async def refusal(self, name: str, **arguments: Any) -> str:
        answer = await self.box.call(name, arguments)
        assert answer.is_error, answer.text
        return answer.text


def attach(settings: Settings, server: NatsServer, **endpoints: str) -> None:
    """Writes the files by which a command finds the loop on the folder of ``settings``."""
    settings.run_dir.mkdir(parents=True, exist_ok=True)
    (settings.run_dir / "nats.token").write_text(server.token)
    found = {"nats_url": server.url, **endpoints}
    (settings.run_dir / ENDPOINTS).write_text(json.dumps(found))


@asynccontextmanager
async def tools_world(
    bus: Bus, server: NatsServer, folder: Path, *, scopes: Collection[Scope] = EVERY_SCOPE, **settings: Any
) -> AsyncIterator[ToolsWorld]:
    async with training_service(bus, folder, **settings) as served:
        attach(served.ctx.settings, server, api_url=served.url)
        async with Toolbox(served.ctx.settings, scopes=scopes, downloads=folder / "downloads") as box:
            yield ToolsWorld(box, served, folder)
