"""The one HTTP base: every service of Onward is a FastAPI app made by ``make_app`` and run by ``Server``.

Invariants: the protections of a service (Host check, API keys, body limit, the rule about browsers) are
applied here and nowhere else, so a new service cannot omit them. Its tests change with this file.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onward.clock import Clock, SystemClock
from onward.contracts import decode_document
from onward.errors import ConfigError, ConflictError, ContractError, NotFoundError, OnwardError
from onward.files import SECRET_CHARACTERS, read_secret, write_secret_once
from onward.http.hosts import AllowedHosts
from onward.http.limits import RateLimit, network_of
from onward.http.open_calls import OpenCalls
from onward.telemetry.metrics import Metrics

SCOPES = frozenset({"ingest", "read", "train", "deploy", "admin", "chat", "feedback"})
MAX_BODY = 1 << 20
MAX_HEADER = 32 << 10
"""Bytes of a request's target and headers together."""
MAX_DEPTH = 100
"""Levels of a request's JSON. Its parts have lower limits of their own, which say more."""
BODY_SECONDS = 30.0
"""Time limit for a client to send its body; a slower one is cut off."""
WRONG_KEYS_PER_MINUTE = 60
NONE_OPEN = OpenCalls()

Readiness = Mapping[str, bool | str]
"""Part → True, or False, or a sentence with the reason why it is not ready."""

_log = logging.getLogger("onward.http")


class HttpError(Exception):
    """An answer with an error status, in the OpenAI-compatible shape."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """``code``: OpenAI's word for the case, where it has one that clients look at."""
        super().__init__(message)
        self.status, self.message, self.type, self.param = status, message, type, param
        self.code = code
        self.headers = dict(headers or {})

    def response(self) -> Response:
        return error_response(self.status, self.type, self.message, self.param, self.headers, self.code)


def error_response(
    status: int,
    type: str,
    message: str,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
    code: str | None = None,
) -> Response:
    """Returns an error as ASCII, so that it can repeat any text of a request, also half a surrogate pair."""
    body = json.dumps(error_body(type, message, param, code))
    return Response(body, status, headers, media_type="application/json")


