"""The plugin's buttons in a real Chromium on a page that behaves like Agent Zero's, down to the bus."""

from __future__ import annotations

import pytest
from agent_zero_browser import Host, answer, bar, show
from playwright.async_api import Page, expect

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def page(zero_page: Page) -> Page:
    """The page that all tests of this module share, emptied."""
    return zero_page


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


async def test_a_code_block_in_an_answer_gets_no_buttons(page: Page, host: Host) -> None:
    await show(page, host, answer("answer-1", "Run this: ```ls```"))
    await expect(page.locator("#message-answer-1 .step-action-buttons")).to_have_count(2)
    await expect(page.locator("#message-answer-1 [data-onward-vote]")).to_have_count(7)
    await expect(page.locator(".code-block-wrapper button")).to_have_count(1)


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
