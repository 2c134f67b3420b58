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
from playwright.async_api import Browser, BrowserContext, Error, Page, async_playwright, expect

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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_page(browser: Browser) -> AsyncIterator[Page]:
    """One page for a module: a new one costs Chromium a process and a third of a second of work."""
    context = await browser.new_context()
    context.set_default_timeout(30_000)
    yield await context.new_page()
    await context.close()


@pytest_asyncio.fixture(loop_scope="module")
async def zero_page(shared_page: Page, agent_zero: Host) -> AsyncIterator[Page]:
    """The module's page, without what the test before stored in it; any error on it fails the test."""
    await shared_page.goto("about:blank")
    session = await shared_page.context.new_cdp_session(shared_page)
    await session.send("Storage.clearDataForOrigin", {"origin": agent_zero.url, "storageTypes": "all"})
    await session.detach()
    await shared_page.context.clear_cookies()
    errors: list[str] = []

    def note(error: Error) -> None:
        errors.append(str(error))

    shared_page.on("pageerror", note)
    yield shared_page
    await shared_page.context.set_offline(False)
    shared_page.remove_listener("pageerror", note)
    assert errors == []


@pytest_asyncio.fixture(loop_scope="module")
async def page(context: BrowserContext) -> AsyncIterator[Page]:
    """A page on which any error fails the test: the widget throws nothing into it."""
    errors: list[str] = []
    page = await context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    assert errors == []
