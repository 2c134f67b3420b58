"""``POST /feedback``, ``POST /feedback/tokens`` and ``GET /feedback.js``: the entry of user feedback.

Thin: ``onward.feedback`` decides who may vote, how often, and about what.

Invariants: an answer of 202 is a promise, so it is sent after the outbox has the vote on disk.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from onward.capture.make_redactor import inspector_of
from onward.clock import utc_text
from onward.context import Context
from onward.errors import ConflictError, OutboxFullError, RedactionError
from onward.feedback import votes
from onward.feedback.intake import FeedbackIntake
from onward.feedback.tokens import MAX_DAYS, Subject, TokenKeys, TokenRefusedError, is_token
from onward.http.app import Caller, HttpError, authorize, read_json, refuse_for
from onward.http.cors import Cors
from onward.http.limits import RateLimit, network_of
from onward.ids import derived_id, is_id, new_id
from onward.warehouse import queries

MAX_BODY = 16 << 10


class FeedbackApi:
    """The routes and their state; ``intake`` publishes the accepted votes."""

    def __init__(self, ctx: Context) -> None:
        """Raises ConfigError, and BusError for a file that cannot be used."""
        settings = ctx.settings.feedback
        self._ctx, self._clock = ctx, ctx.clock
        self._keys = TokenKeys(ctx.settings.run_dir)
        inspector = inspector_of(ctx.settings)  # after the keys were made: it redacts them
        self._lifetime = timedelta(days=settings.token_days)
        self._sessions = RateLimit(settings.per_session_per_minute, ctx.clock)
        self._addresses = RateLimit(settings.per_address_per_minute, ctx.clock)
        self._callers = RateLimit(settings.per_key_per_minute, ctx.clock)
        self.intake = FeedbackIntake(
            ctx.settings.data_dir / "outbox",
            clock=ctx.clock,
            redactor=inspector.redactor,
            opt_out=inspector.opt_out,
        )

    def add_to(self, app: FastAPI) -> None:
        script = (resources.files("onward") / "web" / "feedback.js").read_bytes()
        tag = f'"{hashlib.sha256(script).hexdigest()[:16]}"'
        app.add_middleware(Cors, paths=["/feedback"], origins=self._ctx.settings.feedback.origins)

        @app.post("/feedback", status_code=202)
        async def give(request: Request) -> dict[str, Any]:
            """Accepts a vote on a session or a trajectory. A feedback token, or a key with scope feedback."""
            way, result = _way_of(request), "refused"
            try:
                answer = await self._give(request, way)
                result = "accepted" if answer["kept"] else "opted_out"
                return answer
            except HttpError as error:
                result = "limited" if error.status == 429 else result
                raise
            finally:
                self._ctx.metrics.feedback_posts.labels(way=way, result=result).inc()

        @app.post("/feedback/tokens", status_code=201)
        async def make_token(request: Request) -> dict[str, Any]:
            """Makes a token for a browser, valid for one conversation. Scope: feedback."""
            return await self._make_token(request)

        @app.get("/feedback.js")
        async def widget(request: Request) -> Response:
            """The widget for chat pages. Open."""
            headers = {
                "ETag": tag,
                "Cache-Control": "public, max-age=3600",
                "Access-Control-Allow-Origin": "*",
                "Cross-Origin-Resource-Policy": "cross-origin",
                "X-Content-Type-Options": "nosniff",
            }
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers=headers)
            return Response(script, media_type="text/javascript; charset=utf-8", headers=headers)

    def trial(self, request: Request, *, with_token: bool) -> tuple[str, str | None]:
        """Makes up a session to try the widget with, and a token for an hour. Raises HttpError 429."""
        session = f"try-{new_id()}"
        if not with_token:
            return session, None
        self._limit_address(request)
        return session, self._keys.issue(Subject(session), self._clock.now(), timedelta(hours=1))

    async def _give(self, request: Request, way: str) -> dict[str, Any]:
        caller, subject = self._who(request, way)
        if len(await request.body()) > MAX_BODY:
            raise HttpError(413, f"Feedback has at most {MAX_BODY} bytes: shorten the comment.")
        document = await read_json(request)
        said = votes.read_vote(document, by_key=caller is not None)
        session_id, trajectory_id = votes.read_subject(document)
        if subject is not None:
            votes.check_scope(subject, session_id, trajectory_id)
        else:
            subject = await self._subject(session_id, trajectory_id)
        if "turn_id" in said and subject.trajectory_id is None:
            raise HttpError(400, "'turn_id' needs the trajectory that the turn is of.", param="turn_id")
        feedback_id = _feedback_id(request, document, caller, subject)
        _wait(self._sessions.take_token(subject.session_id), "on this session")
        said["session_id"] = subject.session_id
        if subject.trajectory_id is not None:
            said["trajectory_id"] = subject.trajectory_id
        try:
            kept = await self.intake.accept(feedback_id, said)
        except ConflictError:
            raise HttpError(
                409, "This id was used for other feedback: give each vote its own.", type="conflict_error"
            ) from None
        except RedactionError:
            raise _unavailable("The comment could not be redacted and was not kept: leave it out.") from None
        except OutboxFullError:
            raise _unavailable("No more feedback can be kept at the moment: send it again later.") from None
        return {"feedback_id": feedback_id, **_named(subject), "kept": kept}

    async def _make_token(self, request: Request) -> dict[str, Any]:
        caller = authorize(request, "feedback")
        _wait(self._callers.take_token(caller.key_hash), "with this API key")
        document = await read_json(request)
        unknown = document.keys() - {"session_id", "trajectory_id", "expires_in"}
        if unknown:
            name = min(unknown)[:64]
            raise HttpError(
                400, f"{name!r} is not known here: give session_id, trajectory_id, expires_in.", param=name
            )
        subject = await self._subject(*votes.read_subject(document))
        seconds = document.get("expires_in", self._lifetime.total_seconds())
        if (
            isinstance(seconds, bool)
            or not isinstance(seconds, int | float)
            or not 1 <= seconds <= 86_400 * MAX_DAYS
        ):
            raise HttpError(
                400, f"'expires_in' must be seconds, from 1 to {86_400 * MAX_DAYS}.", param="expires_in"
            )
        now = self._clock.now()
        lifetime = timedelta(seconds=seconds)
        token = self._keys.issue(subject, now, lifetime)
        return {"token": token, **_named(subject), "expires_at": utc_text(now + lifetime)}

    def _who(self, request: Request, way: str) -> tuple[Caller | None, Subject | None]:
        """Returns the caller of an API key, or the subject of a token. Raises HttpError 401, 403, 429."""
        if way == "key":
            try:
                caller = authorize(request, "feedback")
            except HttpError:
                self._limit_address(request)
                raise
            _wait(self._callers.take_token(caller.key_hash), "with this API key")
            return caller, None
        self._limit_address(request)
        if way == "none":
            raise _unknown("Send 'Authorization: Bearer …' with a feedback token or an API key.")
        try:
            return None, self._keys.verify(_bearer(request), self._clock.now())
        except TokenRefusedError as error:
            raise _unknown(str(error)) from None

    def _limit_address(self, request: Request) -> None:
        address = network_of(request.client.host) if request.client else ""
        _wait(self._addresses.take_token(address), "from this address")

    async def _subject(self, session_id: str | None, trajectory_id: str | None) -> Subject:
        """Returns the subject of a vote with an API key; looks up the session of a trajectory if it is
        missing. Raises HttpError 400, 404; WarehouseError."""
        if session_id is not None:
            return Subject(session_id, trajectory_id)
        if trajectory_id is None:
            raise HttpError(400, "Give a 'session_id', a 'trajectory_id', or both.", param="session_id")
        row = await queries.trajectory(self._ctx.warehouse, trajectory_id)
        if row is None:
            raise HttpError(
                404,
                "No such trajectory is stored (yet): give its 'session_id' too, or send this again later.",
                type="not_found_error",
                param="trajectory_id",
            )
        return Subject(row["session_id"], trajectory_id)


def _bearer(request: Request) -> str:
    kind, _, bearer = request.headers.get("authorization", "").partition(" ")
    return bearer.strip() if kind.lower() == "bearer" else ""


def _way_of(request: Request) -> str:
    """Returns the kind of credential in the request, valid or not: ``token``, ``key`` or ``none``."""
    bearer = _bearer(request)
    if is_token(bearer):
        return "token"
    return "key" if bearer or "x-api-key" in request.headers else "none"


def _feedback_id(request: Request, document: dict[str, Any], caller: Caller | None, subject: Subject) -> str:
    """Returns the client's own id, or one from its ``Idempotency-Key`` and its identity, or a new one."""
    own, key = document.get("feedback_id"), request.headers.get("idempotency-key")
    if own is not None and key is not None:
        raise HttpError(400, "Give 'feedback_id' or Idempotency-Key, not both.", param="feedback_id")
    for name, given in (("feedback_id", own), ("Idempotency-Key", key)):
        if given is not None and not (isinstance(given, str) and is_id(given)):
            raise HttpError(400, f"{name} must be 1 to 128 letters, digits, '_' or '-'.", param=name)
    if own is not None:
        return own
    if key is not None:
        return derived_id("feedback", caller.key_hash if caller else "", *_named(subject).values(), key)
    return new_id()


def _named(subject: Subject) -> dict[str, str]:
    named = {"session_id": subject.session_id}
    return named if subject.trajectory_id is None else {**named, "trajectory_id": subject.trajectory_id}


def _wait(seconds: float, what: str) -> None:
    refuse_for(seconds, f"Too much feedback {what}: send it again in {{}} s.")


def _unknown(message: str) -> HttpError:
    return HttpError(401, message, type="authentication_error", headers={"WWW-Authenticate": "Bearer"})


def _unavailable(message: str) -> HttpError:
    return HttpError(503, message, type="service_unavailable", headers={"Retry-After": "30"})
