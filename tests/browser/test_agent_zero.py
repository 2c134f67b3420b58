"""The plugin's buttons in a real Chromium on a page that behaves like Agent Zero's, down to the bus."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from agent_zero_page import Chat, host_modules, make_agent_zero, web
from playwright.async_api import Page, expect

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
from onward.integrations.agent_zero.signals import of_message

pytestmark = pytest.mark.asyncio(loop_scope="module")
API_KEY = "key-of-the-host"


class Recorded:
    """Stands in for the plugin's runtime: the links of two answers, and the way of a vote to a real bus."""

    LINKS = {"answer-1": ("t-1", 3), "answer-2": ("t-2", 5)}  # noqa: RUF012

    def __init__(self, intake: FeedbackIntake) -> None:
        self.intake, self.paused, self.opted, self.refuse = intake, False, set[str](), ""
        self.given: list[dict[str, Any]] = []

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
        self.tasks = [*getattr(self, "tasks", []), asyncio.create_task(self.intake.accept(feedback_id, said))]
        return {"ok": True, "queued": True, "feedback_id": feedback_id}

    def status(self) -> dict[str, Any]:
        return {
            "state": "paused" if self.paused else "recording", "reason": "", "recorded": 12, "queued": 3,
            "open": 1, "feedback": 2, "opted_out": 0, "dropped": 0, "held": 0, "nats": "connected",
            "gateway": "http://127.0.0.1:3000", "version": "0.1.0",
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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[Bus, str, Recorded, dict[str, Chat]]]:
    folder: Path = tmp_path_factory.mktemp("zero")
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
        yield bus, server.url, runtime, chats
        await server.stop()
    delivery.cancel()
    await asyncio.gather(delivery, return_exceptions=True)
    intake.close()
    await bus.close()
    await nats.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def host(running: Any) -> Host:
    bus, url, runtime, chats = running
    await bus.js.purge_stream("RL_FEEDBACK")
    runtime.given, runtime.refuse, runtime.paused = [], "", False
    return Host(url, bus, runtime, chats)


def answer(message_id: str, content: str = "The total is 42.", **more: Any) -> dict[str, Any]:
    of_log = {"no": 1, "id": message_id, "type": "response", "agentno": 0, "timestamp": time.time()}
    return {**of_log, "content": content, **more}


async def show(page: Page, host: Host, *messages: dict[str, Any], again: bool = False) -> None:
    if not again:
        await page.goto(host.url)
        await page.wait_for_function("globalThis.ready")
    await page.evaluate("messages => setMessages(messages)", list(messages))


def bar(page: Page, message_id: str = "answer-1"):
    return page.locator(f"#message-{message_id} .step-action-buttons")


async def test_votes_stars_and_a_comment_arrive_linked_to_trajectory_and_turn(page: Page, host: Host) -> None:
    await show(page, host, answer("answer-1"), answer("answer-2"))
    await bar(page).get_by_role("button", name="Bad answer").click()
    await host.votes(1)
    await bar(page).get_by_role("button", name="Rate 4 of 5 stars").click()
    await host.votes(2)
    await bar(page).get_by_role("button", name="Comment on this answer").click()
    await page.get_by_label("What could be better?").fill("Nearly; write to ann.miller@gmail.com")
    await page.get_by_role("button", name="Send comment").click()
    first, second, third = await host.votes(3)
    assert (first.signal, first.kind, first.source, first.session_id) == (
        "thumbs_down", "explicit", "webui", "chat0001",
    )  # fmt: skip
    assert (second.signal, second.value, second.trajectory_id, second.turn_id) == ("rating", 0.8, "t-1", 3)
    assert third.signal == "rating" and third.value == 0.8
    assert third.comment is not None and third.comment.startswith("Nearly; write to")
    assert "ann.miller@gmail.com" not in third.comment
    assert len({one.feedback_id for one in (first, second, third)}) == 3
    pressed = page.locator("[aria-pressed=true]")
    await expect(pressed).to_have_count(1)
    await expect(pressed).to_have_accessible_name("Rate 4 of 5 stars")


