"""The feedback widget in a real Chromium, under a strict Content-Security-Policy, against the real api."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from feedback_site import Site
from playwright.async_api import BrowserContext, Page, expect

pytestmark = pytest.mark.asyncio(loop_scope="module")
EXAMPLES = Path(__file__).parents[2] / "examples"


async def _open(page: Page, site: Site, session: str, *, token: str | None = None, more: str = "") -> None:
    token = site.token(session) if token is None else token
    site.page(
        session,
        f"<!doctype html><html lang=en><title>chat</title><p>An answer.</p>"
        f'<onward-feedback token="{token}" {more}></onward-feedback>'
        f'<script src="{site.api}/feedback.js"></script>',
    )
    await page.goto(f"{site.ours}/{session}")


def _says(page: Page, text: str):
    return expect(page.get_by_role("status")).to_have_text(text)


THANKS = "Thank you. You can still change your vote."


async def test_a_vote_by_mouse_and_its_comment_arrive(page, site):
    await _open(page, site, "mouse")
    await page.get_by_role("radio", name="Bad answer").check()
    await _says(page, THANKS)
    await page.get_by_label("What could be better?").fill("Wrong total; ask me at ann.miller@gmail.com")
    await page.get_by_role("button", name="Send comment").click()
    first, second = await site.voted("mouse", 2)
    assert (first.signal, first.kind, first.source, first.comment) == (
        "thumbs_down",
        "explicit",
        "widget",
        None,
    )
    assert second.signal == "thumbs_down"
    assert second.comment is not None and second.comment.startswith("Wrong total; ask me at")
    assert "ann.miller@gmail.com" not in second.comment  # redacted before it left the api


async def test_everything_can_be_done_by_keyboard_alone(page, site):
    await _open(page, site, "keyboard", more='ask="stars comment"')
    await page.keyboard.press("Tab")
    await page.keyboard.press("Space")
    for _ in range(3):
        await page.keyboard.press("ArrowRight")
    await expect(page.get_by_role("radio", name="4 of 5 stars")).to_be_checked()
    await expect(page.get_by_role("radio", name="4 of 5 stars")).to_be_focused()
    await _says(page, THANKS)
    await page.keyboard.press("Tab")
    await page.keyboard.type("Nearly")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    votes = await site.voted("keyboard", 2)
    assert [(vote.signal, vote.value, vote.comment) for vote in votes] == [
        ("rating", 0.8, None),  # one vote: the stars that the arrows passed over are none
        ("rating", 0.8, "Nearly"),
    ]


async def test_focus_can_be_seen(page, site):
    await _open(page, site, "focus")
    await page.keyboard.press("Tab")
    pick = page.locator(".pick", has=page.get_by_role("radio", name="Good answer"))
    style = await pick.evaluate("e => [getComputedStyle(e).outlineStyle, getComputedStyle(e).outlineWidth]")
    assert style == ["solid", "2px"]


async def test_a_screen_reader_hears_names_roles_and_what_happened(page, site, context):
    await _open(page, site, "reader", more='ask="thumbs stars comment"')
    await page.get_by_role("radio", name="5 of 5 stars").check()
    await _says(page, THANKS)
    devtools = await context.new_cdp_session(page)
    tree = await devtools.send("Accessibility.getFullAXTree")
    nodes = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree["nodes"]
        if not node.get("ignored")
    ]
    assert [name for role, name in nodes if role == "radiogroup"] == ["How was this answer?", "Stars"]
    assert [name for role, name in nodes if role == "radio"] == [
        "Good answer",
        "Bad answer",
        *(f"{n} of 5 stars" for n in range(1, 6)),
    ]
    assert ("textbox", "What could be better? (optional)") in nodes
    assert ("button", "Send comment") in nodes
    assert "status" in [role for role, _ in nodes]
    assert ("StaticText", THANKS) in nodes
    live = page.get_by_role("status")
    await expect(live).to_have_attribute("aria-live", "polite")


async def test_texts_are_translated_by_attributes(page, site):
    more = 'text-question="Wie war die Antwort?" text-up="Gut" text-down="Schlecht" text-thanks="Danke."'
    await _open(page, site, "german", more=more)
    await page.get_by_role("radiogroup", name="Wie war die Antwort?").get_by_role("radio", name="Gut").check()
    await _says(page, "Danke.")


async def test_a_vote_that_is_changed_counts_as_changed_also_after_a_reload(page, site):
    await _open(page, site, "changed")
    await page.get_by_role("radio", name="Good answer").check()
    await _says(page, THANKS)
    await site.voted("changed")
    await page.reload()
    await expect(page.get_by_role("radio", name="Good answer")).to_be_checked()
    await page.get_by_role("radio", name="Bad answer").check()
    votes = await site.voted("changed", 2)
    assert [vote.signal for vote in votes] == ["thumbs_up", "thumbs_down"]
    assert votes[0].feedback_id != votes[1].feedback_id


async def test_a_token_that_has_ended_is_told(page, site):
    await _open(page, site, "ended", token=site.token("ended", seconds=-1))
    await page.get_by_role("radio", name="Good answer").check()
    await _says(page, "This page may not vote any more. Please reload it.")
    assert await site.votes("ended") == []


async def test_a_vote_made_offline_is_kept_over_a_reload_and_sent_once(page, site, context):
    await _open(page, site, "offline")
    await context.set_offline(True)
    await page.get_by_role("radio", name="Bad answer").check()
    await _says(page, "You are offline. Your vote is kept and sent later.")
    await page.get_by_role("radio", name="Good answer").check()
    await _kept(page, "thumbs_up")
    await context.set_offline(False)
    await _says(page, THANKS)
    await context.set_offline(True)
    await page.get_by_role("radio", name="Bad answer").check()
    await _kept(page, "thumbs_down")
    other = await _again(context, site, "offline")
    await _says(other, THANKS)
    assert [vote.signal for vote in await site.voted("offline", 2)] == ["thumbs_up", "thumbs_down"]


async def _kept(page: Page, signal: str) -> None:
    async with asyncio.timeout(30):
        while signal not in await page.evaluate("JSON.stringify({...localStorage})"):
            await asyncio.sleep(0.02)


async def _again(context: BrowserContext, site: Site, session: str) -> Page:
    """The same page, opened again once the network is back, by somebody who closed it while offline."""
    await context.pages[0].close()
    await context.set_offline(False)
    page = await context.new_page()
    await page.goto(f"{site.ours}/{session}")
    return page


async def test_a_server_that_fails_for_a_while_is_asked_again(page, site):
    failures = iter([503])

    async def answer(route):
        status = next(failures, None) if route.request.method == "POST" else None
        if status is None:
            await route.continue_()
        else:
            headers = {"Access-Control-Allow-Origin": site.ours, "Retry-After": "1"}
            headers["Access-Control-Expose-Headers"] = "retry-after"
            await route.fulfill(status=status, headers=headers, body="")

    await page.route(f"{site.api}/feedback", answer)
    await _open(page, site, "failing")
    await page.get_by_role("radio", name="Good answer").check()
    await _says(page, THANKS)
    assert len(await site.voted("failing")) == 1


async def test_a_page_of_a_foreign_origin_cannot_vote(page, site):
    site.page(
        "foreign",
        f'<!doctype html><title>x</title><onward-feedback token="{site.token("foreign")}"></onward-feedback>'
        f'<script src="{site.api}/feedback.js"></script>',
    )
    await page.goto(f"{site.foreign}/foreign")
    async with page.expect_event("requestfailed") as refused:
        await page.get_by_role("radio", name="Good answer").check()
    assert (await refused.value).url == f"{site.api}/feedback"
    await _says(page, "No connection. Your vote is kept and sent later.")
    assert await site.votes("foreign") == []


async def test_too_many_votes_are_told_and_the_last_is_kept(page, site):
    await _open(page, site, "many")
    for turn in range(3):
        await page.get_by_role("radio", name="Bad answer" if turn % 2 else "Good answer").check()
        await site.voted("many", turn + 1)
        await _says(page, THANKS)
    await page.get_by_role("radio", name="Bad answer").check()
    await _says(page, "That was a lot. Your last vote is kept and sent soon.")
    assert len(await site.votes("many")) == 3
    await site.ctx.clock.advance(60)
    await page.evaluate("dispatchEvent(new Event('online'))")
    assert [vote.signal for vote in await site.voted("many", 4)][-1] == "thumbs_down"
    await _says(page, THANKS)


async def test_a_script_tag_with_data_attributes_makes_a_widget(page, site):
    site.page(
        "tag",
        "<!doctype html><title>x</title><p>An answer.</p>"
        f'<script src="{site.api}/feedback.js" data-token="{site.token("tag", "t-1")}"></script>',
    )
    await page.goto(f"{site.ours}/tag")
    await page.get_by_role("radio", name="Good answer").check()
    (vote,) = await site.voted("tag")
    assert vote.trajectory_id == "t-1"


async def test_without_storage_and_stylesheets_it_still_works(page, site):
    await page.add_init_script(
        "Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('no'); }});"
        "delete window.CSSStyleSheet; delete crypto.randomUUID;"
        "Object.defineProperty(crypto, 'randomUUID', {value: undefined});"
    )
    await _open(page, site, "plain")
    await page.get_by_role("radio", name="Good answer").check()
    await _says(page, THANKS)
    await site.voted("plain")


async def test_an_element_that_gets_another_token_forgets_the_vote_of_the_first(page, site):
    await _open(page, site, "reused")
    await page.get_by_role("radio", name="Good answer").check()
    await _says(page, THANKS)
    token = site.token("reused-2")
    await page.evaluate("t => document.querySelector('onward-feedback').setAttribute('token', t)", token)
    await expect(page.get_by_role("radio", name="Good answer")).not_to_be_checked()
    await page.get_by_role("radio", name="Bad answer").check()
    assert [vote.signal for vote in await site.voted("reused-2")] == ["thumbs_down"]
    assert [vote.signal for vote in await site.votes("reused")] == ["thumbs_up"]


async def test_a_vote_that_was_just_given_stays_with_its_token_when_another_comes(page, site):
    await _open(page, site, "swapped")
    await page.evaluate(
        """token => {
            const widget = document.querySelector("onward-feedback");
            widget.shadowRoot.querySelector("[value=thumbs_down]").click();
            widget.setAttribute("token", token);
        }""",
        site.token("swapped-2"),
    )
    assert [vote.signal for vote in await site.voted("swapped")] == ["thumbs_down"]
    await expect(page.get_by_role("radio", name="Bad answer")).not_to_be_checked()
    assert await site.votes("swapped-2") == []


async def test_a_vote_that_was_just_given_is_sent_when_the_page_is_left(page, site):
    await _open(page, site, "left")
    site.page("next", "<!doctype html><title>next</title>")
    await page.evaluate(
        """url => {
            document.querySelector("onward-feedback").shadowRoot.querySelector("[value=thumbs_up]").click();
            location.href = url;
        }""",
        f"{site.ours}/next",
    )
    assert [vote.signal for vote in await site.voted("left")] == ["thumbs_up"]


async def test_the_example_page_votes(page, site):
    html = (EXAMPLES / "feedback.html").read_text(encoding="utf-8")
    site.page("example", html.replace("http://127.0.0.1:8100", site.api))
    await page.goto(f"{site.ours}/example#{site.token('example')}")
    await page.get_by_role("radio", name="4 of 5 stars").check()
    await _says(page, THANKS)
    assert (await site.voted("example"))[0].value == 0.8


async def test_the_widget_is_one_small_file():
    script = (Path(__file__).parents[2] / "src/onward/web/feedback.js").read_bytes()
    assert len(script) < 12 << 10
    assert b"innerHTML" not in script and b"import" not in script
