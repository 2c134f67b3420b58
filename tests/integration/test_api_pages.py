"""The pages of the api: what is where, the routes, and the trial of the widget; who sees what of them."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from onward.api import service
from onward.bus import Bus
from onward.clock import SystemClock, utc_text
from onward.config import Settings
from onward.context import Context
from onward.errors import WarehouseError
from onward.telemetry.alerts import Alerts
from onward.telemetry.metrics import Metrics
from onward.warehouse import Objects


@asynccontextmanager
async def api(bus: Bus, folder: Path, **http: object) -> AsyncIterator[tuple[Context, httpx.AsyncClient]]:
    metrics, clock = Metrics(), SystemClock()
    settings = Settings.model_validate({"data_dir": folder / "data", "http": {"api_port": 0, **http}})
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
    try:
        async with asyncio.timeout(20):
            while "api_url" not in ctx.endpoints:
                await asyncio.sleep(0.01)
        async with httpx.AsyncClient(base_url=ctx.endpoints["api_url"]) as client:
            yield ctx, client
    finally:
        role.cancel()
        await asyncio.gather(role, return_exceptions=True)


class Page(HTMLParser):
    """What a browser would load, follow and run of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.inline: list[str] = []
        self.handlers: list[str] = []
        self._tag = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self._tag = tag if tag == "script" and "src" not in found else ""
        self.links += [found["href"]] if tag == "a" else []
        self.loads += [found["src"]] if "src" in found else []
        self.handlers += [name for name in found if name.startswith("on") or name == "style"]

    def handle_data(self, data: str) -> None:
        if self._tag:
            self.inline.append(data)


async def test_the_first_page_says_what_is_where_and_every_link_leads_somewhere(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = [
        {"arm": "current", "model_id": "agent-zero-rl-v1", "adapter_digest": None, "weight": 0.9},
        {"arm": "candidate", "model_id": "<v2>", "adapter_digest": None, "weight": 0.1},
    ]
    async with api(bus, tmp_path) as (ctx, client):
        ctx.endpoints["gateway_url"] = "http://127.0.0.1:3999"
        text = (await client.get("/")).text
        assert "No model was released yet: the base model serves." in text
        assert "Next training job: 0 of 5,000 rewarded trajectories of this policy." in text
        assert "http://127.0.0.1:3999/v1" in text and "run/api.key" in text
        for link in Page(text).links:
            assert (await client.get(link)).status_code == 200, link
        await bus.bucket("rl_releases").put("desired", json.dumps({"arms": arms}).encode())
        monkeypatch.setattr("onward.api.pages.rewarded_since_snapshot", _seven)
        text = (await client.get("/")).text
        said = "agent-zero-rl-v1 (current) serves 90% of new sessions, &lt;v2&gt; (candidate) serves 10%."
        assert said in text
        assert "Next training job: 7 of 5,000" in text
        model = {"adapter_digest": "d", "object_prefix": "p", "training_job_id": "j"}
        release = {
            "release_id": "r1", "created_at": "2026-01-05T18:00:00.000Z", "state": "promoted", "epoch": 1,
            "updated_at": "2026-01-05T18:00:00.000Z", "job_id": "j", "current": {**model, "model_id": "v1"},
            "candidate": {**model, "model_id": "<v2>"}, "validation": {"verdict": "not validated"},
        }  # fmt: skip
        await bus.bucket("rl_releases").put("release.r1", json.dumps(release).encode())
        text = (await client.get("/")).text
        assert "<th scope=row>last release</th><td>&lt;v2&gt;: promoted, not validated</td>" in text
        failed = {"job_id": "j9", "job_seq": 1, "state": "failed", "updated_at": utc_text(ctx.clock.now())}
        await bus.bucket("rl_jobs").put("job.j9", json.dumps(failed).encode())
        text = (await client.get("/")).text
        assert (
            "<th scope=row>held up</th><td>No job starts by itself now: job j9 failed: cool-down until "
            in text
        )
        await bus.bucket("rl_control").put("learning", b'{"paused": true}')
        assert "No next training job: learning is paused" in (await client.get("/")).text


async def _seven(bus: object, warehouse: object) -> int:
    return 7


async def test_the_pages_load_nothing_from_elsewhere_and_run_nothing_inline(bus: Bus, tmp_path: Path) -> None:
    async with api(bus, tmp_path) as (_, client):
        for path in ("/", "/docs", "/try/feedback"):
            answer = await client.get(path)
            page, policy = Page(answer.text), answer.headers["content-security-policy"]
            assert page.inline == [] and page.handlers == []
            assert all(place.startswith("/") for place in page.loads)
            assert "unsafe" not in policy and "default-src 'none'" in policy
            assert "script-src 'self';" in policy and "frame-ancestors 'none'" in policy
            assert answer.headers["cache-control"] == "no-store"
            assert "prefers-color-scheme: dark" in answer.text
        script = await client.get("/try/feedback.js")
        assert script.headers["content-type"].startswith("text/javascript")


async def test_the_page_of_routes_names_every_route_of_the_schema(bus: Bus, tmp_path: Path) -> None:
    async with api(bus, tmp_path) as (_, client):
        text = (await client.get("/docs")).text
        assert (await client.get("/openapi.json")).status_code == 401
        key = (tmp_path / "data" / "run" / "api.key").read_text()
        headers = {"Authorization": f"Bearer {key}"}
        schema = (await client.get("/openapi.json", headers=headers)).json()
        assert {"/feedback", "/feedback/tokens", "/status", "/rewards/{trajectory_id}"} <= schema[
            "paths"
        ].keys()
        for path, methods in schema["paths"].items():
            for method in methods:
                assert f"{method.upper()} <code>{path}</code>" in text


async def test_strangers_see_the_page_of_routes_with_a_key_alone(bus: Bus, tmp_path: Path) -> None:
    async with api(bus, tmp_path, names=["agents.example.org"]) as (_, client):
        assert (await client.get("/docs")).status_code == 401
        key = (tmp_path / "data" / "run" / "api.key").read_text()
        answer = await client.get("/docs", headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == 200 and "Routes of the api" in answer.text


def token_in(text: str) -> str | None:
    found = re.search(r'<onward-feedback token="([^"]+)"', text)
    return found and found[1]


async def test_the_trial_brings_a_token_that_votes_on_its_own_made_up_session_alone(
    bus: Bus, tmp_path: Path
) -> None:
    async with api(bus, tmp_path) as (_, client):
        first, second = [token_in((await client.get("/try/feedback")).text) for _ in range(2)]
        assert first and second and first != second
        headers = {"Authorization": f"Bearer {first}"}
        answer = await client.post("/feedback", json={"signal": "thumbs_up"}, headers=headers)
        assert answer.status_code == 202
        assert answer.json()["session_id"].startswith("try-")
        other = {"signal": "thumbs_up", "session_id": "chat-42"}
        assert (await client.post("/feedback", json=other, headers=headers)).status_code == 403


async def is_shown_to_strangers(client: httpx.AsyncClient, headers: dict[str, str]) -> bool:
    """Whether the pages are those for callers from elsewhere."""
    text = (await client.get("/", headers=headers)).text
    trial = (await client.get("/try/feedback", headers=headers)).text
    assert (token_in(trial) is None) == ("<input name=key type=password" in trial)
    assert (token_in(trial) is None) == ("base model serves" not in text and "Where it is" not in text)
    return token_in(trial) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"Forwarded": "for=203.0.113.7"},
        {"X-Forwarded-For": "203.0.113.7"},
        {"X-Forwarded-Proto": "https"},
        {"X-Real-Ip": "203.0.113.7"},
        {"Via": "1.1 proxy"},
    ],
    ids=lambda headers: next(iter(headers)),
)
async def test_a_proxy_that_announces_itself_gets_the_pages_for_strangers(
    bus: Bus, tmp_path: Path, headers: dict[str, str]
) -> None:
    async with api(bus, tmp_path) as (_, client):
        assert await is_shown_to_strangers(client, headers)
        assert not await is_shown_to_strangers(client, {})