async def test_a_second_click_takes_the_vote_back_and_a_reload_remembers(page: Page, host: Host) -> None:
    await show(page, host, answer("answer-1"))
    up = bar(page).get_by_role("button", name="Good answer")
    await up.click()
    await host.votes(1)
    await show(page, host, answer("answer-1"))
    await expect(up).to_have_attribute("aria-pressed", "true")
    await up.click()
    await expect(up).to_have_attribute("aria-pressed", "false")
    assert [vote.signal for vote in await host.votes(2)] == ["thumbs_up", "withdrawn"]
    await expect(page.get_by_role("status")).to_have_text("Your vote is taken back.")


async def test_streamed_updates_neither_double_the_buttons_nor_lose_focus_vote_or_comment(
    page: Page, host: Host
) -> None:
    await show(page, host, answer("answer-2", "The"))
    await bar(page, "answer-2").get_by_role("button", name="Good answer").click()
    await host.votes(1, "t-2")
    await bar(page, "answer-2").get_by_role("button", name="Comment on this answer").click()
    await page.get_by_label("What could be better?").type("Shor")
    for content in ("The total", "The total is", "The total is 42."):
        await show(page, host, answer("answer-2", content), again=True)
    await expect(bar(page, "answer-2").get_by_role("button")).to_have_count(1 + 2 + 5 + 1)
    await expect(page.locator(".onward-comment")).to_have_count(1)
    await page.keyboard.type("ter")
    await expect(page.get_by_label("What could be better?")).to_have_value("Shorter")
    up = bar(page, "answer-2").get_by_role("button", name="Good answer")
    await expect(up).to_have_attribute("aria-pressed", "true")
    await up.focus()
    await show(page, host, answer("answer-2", "The total is 42, exactly."), again=True)
    await expect(up).to_be_focused()


async def test_only_answers_of_the_main_agent_have_buttons(page: Page, host: Host) -> None:
    tool = {"no": 2, "id": "tool-1", "type": "tool", "agentno": 0, "content": "ls"}
    await show(page, host, answer("sub-1", agentno=1), tool, answer("answer-1"))
    assert await page.locator(".action-thumb_up").count() == 1
    await expect(bar(page, "sub-1").get_by_role("button")).to_have_count(1)


async def test_all_can_be_done_by_keyboard_and_read_by_a_screen_reader(page: Page, host: Host) -> None:
    await show(page, host, answer("answer-1"))
    for _ in range(2):  # the host's copy button, then the first of ours
        await page.keyboard.press("Tab")
    await expect(bar(page).get_by_role("button", name="Good answer")).to_be_focused()
    outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    for _ in range(4):
        await page.keyboard.press("Tab")
    await page.keyboard.press("Space")
    await expect(page.get_by_role("status")).to_have_text("Your vote is stored: Rate 3 of 5 stars.")
    for _ in range(3):
        await page.keyboard.press("Tab")
    opener = bar(page).get_by_role("button", name="Comment on this answer")
    await expect(opener).to_have_attribute("aria-expanded", "false")
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("What could be better?")).to_be_focused()
    await page.keyboard.type("Fine")
    await page.keyboard.press("Escape")
    await expect(opener).to_be_focused()
    assert [(vote.signal, vote.value) for vote in await host.votes(1)] == [("rating", 0.6)]
    names = (
        await bar(page)
        .get_by_role("button")
        .evaluate_all("all => all.map(b => b.getAttribute('aria-label'))")
    )
    assert names == [
        "Copy", "Good answer", "Bad answer", *(f"Rate {n} of 5 stars" for n in range(1, 6)),
        "Comment on this answer",
    ]  # fmt: skip
    assert await bar(page).get_by_role("group", name="Stars").count() == 1


