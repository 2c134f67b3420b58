"""One Chromium for a module, against a real api role.

Chromium is Debian's own. Where it is missing the tests fail with the line that installs it: a test that is
skipped in silence protects nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from agent_zero_browser import Host, running_host
from feedback_site import Site, running_site
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

expect.set_options(timeout=30_000)
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with running_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent_zero(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Host]:
    async with running_host(tmp_path_factory.mktemp("zero")) as host:
        yield host


@pytest_asyncio.fixture(loop_scope="module")
async def host(agent_zero: Host) -> Host:
    await agent_zero.forget()
    return agent_zero


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.fail("Chromium is not here: run 'apt-get install -y --no-install-recommends chromium'.")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    context = await browser.new_context()
    context.set_default_timeout(30_000)
    yield context
    await context.close()


@pytest_asyncio.fixture(loop_scope="module")
async def page(context: BrowserContext) -> AsyncIterator[Page]:
    """A page on which any error fails the test: the widget throws nothing into it."""
    errors: list[str] = []
    page = await context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    assert errors == []