async def test_a_proxy_that_passes_the_host_of_its_client_gets_the_pages_for_strangers_or_none(
    bus: Bus, tmp_path: Path
) -> None:
    async with api(bus, tmp_path) as (_, client):
        assert (await client.get("/", headers={"Host": "onward.example.org"})).status_code == 421
    async with api(bus, tmp_path / "named", names=["onward.example.org"]) as (_, client):
        assert await is_shown_to_strangers(client, {"Host": "onward.example.org"})


async def test_with_configured_host_names_no_caller_counts_as_local(bus: Bus, tmp_path: Path) -> None:
    """The way out for a proxy that says 127.0.0.1 itself and adds no header."""
    async with api(bus, tmp_path, names=["onward.example.org"]) as (_, client):
        assert await is_shown_to_strangers(client, {})


async def test_a_call_by_http_1_0_is_a_proxys(bus: Bus, tmp_path: Path) -> None:
    """nginx calls so by default, with its upstream's Host and no header about its client."""
    async with api(bus, tmp_path) as (_, client):
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        writer.write(
            f"GET /try/feedback HTTP/1.0\r\nHost: {client.base_url.netloc.decode()}\r\n\r\n".encode()
        )
        async with asyncio.timeout(20):
            answer = (await reader.read()).decode()
        writer.close()
        assert " 200 " in answer.splitlines()[0]
        assert token_in(answer) is None and "<input name=key type=password" in answer


async def test_behind_a_proxy_that_cannot_be_told_apart_the_pages_hold_nothing_that_harms(
    bus: Bus, tmp_path: Path
) -> None:
    """Such a proxy calls as a browser of this machine does: so this is what a stranger would see."""
    async with api(bus, tmp_path) as (ctx, client):
        key = (ctx.settings.run_dir / "api.key").read_text().strip()
        for path in ("/", "/docs", "/try/feedback"):
            text = (await client.get(path)).text
            assert key not in text and str(tmp_path) not in text
            assert bus.url not in text and bus.url.rpartition("//")[2] not in text
        for path in ("/status", "/rewards/some-trajectory"):
            assert (await client.get(path)).status_code == 401


async def test_an_error_of_the_store_is_not_shown_on_the_page(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> int:
        raise WarehouseError("http://inside.example.org:8123 does not answer")

    monkeypatch.setattr("onward.api.pages.rewarded_since_snapshot", away)
    async with api(bus, tmp_path) as (_, client):
        text = (await client.get("/")).text
        assert "does not answer" in text and "inside.example.org" not in text


async def test_an_agent_with_the_address_of_the_api_is_shown_the_way_to_the_gateway(
    bus: Bus, tmp_path: Path
) -> None:
    async with api(bus, tmp_path) as (_, client):
        answer = await client.post("/v1/chat/completions", json={})
        here = str(client.base_url)
    assert answer.status_code == 404 and answer.json()["error"]["message"] == (
        f"There is no /v1/chat/completions here: {here.rstrip('/')}/ lists what there is, "
        f"and the gateway's address for agents."
    )
