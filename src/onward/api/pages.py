"""``GET /``, ``GET /docs`` and ``GET /try/feedback``: the pages for a person who opens the api in a browser.

Each page is one file, without its own script except for the trial.

Invariants: no page has a secret, a path of this machine or the address of NATS, because a proxy that adds no
header looks like a browser on this machine. If ``is_local`` holds, pages also show the serving model (as
``/metrics`` does), addresses, and a token for votes on a made-up session. For all others they show links and
ask for a key, as the routes behind them do; ``/docs`` then wants one too.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
from collections.abc import Iterable
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response

from onward.api.feedback import FeedbackApi
from onward.api.status import STATUS_SECONDS, next_sentence, release_in_short, serving_sentence
from onward.bus import read_document
from onward.bus.documents import is_learning_paused
from onward.config import HttpSettings
from onward.context import Context
from onward.contracts.buckets import DesiredRoutes
from onward.coordinator.coordinator import rewarded_since_snapshot
from onward.coordinator.open_work import OpenWork
from onward.errors import BusError, WarehouseError
from onward.http import open_calls
from onward.http.app import authorize
from onward.release.record import Releases
from onward.training.role.job_table import JobTable

WEB = resources.files("onward") / "web"
_STYLE = (WEB / "page.css").read_text(encoding="utf-8")
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; script-src 'self'; connect-src 'self'; "
    f"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    f"require-trusted-types-for 'script'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_LINKS = (
    ("/try/feedback", "try the feedback widget: thumbs, stars and a comment, as on a chat page"),
    ("/docs", "every route of this address"),
    ("/ready", "whether every part is ready, and why not"),
    ("/health", "whether the process runs"),
    ("/metrics", "for Prometheus"),
    ("/feedback.js", "the widget for pages of your own"),
)
_COMMANDS = (
    ("onward status", "the same and more: streams, jobs, releases, counts"),
    ("onward trajectories list", "what your agents did"),
    ("onward rewards list", "how it was scored"),
    ("onward releases show", "what was decided about the last release, and why"),
)
_TAGS = """<script src=".../feedback.js" defer></script>
<onward-feedback token="oft1..." ask="thumbs stars comment"></onward-feedback>"""


def add_to(app: FastAPI, ctx: Context, feedback: FeedbackApi) -> None:
    """Adds the three pages and the script of the trial."""

    @app.get("/", include_in_schema=False)
    async def home(request: Request) -> HTMLResponse:
        local = is_local(request, ctx.settings.http)
        return _page("Onward", await _home(ctx, local))

    @app.get("/docs", include_in_schema=False)
    async def routes(request: Request) -> HTMLResponse:
        if not is_local(request, ctx.settings.http):
            authorize(request, "read")
        return _page("Onward: routes of the api", _routes(app.openapi()))

    @app.get("/try/feedback", include_in_schema=False)
    async def trial(request: Request) -> HTMLResponse:
        local = is_local(request, ctx.settings.http)
        session, token = feedback.trial(request, with_token=local)
        return _page("Onward: try the feedback widget", _trial(session, token))

    @app.get("/try/feedback.js", include_in_schema=False)
    async def script() -> Response:
        return Response((WEB / "try.js").read_bytes(), media_type="text/javascript", headers=_HEADERS)


def is_local(request: Request, http: HttpSettings) -> bool:
    """Returns whether a browser on this machine sent ``request``."""
    return open_calls.is_local(request, http.host, http.names)


async def _home(ctx: Context, local: bool) -> str:
    parts = [
        "<h1>Onward</h1>",
        "<p class=soft>Agents that get better from their own work, and a way back when they do not.</p>",
    ]
    if local:
        parts += ["<h2>Now</h2>", _table(await _now(ctx))]
        api, gateway = ctx.endpoints.get("api_url", ""), ctx.endpoints.get("gateway_url")
        where = [
            (
                "agents",
                f"{_code(gateway + '/v1')} as the base URL of any OpenAI client"
                if gateway
                else "run elsewhere",
            ),
            ("this api", _code(api)),
            ("the key", f"in {_code('run/api.key')} of the data folder, as 'onward up' printed"),
        ]
        parts += ["<h2>Where it is</h2>", _table(where)]
        commands = [(_code(command), html.escape(words)) for command, words in _COMMANDS]
        parts += ["<h2>Look from a terminal</h2>", _table(commands)]
        command = f'curl -H "Authorization: Bearer $(cat DATA_FOLDER/run/api.key)" {api}/status'
        parts += ["<p>Or over HTTP, with the key:</p>", f"<pre>{html.escape(command)}</pre>"]
    links = [(f"<a href={path}>{path}</a>", html.escape(words)) for path, words in _LINKS]
    parts += ["<h2>More at this address</h2>", _table(links)]
    return "\n".join(parts)


async def _now(ctx: Context) -> list[tuple[str, str]]:
    """Returns rows on the serving model and the next step."""
    try:
        async with asyncio.timeout(STATUS_SECONDS):
            desired = await read_document(ctx.bus, DesiredRoutes)
            paused = await is_learning_paused(ctx.bus)
            releases = Releases(ctx.bus, ctx.clock)
            released = await releases.all()
            jobs = [job for job, _ in await JobTable(ctx.bus.bucket("rl_jobs"), ctx.clock).all()]
            rewarded = await rewarded_since_snapshot(ctx.bus, ctx.warehouse)
            pause = ctx.settings.training.cooldown_minutes
            cooldown = (await OpenWork.read(ctx.bus)).cooldown(pause, ctx.clock)
    except (BusError, WarehouseError, TimeoutError):  # its text may have an address
        return [("not known", "NATS or the warehouse does not answer: the log and /ready say more")]
    counted = {"rewarded": rewarded, "threshold": ctx.settings.training.threshold}
    serving, following = serving_sentence(desired), next_sentence(counted, jobs, paused)
    missing = [part for part, ready in ctx.ready.items() if ready is not True]
    rows = [
        ("model", html.escape(serving)),
        ("last release", html.escape(release_in_short(released))),
        ("comes next", html.escape(following)),
    ]
    if cooldown is not None:
        rows.append(("held up", html.escape(f"No job starts by itself now: {cooldown}.")))
    return rows + ([("not ready", html.escape(", ".join(missing)))] if missing else [])


def _routes(schema: dict[str, Any]) -> str:
    rows = []
    for path, methods in sorted(schema["paths"].items()):
        for method, route in methods.items():
            about = route.get("description") or route.get("summary") or ""
            rows.append((f"{method.upper()} {_code(path)}", html.escape(" ".join(about.split()))))
    return (
        "<h1>Routes of the api</h1>"
        "<p class=soft>A key goes into <code>Authorization: Bearer KEY</code>. "
        "For programs, with the key: <code>/openapi.json</code>. <a href=/>Back</a></p>" + _table(rows)
    )


def _trial(session: str, token: str | None) -> str:
    given = f' token="{html.escape(token)}"' if token else ""
    form = (
        f"<form id=key data-session={html.escape(session)}>"
        "<label>API key with the scope <code>feedback</code> "
        "<input name=key type=password autocomplete=off required></label><button>Get a token</button></form>"
    )
    return (
        "<h1>Try the feedback widget</h1>"
        f"<p class=soft>Votes here go the whole way, about a made-up session {_code(session)}: "
        "no reward and no release changes. <a href=/>Back</a></p>"
        "<div class='says person'>Which of the three invoices is still open?</div>"
        "<div class='says agent'>Invoice 1043 of 12 May: 240 € are open, due on Friday.</div>"
        f"<onward-feedback{given} ask='thumbs stars comment'></onward-feedback>"
        f"{'' if token else form}"
        "<h2>What the page hears</h2><pre id=told role=log>Nothing yet.</pre>"
        "<h2>On a page of yours</h2>"
        f"<pre>{html.escape(_TAGS)}</pre>"
        "<script src=/feedback.js></script><script src=/try/feedback.js></script>"
    )


def _table(rows: Iterable[tuple[str, str]]) -> str:
    """Renders rows of a name and its words; both are HTML already."""
    lines = (f"<tr><th scope=row>{name}</th><td>{words}</td></tr>" for name, words in rows)
    return f"<table>{''.join(lines)}</table>"


def _code(text: object) -> str:
    return f"<code>{html.escape(str(text))}</code>"


def _page(title: str, body: str) -> HTMLResponse:
    text = (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<title>{html.escape(title)}</title><link rel=icon href='data:,'><style>{_STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>"
    )
    return HTMLResponse(text, headers=_HEADERS)