def error_body(type: str, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    named = {} if code is None else {"code": code}
    return {"error": {"type": type, "message": message, "param": param, **named}}


@dataclass(frozen=True)
class Caller:
    """The client of a request: the SHA-256 of its key, its scopes, and the key's name."""

    key_hash: str
    scopes: frozenset[str]
    name: str = "anonymous"


class ApiKeys:
    """API keys as SHA-256 → scopes. Plain keys are never stored; comparison takes constant time."""

    def __init__(self, keys: Mapping[str, Iterable[str]], names: Mapping[str, str] | None = None) -> None:
        """``names``: hash → the name of a key. Raises ConfigError for a hash that is not 64 hex digits or a
        scope that does not exist."""
        self._names = {digest.lower(): name for digest, name in (names or {}).items()}
        self._keys: dict[str, frozenset[str]] = {}
        for digest, scopes in keys.items():
            known = frozenset(scopes)
            if len(digest) != 64 or any(c not in "0123456789abcdefABCDEF" for c in digest):
                raise ConfigError(
                    "http.keys must map the SHA-256 of each key (64 hex digits) to its scopes, "
                    "but one name is not such a hash: never write the key itself."
                )
            if not known or known - SCOPES:
                raise ConfigError(
                    f"http.keys gives the scopes {sorted(known)}: use one or more of {sorted(SCOPES)}."
                )
            self._keys[digest.lower()] = known

    def find(self, presented: str) -> Caller | None:
        given = hashlib.sha256(presented.encode()).hexdigest()
        found: Caller | None = None
        for digest, scopes in self._keys.items():  # all of them, so that timing does not reveal which
            if hmac.compare_digest(digest, given):
                found = Caller(digest, scopes, self._names.get(digest, f"key-{digest[:8]}"))
        return found


def load_keys(
    configured: Mapping[str, Iterable[str]], run_dir: Path, names: Mapping[str, str] | None = None
) -> ApiKeys:
    """Returns the configured keys and the local one in ``run_dir/api.key``, created on first use."""
    local = hashlib.sha256(local_key(run_dir).encode()).hexdigest()
    return ApiKeys({local: SCOPES, **configured}, {local: "local", **(names or {})})


def local_key(run_dir: Path) -> str:
    """Returns the generated key of this data directory (mode 0600), for the command line and local agents."""
    path = run_dir / "api.key"
    return read_or_create_secret(path, lambda: "ok-" + secrets.token_urlsafe(32), least=SECRET_CHARACTERS)


def read_or_create_secret(path: Path, make: Callable[[], str], *, least: int = 1) -> str:
    """Reads a secret file, or creates it with mode 0600; two racing processes agree on one secret. Raises
    ConfigError if it holds fewer than ``least`` characters."""
    if not path.exists():
        write_secret_once(path, make())
    return read_secret(path, "delete it and a new one is made at the next start", least=least)


def authorize(request: Request, scope: str, *, local: bool = False) -> Caller:
    """Returns the caller if its key has ``scope`` (``admin`` has every scope); else HttpError 401 or 403.
    ``local``: a call from this machine needs no key here while none is configured."""
    header = request.headers.get("authorization", "")
    kind, _, bearer = header.partition(" ")
    presented = bearer.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key", "")
    keys: ApiKeys = request.app.state.keys
    caller = keys.find(presented) if presented else None
    if not presented and request.app.state.open_calls.allow(request, local=local):
        return Caller("", frozenset({scope}))
    if caller is None:
        if presented:
            _limit_wrong_keys(request)
        raise HttpError(
            401,
            "No valid API key was given: send 'Authorization: Bearer KEY' (the local key is in run/api.key).",
            type="authentication_error",
            headers={"WWW-Authenticate": "Bearer"},
        )
    if scope not in caller.scopes and "admin" not in caller.scopes:
        raise HttpError(403, f"This API key lacks the scope {scope!r}.", type="permission_error")
    return caller


def _limit_wrong_keys(request: Request) -> None:
    """Counts a wrong key of this address; raises HttpError 429 above the limit. A valid key is never refused
    for it: behind a proxy all clients share one address."""
    wrong: RateLimit = request.app.state.wrong_keys
    seconds = wrong.take_token(network_of(request.client.host) if request.client else "")
    refuse_for(seconds, "Too many wrong API keys came from this address: send a valid one, or wait {} s.")


def refuse_for(seconds: float, message: str) -> None:
    """Raises HttpError 429 with Retry-After, unless ``seconds`` is 0. ``{}`` in ``message`` is the time."""
    if seconds > 0:
        whole = max(1, math.ceil(seconds))
        raise HttpError(
            429, message.format(whole), type="rate_limit_error", headers={"Retry-After": str(whole)}
        )


def require(scope: str, *, local: bool = False) -> Callable[[Request], Caller]:
    """Returns a FastAPI dependency: ``Depends(require("read"))``. ``local``: see ``authorize``."""
    if scope not in SCOPES:
        raise ValueError(f"unknown scope {scope!r}")

    def dependency(request: Request) -> Caller:
        return authorize(request, scope, local=local)

    return dependency


def make_app(
    name: str,
    *,
    keys: ApiKeys,
    ready: Callable[[], Readiness | Awaitable[Readiness]],
    warnings: Mapping[str, str] | None = None,
    metrics: Metrics | None = None,
    hosts: Iterable[str] = (),
    max_body: int = MAX_BODY,
    wrong_keys_per_minute: int = WRONG_KEYS_PER_MINUTE,
    clock: Clock | None = None,
    open_calls: OpenCalls = NONE_OPEN,
    health: Callable[[], Awaitable[Mapping[str, Any]]] | None = None,
) -> FastAPI:
    """Makes a FastAPI app with /health, /ready and /metrics (open), /openapi.json (scope read) and the
    protections of this module.

    ``warnings``: part → what will need an operator soon; ``/ready`` shows it and stays ready. ``health``:
    what ``/health`` adds to the mark that the process lives.

    ``hosts``: names under which clients may call the service besides this machine's own, and the address it
    binds to. A wildcard address there also allows any IP literal (a rebound DNS name is never a literal) and
    this machine's name.
    """
    app = FastAPI(title=f"Onward {name}", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.keys = keys
    app.state.open_calls = open_calls
    app.state.wrong_keys = RateLimit(wrong_keys_per_minute, clock or SystemClock())
    app.add_middleware(Guard, hosts=AllowedHosts(hosts), max_body=max_body)
    _add_error_handlers(app)

    @app.get("/health")
    async def alive() -> dict[str, Any]:
        """Reports that the process lives, and what its work needs. Open."""
        return {"status": "ok", "service": name, **(await health() if health is not None else {})}

    @app.get("/ready")
    async def readiness() -> Response:
        """Reports whether every part is ready; 503 with a word for each part that is not. Open."""
        parts = ready()
        if isinstance(parts, Awaitable):
            parts = await parts
        reasons = {part: (why or "not ready") for part, why in parts.items() if why is not True}
        body = {"ready": not reasons, "reasons": reasons, "warnings": dict(warnings or {})}
        return JSONResponse(body, status_code=503 if reasons else 200)

    @app.get("/openapi.json", include_in_schema=False, dependencies=[Depends(require("read"))])
    async def schema() -> dict[str, Any]:
        return app.openapi()

    if metrics is not None:
        rendered = metrics.render

        @app.get("/metrics")
        async def prometheus() -> Response:
            """Metrics for Prometheus. Open."""
            return Response(rendered(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app


class Guard:
    """Pure ASGI: Host check, limits of header and body, browser rule. It reads the body once and replays
    it."""

    def __init__(self, app: ASGIApp, hosts: AllowedHosts, max_body: int) -> None:
        self.app, self.hosts, self.max_body = app, hosts, max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            headers = dict(scope["headers"])
            _check_header_size(scope)
            if not self.hosts.allows(headers.get(b"host", b"").decode("latin-1")):
                raise HttpError(
                    421,
                    "This Host header is not served here: use localhost or a configured name.",
                    param="Host",
                )
            if scope["method"] in ("POST", "PUT", "PATCH"):
                scope = _as_json(scope, headers)
                receive = await self._limited(headers, receive)
        except HttpError as error:
            await error.response()(scope, receive, send)
            return
        await self.app(scope, receive, send)

    async def _limited(self, headers: Mapping[bytes, bytes], receive: Receive) -> Receive:
        too_large = HttpError(413, f"The body is larger than {self.max_body} bytes: send less.")
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self.max_body:
            raise too_large
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return _replay([message], receive)
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self.max_body:
                        raise too_large
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise HttpError(408, f"The body did not arrive within {BODY_SECONDS:g} seconds.") from None
        return _replay([{"type": "http.request", "body": b"".join(parts), "more_body": False}], receive)


def _check_header_size(scope: Scope) -> None:
    size = len(scope.get("raw_path", b"")) + len(scope["query_string"])
    size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    if size > MAX_HEADER:
        raise HttpError(431, f"The path and headers have {size} bytes: send at most {MAX_HEADER}.")


def _replay(messages: list[Message], receive: Receive) -> Receive:
    async def again() -> Message:
        return messages.pop(0) if messages else await receive()

    return again


def _as_json(scope: Scope, headers: Mapping[bytes, bytes]) -> Scope:
    """Treats bodies as JSON whatever the Content-Type (plain ``curl -d`` names a form), but not from a
    browser: there, requiring application/json forces the preflight that CORS then refuses."""
    kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if kind == b"application/json":
        return scope
    browser = b"origin" in headers or any(name.startswith(b"sec-fetch-") for name in headers)
    if browser:
        raise HttpError(415, "Browsers must send Content-Type: application/json.", param="Content-Type")
    kept = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
    return {**scope, "headers": [*kept, (b"content-type", b"application/json")]}


_STATUS: tuple[tuple[type[OnwardError], int, str], ...] = (
    (ContractError, 400, "invalid_request_error"),
    (ConfigError, 400, "invalid_request_error"),
    (NotFoundError, 404, "not_found_error"),
    (ConflictError, 409, "conflict_error"),
    (OnwardError, 503, "service_unavailable"),
)


def answer_to(error: Exception) -> Response:
    """Returns the answer to a request whose endpoint raised ``error``; 500 for a defect."""
    if isinstance(error, HttpError):
        return error.response()
    for kind, status, word in _STATUS:
        if isinstance(error, kind):
            return error_response(status, word, str(error))
    message = "Something went wrong inside Onward; the log has the details."
    return error_response(500, "internal_error", message)


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(Exception)
    @app.exception_handler(OnwardError)
    @app.exception_handler(HttpError)
    async def _ours(_: Request, error: Exception) -> Response:
        return answer_to(error)

    @app.exception_handler(HTTPException)
    async def _framework_error(_: Request, error: HTTPException) -> Response:
        kind = "not_found_error" if error.status_code == 404 else "invalid_request_error"
        return error_response(error.status_code, kind, str(error.detail), headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or None
        message = f"The request is not valid: {first['msg']}" + (f" (at {where})." if where else ".")
        return error_response(400, "invalid_request_error", message, where)


async def read_json(request: Request) -> dict[str, Any]:
    """Returns the body as a JSON object. Raises HttpError 400 with a sentence for anything else: too deep,
    not UTF-8, half of a surrogate pair, NaN, a number beyond a double, a key that is given twice."""
    try:
        body = await request.body()
        document = decode_document(body, max_bytes=len(body), max_depth=MAX_DEPTH)
    except ContractError as error:
        raise HttpError(400, f"The body is not valid JSON. {error}") from None
    except ClientDisconnect:  # no client reads the answer, and nothing is wrong here
        raise HttpError(400, "The client closed the connection before its request was complete.") from None
    if not isinstance(document, dict):
        raise HttpError(400, "The body must be one JSON object.")
    return document
