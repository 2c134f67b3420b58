"""Serves one environment over HTTP in AgentGym's form, so that AgentGym's clients and Onward's can play it.

Errors have a status and a typed body ``{"error": {"type", "message", "param"}}``, where AgentGym answers 200
with a text.

Invariants: steps run inside the event loop, one after the other, which prevents concurrent changes to an
instance. A step must therefore be short.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response

from onward.clock import Clock, SystemClock
from onward.envs.environment import Environment, Instance
from onward.envs.protocol import (
    CloseRequest,
    CreateRequest,
    Detail,
    Meta,
    ResetRequest,
    Started,
    State,
    StepRequest,
)
from onward.errors import ConflictError, NotFoundError
from onward.http.app import ApiKeys, HttpError, error_response, make_app, require
from onward.http.server import Server, check_exposure

TTL_SECONDS = 900.0
MAX_INSTANCES = 4096


class Instances:
    """Open attempts by their id. Ids begin at a random number, so an id from before a restart is unknown."""

    def __init__(
        self, environment: Environment, ttl_seconds: float, limit: int, clock: Clock, first_id: int | None
    ) -> None:
        self._environment, self._ttl, self._limit, self._clock = environment, ttl_seconds, limit, clock
        self._first = secrets.randbelow(1 << 30) << 10 if first_id is None else first_id
        self._next = self._first
        self._open: OrderedDict[int, tuple[Instance, float]] = OrderedDict()
        """Sorted by last use, oldest first."""

    def __len__(self) -> int:
        return len(self._open)

    def create(self, split: str, index: int, seed: int) -> tuple[int, Instance]:
        self._close_idle()
        if len(self._open) >= self._limit:
            raise HttpError(
                503,
                f"{self._limit} instances are open, which is the limit: close some of them and ask again.",
                type="too_many_instances",
                headers={"Retry-After": "5"},
            )
        instance = self._start(split, index, seed)
        number, self._next = self._next, self._next + 1
        self._put(number, instance)
        return number, instance

    def reset(self, number: int, split: str, index: int, seed: int) -> Instance:
        self.get(number)
        instance = self._start(split, index, seed)
        self._put(number, instance)
        return instance

    def get(self, number: int) -> Instance:
        """Returns the instance and restarts its idle time. Raises HttpError 404 or 410."""
        self._close_idle()
        entry = self._open.get(number)
        if entry is not None:
            self._put(number, entry[0])
            return entry[0]
        if self._first <= number < self._next:
            raise HttpError(
                410,
                f"The id {number} is not valid any more: the instance was closed, or not used for "
                f"{self._ttl:g} s. Create another one.",
                type="instance_closed",
                param="id",
            )
        raise HttpError(
            404,
            f"The id {number} is not valid: create an instance first.",
            type="unknown_instance",
            param="id",
        )

    def close(self, number: int) -> bool:
        self._close_idle()
        return self._open.pop(number, None) is not None

    def _put(self, number: int, instance: Instance) -> None:
        self._open[number] = (instance, self._clock.monotonic())
        self._open.move_to_end(number)

    def _start(self, split: str, index: int, seed: int) -> Instance:
        try:
            return self._environment.start(self._environment.ref(split, index, seed))
        except NotFoundError as error:
            raise HttpError(404, str(error), type="unknown_task", param="data_idx") from None

    def _close_idle(self) -> None:
        now = self._clock.monotonic()
        while self._open:
            number, (_, used) = next(iter(self._open.items()))
            if now - used <= self._ttl:
                return
            del self._open[number]


def make_environment_app(
    environment: Environment,
    *,
    keys: Mapping[str, Iterable[str]] | None = None,
    split: str = "",
    ttl_seconds: float = TTL_SECONDS,
    max_instances: int = MAX_INSTANCES,
    clock: Clock | None = None,
    hosts: Iterable[str] = (),
    first_id: int | None = None,
) -> FastAPI:
    """Builds the app. With ``keys`` (SHA-256 → scopes) every call but /, /health, /ready needs one of scope
    train.

    ``split`` (default: the environment's first) is used for requests that name none.
    """
    instances = Instances(environment, ttl_seconds, max_instances, clock or SystemClock(), first_id)
    default = split or next(iter(environment.panels))
    environment.ref(default, 0)
    meta = Meta(
        name=environment.name,
        version=environment.version,
        instructions=environment.instructions,
        horizon=environment.horizon,
        reward_range=environment.reward_range,
        panels=dict(environment.panels),
        split=default,
        held_out=environment.held_out,
        panel_hash=environment.panel_hash(),
        ttl_seconds=ttl_seconds,
    )
    app = make_app(
        f"environment {environment.name}",
        keys=ApiKeys(keys or {}),
        ready=lambda: {"environment": True},
        hosts=hosts,
        clock=clock,
    )
    app.exception_handler(RequestValidationError)(_unprocessable)
    guards = [Depends(require("train"))] if keys else []

    @app.get("/")
    async def root() -> str:
        return f"This is environment {environment.name}."

    @app.get("/meta", dependencies=guards)
    async def tell() -> Meta:
        return meta

    @app.post("/create", dependencies=guards)
    async def create(body: CreateRequest | None = None) -> Started:
        asked = body or CreateRequest()
        number, instance = instances.create(asked.split or default, asked.data_idx, asked.seed)
        return _started(number, instance)

    @app.post("/reset", dependencies=guards)
    async def reset(body: ResetRequest) -> Started:
        instance = instances.reset(body.id, body.split or default, body.data_idx, body.seed)
        return _started(body.id, instance)

    @app.post("/step", dependencies=guards)
    async def step(body: StepRequest) -> State:
        try:
            instances.get(body.id).step(body.action)
        except ConflictError as error:
            raise HttpError(409, str(error), type="episode_done", param="id") from None
        return _state(instances.get(body.id))

    @app.get("/observation", dependencies=guards)
    async def observation(id: int) -> str:
        return instances.get(id).observation

    @app.get("/detail", dependencies=guards)
    async def detail(id: int) -> Detail:
        instance = instances.get(id)
        return Detail(**_state(instance).model_dump(), task_id=instance.ref.task_id)

    @app.post("/close", dependencies=guards)
    async def close(body: CloseRequest) -> bool:
        return instances.close(body.id)

    app.state.instances = instances
    return app


def environment_server(
    environment: Environment,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    keys: Mapping[str, Iterable[str]] | None = None,
    split: str = "",
    ttl_seconds: float = TTL_SECONDS,
) -> Server:
    """Builds a server to ``start`` and ``stop``. Raises ConfigError for an exposed host without ``keys``."""
    check_exposure(host, keys or {})
    app = make_environment_app(environment, keys=keys, split=split, ttl_seconds=ttl_seconds, hosts=[host])
    return Server(app, host, port, what=f"The environment {environment.name}")


def _state(instance: Instance) -> State:
    return State(
        observation=instance.observation,
        reward=instance.reward,
        score=instance.score,
        done=instance.done,
        success=instance.success,
    )


def _started(number: int, instance: Instance) -> Started:
    return Started(**_state(instance).model_dump(), id=number, task_id=instance.ref.task_id)


async def _unprocessable(_: Request, error: Exception) -> Response:
    """Answers 422 like AgentGym, with Onward's body."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:]) or None
    message = f"The request is not valid: {first['msg']}" + (f" (at {where})." if where else ".")
    return error_response(422, "invalid_request_error", message, where)
