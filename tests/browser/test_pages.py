"""The pages of the api in a real Chromium: they look as meant in both colour schemes, and the trial votes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from feedback_site import Site
from playwright.async_api import Browser, Page, expect

from onward import report_page

pytestmark = pytest.mark.asyncio(loop_scope="module")
THANKS = "Thank you. You can still change your vote."


async def test_the_trial_votes_and_shows_what_the_page_hears(page: Page, site: Site) -> None:
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text) if message.type == "error" else None)
    await page.goto(f"{site.api}/")
    await page.get_by_role("link", name="/try/feedback").click()
    await page.get_by_role("radio", name="Bad answer").check()
    await expect(page.get_by_role("status")).to_have_text(THANKS)
    session = re.search(r"try-[0-9a-f-]+", await page.content())
    assert session is not None
    (vote,) = await site.voted(session[0])
    assert (vote.signal, vote.source) == ("thumbs_down", "widget")
    await expect(page.get_by_role("log")).to_contain_text("thumbs_down")
    assert refused == []  # nothing that the policy of the page forbids


async def test_the_trial_asks_for_the_key_where_the_page_brings_no_token(
    page: Page, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.api.pages.is_local", lambda request, bound: False)
    await page.goto(f"{site.api}/try/feedback")
    await page.get_by_label("API key with the scope").fill("ok-wrong")
    await page.get_by_role("button", name="Get a token").click()
    await expect(page.get_by_role("log")).to_contain_text("No valid API key was given")
    key = (site.ctx.settings.run_dir / "api.key").read_text().strip()
    await page.get_by_label("API key with the scope").fill(key)
    await page.get_by_role("button", name="Get a token").click()
    await expect(page.get_by_role("log")).to_have_text("The page has a token now: vote.")
    assert key not in await page.content()
    await page.get_by_role("radio", name="Good answer").check()
    await expect(page.get_by_role("status")).to_have_text(THANKS)


@pytest.mark.parametrize("path", ["/", "/docs", "/try/feedback"])
async def test_dark_and_light_and_a_narrow_window(browser: Browser, site: Site, path: str) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        context = await browser.new_context(color_scheme=scheme, viewport={"width": 360, "height": 800})
        page = await context.new_page()
        await page.goto(site.api + path)
        seen[scheme] = await page.evaluate(
            "() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        wide = await page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0
        await context.close()
    assert seen["light"] == ["rgb(255, 255, 255)", "rgb(28, 36, 48)"]
    assert seen["dark"] == ["rgb(16, 22, 30)", "rgb(230, 235, 242)"]


async def test_a_report_fits_a_narrow_window_and_its_wide_table_scrolls_by_itself(
    browser: Browser, tmp_path: Path
) -> None:
    titles = [f"long_title_{number}" for number in range(12)]
    report_page.write_page(tmp_path / "report.html", "A report", [report_page.table(titles, [titles])])
    context = await browser.new_context(viewport={"width": 360, "height": 800}, is_mobile=True)
    page = await context.new_page()
    await page.goto((tmp_path / "report.html").as_uri())
    assert await page.evaluate("() => window.innerWidth") == 360
    assert await page.evaluate("() => document.documentElement.scrollWidth") <= 360
    wide = page.locator(".wide")
    assert await wide.evaluate("box => box.scrollWidth > box.clientWidth") is True
    await context.close()
