"""Assigns each call of a chat client to a task, without help from the agent.

A request continues an answer when it contains the results of that answer's tool calls, or repeats everything
up to that answer and adds to it.

Invariants: nothing here may disturb the agent, so ``Call`` catches errors. Only this process knows the open
chats, so a forked child forgets them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
    link: bytes = b""
    """Hash of all messages up to and including the latest answer."""
    length: int = 0
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
        self._sweeper: threading.Thread | None = None
        recorder.before_close(self.close)
        register_fork_hooks(self)

    def begin(
        self, messages: Sequence[Message], tools: Any, session_id: str | None, user: str | None = None
    ) -> Call:
        """Registers a request before it is sent. ``user`` identifies its session if ``session_id`` does not,
        and is not stored."""
        clock = self.recorder.clock
        named = session_id or (self.recorder.session_of(user) if user else None)
        seed = named or self._session_id or ""
        links = chain(seed, map(_identity, messages))
        task = current_task(self.recorder)
        with self._lock:
            chat, known = self._find(messages, links, seed, task)
            if chat is None:
                chat = self._start(messages, links, seed, task)
                self._describe(chat, session_id, user)
            asked = chat.dialogue.add_request(messages[known:], tools, clock.now())
            chat.call = Call(self, chat, asked, links[-1], len(messages))
            chat.touched = clock.monotonic()
        self._watch()
        return chat.call

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
        self, messages: Sequence[Message], links: list[bytes], seed: str, task: Task | None
    ) -> tuple[Chat | None, int]:
        """Returns the chat that the request continues, and the number of its messages already known there."""
        chat = self._heads.find(links, lambda chat: chat.is_free(seed, task))
        if chat is not None:
            return chat, chat.length
        # The history was shortened: the ids of the calls are enough.
        told = {str(m.get("tool_call_id")) for m in messages if m.get("role") == "tool"}
        free = [chat for chat in self._open if chat.is_free(seed, task)]
        answered = [chat for chat in free if chat.dialogue.pending_calls & told]
        if answered:
            return min(answered, key=lambda c: c.touched), _after_last_answer(messages)
        return None, 0

    def _start(self, messages: Sequence[Message], links: list[bytes], seed: str, task: Task | None) -> Chat:
        if task is not None:
            chat = Chat(Dialogue(task, self._source), seed, ambient=True)
            task.when_done(lambda: self._forget(chat))
        else:
            earlier = next((self._sessions[link] for link in reversed(links) if link in self._sessions), None)
            task = self.recorder.task(instructions(messages), session_id=seed or earlier, **self._described)
            chat = Chat(Dialogue(task, self._source), seed)
        self._open.append(chat)
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
            if chat.link:
                self._sessions[chat.link] = chat.dialogue.task.session_id
        if chat.call is not None:
            chat.dialogue.add_interruption(chat.call.asked, chat.call.so_far(), None)
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


class Call:
    """One request until it has an answer. Errors are logged, or raised if ``errors`` is ``raise``."""

    def __init__(self, chats: Chats, chat: Chat, asked: PendingRequest, link: bytes, length: int) -> None:
        self._chats = chats
        self._chat = chat
        self.asked = asked
        self._link = link
        self._length = length
        self.so_far: Callable[[], Mapping[str, Any] | None] = lambda: None
        """Returns the part of a stream received so far."""

    @property
    def session_id(self) -> str:
        return self._chat.dialogue.task.session_id

    def add_answer(self, completion: Any) -> None:
        """Records the whole answer: a dict, or an object of the client."""
        with guard(self._chats.errors):
            document = document_of(completion)
            with self._chats._lock:
                final = self._chat.dialogue.add_answer(self.asked, document)
                answer = document["choices"][0]["message"]
                self._settle(
                    next_link(self._link, _identity({**answer, "role": "assistant"})), self._length + 1
                )
            if final and not self._chat.ambient:
                self._chats._end(self._chat, "answer")

    def add_interruption(self, completion: Mapping[str, Any] | None, error: BaseException | None) -> None:
        """Records that there is no whole answer: an error, or (None) the caller stopped reading."""
        with guard(self._chats.errors):
            if not isinstance(error, Exception):
                error = None  # a cancellation was requested by the caller
            with self._chats._lock:
                self._chat.dialogue.add_interruption(self.asked, completion, error)
                self._settle(self._link, self._length)

    def _settle(self, link: bytes, length: int) -> None:
        chat = self._chat
        chat.link, chat.length = link, length
        chat.call, chat.touched = None, self._chats.recorder.clock.monotonic()
        if chat in self._chats._open:
            self._chats._heads.put(chat, link)


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
