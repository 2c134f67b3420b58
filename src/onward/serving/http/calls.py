"""Serves one call: the arm, the engine's answer, and the completion with its signed record.

Invariants: a call is served by the arm of its session, or it fails. A retry never moves to another arm,
because a broken candidate would then look healthy. The assignment must be durable before the caller sees any
part of an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onward.capture import provenance
from onward.capture.conversations.answers import read_answer
from onward.clock import Clock
from onward.contracts.buckets import Assignment
from onward.errors import BusError, EngineError
from onward.http.app import HttpError
from onward.lm.stop_text import cut
from onward.serving.engines import Engine, Generation, OnProgress, Progress, RequestRefusedError
from onward.serving.engines.capabilities import ENGINES, Capabilities
from onward.serving.metrics import GatewayMetrics
from onward.serving.protocol import openai
from onward.serving.recording.failures import failure_of
from onward.serving.recording.outcome_publisher import OutcomePublisher
from onward.serving.routing.arms import Arm, Routes
from onward.serving.routing.assignments import Assignments
from onward.serving.routing.route_switcher import RouteSwitcher
from onward.telemetry import logs

_log = logs.get("gateway")
ENGINE_PATIENCE_SECONDS = 20.0
"""Seconds that the one retry waits for an engine that is being restarted."""


@dataclass(frozen=True)
class Call:
    """A request to the engine. ``scope`` is the conversation or session whose tokens may be continued."""

    chat: openai.ChatRequest
    session_id: str
    scope: str
    messages: Sequence[dict[str, Any]]
    trajectory_id: str | None = None
    """Id of the trajectory that the call will be part of; None if nothing is recorded here."""


@dataclass
class LiveAnswer:
    """An answer in progress: the tokens sampled so far, and the arm that serves it."""

    on_text: Any
    """Called with each new piece of text."""
    arm: Arm | None = None
    assignment: Assignment | None = None
    record: dict[str, Any] | None = None
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[dict[str, Any]] = field(default_factory=list)

    def add_progress(self, progress: Progress) -> None:
        if progress.record is not None:
            self.record = progress.record
        self.text += progress.text
        self.token_ids += progress.token_ids
        self.logprobs += progress.logprobs
        self.alternatives += progress.alternatives
        self.on_text(progress.text)

    def partial_generation(self) -> Generation | None:
        """Returns the part of an answer that was cut off; None if nothing was sampled."""
        if self.record is None or not self.token_ids:
            return None
        tokens = {"token_ids": self.token_ids, "logprobs": self.logprobs, "finish_reason": "length"}
        usage = {"prompt_tokens": 0, "completion_tokens": len(self.token_ids)}
        usage["total_tokens"] = usage["completion_tokens"]
        return Generation(self.text, self.record | tokens, usage, self.alternatives)


class Calls:
    def __init__(
        self,
        *,
        clock: Clock,
        engine: Engine,
        state: RouteSwitcher,
        assignments: Assignments,
        outcomes: OutcomePublisher,
        metrics: GatewayMetrics,
        signing_key: bytes,
        aliases: Mapping[str, str] | None = None,
        listed: Sequence[str] = (),
        offered: Capabilities = ENGINES["local"],
    ) -> None:
        """``aliases``: name that a call may give as its model → the name that it stands for. ``listed``:
        models of providers, named in a refusal. ``offered``: what of the engine's records may be stored."""
        self._offered = offered
        self._aliases = dict(aliases or {})
        self._listed = tuple(listed)
        self._clock, self._engine, self._state = clock, engine, state
        self._assignments, self._outcomes, self._metrics = assignments, outcomes, metrics
        self._signing_key = signing_key

    async def answer(self, call: Call) -> tuple[dict[str, Any], str, float]:
        """Returns the completion, all text that the model wrote, and the seconds that the engine took."""
        routes = self._state.serving()
        arm, assignment, writing = await self._route(call.chat, routes, call.session_id)
        try:
            generation, seconds = await self._generate(call, arm, assignment)
        except BaseException:
            if writing is not None:
                await asyncio.gather(writing, return_exceptions=True)
            raise
        if writing is not None:
            settled, assignment = await self._settle(routes, arm, writing)
            if settled != arm:
                arm = settled
                generation, more = await self._generate(call, arm, assignment)
                seconds += more
        if assignment is not None:
            self._outcomes.register(assignment)
        return self.completion(call, generation, arm, assignment), generation.text, seconds

    async def answer_all(self, calls: Sequence[Call]) -> list[tuple[dict[str, Any], str, float]]:
        """Returns the answers to the choices of one request. If one fails, the others are ended."""
        tasks = [asyncio.create_task(self.answer(call)) for call in calls]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def stream(self, call: Call, live: LiveAnswer) -> tuple[dict[str, Any], str, float]:
        """Works like ``answer`` and passes progress to ``live``. The session is assigned before any text."""
        routes = self._state.serving()
        arm, assignment, writing = await self._route(call.chat, routes, call.session_id)
        if writing is not None:
            arm, assignment = await self._settle(routes, arm, writing)
        live.arm, live.assignment = arm, assignment
        generation, seconds = await self._generate(call, arm, assignment, live)
        if assignment is not None:
            self._outcomes.register(assignment)
        return self.completion(call, generation, arm, assignment), generation.text, seconds

    def completion(
        self, call: Call, generation: Generation, arm: Arm, assignment: Assignment | None
    ) -> dict[str, Any]:
        generation_id = generation.sampling["generation_id"]
        sampling = self._offered.record(generation.sampling)
        if sampling is not None:
            sampling["signature"] = provenance.sign(sampling, self._signing_key)
        release = None
        if assignment is not None:
            release = {"release_id": assignment.release_id, "arm": arm.arm, "weight": assignment.weight}
        chat = call.chat
        text = cut(generation.text, chat.stops) if chat.stops else generation.text
        said = read_answer(text, chat.callable, generation_id, parallel=chat.parallel)
        onward = {
            "session_id": call.session_id,
            "generation_id": generation_id,
            "release": release,
            "model_id": arm.model_id,
            "sampling": sampling,
        }
        if call.trajectory_id is not None:
            onward["trajectory_id"] = call.trajectory_id
        if said.calls or len(text) < len(generation.text):
            onward["raw_response"] = generation.text
        if said.malformed:
            onward["malformed_call"] = True
        created = int(self._clock.now().timestamp())
        return openai.completion(generation, said, onward, created, chat.options)

    async def _route(
        self, chat: openai.ChatRequest, routes: Routes, session_id: str
    ) -> tuple[Arm, Assignment | None, asyncio.Task[Assignment] | None]:
        """Returns the arm for this call. A call that names a model id is not part of any release. Neither is
        a raw prompt: no task that could be judged comes of it, so it would count as lost."""
        model = self._aliases.get(chat.model, chat.model)
        if model != openai.ROUTED:
            for arm in routes.arms:
                if arm.model_id == model:
                    return arm, None, None
            served = [*(arm.model_id for arm in routes.arms), *self._aliases, *self._listed]
            raise openai.unknown_model(model, served)
        if not routes.open or chat.is_raw:
            return routes.current, None, None
        known = self._assignments.find_cached(routes, session_id)
        if known is not None:
            return routes.arm(known.arm), known, None
        try:
            assignment, writing = await self._assignments.begin(routes, session_id)
        except BusError:
            self._metrics.unassigned.inc()
            return routes.current, None, None
        return routes.arm(assignment.arm), assignment, writing

    async def _settle(
        self, routes: Routes, arm: Arm, writing: asyncio.Task[Assignment]
    ) -> tuple[Arm, Assignment | None]:
        """Returns the arm that counts once the assignment is written."""
        try:
            recorded = await writing
        except BusError:  # an answer that cannot be counted must not come from a candidate
            self._metrics.unassigned.inc()
            return routes.current, None
        if recorded.arm != arm.arm:  # another gateway was first: its record counts
            return routes.arm(recorded.arm), recorded
        return arm, recorded

    async def _generate(
        self, call: Call, arm: Arm, assignment: Assignment | None, live: LiveAnswer | None = None
    ) -> tuple[Generation, float]:
        """Returns the answer of this arm and the seconds its engine took. One retry, on the same arm."""
        started = self._clock.monotonic()
        chat = call.chat
        on_progress: OnProgress | None = live.add_progress if live is not None else None
        more: dict[str, Any] = {} if chat.options is None else {"options": chat.options}
        self._state.in_flight[arm.adapter_digest] += 1
        try:
            for attempt in (1, 2):
                try:
                    generation = await self._engine.generate(
                        call.messages,
                        session_id=call.scope,
                        adapter=arm.adapter_digest,
                        temperature=chat.temperature,
                        top_p=chat.top_p,
                        top_k=chat.top_k,
                        max_tokens=chat.max_tokens,
                        seed=chat.seed,
                        tools=chat.tools,
                        on_progress=on_progress,
                        **more,
                    )
                    self._metrics.attempts.labels(arm=arm.arm, result="ok").inc()
                    return generation, self._clock.monotonic() - started
                except RequestRefusedError as error:
                    self._metrics.attempts.labels(arm=arm.arm, result="refused").inc()
                    raise HttpError(
                        400, str(error), param=error.param or "messages", code=error.code
                    ) from None
                except EngineError as error:
                    self._metrics.attempts.labels(arm=arm.arm, result="error").inc()
                    await self._engine_failed(assignment, error, chat.messages)
                    begun = live is not None and live.token_ids  # sent text cannot be taken back
                    if attempt == 2 or begun or not await self._engine_is_back():
                        raise HttpError(503, str(error), type="engine_error") from None
            raise AssertionError("unreachable")
        finally:
            self._state.in_flight[arm.adapter_digest] -= 1

    async def _engine_failed(
        self, assignment: Assignment | None, error: EngineError, messages: list[dict[str, Any]]
    ) -> None:
        _log.warning("engine failed", reason=str(error), arm=assignment.arm if assignment else None)
        if assignment is not None:
            try:
                self._outcomes.register(assignment)
                await self._outcomes.publish_error(assignment, failure_of(error, messages))
            except BusError:
                _log.error("error outcome not published", release_id=assignment.release_id)

    async def _engine_is_back(self) -> bool:
        until = self._clock.monotonic() + ENGINE_PATIENCE_SECONDS
        while True:
            try:
                await self._engine.health()
                return True
            except EngineError:
                if self._clock.monotonic() >= until:
                    return False
                await self._clock.sleep(0.25)