async def test_a_vote_that_is_refused_is_undone_and_shown_as_a_toast(page: Page, host: Host) -> None:
    host.runtime.refuse = "Recording is switched off here."
    await show(page, host, answer("answer-1"))
    await page.evaluate("localStorage.clear()")
    await show(page, host, answer("answer-1"))
    down = bar(page).get_by_role("button", name="Bad answer")
    await down.click()
    await expect(page.get_by_role("alert")).to_have_text("Onward: Recording is switched off here.")
    await expect(down).to_have_attribute("aria-pressed", "false")


async def test_fast_clicks_arrive_in_order_so_that_the_last_one_wins(page: Page, host: Host) -> None:
    await show(page, host, answer("answer-1"))
    await page.evaluate(
        """() => { const all = document.querySelectorAll("#message-answer-1 [data-onward-vote]");
                   for (const at of [0, 1, 3, 6]) all[at].click(); }"""
    )
    found = await host.votes(4)
    assert [(vote.signal, vote.value) for vote in found] == [
        ("thumbs_up", None), ("thumbs_down", None), ("rating", 0.4), ("rating", 1.0),
    ]  # fmt: skip


async def test_a_double_click_is_one_vote(page: Page, host: Host) -> None:
    await show(page, host, answer("answer-1"))
    await bar(page).get_by_role("button", name="Good answer").dblclick()
    await page.wait_for_timeout(500)
    await bar(page).get_by_role("button", name="Bad answer").click()
    assert [vote.signal for vote in await host.votes(2)] == ["thumbs_up", "thumbs_down"]


async def test_votes_while_offline_leave_the_page_as_the_last_one_that_was_taken(
    page: Page, host: Host
) -> None:
    await show(page, host, answer("answer-1"))
    await bar(page).get_by_role("button", name="Good answer").click()
    await host.votes(1)
    await page.context.set_offline(True)
    await page.evaluate(
        """() => { const all = document.querySelectorAll("#message-answer-1 [data-onward-vote]");
                   for (const at of [1, 3, 6]) all[at].click(); }"""
    )
    await expect(page.get_by_role("alert")).to_have_count(3)
    await page.context.set_offline(False)
    pressed = page.locator("[aria-pressed=true]")
    await expect(pressed).to_have_count(1)
    await expect(pressed).to_have_accessible_name("Good answer")
    await bar(page).get_by_role("button", name="Rate 5 of 5 stars").click()
    assert [vote.signal for vote in await host.votes(2)] == ["thumbs_up", "rating"]


async def test_a_damaged_store_of_the_browser_costs_no_buttons(page: Page, host: Host) -> None:
    await page.goto(host.url)
    await page.evaluate("localStorage.setItem('onward-votes', '[1, [\"x\"], [\"chat0001/answer-1\", 3]]')")
    await show(page, host, answer("answer-1"))
    await bar(page).get_by_role("button", name="Good answer").click()
    assert [vote.signal for vote in await host.votes(1)] == ["thumbs_up"]


async def test_thumbs_of_another_plugin_stay_and_do_not_displace_ours(page: Page, host: Host) -> None:
    await page.goto(host.url)
    await page.wait_for_function("globalThis.ready")
    await page.evaluate("globalThis.others = ['thumb_up']")
    await show(page, host, answer("answer-1"), again=True)
    await expect(bar(page).locator(".action-thumb_up")).to_have_count(2)
    await bar(page).get_by_role("button", name="Good answer").click()
    assert [vote.signal for vote in await host.votes(1)] == ["thumbs_up"]
    await show(page, host, answer("answer-1", "The total is 43."), again=True)
    await expect(bar(page).get_by_role("button")).to_have_count(1 + 1 + 2 + 5 + 1)


