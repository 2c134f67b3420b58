"""Capture without code: agents' requests to the gateway become trajectories, and no agent has to change.

Invariants: an answer never waits for capture and never fails because of it. Everything up to the answer is in
memory; redaction, journal and outbox follow in a thread. Errors are counted and logged.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onward.capture.conversations import turns
from onward.capture.conversations.answers import ToolCall
from onward.capture.opt_out import OptOut, user_hash
from onward.clock import Clock
from onward.config import CaptureSettings
from onward.contracts.buckets import AnsweredClose, AskedClose, ClosedTask
from onward.errors import OnwardError
from onward.http.app import Caller, HttpError
from onward.serving.metrics import GatewayMetrics
from onward.serving.protocol import openai
from onward.serving.recording.closing import Closing, Closings, GivenFeedback
from onward.serving.recording.conversations import (
    Conversation,
    Conversations,
    Exchange,
    Message,
    links_of,
    seed_of,
)
from onward.serving.recording.recording import Recording
from onward.serving.recording.trajectory import UNPARSABLE, Closed, agent_of, trajectory, unshaped
from onward.serving.recording.write_behind import WriteBehind
from onward.serving.routing.session_ids import Session
from onward.telemetry import logs

_log = logs.get("capture")
TICK_SECONDS = 0.25
"""Seconds between checks of journal and deadlines; a killed gateway loses the answers since the last one."""
MAX_TURNS = 1000
MAX_BYTES = 4 << 20
"""Maximum bytes of one conversation: a longer one is recorded and continues as a new trajectory."""
CLOSE_PATIENCE_SECONDS = 5.0
CLOSE_WAITS = "close of a session"  # name of the tasks in which a close waits
MakeRecording = Callable[[Callable[[str, Exception], None]], Recording]
"""Opens the files, given a handler for errors. Called in a thread."""
AskOthers = Callable[[str, str | None, dict[str, Any] | None], Awaitable[list[ClosedTask]]]
"""Name, owner and outcome of a close → what other gateways closed and recorded."""


async def _no_others(name: str, owner: str | None, outcome: dict[str, Any] | None) -> list[ClosedTask]:
    return []


@dataclass
class CapturedCall:
    """One request that is being answered, and its conversation."""

    session_id: str
    scope: str
    """Key of the engine's token memory."""
    messages: list[Message]
    """Messages for the engine: the gateway's answers are as they were sampled."""
    conversation: Conversation | None
    chat: openai.ChatRequest
    links: list[bytes]
    asked_at: Any

    @property
    def trajectory_id(self) -> str | None:
        conversation = self.conversation
        return conversation.id if conversation is not None and conversation.recorded else None


