"""A browser on the page of an Agent Zero with the plugin, down to the bus."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_zero_page import Chat, host_modules, make_agent_zero, web
from playwright.async_api import Page

from onward.bus import Bus, NatsServer
from onward.capture.make_redactor import redactor_of
from onward.capture.opt_out import OptOut
from onward.clock import SystemClock
from onward.config import Settings
from onward.contracts import Feedback, decode
from onward.feedback.intake import FeedbackIntake
from onward.http.server import Server
from onward.ids import new_id
from onward.integrations.agent_zero import install
from onward.integrations.agent_zero.plugin.helpers.onward_approvals import STORE
from onward.integrations.agent_zero.signals import of_message

API_KEY = "key-of-the-host"


class Recorded:
    """Stands in for the plugin's runtime: the links of two answers, and the way of a vote to a real bus."""

    LINKS = {"answer-1": ("t-1", 3), "answer-2": ("t-2", 5)}  # noqa: RUF012

    def __init__(self, intake: FeedbackIntake) -> None:
        self.intake, self.paused, self.opted, self.refuse = intake, False, set[str](), ""
        self.given: list[dict[str, Any]] = []
        self._order, self._tasks = asyncio.Lock(), set[asyncio.Task[None]]()

    def feedback(self, **given: Any) -> dict[str, Any]:
        self.given.append(given)
        if self.refuse:
            return {"ok": False, "error": self.refuse}
        said = {name: given[name] for name in ("signal", "kind", "value", "comment", "source") if given[name]}
        if given["signal"] == "message":
            meant = of_message(said.pop("comment"))
            if meant is None:
                return {"ok": True, "queued": False}
            said["signal"] = meant
        trajectory, turn = self.LINKS.get(given["message_id"], (None, None))
        if trajectory:
            said |= {"trajectory_id": trajectory, "turn_id": turn}
        said["session_id"] = given["context_id"]
        feedback_id = given["feedback_id"] or new_id()
        self._tasks.add(task := asyncio.create_task(self._accept(feedback_id, said)))
        task.add_done_callback(self._tasks.discard)
        return {"ok": True, "queued": True, "feedback_id": feedback_id}

    async def _accept(self, feedback_id: str, said: dict[str, Any]) -> None:
        async with self._order:  # as the plugin's feed: one after another
            await self.intake.accept(feedback_id, said)

    def status(self) -> dict[str, Any]:
        return {
            "state": "paused" if self.paused else "recording", "reason": "", "recorded": 12, "queued": 3,
            "open": 1, "feedback": 2, "opted_out": 0, "dropped": 0, "held": 0, "set_aside": 2,
            "hangs": {"count": 3, "at": "2026-03-28T12:00:00Z", "seconds": 300.0},
            "nats": "connected", "gateway": "http://127.0.0.1:3000", "version": "0.1.0",
            "model": {"id": "agent-zero-rl-v2.4", "version": "2.4", "event": "deployed",
                      "deployed_at": "2026-03-28T12:00:00Z"},
        }  # fmt: skip

    def pause(self, paused: bool) -> None:
        self.paused = paused

    def set_opt_out(self, project: str, on: bool) -> None:
        (self.opted.add if on else self.opted.discard)(project)

    def opted_out(self, project: str) -> bool:
        return project in self.opted


@dataclass
class Host:
    url: str
    bus: Bus
    runtime: Recorded
    chats: dict[str, Chat] = field(default_factory=dict)

    async def forget(self) -> None:
        """Removes the votes, the switches and the approvals of the test before."""
        sys.modules.pop(STORE, None)
        await self.bus.js.purge_stream("RL_FEEDBACK")
        self.runtime.given, self.runtime.refuse, self.runtime.paused = [], "", False

    async def votes(self, count: int, trajectory: str = "t-1") -> list[Feedback]:
        """The votes on one trajectory on the stream, once there are ``count``."""
        async with asyncio.timeout(30):
            while True:
                info = await self.bus.js.stream_info("RL_FEEDBACK")
                found = [
                    decode((await self.bus.js.get_msg("RL_FEEDBACK", seq=at)).data or b"", Feedback)
                    for at in range(max(1, info.state.first_seq), info.state.last_seq + 1)
                ]
                mine = [one for one in found if one.trajectory_id == trajectory]
                if len(mine) >= count:
                    return mine
                await asyncio.sleep(0.05)


@asynccontextmanager
async def running_host(folder: Path) -> AsyncIterator[Host]:
    """Starts the page of an Agent Zero in ``folder``, a bus, and the delivery of votes."""
    root = make_agent_zero(folder / "a0")
    install.install(root)
    nats = NatsServer(folder / "nats")
    await nats.start()
    bus = await Bus.connect(nats.url, token=nats.token)
    await bus.ensure_streams()
    intake = FeedbackIntake(
        folder, clock=SystemClock(), redactor=redactor_of(Settings()), opt_out=OptOut.parse("")
    )
    delivery = asyncio.create_task(intake.deliver(bus))
    runtime, chats = Recorded(intake), {"chat0001": Chat("chat0001")}
    with host_modules(root, runtime, chats):
        server = Server(web(root, api_key=API_KEY), "127.0.0.1", 0)
        await server.start()
        yield Host(server.url, bus, runtime, chats)
        await server.stop()
    delivery.cancel()
    await asyncio.gather(delivery, return_exceptions=True)
    intake.close()
    await bus.close()
    await nats.stop()


def answer(message_id: str, content: str = "The total is 42.", **more: Any) -> dict[str, Any]:
    of_log = {"no": 1, "id": message_id, "type": "response", "agentno": 0, "timestamp": time.time()}
    return {**of_log, "content": content, **more}


async def show(page: Page, host: Host, *messages: dict[str, Any], again: bool = False) -> None:
    if not again:
        await page.goto(host.url)
        await page.wait_for_function("globalThis.ready")
    await page.evaluate("messages => setMessages(messages)", list(messages))


def bar(page: Page, message_id: str = "answer-1"):
    return page.locator(f"#message-{message_id} .message > .step-action-buttons")