async def test_updates_of_an_answer_add_no_listeners_to_its_bar(page: Page, host: Host) -> None:
    await page.goto(host.url)
    await page.wait_for_function("globalThis.ready")
    await page.evaluate(
        """() => { globalThis.added = 0; const add = EventTarget.prototype.addEventListener;
                   EventTarget.prototype.addEventListener = function (...given) {
                     if (this.classList && this.classList.contains("step-action-buttons")) globalThis.added++;
                     return add.apply(this, given); }; }"""
    )
    for content in ("The", "The total", "The total is 42."):
        await show(page, host, answer("answer-1", content), again=True)
    assert await page.evaluate("globalThis.added") == 2  # focusin and focusout, once


async def test_removing_an_old_chat_is_no_vote_on_its_last_answer(page: Page, host: Host) -> None:
    await show(page, host, answer("answer-2", timestamp=time.time() - 3600), answer("answer-1", timestamp=None))
    await page.evaluate("callJsonApi('/chat_remove', {context: 'chat0001'})")
    await page.evaluate("callJsonApi('/nudge', {context: 'chat0001'})")  # sent after it, so it arrives after it
    async with asyncio.timeout(30):
        while not host.runtime.given:
            await asyncio.sleep(0.02)
    assert [one["signal"] for one in host.runtime.given] == ["nudged"]


async def test_an_older_answer_that_is_drawn_again_is_not_the_last_one(page: Page, host: Host) -> None:
    await show(page, host, answer("answer-2", no=7))
    await show(page, host, answer("answer-1", no=3), again=True)  # the user scrolls back
    await page.evaluate("callJsonApi('/chat_reset', {context: 'chat0001'})")
    async with asyncio.timeout(30):
        while not host.runtime.given:
            await asyncio.sleep(0.02)
    assert [(one["signal"], one["message_id"]) for one in host.runtime.given] == [("reset", "answer-2")]


async def test_copy_branch_nudge_and_reset_are_raw_implicit_signals(page: Page, host: Host) -> None:
    await show(page, host, answer("answer-1"))
    await bar(page).get_by_role("button", name="Copy").click()
    (copied,) = await host.votes(1)
    assert (copied.signal, copied.kind, copied.value, copied.turn_id) == ("copied", "implicit", None, 3)
    for endpoint in ("/plugins/_chat_branching/branch_chat", "/nudge", "/chat_reset", "/poll"):
        await page.evaluate("path => callJsonApi(path, {context: 'chat0001'})", endpoint)
    async with asyncio.timeout(30):
        while len(host.runtime.given) < 4:
            await asyncio.sleep(0.02)
    sent = [(one["signal"], one["message_id"], one["kind"]) for one in host.runtime.given]
    assert sent == [
        ("copied", "answer-1", "implicit"), ("branched", "answer-1", "implicit"),
        ("nudged", None, "implicit"), ("reset", "answer-1", "implicit"),
    ]  # fmt: skip


async def test_the_chats_of_the_scheduler_give_no_implicit_signal(page: Page, host: Host) -> None:
    host.chats["chat0001"].type.value = "task"
    await show(page, host, answer("answer-1"))
    async with page.expect_response(re.compile("/onward/signal")) as waited:
        await bar(page).get_by_role("button", name="Copy").click()
    host.chats["chat0001"].type.value = "user"
    assert await (await waited.value).json() == {"ok": True, "queued": False}
    assert host.runtime.given == []


async def test_the_status_page_shows_the_state_and_its_switches_work_by_keyboard(
    page: Page, host: Host
) -> None:
    await page.goto(host.url)
    await page.wait_for_function("globalThis.ready")
    await page.goto(f"{host.url}/plugins/onward/webui/main.html")
    facts = page.locator("dl")
    await expect(facts).to_contain_text("Recorded12")
    await expect(facts).to_contain_text("agent-zero-rl-v2.4 (version 2.4)")
    await expect(facts).to_contain_text("Waiting for the bus3")
    pause = page.get_by_role("switch", name="Pause all recording")
    await pause.focus()
    await page.keyboard.press("Space")
    await expect(pause).to_have_attribute("aria-checked", "true")
    assert host.runtime.paused
    await page.get_by_label("Project").fill("private")
    await page.get_by_role("switch", name="Do not record this project").click()
    await expect(page.get_by_role("switch", name="Do not record this project")).to_have_attribute(
        "aria-checked", "true"
    )
    assert host.runtime.opted == {"private"}


