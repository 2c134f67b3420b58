"""The training service over HTTP: start a job, its status, cancel it, the list of jobs, the list of models.

The routes and forms are those of the published AgentGym-RL service. Thin: ``onward.training`` decides.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, get_args

from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import Response

from onward.api.catalogue import models_since
from onward.api.machine import Machine
from onward.clock import utc_text
from onward.context import Context
from onward.contracts import TrainingRequest, TrainingStatus, encode, to_document
from onward.contracts.examples import MODEL_DEPLOYED, TRAINING_REQUEST, TRAINING_STATUS
from onward.contracts.training import ControlRequest, RubricsRequest
from onward.errors import ConfigError, ConflictError, TrainingError
from onward.http.app import Caller, HttpError, authorize, read_json, require
from onward.ids import check_id, derived_id, is_id
from onward.moments import parse_time
from onward.training import intake
from onward.training.role.job_table import JobRecord, JobState, JobTable
from onward.training.role.possible import refuse_impossible
from onward.training.role.status import status_of

STATES = get_args(JobState)
JOBS_SHOWN, MOST_JOBS = 20, 1000
_SCHEMAS = resources.files("onward.contracts") / "schemas"
_WRONG = {TrainingRequest: "training_config", ControlRequest: "environment", RubricsRequest: "settings"}
"""Kind of a request → the field that an error of its content names."""
_READ, _TRAIN = (Depends(require(scope, local=True)) for scope in ("read", "train"))


class TrainingApi:
    """The routes and what they read."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._table = JobTable(ctx.bus.bucket("rl_jobs"), ctx.clock)
        self.health = Machine(ctx, self._table).report

    def add_to(self, app: FastAPI) -> None:
        @app.post("/training/start", status_code=202, openapi_extra=_asks(), responses=_answers(202, STATUS))
        async def start(request: Request) -> Response:
            """Starts a job: of the language model, of a control policy (with 'environment' at the top level)
            or of a rubric writer (kind 'rubrics'). An id sent twice is one job; with another body, 409.
            Scope: train."""
            caller = authorize(request, "train", local=True)
            return await self._start(request, caller)

        @app.get("/training/{job_id:path}/status", dependencies=[_READ], responses=_answers(200, STATUS))
        async def show(job_id: str) -> Response:
            """Reports the state of a job, its progress, metrics and place in the queue. Scope: read."""
            return _document(await self._status(await self._job(job_id)))

        @app.post("/training/{job_id:path}/cancel", responses=_answers(200, STATUS))
        async def cancel(job_id: str, request: Request) -> Response:
            """Cancels a job that is queued or runs; one that ended stays as it is. Scope: train."""
            caller = authorize(request, "train", local=True)
            await self._job(job_id)
            return _document(await self._status(await self._table.cancel(job_id, by=caller.name)))

        @app.get("/jobs", dependencies=[_READ], responses=_answers(200, {"jobs": [STATUS], "total": 1}))
        async def jobs(
            status: str | None = Query(None, description=f"One of {', '.join(STATES)}."),
            limit: str = Query(str(JOBS_SHOWN), description=f"At most this many, up to {MOST_JOBS}."),
            since: str | None = Query(None, description="Changed since: an age such as 7d, or a time."),
        ) -> dict[str, Any]:
            """Lists jobs, the one that changed last first. Scope: read."""
            return await self._jobs(status, limit, since)

        @app.get("/models", dependencies=[_READ], responses=_answers(200, {"models": [MODEL], "total": 1}))
        async def models(
            deployed_since: str | None = Query(None, description="An age such as 7d, or a time."),
        ) -> dict[str, Any]:
            """Lists the models that were released, the newest first, with their traffic. Scope: read."""
            since = self._moment(deployed_since, "deployed_since")
            found = await models_since(self._ctx, since)
            return {"models": found, "total": len(found)}

    async def _start(self, request: Request, caller: Caller) -> Response:
        document = self._with_model(await read_json(request))
        key = request.headers.get("idempotency-key")
        if key is not None and not is_id(key):
            raise HttpError(400, "Idempotency-Key must be 1 to 128 letters, digits, '_' or '-'.")
        own = derived_id("training", caller.key_hash, key) if key is not None else None
        self._check(document, caller, own)
        try:
            done = await intake.submit(
                self._ctx.bus, self._ctx.clock, document, requester=caller.name, job_id=own
            )
        except ConflictError as error:
            raise HttpError(409, str(error), type="conflict_error", param="training_job_id") from None
        if done.record is not None:
            return _document(await self._status(done.record), 202)
        return _document(done.waiting(), 202)

    def _with_model(self, document: dict[str, Any]) -> dict[str, Any]:
        """Adds the base model and the algorithm of this service where a request names none: a caller on
        another machine does not know them."""
        config = document.get("training_config")
        if not isinstance(config, dict):
            return document
        settings = self._ctx.settings
        own = {"base_model": settings.model.base, "algorithm": settings.training.algorithm}
        return {**document, "training_config": {**own, **config}}

    def _check(self, document: dict[str, Any], caller: Caller, own: str | None) -> None:
        """Raises HttpError or ContractError for a request that could only fail as a job."""
        asked = intake.checked(intake.filled(document, caller.name, "1970-01-01T00:00:00Z", own))
        try:
            refuse_impossible(asked, self._ctx.settings)
        except TrainingError as error:
            raise HttpError(400, str(error), param=_WRONG[type(asked)]) from None

    async def _job(self, job_id: str) -> JobRecord:
        record = await intake.find(self._table, check_id(job_id, "Job id"))
        if record is None:
            raise HttpError(
                404,
                f"There is no job {job_id}: GET /jobs lists them.",
                type="not_found_error",
                param="job_id",
            )
        return record

    async def _status(self, record: JobRecord) -> TrainingStatus:
        positions = await self._table.positions() if record.state == "queued" else {}
        return status_of(record, self._ctx.settings, positions.get(record.job_id))

    async def _jobs(self, status: str | None, limit: str, since: str | None) -> dict[str, Any]:
        if status is not None and status not in STATES:
            raise HttpError(400, f"'status' must be one of {', '.join(STATES)}.", param="status")
        if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= MOST_JOBS:
            raise HttpError(400, f"'limit' must be a number from 1 to {MOST_JOBS}.", param="limit")
        begin = self._moment(since, "since")
        every = [record for record, _ in await self._table.all()]
        found = [
            record
            for record in every
            if status in (None, record.state) and (begin is None or record.updated_at >= begin)
        ]
        found.sort(key=lambda record: record.updated_at, reverse=True)
        positions = self._table.positions_among(every)
        shown = [
            to_document(status_of(record, self._ctx.settings, positions.get(record.job_id)))
            for record in found[: int(limit)]
        ]
        return {"jobs": shown, "total": len(found)}

    def _moment(self, text: str | None, name: str) -> str | None:
        """Returns a time as the records write it. Raises HttpError 400."""
        if text is None:
            return None
        try:
            return utc_text(parse_time(text, name, self._ctx.clock))
        except ConfigError as error:
            raise HttpError(400, str(error), param=name) from None


