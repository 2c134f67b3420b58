"""Actions in Agent Zero's page that are weak votes, the status page with its approvals, and who may post."""

from __future__ import annotations

import asyncio
import re
import time

import httpx
import pytest
from agent_zero_browser import API_KEY, Host, answer, bar, show
from playwright.async_api import Page, expect

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def page(zero_page: Page) -> Page:
    """The page that all tests of this module share, emptied."""
    return zero_page


async def test_removing_an_old_chat_is_no_vote_on_its_last_answer(page: Page, host: Host) -> None:
    await show(
        page, host, answer("answer-2", timestamp=time.time() - 3600), answer("answer-1", timestamp=None)
    )
    await page.evaluate("callJsonApi('/chat_remove', {context: 'chat0001'})")
    await page.evaluate("callJsonApi('/nudge', {context: 'chat0001'})")  # sent after it
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
    await expect(facts).to_contain_text("could not record them2. Try again: onward agent-zero retry")
    await expect(facts).to_contain_text(
        "made no progress3 times, after 300 seconds, the last time at 2026-03-28T12:00:00Z"
    )
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