async def test_a_person_approves_a_step_of_a_profile_on_the_page(page: Page, host: Host) -> None:
    from usr.plugins.onward.helpers import onward_approvals  # type: ignore

    sys.modules.pop(onward_approvals.STORE, None)
    deploy = {"model_id": "v2.4", "checkpoint_path": "s3://models/job-1"}
    start = {"action": "start", "model_id": "v2.3"}
    for tool, given in (("deploy_to_tensorzero", deploy), ("release", start)):
        assert onward_approvals.gate(tool, given, None, "release") is not None
    await page.goto(host.url)
    await page.wait_for_function("globalThis.ready")
    await page.goto(f"{host.url}/plugins/onward/webui/main.html")
    steps = page.get_by_role("list", name="Steps that wait for your approval")
    await expect(steps.get_by_role("listitem")).to_have_count(2)
    await steps.get_by_role("button", name="Approve deploy_to_tensorzero").click()
    await expect(steps.get_by_role("listitem")).to_have_count(1)
    await page.wait_for_timeout(700)  # a click that is sooner may belong to a double click
    await steps.get_by_role("button", name="Refuse release").click()
    await expect(steps).to_have_text("None.")
    assert onward_approvals.gate("deploy_to_tensorzero", deploy, None, "release") is None
    refused = onward_approvals.gate("release", start, None, "release")
    assert refused is not None and "refused" in refused


async def test_a_double_click_approves_one_step_and_steps_do_not_move_below_the_pointer(
    page: Page, host: Host
) -> None:
    from usr.plugins.onward.helpers import onward_approvals  # type: ignore

    sys.modules.pop(onward_approvals.STORE, None)
    starts = [{"action": "start", "model_id": f"v{number}"} for number in range(3)]
    for start in starts[:2]:
        onward_approvals.gate("release", start, None, "release")
    await page.goto(host.url)
    await page.wait_for_function("globalThis.ready")
    await page.goto(f"{host.url}/plugins/onward/webui/main.html")
    steps = page.get_by_role("list", name="Steps that wait for your approval")
    await expect(steps.get_by_role("listitem")).to_have_count(2)
    refuse = steps.get_by_role("button", name="Refuse release").nth(1)
    await refuse.focus()
    onward_approvals.gate("release", starts[2], None, "release")
    await expect(steps.get_by_role("listitem")).to_have_count(3, timeout=15_000)
    await expect(refuse).to_be_focused()
    await steps.get_by_role("button", name="Approve release").first.dblclick()
    await expect(steps.get_by_role("listitem")).to_have_count(2)
    assert len(onward_approvals.waiting()) == 2
    assert [onward_approvals.gate("release", one, None, "release") is None for one in starts] == [
        True, False, False,
    ]  # fmt: skip


async def test_the_host_refuses_a_vote_without_login_token_or_key(host: Host) -> None:
    vote = {"context": "chat0001", "message_id": "answer-1", "signal": "thumbs_up"}
    async with httpx.AsyncClient(base_url=host.url) as client:
        assert (await client.post("/api/plugins/onward/feedback", json=vote)).status_code == 302
        await client.get("/")
        assert (await client.post("/api/plugins/onward/feedback", json=vote)).status_code == 403
        path = "/api/plugins/onward/feedback_external"
        assert (await client.post(path, json=vote)).status_code == 401
        taken = await client.post(path, json=vote, headers={"X-API-KEY": API_KEY})
        assert taken.json()["ok"]
    (found,) = await host.votes(1)
    assert (found.signal, found.source) == ("thumbs_up", "api")
