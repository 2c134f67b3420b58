"""The admin API on the gateway's port: register a model, change its traffic, read its figures.

The routes and forms are those of the published gateway. The gateway decides nothing: a write becomes a
request to the releaser, and the answer is the releaser's. Writes need the scope ``deploy``, figures ``read``.
"""

from __future__ import annotations

from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from onward.bus import read_all, read_document
from onward.clock import utc_text
from onward.context import Context
from onward.contracts.buckets import AdminRequest, Desired, Loose, ModelEntry, ReleaseEntry
from onward.http.app import HttpError, authorize, read_json, require
from onward.ids import model_key, new_id
from onward.serving.routing.route_switcher import RouteSwitcher

ANSWER_SECONDS = 12.0
"""Longest wait for the releaser. After it the request goes on, and the answer says so (202)."""
LOOK_SECONDS = 0.1
_KINDS = {400: "invalid_request_error", 404: "not_found_error", 409: "conflict_error"}


class _Release(ReleaseEntry):
    """A release as the figures of its two models need it."""

    created_at: str = ""
    updated_at: str = ""
    started_at: Loose[str | None] = None
    candidate: Loose[dict[str, Any]] = Field(default_factory=dict)
    current: Loose[dict[str, Any]] = Field(default_factory=dict)
    rates: Loose[dict[str, Any]] = Field(default_factory=dict)

    def arm_of(self, model_id: str) -> str | None:
        """Returns the arm that ``model_id`` has in this release, if it was judged in it."""
        for arm, model in (("candidate", self.candidate), ("current", self.current)):
            if model.get("model_id") == model_id and self.rates.get(arm):
                return arm
        return None


class AdminApi:
    """The routes and what they read."""

    def __init__(self, ctx: Context, state: RouteSwitcher) -> None:
        self._ctx, self._state = ctx, state

    def add_to(self, app: FastAPI) -> None:
        @app.post("/admin/models", status_code=201)
        async def register(request: Request) -> Response:
            """Registers an adapter in the store of models. Scope: deploy."""
            caller = authorize(request, "deploy", local=True)
            body = await read_json(request)
            _need_text(body, "model_id")
            _need_text(body, "checkpoint_path")
            return await self._ask("register", body, caller.name)

        @app.put("/admin/traffic")
        async def traffic(request: Request) -> Response:
            """Changes the share of traffic of a model. Scope: deploy."""
            caller = authorize(request, "deploy", local=True)
            body = await read_json(request)
            _need_text(body, "model_id")
            given = body.get("traffic_percentage")
            if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= 100:
                raise HttpError(
                    400, "'traffic_percentage' must be a number from 0 to 100.", param="traffic_percentage"
                )
            name = await self._named(body["model_id"])
            return await self._ask("traffic", {**body, "model_id": name}, caller.name)

        @app.get("/admin/models/{name}/metrics", dependencies=[Depends(require("read", local=True))])
        async def metrics(name: str) -> dict[str, Any]:
            """Reports the figures of a model, of ``current`` or of ``previous``. Scope: read."""
            return await self._metrics(await self._named(name))

    async def _ask(self, kind: str, body: dict[str, Any], by: str) -> Response:
        """Stores a request to the releaser, and answers with its result."""
        clock, bucket = self._ctx.clock, self._ctx.bus.bucket(AdminRequest.BUCKET)
        asked = AdminRequest(request_id=new_id(), kind=kind, by=by, body=body, asked_at=utc_text(clock.now()))
        await bucket.create(asked.own_key(), asked.dump())
        until = clock.monotonic() + ANSWER_SECONDS
        while clock.monotonic() < until:
            await clock.sleep(LOOK_SECONDS)
            found = await read_document(self._ctx.bus, AdminRequest, asked.request_id)
            if found is None or found.result is None:
                continue
            await bucket.delete(asked.own_key())
            status, document = found.result.status, found.result.document
            if status < 400:
                return JSONResponse(document, status)
            message = str(document.get("message", ""))
            raise HttpError(status, message, type=_KINDS.get(status, "service_unavailable"))
        note = "The request is stored; the releaser has not answered yet, so ask for the metrics later."
        return JSONResponse({"request_id": asked.request_id, "status": "accepted", "note": note}, 202)

    async def _named(self, name: str) -> str:
        """Returns the id of a model that may be called ``current`` or ``previous``."""
        if name == "current":
            return self._state.serving().current.model_id
        if name != "previous":
            return name
        desired = await read_document(self._ctx.bus, Desired)
        if desired is None or desired.previous is None:
            raise HttpError(
                404,
                "No model served before the current one, so there is no previous.",
                type="not_found_error",
            )
        return desired.previous.model_id

    async def _metrics(self, model_id: str) -> dict[str, Any]:
        """Returns the figures of the newest release in which the gates judged ``model_id``."""
        routes = self._state.serving()
        served = {arm.model_id: 100.0 * arm.weight for arm in routes.arms}
        releases = await read_all(self._ctx.bus.bucket(_Release.BUCKET), _Release)
        judged = [
            (release, arm)
            for release in (stored.document for stored in releases)
            if release is not None and (arm := release.arm_of(model_id)) is not None
        ]
        if not judged and model_id not in served and not await self._is_known(model_id):
            raise HttpError(
                404,
                f"There is no model {model_id[:80]!r}: GET /v1/models lists those that serve.",
                type="not_found_error",
                param="model_id",
            )
        release, arm = max(judged, key=lambda found: found[0].created_at, default=(None, ""))
        rates = release.rates[arm] if release is not None else {}
        feedback, raw_total = rates.get("feedback") or 0, rates.get("mean_raw_total")
        window = None
        if release is not None:
            window = {
                "release_id": release.release_id,
                "arm": arm,
                "from": release.started_at,
                "to": release.closed_at or release.updated_at,
            }
        return {
            "model_id": model_id,
            "error_rate": rates.get("error_rate"),
            "reward_mean": rates.get("mean_outcome") if raw_total is None else raw_total,
            "negative_feedback": rates["negative"] / feedback if feedback else None,
            "requests": rates.get("sessions"),
            "traffic_percentage": round(served.get(model_id, 0.0), 6),
            "window": window,
        }

    async def _is_known(self, model_id: str) -> bool:
        return await read_document(self._ctx.bus, ModelEntry, model_key(model_id)) is not None


def _need_text(body: dict[str, Any], name: str) -> None:
    given = body.get(name)
    if not isinstance(given, str) or not given or len(given) > 900:
        raise HttpError(400, f"{name!r} must be a text of 1 to 900 characters.", param=name)
