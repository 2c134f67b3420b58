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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal

from onward.capture.conversations.content import document_of, read_message
from onward.capture.conversations.dialogue import Closed, Dialogue, PendingRequest
from onward.capture.conversations.exchange import Message, instructions
from onward.capture.conversations.links import Heads, chain, next_link
from onward.capture.recorder.task import Task, current_task
from onward.capture.retrying import loggable
from onward.forks import Forking, register_fork_hooks
from onward.lru import Lru
from onward.telemetry import logs

if TYPE_CHECKING:
    from onward.capture.recorder import Recorder

Errors = Literal["log", "raise"]
BUSY_SECONDS = 3600.0
"""A call without an answer keeps its task open this long; a stream that no one reads never ends."""
_REMEMBERED = 10_000
"""Closed conversations whose session is remembered."""
_log = logs.get("recorder")


@dataclass(eq=False)
class Chat:
    """A task in progress."""

    dialogue: Dialogue
    seed: str
    links: tuple[bytes, ...] = ()
    """Hashes of all messages up to and including the latest answer, one for each of its choices."""
    length: int = 0
    near: tuple[Any, ...] = ()
    """Place in the program that asked last, from the outside to the inside."""
    ambient: bool = False
    """True within ``with recorder.task(…)``: the block ends the task."""
    call: Call | None = None
    """The call that waits for its answer."""
    touched: float = 0.0

    @property
    def busy(self) -> bool:
        return self.call is not None

    def is_free(self, seed: str, task: Task | None) -> bool:
        """Returns whether a request of that session, or within that task, may continue it."""
        if self.busy:
            return False
        return self.dialogue.task is task if self.ambient else task is None and self.seed == seed

    def distance(self, near: tuple[Any, ...]) -> int:
        """Returns a smaller number the more of ``near`` is the place that asked last."""
        return -sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self.near, near, strict=False)))


@dataclass(frozen=True)
class _Answered:
    """The state of a conversation after an answer that later requests name by its id."""

    link: bytes
    length: int
    system: Message | None
    """The instructions, which each request repeats."""


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
        self._lock = threading.RLock()
        self._open: list[Chat] = []
        self._heads: Heads[Chat] = Heads()
        self._sessions: Lru[bytes, str] = Lru(_REMEMBERED)
        self._answered: Lru[str, _Answered] = Lru(_REMEMBERED)
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
        with self._lock:
            before = self._answered.get(after) if after else None
            if before is not None and system is not None and before.system == system:
                messages = messages[1:]
            links = chain(seed, map(_identity, messages), after=before.link if before else None)
            earlier = before.length if before else 0
            chat, known = self._find(messages, links, earlier, seed, task, near)
            if chat is None:
                chat = self._start(instructions(messages), links, seed, task)
                self._describe(chat, session_id, user)
            asked = chat.dialogue.add_request(messages[known:], tools, clock.now())
            asks = _Asked(links[-1], earlier + len(messages), system, instructions(messages), asked)
            chat.call = Call(self, chat, asks)
            call = chat.call
            chat.touched, chat.near = clock.monotonic(), near
        if not chat.ambient:
            self._watch()
        return call

    def report(self, name: str, why: str) -> None:
        """Logs once that calls of ``name`` are not recorded, and why."""
        with self._lock:
            if name in self._reported:
                return
            self._reported.add(name)
        _log.warning("calls of this kind are not recorded", calls=name, why=why)

    def late(self, name: str) -> Any:
        """Returns the watch of an answer that the server makes in the background, or None."""
        with self._lock:
            return self._late.get(name) if name else None

    def add_result(
        self, task: Task, call_id: str, result: Any, milliseconds: float, near: tuple[Any, ...]
    ) -> None:
        """Adds the result of a tool call to the conversation of ``task`` that waits for it; of several with
        the same id to the nearest."""
        with self._lock:
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
        with self._lock:
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

    def _start_late(self, call: Call) -> Chat:
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
        with self._lock:
            if chat in self._open:
                self._open.remove(chat)
                self._heads.forget(chat)

    def _end(self, chat: Chat, why: Closed) -> None:
        """Records outside of the lock: it takes a disk write, and longer if the outbox is full."""
        with self._lock:
            if chat not in self._open:
                return
            self._open.remove(chat)
            self._heads.forget(chat)
            for link in chat.links:
                self._sessions[link] = chat.dialogue.task.session_id
        if chat.call is not None:
            chat.dialogue.add_interruption(chat.call.asked.pending, chat.call.so_far(), None)
        chat.dialogue.close(why)

    def _close_all(self, due: Callable[[Chat], bool], why: Closed) -> None:
        with self._lock:
            ending = [chat for chat in self._open if not chat.ambient and due(chat)]
        for chat in ending:
            try:
                self._end(chat, why)
            except Exception as error:
                _tell(error)

    def _watch(self) -> None:
        if self._sweeper is None:
            with self._lock:
                if self._sweeper is None:
                    self._sweeper = threading.Thread(
                        target=_sweep,
                        args=(weakref.ref(self), min(30.0, max(0.05, self._idle / 4))),
                        name="onward-idle",
                        daemon=True,
                    )
                    self._sweeper.start()

    def after_fork_in_child(self) -> None:
        self._lock = threading.RLock()
        self._open, self._heads, self._sweeper = [], Heads(), None
        self._late.clear()