class Capture:
    """Captures calls. ``start`` loads the open tasks of an earlier gateway, ``run`` works in the background,
    ``stop`` records all that is open."""

    def __init__(
        self,
        settings: CaptureSettings,
        make_recording: MakeRecording,
        *,
        clock: Clock,
        metrics: GatewayMetrics,
        user_key: bytes,
        on_answered: Callable[[str], None] = lambda session_id: None,
        on_opted_out: Callable[[str], None] = lambda trajectory_id: None,
    ) -> None:
        """``on_answered`` receives sessions whose task ended with an answer that was not judged, if the key's
        agents never judge. ``on_opted_out`` receives trajectories that are stored nowhere."""
        self._settings, self._clock, self._metrics = settings, clock, metrics
        self.writer = WriteBehind(lambda: make_recording(self._failed), self._changed, clock)
        self._user_key, self._on_answered, self._on_opted_out = user_key, on_answered, on_opted_out
        self._opt_out = OptOut.parse(settings.opt_out)
        self._off = {key.lower() for key in settings.off_keys}
        self._open = Conversations()
        self._dirty: dict[str, Conversation] = {}
        self._closings = Closings()
        self._telling: set[str] = set()
        """Keys whose agents report how their tasks end. A task of theirs without a report may get the outcome
        ``lost``."""
        self._freed = asyncio.Event()
        self.ask_others: AskOthers = _no_others
        """Closes the tasks of a session that other gateways hold."""

    def is_opted_out(self, asked: CapturedCall) -> bool:
        """Returns whether nothing may be stored about the user of this request."""
        conversation = asked.conversation
        owner, metadata = (None, {}) if conversation is None else (conversation.owner, conversation.metadata)
        agent = None if owner is None else agent_of(owner)
        return self._opt_out.matches(asked.session_id, agent, metadata.get("user_hash"))

    # The path of an answer. Nothing here waits.

    def begin_call(
        self, headers: Mapping[str, str], caller: Caller, chat: openai.ChatRequest, session: Session
    ) -> CapturedCall:
        """Finds or begins the conversation of a request. Raises HttpError for a header it cannot read."""
        recorded = self._is_recorded(headers, caller)
        try:
            return self._ask(caller, chat, session, recorded)
        except Exception as error:
            self._failed("ask", error)
            return CapturedCall(session.id, session.id, chat.messages, None, chat, [], self._clock.now())

    def record_answer(
        self, asked: CapturedCall, answer: dict[str, Any], text: str, *, cut: str | None = None
    ) -> None:
        """Adds the client's answer and the model's whole text. ``cut``: the reason for a partial answer."""
        try:
            self._answered(asked, answer, text, cut)
        except Exception as error:
            self._failed("answer", error)
        finally:
            self.free_conversation(asked)

    def free_conversation(self, asked: CapturedCall) -> None:
        """Frees the conversation for the next call: no further answer comes."""
        conversation = asked.conversation
        if conversation is None or not conversation.busy:
            return
        conversation.busy = False
        self._freed.set()
        if not conversation.exchanges:
            self._open.remove(conversation)

    def _is_recorded(self, headers: Mapping[str, str], caller: Caller) -> bool:
        said = headers.get("onward-capture", "").strip().lower()
        if said not in ("", "on", "off"):
            raise HttpError(400, "The header Onward-Capture must be 'on' or 'off'.", param="Onward-Capture")
        if said:
            return said == "on"
        return self._settings.gateway and caller.key_hash not in self._off

    def _ask(
        self, caller: Caller, chat: openai.ChatRequest, session: Session, recorded: bool
    ) -> CapturedCall:
        seed = seed_of(f"{caller.key_hash}:{recorded}", session.id if session.is_named else None)
        links = links_of(seed, chat.messages)
        conversation = self._open.find(links)
        if conversation is None:
            described = {"user_hash": user_hash(chat.user, self._user_key)} if chat.user is not None else {}
            conversation = self._open.begin(
                session.id, caller.key_hash, is_named=session.is_named, recorded=recorded
            )
            conversation.metadata.update(described)
        else:
            conversation.take_results(chat.messages[conversation.length :])
            self._dirty[conversation.id] = conversation
        asked = CapturedCall(
            session_id=conversation.session_id,
            scope=conversation.id if recorded else conversation.session_id,
            messages=conversation.engine_messages(chat.messages),
            conversation=conversation,
            chat=chat,
            links=links,
            asked_at=self._clock.now(),
        )
        conversation.touched = self._clock.monotonic()
        conversation.busy = True  # set last: an earlier error leaves it free
        return asked

    def _answered(self, asked: CapturedCall, answer: dict[str, Any], text: str, cut: str | None) -> None:
        conversation, chat = asked.conversation, asked.chat
        if conversation is None:
            return
        message, ours = answer["choices"][0]["message"], answer["onward"]
        calls = tuple(
            ToolCall(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        )
        malformed = ours.get("malformed_call", False)
        action = turns.completion(answer).action
        if calls or cut or malformed:
            reason = {} if cut else {"finish_reason": action["finish_reason"]}
            action = {"type": "response", **reason}
        exchange = Exchange(
            asked_at=asked.asked_at,
            new=chat.messages[conversation.length :],
            text=text,
            action=action,
            calls=calls,
            sampling=ours["sampling"],
            tools=chat.tools if chat.tools != conversation.tools else None,
            error=cut or (UNPARSABLE if malformed else None),
            is_whole=cut is None,
        )
        said: Message = {"role": "assistant", "content": message["content"] or ""}
        if calls:
            said["tool_calls"] = message["tool_calls"]
        conversation.tools = chat.tools
        conversation.metadata["model"] = answer["model"]
        if ours["release"]:
            conversation.metadata["release"] = ours["release"]
        if chat.temperature <= 2:
            conversation.metadata["temperature"] = chat.temperature
        conversation.tokens += answer["usage"]["total_tokens"]
        conversation.ended_at = self._clock.now()
        conversation.touched = self._clock.monotonic()
        self._open.add_exchange(conversation, exchange, asked.links, said)
        if conversation.recorded:
            self._dirty[conversation.id] = conversation
            self._closings.forget(conversation.session_id, conversation.owner)

    # Closing.

    async def close(
        self,
        name: str,
        owner: str | None,
        outcome: dict[str, Any] | None,
        feedback: GivenFeedback | None = None,
    ) -> list[dict[str, Any]]:
        """Ends the open tasks of a session, or the one task with this trajectory id, and records them; other
        gateways do the same with theirs.

        A repeated close ends nothing and is answered as before; new feedback in it is accepted too. ``owner``
        None may close tasks of any owner. Returns the recorded tasks: trajectory id and number of turns.

        Raises HttpError: 404 if nothing is open, 409 for a running call or several possible tasks, 503 if the
        tasks are not stored yet.
        """
        closing = await self._close_here(name, owner, outcome)
        if closing.tasks:  # an error from here on must not make a repeated close forget them
            self._closings.put(name, owner, closing)
        closing.add_tasks(await self.ask_others(name, owner, outcome))
        if not closing.tasks:
            raise HttpError(
                404,
                "No task of this session is open: it is recorded already, or was never recorded here.",
                type="not_found_error",
            )
        self._closings.put(name, owner, closing)
        for message in closing.add_feedback(feedback, self._clock.now()):
            self.writer.put_feedback(message)
        await self._until_recorded(closing)
        return closing.tasks

    async def close_for_other(self, asked: AskedClose) -> AnsweredClose:
        """Ends this gateway's tasks of a session whose close reached another one. Returns after they are
        recorded; a client's error is returned, not raised."""
        try:
            closing = await self._close_here(asked.name, asked.owner, asked.outcome)
            if closing.tasks:  # an error from here on must not make a repeated close forget them
                self._closings.put(asked.name, asked.owner, closing)
            await self._until_recorded(closing)
        except HttpError as error:
            return AnsweredClose(status=error.status, error=error.message)
        return AnsweredClose(closed=closing.closed_tasks())

    async def _close_here(self, name: str, owner: str | None, outcome: dict[str, Any] | None) -> Closing:
        """Ends the open tasks of this gateway; without any, returns the remembered close, or an empty one."""
        is_open = self._open.get(name) is not None or self._open.of_session(name, owner)
        closing = None if is_open else self._closings.find(name, owner, outcome)
        if closing is None:
            closing = Closing(outcome)
            for conversation in await self._at_rest(name, owner):
                self._close_one(conversation, closing)
        return closing

    async def _until_recorded(self, closing: Closing) -> None:
        """Writes what was closed. Raises HttpError 503 if it is not durable then."""
        await self.writer.write()
        if not self.writer.are_recorded(closing.ids):
            raise HttpError(
                503,
                "The outbox takes nothing at the moment: what was closed is kept and tried again.",
                type="service_unavailable",
            )

    def _close_one(self, conversation: Conversation, closing: Closing) -> None:
        conversation.outcome = closing.outcome
        document = self._end(conversation, "close")
        if self._opt_out.matches_document(document):
            closing.silent.add(conversation.id)
        facts = {"trajectory_id": conversation.id, "session_id": conversation.session_id}
        closing.tasks.append({**facts, "turns": len(document["turns"])})

    async def _at_rest(self, name: str, owner: str | None) -> list[Conversation]:
        """Returns the conversations of this name once none of them has a running call. Raises HttpError."""
        until = self._clock.monotonic() + CLOSE_PATIENCE_SECONDS
        while any(conversation.busy for conversation in self._named(name, owner)):
            if self._clock.monotonic() >= until:
                raise HttpError(
                    409,
                    "A call of this session is under way: close it after its answer.",
                    type="conflict_error",
                )
            self._freed.clear()
            timer = asyncio.create_task(self._clock.sleep(0.1), name=f"{CLOSE_WAITS}: timer")
            waiter = asyncio.create_task(self._freed.wait(), name=f"{CLOSE_WAITS}: freed")
            try:
                await asyncio.wait({timer, waiter}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
                waiter.cancel()
        return self._named(name, owner)

    def _named(self, name: str, owner: str | None) -> list[Conversation]:
        one = self._open.get(name)
        if one is not None and one.recorded and owner in (None, one.owner):
            return [one]
        found = self._open.of_session(name, owner)
        if len(found) > 1 and not found[0].is_named:
            raise HttpError(
                409,
                f"{len(found)} tasks that named no session are open under this id: give the trajectory id "
                "from 'onward' in the answer.",
                type="conflict_error",
            )
        return found

    def _end(self, conversation: Conversation, closed: Closed) -> dict[str, Any]:
        """Ends a conversation and queues its document; what cannot be recorded is quarantined later."""
        try:
            document = trajectory(conversation, closed)
        except Exception as error:
            self._failed("close", error)
            document = unshaped(conversation, closed)
        self._open.remove(conversation)
        self._dirty.pop(conversation.id, None)
        self.writer.put_trajectory(document, first=closed == "close")
        if self._opt_out.matches_document(document):
            self._on_opted_out(conversation.id)
        else:
            self._metrics.captured.labels(closed=closed).inc()
        if conversation.outcome is not None:
            self._telling.add(conversation.owner)
        elif conversation.is_final and conversation.owner not in self._telling:
            self._on_answered(conversation.session_id)
        return document

    def sweep(self) -> None:
        """Closes finished conversations: after an answer and its grace, after silence, for lack of room."""
        now = self._clock.monotonic()
        for conversation in self._open:
            if conversation.busy or not conversation.exchanges:
                continue
            waited = now - conversation.touched
            if conversation.is_final and conversation.recorded and waited >= self._settings.grace_seconds:
                self._leave(conversation, "answer")
            elif waited >= self._settings.idle_seconds:
                self._leave(conversation, "idle")
            elif len(conversation.exchanges) >= MAX_TURNS or conversation.size >= MAX_BYTES:
                self._leave(conversation, "limit")
        while len(self._open) > self._settings.max_open or self._open.size > self._settings.max_open_bytes:
            oldest = self._open.oldest()
            if oldest is None:
                break
            self._leave(oldest, "limit")

    def _leave(self, conversation: Conversation, closed: Closed) -> None:
        try:
            if conversation.recorded and conversation.exchanges:
                self._end(conversation, closed)
        except Exception as error:
            self._failed("close", error)
        finally:
            self._open.remove(conversation)

    # In the background.

    async def start(self) -> None:
        """Opens the files and loads tasks that an earlier gateway left open. Raises BusError."""
        self._metrics.captured.labels(closed="restart").inc(await self.writer.start())

    async def run(self) -> None:
        """Checks deadlines and writes the journal, until cancelled."""
        while True:
            await self._clock.sleep(TICK_SECONDS)
            self.sweep()
            await self.writer.write()

    async def stop(self) -> None:
        """Records everything that is open. A task that cannot be recorded stays in the journal."""
        for conversation in self._open:
            self._leave(conversation, "shutdown")
        await self.writer.stop()

    def _changed(self) -> list[dict[str, Any]]:
        dirty, self._dirty = self._dirty, {}
        changed = []
        for conversation in dirty.values():
            try:
                if conversation.recorded and conversation.exchanges:
                    changed.append(trajectory(conversation, "restart"))
            except Exception as error:
                self._failed("journal", error)
        return changed

    def _failed(self, step: str, error: Exception) -> None:
        self._metrics.capture_errors.labels(step=step).inc()
        reason = str(error) if isinstance(error, OnwardError) else type(error).__name__
        _log.error("not captured", step=step, reason=reason)
