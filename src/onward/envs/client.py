"""Plays episodes on an environment server that speaks AgentGym's protocol: Onward's, or one of AgentGym's
own.

Every wait has a deadline, and every failure has a cause (``failures.CAUSES``).

Invariants: a step is never sent twice, since it may have been played. A created instance is closed, also when
the answer to create comes too late or the episode is cancelled while waiting for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx
from pydantic import ValidationError

from onward.clock import Clock, SystemClock
from onward.envs.dialects import (
    ONWARD,
    Dialect,
    dialect,
    read_id,
    read_observation,
    read_start,
    read_step,
    recognise,
)
from onward.envs.environment import MAX_ANSWER_CHARACTERS
from onward.envs.failures import EnvironmentFailure
from onward.envs.protocol import Meta
from onward.envs.rollouts import Reply
from onward.envs.solvers import SOLVERS, MakeSolver
from onward.envs.tasks import TaskRef, panel_hash
from onward.errors import ConfigError, ConflictError, NotFoundError
from onward.retry import Backoff

AGENTGYM_SPLIT = "all"
"""Split name for AgentGym's servers, which know no splits; held-out indices are defined elsewhere."""

_BUSY = frozenset({429, 503})
_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_TRIES = 4
"""Maximum attempts for a call that cannot connect. A call refused as busy is retried until its deadline."""
_KEEP_ALIVE_SECONDS = 2.0
"""Shorter than the 5 s after which uvicorn, which AgentGym runs on, closes an idle connection. A step sent on
a closing connection would be lost, and a step must not be sent twice."""


@dataclass(frozen=True)
class Deadlines:
    """Seconds for each kind of wait, retries included."""

    hello: float = 10.0
    create: float = 120.0
    reset: float = 60.0
    step: float = 60.0
    observe: float = 30.0
    close: float = 5.0


