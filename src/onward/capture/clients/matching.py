"""Assigns each call of a chat client to a task, without help from the agent.

A request continues an answer when it contains the results of that answer's tool calls, repeats everything
up to that answer and adds to it, or names the answer by its id. Of several that fit equally, it continues the
one that was asked nearest to it: in the same thread or coroutine, or in the same branch of a run.

Invariants: nothing here may disturb the agent, so ``Call`` catches errors. Only this process knows the open
chats, so a forked child forgets them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from onward.capture.clients.calls import Answered, Asked, Call, Chat, Errors, identity, tell
from onward.capture.conversations.dialogue import Closed, Dialogue
from onward.capture.conversations.exchange import Message, instructions
from onward.capture.conversations.links import Heads, chain
from onward.capture.recorder.task import Task, current_task
from onward.forks import Forking, register_fork_hooks
from onward.lru import Lru
from onward.telemetry import logs

if TYPE_CHECKING:
    from onward.capture.recorder import Recorder

BUSY_SECONDS = 3600.0
"""A call without an answer keeps its task open this long; a stream that no one reads never ends."""
_REMEMBERED = 10_000
"""Closed conversations whose session is remembered."""
_log = logs.get("recorder")


class Chats(Forking):
    """All open chats of one client."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        source: str,
        idle_seconds: float = 600.0,
        errors: Errors = "log",
        session_id: str | None = None,
        **described: Any,
    ) -> None:
        """``described`` goes to ``Recorder.task``. ``session_id`` is the session of calls that name none."""
        self.recorder = recorder
        self.errors: Errors = errors
        self._source = source
        self._idle = idle_seconds
        self._session_id = session_id
        self._described = described
        self.lock = threading.RLock()
        self._open: list[Chat] = []
        self._heads: Heads[Chat] = Heads()
        self._sessions: Lru[bytes, str] = Lru(_REMEMBERED)
        self._answered: Lru[str, Answered] = Lru(_REMEMBERED)
        self._reported: set[str] = set()
        self._late: Lru[str, Any] = Lru(_REMEMBERED)
        """Watches of answers that the server still makes in the background, by their ids."""
        self._sweeper: threading.Thread | None = None
        recorder.before_close(self.close)
        register_fork_hooks(self)

    def begin(
        self,
        messages: Sequence[Message],
        tools: Any,
        session_id: str | None,
        user: str | None = None,
        *,
        task: Task | None = None,
        after: str | None = None,
        near: tuple[Any, ...] = (),
    ) -> Call:
        """Registers a request before it is sent. ``user`` identifies its session if ``session_id`` does not,
        and is not stored. ``task`` is the task that it belongs to, by default that of the ``with`` block.
        ``after`` is the id of the answer that it continues without repeating it."""
        clock = self.recorder.clock
        named = session_id or (self.recorder.session_of(user) if user else None)
        seed = named or self._session_id or ""
        task = task or current_task(self.recorder)
        system = messages[0] if messages and messages[0].get("role") == "system" else None
        with self.lock:
            before = self._answered.get(after) if after else None
            if before is not None and system is not None and before.system == system:
                messages = messages[1:]
            links = chain(seed, map(identity, messages), after=before.link if before else None)
            earlier = before.length if before else 0
            chat, known = self._find(messages, links, earlier, seed, task, near)
            if chat is None:
                chat = self._start(instructions(messages), links, seed, task)
                self._describe(chat, session_id, user)
            asked = chat.dialogue.add_request(messages[known:], tools, clock.now())
            asks = Asked(links[-1], earlier + len(messages), system, instructions(messages), asked)
            chat.call = Call(self, chat, asks)
            call = chat.call
            chat.touched, chat.near = clock.monotonic(), near
        if not chat.ambient:
            self._watch()
        return call

    def report(self, name: str, why: str) -> None:
        """Logs once that calls of ``name`` are not recorded, and why."""
        with self.lock:
            if name in self._reported:
                return
            self._reported.add(name)
        _log.warning("calls of this kind are not recorded", calls=name, why=why)

    def note_late(self, name: str, watch: Any) -> None:
        """Notes the id of an answer that the server makes in the background."""
        with self.lock:
            self._late[name] = watch

    def note_answered(self, names: Sequence[str], answered: Answered) -> None:
        """Notes the ids by which a later request may continue an answer. The caller holds the lock."""
        for name in names:
            self._answered[name] = answered

    def note_heads(self, chat: Chat) -> None:
        """Makes an open chat known by its messages so far. The caller holds the lock."""
        if chat in self._open:
            self._heads.put(chat, *chat.links)

    def late(self, name: str) -> Any:
        """Returns the watch of an answer that the server makes in the background, or None."""
        with self.lock:
            return self._late.get(name) if name else None

    def add_result(
        self, task: Task, call_id: str, result: Any, milliseconds: float, near: tuple[Any, ...]
    ) -> None:
        """Adds the result of a tool call to the conversation of ``task`` that waits for it; of several with
        the same id to the nearest."""
        with self.lock:
            waiting = [
                chat
                for chat in self._open
                if chat.dialogue.task is task and call_id in chat.dialogue.pending_calls
            ]
            if waiting:
                chat = min(waiting, key=lambda chat: (chat.distance(near), chat.touched))
                chat.dialogue.add_result(call_id, result, milliseconds)

    def end_task(self, task: Task, why: Closed) -> None:
        """Records a task that was given to ``begin``, with all its conversations."""
        with self.lock:
            here = [chat for chat in self._open if chat.dialogue.task is task]
        for chat in here:
            if (call := chat.call) is not None:
                call.add_interruption(call.so_far(), None)
        dialogues = [chat.dialogue for chat in here]
        if dialogues:
            next((one for one in dialogues if one.failed), dialogues[0]).close(why)

    def close(self) -> None:
        """Records every open task in its present state."""
        self._close_all(lambda chat: True, "close")

    def sweep(self) -> None:
        """Records the tasks that were silent for too long."""
        now = self.recorder.clock.monotonic()
        self._close_all(
            lambda chat: now - chat.touched > (max(self._idle, BUSY_SECONDS) if chat.busy else self._idle),
            "idle",
        )

    def __len__(self) -> int:
        return len(self._open)

    def _find(
        self,
        messages: Sequence[Message],
        links: list[bytes],
        earlier: int,
        seed: str,
        task: Task | None,
        near: tuple[Any, ...],
    ) -> tuple[Chat | None, int]:
        """Returns the chat that the request continues, and the number of its messages already known there.
        ``earlier`` messages are known by the id of an answer alone."""
        chat = self._heads.find(
            links, lambda chat: chat.is_free(seed, task), lambda chat: chat.distance(near)
        )
        if chat is not None:
            if not set(links) & set(chat.links[:1]):
                chat.dialogue.choose_other()
            return chat, max(0, chat.length - earlier)
        # The history was shortened: the ids of the calls are enough.
        told = {str(m.get("tool_call_id")) for m in messages if m.get("role") == "tool"}
        free = [chat for chat in self._open if chat.is_free(seed, task)]
        answered = [chat for chat in free if chat.dialogue.pending_calls & told]
        if answered:
            nearest = min(answered, key=lambda chat: (chat.distance(near), chat.touched))
            return nearest, _after_last_answer(messages)
        return None, 0

    def _start(self, asks: str, links: list[bytes], seed: str, task: Task | None) -> Chat:
        if task is not None:
            chat = Chat(Dialogue(task, self._source), seed, ambient=True)
            task.when_done(lambda: self._forget(chat))
        else:
            earlier = next((self._sessions[link] for link in reversed(links) if link in self._sessions), None)
            task = self.recorder.task(asks, session_id=seed or earlier, **self._described)
            chat = Chat(Dialogue(task, self._source), seed)
        self._open.append(chat)
        return chat

    def start_late(self, call: Call) -> Chat:
        """Returns a chat of its own for a call whose task was over before its answer came: a thread can
        outlive the block that it began in."""
        chat = self._start(call.asked.instructions, [], call.session_id, None)
        chat.call = call
        return chat

    def _describe(self, chat: Chat, session_id: str | None, user: str | None) -> None:
        """Passes a call's session and user to the task; values set by the agent's block take precedence."""
        task = chat.dialogue.task
        task.note({}, session_id=session_id)
        hashed = self.recorder.user_hash(user) if user else None
        if hashed and chat.ambient:
            task.note_user(hashed)
        elif hashed:
            task.note({"user_hash": hashed})

    def _forget(self, chat: Chat) -> None:
        if (call := chat.call) is not None:
            call.leave()
        with self.lock:
            if chat in self._open:
                self._open.remove(chat)
                self._heads.forget(chat)

    def end(self, chat: Chat, why: Closed) -> None:
        """Records outside of the lock: it takes a disk write, and longer if the outbox is full."""
        with self.lock:
            if chat not in self._open:
                return
            self._open.remove(chat)
            self._heads.forget(chat)
            for link in chat.links:
                self._sessions[link] = chat.dialogue.task.session_id
        try:
            if (call := chat.call) is not None:  # its answer may come at this moment
                call.add_interruption(call.so_far(), None)
        finally:
            chat.dialogue.close(why)

    def _close_all(self, due: Callable[[Chat], bool], why: Closed) -> None:
        with self.lock:
            ending = [chat for chat in self._open if not chat.ambient and due(chat)]
        for chat in ending:
            try:
                self.end(chat, why)
            except Exception as error:
                tell(error)

    def _watch(self) -> None:
        if self._sweeper is None:
            with self.lock:
                if self._sweeper is None:
                    self._sweeper = threading.Thread(
                        target=_sweep,
                        args=(weakref.ref(self), min(30.0, max(0.05, self._idle / 4))),
                        name="onward-idle",
                        daemon=True,
                    )
                    self._sweeper.start()

    def after_fork_in_child(self) -> None:
        self.lock = threading.RLock()
        self._open, self._heads, self._sweeper = [], Heads(), None
        self._late.clear()


def _after_last_answer(messages: Sequence[Message]) -> int:
    places = [index for index, message in enumerate(messages) if message.get("role") == "assistant"]
    return places[-1] + 1 if places else 0


def _sweep(chats: weakref.ref[Chats], seconds: float) -> None:
    """Runs in a daemon thread, which ends with its client."""
    pause = threading.Event()
    while not pause.wait(seconds):
        here = chats()
        if here is None or here.recorder.closed:
            return
        here.sweep()
        del here
