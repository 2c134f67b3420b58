"""A real api role over a real bus, and pages on 127.0.0.1 beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from onward.api import service
from onward.bus import Bus, NatsServer
from onward.clock import ManualClock
from onward.config import Settings
from onward.context import Context
from onward.contracts import Feedback, decode
from onward.feedback.tokens import Subject, TokenKeys
from onward.http.server import Server
from onward.telemetry.alerts import Alerts
from onward.telemetry.metrics import Metrics
from onward.warehouse import Objects

POLICY = (
    "default-src 'none'; script-src {api}; connect-src {api}; require-trusted-types-for 'script'; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass
class Site:
    """The api, and two servers with pages: the first may send feedback, the second may not."""

    ctx: Context
    api: str
    ours: str
    foreign: str
    pages: dict[str, str] = field(default_factory=dict)

    def page(self, path: str, body: str) -> None:
        self.pages[path] = body

    def token(self, session: str, trajectory: str | None = None, *, seconds: float = 3600) -> str:
        """Made ``3600 - seconds`` ago where that is positive: a short life that is over."""
        keys = TokenKeys(self.ctx.settings.run_dir)
        made = self.ctx.clock.now() - timedelta(hours=1)
        return keys.issue(Subject(session, trajectory), made, timedelta(seconds=3600 + seconds))

    async def votes(self, session: str) -> list[Feedback]:
        """What is on the stream about ``session``, in order."""
        info = await self.ctx.bus.js.stream_info("RL_FEEDBACK")
        found = []
        for sequence in range(max(1, info.state.first_seq), info.state.last_seq + 1):
            message = await self.ctx.bus.js.get_msg("RL_FEEDBACK", seq=sequence)
            found.append(decode(message.data or b"", Feedback))
        return [vote for vote in found if vote.session_id == session]

    async def voted(self, session: str, count: int = 1) -> list[Feedback]:
        """The same, once there are ``count``."""
        async with asyncio.timeout(30):
            while len(found := await self.votes(session)) < count:
                await asyncio.sleep(0.05)
        return found


@asynccontextmanager
async def running_site(folder: Path) -> AsyncIterator[Site]:
    pages: dict[str, str] = {}
    servers = [await _pages(pages), await _pages(pages)]
    nats = NatsServer(folder / "nats")
    await nats.start()
    bus = await Bus.connect(nats.url, token=nats.token)
    await bus.ensure_streams()
    clock, metrics = ManualClock(), Metrics()
    settings = Settings.model_validate(
        {
            "data_dir": folder / "data",
            "http": {"api_port": 0},
            "feedback": {"origins": [servers[0].url], "per_session_per_minute": 3},
        }
    )
    ctx = Context(
        settings=settings,
        clock=clock,
        bus=bus,
        warehouse=None,  # type: ignore[arg-type]
        objects=Objects.open(folder / "objects"),
        metrics=metrics,
        alerts=Alerts(bus, clock, metrics),
    )
    role = asyncio.create_task(service.run(ctx))
    async with asyncio.timeout(20):
        while "api_url" not in ctx.endpoints:
            await asyncio.sleep(0.01)
    yield Site(ctx, ctx.endpoints["api_url"], servers[0].url, servers[1].url, pages)
    role.cancel()
    await asyncio.gather(role, return_exceptions=True)
    for server in servers:
        await server.stop()
    await bus.close()
    await nats.stop()


async def _pages(pages: dict[str, str]) -> Server:
    app = FastAPI()

    @app.get("/{name}")
    async def page(name: str) -> HTMLResponse:
        text = pages.get(name, "")
        api = text.partition('<script src="')[2].partition("/feedback.js")[0]
        policy = {} if "<style>" in text else {"Content-Security-Policy": POLICY.format(api=api)}
        return HTMLResponse(text, headers=policy)

    server = Server(app, "127.0.0.1", 0)
    await server.start()
    return server