@dataclass(frozen=True)
class _Asked:
    """A request: its place in the conversation, and what is recorded of it."""

    link: bytes
    length: int
    system: Message | None
    instructions: str
    pending: PendingRequest


class Call:
    """One request until it has an answer; what comes after the first report of its end is ignored. Errors are
    logged, or raised if ``errors`` is ``raise``."""

    def __init__(self, chats: Chats, chat: Chat, asked: _Asked) -> None:
        self._chats = chats
        self._chat = chat
        self.asked = asked
        self.so_far: Callable[[], Mapping[str, Any] | None] = lambda: None
        """Returns the part of a stream received so far."""
        self._lock = threading.Lock()
        self._is_settled = False

    @property
    def errors(self) -> Errors:
        return self._chats.errors

    @property
    def session_id(self) -> str:
        return self._chat.dialogue.task.session_id

    def put_late(self, name: str, watch: Any) -> None:
        """Notes the id of an answer that the server makes in the background."""
        with self._chats._lock:
            self._chats._late[name] = watch

    def add_answer(self, completion: Any, names: Sequence[str] = ()) -> None:
        """Records the whole answer: a dict, or an object of the client. ``names`` are the ids by which a
        later request may continue it."""
        with guard(self._chats.errors):
            if not self._settle():
                return
            try:
                document = document_of(completion)
                final = self._add(document, names)
            except Exception as error:
                self._add_interruption(None, error)
                raise
            if final and not self._chat.ambient:
                self._chats._end(self._chat, "answer")

    def add_interruption(self, completion: Mapping[str, Any] | None, error: BaseException | None) -> None:
        """Records that there is no whole answer: an error, or (None) the caller stopped reading."""
        with guard(self._chats.errors):
            if self._settle():
                self._add_interruption(completion, error)

    def _add(self, document: Mapping[str, Any], names: Sequence[str]) -> bool:
        with self._chats._lock:
            if self._chat.dialogue.task.is_over:
                self._chat = self._chats._start_late(self)
            final = self._chat.dialogue.add_answer(self.asked.pending, document)
            links = tuple(
                next_link(self.asked.link, _identity({**choice["message"], "role": "assistant"}))
                for choice in document["choices"]
            )
            self._free(links, self.asked.length + 1)
            for name in names:
                answered = _Answered(links[0], self.asked.length + 1, self.asked.system)
                self._chats._answered[name] = answered
        return final

    def _add_interruption(self, completion: Mapping[str, Any] | None, error: BaseException | None) -> None:
        if not isinstance(error, Exception):
            error = None  # a cancellation was requested by the caller
        with self._chats._lock:
            if self._chat.dialogue.task.is_over:
                if not self._chat.ambient:
                    return  # recorded when its chat was closed
                self._chat = self._chats._start_late(self)
            self._chat.dialogue.add_interruption(self.asked.pending, completion, error)
            self._free((self.asked.link,), self.asked.length)

    def _settle(self) -> bool:
        """Returns whether this is the first report of the end of the call."""
        with self._lock:
            first, self._is_settled = not self._is_settled, True
        return first

    def _free(self, links: tuple[bytes, ...], length: int) -> None:
        chat = self._chat
        chat.links, chat.length = links, length
        chat.call, chat.touched = None, self._chats.recorder.clock.monotonic()
        if chat in self._chats._open:
            self._chats._heads.put(chat, *links)


@contextmanager
def guard(errors: Errors) -> Iterator[None]:
    """Context in which an error of the recorder is logged and not raised, unless ``errors`` is ``raise``."""
    try:
        yield
    except Exception as error:
        if errors == "raise":
            raise
        _tell(error)


def _tell(error: Exception) -> None:
    _log.error("a call or task was not recorded", reason=loggable(error))


def _identity(message: Message) -> list[Any]:
    """Returns the content that identifies a message. Only text and calls of an answer count: clients leave
    out other parts when they send it back."""
    calls = message.get("tool_calls")
    if calls:
        told: Any = [call.get("id") if isinstance(call, Mapping) else str(call) for call in calls]
    else:
        content = message.get("content")
        if message.get("role") == "assistant":
            content = read_message(message).text  # clients drop thoughts, and join parts
        told = content.strip() if isinstance(content, str) else content or ""
    return [message.get("role"), told, message.get("tool_call_id")]


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