class EnvClient:
    """A server as a source of episodes: ``async with EnvClient(url) as client: await rollouts(client, …)``.

    ``dialect`` is needed only where the server's greeting does not identify it (``dialects.DIALECTS``).
    ``key`` is sent as a bearer token. ``transport`` replaces the network in tests.
    """

    def __init__(
        self,
        url: str,
        *,
        dialect: str | None = None,
        key: str | None = None,
        deadlines: Deadlines | None = None,
        clock: Clock | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Raises ConfigError unless the URL is one of http or https."""
        try:
            base = httpx.URL(url)
        except httpx.InvalidURL:
            base = httpx.URL("")
        if base.scheme not in ("http", "https") or not base.host:
            raise ConfigError("The environment server's address is not usable: give http://HOST:PORT.")
        self._at = f"{base.host}:{base.port}" if base.port else base.host
        self._wanted = dialect
        self._deadlines = deadlines or Deadlines()
        self._clock = clock or SystemClock()
        self._http = httpx.AsyncClient(
            base_url=base.copy_with(userinfo=b"") if key else base,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(None, connect=self._deadlines.hello),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEEP_ALIVE_SECONDS),
            transport=transport,
        )
        self._late: set[asyncio.Task[None]] = set()
        self._free: list[int | str] = []
        """Instances between two episodes."""
        self._dialect = ONWARD
        self.meta: Meta | None = None
        """Metadata that the server reports; None for AgentGym's own, which report none."""
        self.name = self.instructions = self.panel_hash = ""
        self.horizon = 1
        self.unclosed = 0
        """Instances whose close failed: they stay on the server until it drops them."""

    async def __aenter__(self) -> EnvClient:
        try:
            await self._hello()
        except BaseException:
            await self._http.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._free:
            await self._close(self._free.pop())
        if self._late:
            await asyncio.wait(self._late, timeout=self._deadlines.close)
        for task in list(self._late):
            self.unclosed += 1
            task.cancel()
        await self._http.aclose()

    def panel(self, split: str | None = None, seed: int = 0, n: int | None = None) -> list[TaskRef]:
        """Returns the first ``n`` tasks of a split. AgentGym's servers have one split and do not report its
        size, which is known for some. Raises NotFoundError for an unknown split, ConfigError where ``n`` is
        needed."""
        if self.meta is None:
            n = self._dialect.tasks if n is None else n
            if n is None:
                raise ConfigError(f"The server at {self._at} does not tell how many tasks it has: give n.")
            return [TaskRef(self.name, AGENTGYM_SPLIT, index) for index in range(n)]
        chosen = split or self.meta.held_out
        if chosen not in self.meta.panels:
            raise NotFoundError(
                f"{self.name} has no split {chosen[:20]!r}: choose one of {', '.join(self.meta.panels)}."
            )
        size = self.meta.panels[chosen]
        return [
            TaskRef(self.name, chosen, index, seed) for index in range(size if n is None else min(n, size))
        ]

    @property
    def solver(self) -> MakeSolver | None:
        """The scripted player for this kind of server; None if there is none."""
        return SOLVERS.get(self._dialect.name) if self.meta is None else None

    async def observe_panel(self, tasks: Sequence[TaskRef]) -> str:
        """Returns a hash of the first observations of ``tasks``, and stores it as ``panel_hash``.

        It is for servers that report no hash. On AgentGym's, the meaning of an index depends on the order of
        files in a folder and on Python's hash seed. Raises EnvironmentFailure.
        """
        seen = []
        for task in tasks:
            async with self.open(task) as play:
                seen.append([task.task_id, play.first])
        self.panel_hash = panel_hash(seen)
        return self.panel_hash

    @contextlib.asynccontextmanager
    async def open(self, task: TaskRef) -> AsyncIterator[RemotePlay]:
        """Starts ``task``. At the end its instance is closed, or kept for the next task where
        ``/reset`` starts one: AgentGym's servers draw a task at ``/create`` too, and not all can close.
        Raises EnvironmentFailure.
        """
        if self._dialect.starts_at_create or not self._free:
            number, document = await self._create(task)
        else:
            number, document = self._free.pop(), None
        is_usable = False
        try:
            if not self._dialect.starts_at_create:
                body = {"id": number, self._dialect.reset_key: task.index}
                seconds = self._deadlines.reset
                document = await self._call("/reset", body, "reset_timeout", seconds, repeatable=True)
            yield RemotePlay(self, number, read_start(document))
            is_usable = not self._dialect.starts_at_create
        finally:
            if is_usable:
                self._free.append(number)
            else:
                await self._close(number)

    async def step(self, number: int | str, answer: str, score_before: float) -> Reply:
        """Plays one step of an instance. Raises EnvironmentFailure."""
        try:
            action = self._dialect.parse(answer)
        except ValueError as error:
            return Reply(str(error), 0.0, score_before, False)
        sent = action[: MAX_ANSWER_CHARACTERS + 1].encode("utf-8", "replace").decode()
        body = {"id": number, "action": sent}
        document = await self._call("/step", body, "step_timeout", self._deadlines.step)
        return read_step(self._dialect, document, score_before)

    async def observe(self, number: int | str) -> str:
        """Returns the present observation of the instance, from a bare string or an object."""
        path = f"/observation?id={number}"
        seconds = self._deadlines.observe
        return read_observation(await self._call(path, None, "observe_timeout", seconds, repeatable=True))

    async def _hello(self) -> None:
        seconds = self._deadlines.hello
        if self._wanted is not None and self._wanted != "onward":
            self._speak(dialect(self._wanted))
            return
        try:
            told = await self._call("/meta", None, "connection", seconds, repeatable=True)
        except EnvironmentFailure as failure:
            if failure.status != 404 or self._wanted == "onward":
                raise
            self._speak(recognise(await self._call("/", None, "connection", seconds, repeatable=True)))
            return
        try:
            self.meta = Meta.model_validate(told)
        except ValidationError:
            raise EnvironmentFailure(
                "bad_answer", f"The server at {self._at} does not tell what it serves (GET /meta)."
            ) from None
        self.name, self.instructions = self.meta.name, self.meta.instructions
        self.horizon, self.panel_hash = self.meta.horizon, self.meta.panel_hash

    def _speak(self, spoken: Dialect) -> None:
        self._dialect, self.name = spoken, spoken.name
        self.instructions, self.horizon = spoken.instructions, spoken.horizon

    async def _create(self, task: TaskRef) -> tuple[int | str, object]:
        request = asyncio.create_task(self._ask_for_instance(task))
        try:
            done, _ = await asyncio.wait({request}, timeout=self._deadlines.create)
        except asyncio.CancelledError:
            self._close_when_it_comes(request)
            raise
        if not done:
            self._close_when_it_comes(request)
            raise self._timeout("/create", "create_timeout", self._deadlines.create)
        return request.result()

    async def _ask_for_instance(self, task: TaskRef) -> tuple[int | str, object]:
        body: dict[str, Any] = {}  # never without a body: TextCraft answers 422 to an empty request
        if self._dialect.starts_at_create:
            body = {"split": task.split, "data_idx": task.index, "seed": task.seed}
        document = await self._call("/create", body, "create_timeout", None)
        return read_id(document), document

    def _close_when_it_comes(self, request: asyncio.Task[tuple[int | str, object]]) -> None:
        """Closes an instance as soon as it exists, where its creation is no longer awaited."""

        async def close() -> None:
            with contextlib.suppress(EnvironmentFailure, TimeoutError):
                async with asyncio.timeout(self._deadlines.create):
                    number, _ = await request
                await self._close(number)

        task = asyncio.create_task(close())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _close(self, number: int | str) -> None:
        """Closes an instance. Never raises: the episode's result is known by now."""
        if not self._dialect.has_close:
            return
        try:
            await self._call("/close", {"id": number}, "connection", self._deadlines.close, repeatable=True)
        except EnvironmentFailure as failure:
            if failure.cause != "lost_instance":
                self.unclosed += 1

    async def _call(
        self,
        path: str,
        body: dict[str, Any] | None,
        cause: str,
        seconds: float | None,
        repeatable: bool = False,
    ) -> object:
        """Returns the JSON answer. Retries, within ``seconds``, a call that did not reach the server or was
        refused as too many requests; with ``repeatable`` also a call that may have been carried out. Raises
        EnvironmentFailure."""
        last: EnvironmentFailure | None = None
        backoff, unreached = Backoff(_PAUSE, _LONGEST_PAUSE), 0
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        return await self._once(path, body)
                    except _AgainError as again:
                        last = again.failure
                        unreached += last.cause == "connection"
                        if unreached == _TRIES or not (repeatable or again.is_untouched):
                            raise last from None
                    await self._clock.sleep(backoff.next())
        except TimeoutError:
            raise last or self._timeout(path, cause, seconds or 0.0) from None

    async def _once(self, path: str, body: dict[str, Any] | None) -> object:
        method = "GET" if body is None else "POST"
        try:
            response = await self._http.request(method, self._dialect.prefix + path, json=body)
        except httpx.DecodingError:
            raise self._not_json(path) from None
        except httpx.RequestError as error:
            sentence = f"The environment server at {self._at} cannot be reached ({type(error).__name__})."
            untouched = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            raise _AgainError(EnvironmentFailure("connection", sentence), untouched) from None
        if response.status_code in _BUSY:
            raise _AgainError(self._refusal(path, response), path == "/create")
        if response.status_code != 200:
            raise self._refusal(path, response)
        try:
            return response.json()
        except (ValueError, RecursionError):
            raise self._not_json(path) from None

    def _refusal(self, path: str, response: httpx.Response) -> EnvironmentFailure:
        kind, said = _error_of(response)
        cause = "env_error" if response.status_code >= 500 else "refused"
        if kind in ("unknown_instance", "instance_closed"):
            cause = "lost_instance"
        where = path.partition("?")[0]
        words = f": {said}" if said else "."
        sentence = f"The environment server at {self._at} answered {where} with {response.status_code}{words}"
        return EnvironmentFailure(cause, sentence, response.status_code)

    def _not_json(self, path: str) -> EnvironmentFailure:
        return EnvironmentFailure(
            "bad_answer",
            f"The environment server at {self._at} answered {path} with something that is not JSON.",
        )

    def _timeout(self, path: str, cause: str, seconds: float) -> EnvironmentFailure:
        where = path.partition("?")[0]
        return EnvironmentFailure(
            cause, f"The environment server at {self._at} gave no answer to {where} within {seconds:g} s."
        )


class RemotePlay:
    """One open episode on a server."""

    def __init__(self, client: EnvClient, number: int | str, first: str) -> None:
        self._client, self.id, self.first = client, number, first
        self._score = 0.0
        self._is_done = False

    async def step(self, answer: str) -> Reply:
        """Plays one step. Raises EnvironmentFailure; ConflictError once done: a server might pay twice."""
        if self._is_done:
            raise ConflictError("This episode is done: open another one.")
        reply = await self._client.step(self.id, answer, self._score)
        self._score, self._is_done = reply.score, reply.done
        return reply

    async def observe(self) -> str:
        """Returns the present observation again. Raises EnvironmentFailure."""
        return await self._client.observe(self.id)


class _AgainError(Exception):
    """A failed attempt. ``is_untouched``: the server did nothing, so a retry does no harm."""

    def __init__(self, failure: EnvironmentFailure, is_untouched: bool) -> None:
        super().__init__(str(failure))
        self.failure, self.is_untouched = failure, is_untouched


def _error_of(response: httpx.Response) -> tuple[str, str]:
    """Returns type and text of an error body: Onward's, FastAPI's ``detail``, or AgentGym's text."""
    try:
        document = response.json()
    except ValueError:
        return "", ""
    error = document.get("error", document.get("detail")) if isinstance(document, dict) else None
    if isinstance(error, dict):
        return str(error.get("type", "")), str(error.get("message", ""))[:200]
    return "", str(error)[:200] if error else ""
