"""Capture without code: agents' requests to the gateway become trajectories, and no agent has to change.

Invariants: an answer never waits for capture and never fails because of it. Everything up to the answer is in
memory; redaction, journal and outbox follow in a thread. Errors are counted and logged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from onward.capture.conversations import turns
from onward.capture.conversations.answers import ToolCall
from onward.capture.opt_out import OptOut, user_hash
from onward.clock import Clock
from onward.config import CaptureSettings
from onward.errors import OnwardError
from onward.http.app import Caller, HttpError
from onward.ids import check_id
from onward.serving.metrics import GatewayMetrics
from onward.serving.protocol import openai
from onward.serving.recording.conversations import (
    Conversation,
    Conversations,
    Exchange,
    Message,
    links_of,
    seed_of,
)
from onward.serving.recording.kept_records import HEADER as RECORDS_HEADER
from onward.serving.recording.kept_records import KeptRecords
from onward.serving.recording.recording import Recording
from onward.serving.recording.session_closer import SessionCloser
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
MakeRecording = Callable[[Callable[[str, Exception], None]], Recording]
"""Opens the files, given a handler for errors. Called in a thread."""


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
    records: tuple[str, str] | None = None
    """Key hash and name under which the client will fetch the generation record."""

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
        engine: Mapping[str, Any] | None = None,
    ) -> None:
        """``engine``: what the trajectories of its answers have as ``metadata.engine``; None: nothing.
        ``on_answered`` receives sessions whose task ended with an answer that was not judged, if the key's
        agents never judge. ``on_opted_out`` receives trajectories that are stored nowhere."""
        self._settings, self._clock, self._metrics = settings, clock, metrics
        self.writer = WriteBehind(lambda: make_recording(self._failed), self._changed, clock)
        self._user_key, self._on_answered, self._on_opted_out = user_key, on_answered, on_opted_out
        self._opt_out = OptOut.parse(settings.opt_out)
        self._off = {key.lower() for key in settings.off_keys}
        self._engine = engine
        self.kept_records = KeptRecords(clock)
        self._open = Conversations()
        self._dirty: dict[str, Conversation] = {}
        self.closer = SessionCloser(self._open, self._end, self.writer, opt_out=self._opt_out, clock=clock)
        self._telling: set[str] = set()
        """Keys whose agents report how their tasks end. A task of theirs without a report may get the outcome
        ``lost``."""

    def is_opted_out(self, asked: CapturedCall) -> bool:
        """Returns whether nothing may be stored about the user of this request."""
        conversation = asked.conversation
        owner, metadata = (None, {}) if conversation is None else (conversation.owner, conversation.metadata)
        agent = None if owner is None else agent_of(owner)
        return self._opt_out.matches(asked.session_id, agent, metadata.get("user_hash"))

    # The path of an answer. Nothing here waits.

    def begin_call(
        self,
        headers: Mapping[str, str],
        caller: Caller,
        chat: openai.ChatRequest,
        session: Session,
        provider: str = "",
    ) -> CapturedCall:
        """Finds or begins the conversation of a request. ``provider``: the one that answers it; empty: the
        engine. Raises HttpError for a header it cannot read."""
        recorded = self._is_recorded(headers, caller)
        name = headers.get(RECORDS_HEADER.lower())
        records = (caller.key_hash, check_id(name, f"The header {RECORDS_HEADER}")) if name else None
        try:
            asked = self._ask(caller, chat, session, recorded, provider)
        except Exception as error:
            self._failed("ask", error)
            asked = self.uncaptured(chat, session)
        asked.records = records
        return asked

    def begin_branches(self, asked: CapturedCall, count: int) -> list[CapturedCall]:
        """Begins a conversation for each further choice of a request. Each becomes a trajectory of its own,
        with the whole history as its first observation, and can be continued as the first choice can."""
        first = asked.conversation
        if first is None:
            return [asked] * count
        branches: list[Conversation] = []
        for _ in range(count):
            branch = self._open.begin(
                first.session_id, first.owner, is_named=first.is_named, recorded=first.recorded
            )
            if "user_hash" in first.metadata:
                branch.metadata["user_hash"] = first.metadata["user_hash"]
            branch.touched, branch.busy = self._clock.monotonic(), True
            branches.append(branch)
        first.branch_into(branches)
        scopes = [branch.id if first.recorded else first.session_id for branch in branches]
        return [
            replace(asked, conversation=branch, scope=scope)
            for branch, scope in zip(branches, scopes, strict=True)
        ]

    def uncaptured(self, chat: openai.ChatRequest, session: Session) -> CapturedCall:
        """Returns a call that becomes no part of any trajectory."""
        return CapturedCall(session.id, session.id, chat.messages, None, chat, [], self._clock.now())

    def record_answer(
        self, asked: CapturedCall, answer: dict[str, Any], text: str, *, cut: str | None = None
    ) -> None:
        """Adds the client's answer and the model's whole text. ``cut``: the reason for a partial answer."""
        try:
            if asked.records is not None and not self.is_opted_out(asked):
                self.kept_records.add(*asked.records, answer, text)
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
        self.closer.conversation_freed()
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
        self, caller: Caller, chat: openai.ChatRequest, session: Session, recorded: bool, provider: str
    ) -> CapturedCall:
        owner = f"{caller.key_hash}:{recorded}"
        seed = seed_of(f"{owner}:{provider}" if provider else owner, session.id if session.is_named else None)
        links = links_of(seed, chat.messages)
        conversation = self._open.find(links)
        if conversation is None:
            described = {"user_hash": user_hash(chat.user, self._user_key)} if chat.user is not None else {}
            conversation = self._open.begin(
                session.id, caller.key_hash, is_named=session.is_named, recorded=recorded
            )
            conversation.metadata.update(described)
            if provider:
                conversation.metadata["provider"] = provider
            elif self._engine is not None:
                conversation.metadata["engine"] = self._engine
        else:
            conversation.use()
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
            ToolCall(call["id"], call["function"]["name"], _arguments(call["function"]["arguments"]))
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
            self.closer.conversation_continued(conversation)

    # Ends of conversations.

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
        elif (
            conversation.is_used
            and conversation.is_final
            and conversation.owner not in self._telling
            and "provider" not in conversation.metadata  # no release is judged by it
        ):
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


def _arguments(text: str) -> dict[str, Any]:
    """Returns a call's arguments. Those of a provider may be no JSON object: they are kept as text."""
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        arguments = None
    return arguments if isinstance(arguments, dict) else {"unparsed": text}