STATUS: dict[str, Any] = TRAINING_STATUS
MODEL: dict[str, Any] = {
    **MODEL_DEPLOYED["model_info"],
    "state": "current",
    "training_job_id": MODEL_DEPLOYED["training_job_id"],
    "deployed_at": MODEL_DEPLOYED["timestamp"],
    "traffic_percentage": 100.0,
}


def _document(status: TrainingStatus, code: int = 200) -> Response:
    return Response(encode(status), code, media_type="application/json")


def _asks() -> dict[str, Any]:
    """Returns the body of ``/training/start`` for the OpenAPI page: a schema of each kind, and examples."""
    schema = json.loads((_SCHEMAS / "training.request.v1.schema.json").read_text(encoding="utf-8"))
    without = {name: TRAINING_REQUEST[name] for name in ("training_config", "priority")}
    examples = {
        "without an envelope": {"value": without},
        "whole request": {"value": TRAINING_REQUEST},
        "control policy": {"value": {"algorithm": "ppo", "environment": "CartPole-v1"}},
        "rubric writer": {"value": {"kind": "rubrics", "algorithm": "rloo", "steps": 120}},
    }
    kinds = [schema, *(kind.model_json_schema() for kind in (ControlRequest, RubricsRequest))]
    forms = [_flat(one, one.get("$defs", {})) for one in kinds]
    content = {"schema": {"anyOf": forms}, "examples": examples}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def _flat(schema: Any, parts: dict[str, Any]) -> Any:
    """Returns a schema without references: those of a schema file have no place in OpenAPI."""
    if isinstance(schema, list):
        return [_flat(one, parts) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _flat(parts[schema["$ref"].rpartition("/")[2]], parts)
    return {name: _flat(one, parts) for name, one in schema.items() if name not in ("$defs", "$schema")}


def _answers(code: int, example: Any) -> dict[int | str, dict[str, Any]]:
    error = {"error": {"type": "invalid_request_error", "message": "One sentence.", "param": None}}
    shown = ((code, "As asked.", example), ("4XX", "Refused, in one sentence.", error))
    return {
        number: {"description": about, "content": {"application/json": {"example": one}}}
        for number, about, one in shown
    }
