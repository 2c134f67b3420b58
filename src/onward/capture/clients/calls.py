"""One call of a chat client, and the conversation that it belongs to.

Invariants: nothing here may disturb the agent, so errors of recording are caught.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal

from onward.capture.conversations.content import document_of, read_message
from onward.capture.conversations.dialogue import Dialogue, PendingRequest
from onward.capture.conversations.exchange import Message
from onward.capture.conversations.links import next_link
from onward.capture.recorder.task import Task
from onward.capture.retrying import loggable
from onward.telemetry import logs

if TYPE_CHECKING:
    from onward.capture.clients.matching import Chats

Errors = Literal["log", "raise"]
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
class Answered:
    """The state of a conversation after an answer that later requests name by its id."""

    link: bytes
    length: int
    system: Message | None
    """The instructions, which each request repeats."""


@dataclass(frozen=True)
class Asked:
    """A request: its place in the conversation, and what is recorded of it."""

    link: bytes
    length: int
    system: Message | None
    instructions: str
    pending: PendingRequest


class Call:
    """One request until it has an answer; what comes after the first report of its end is ignored. Errors are
    logged, or raised if ``errors`` is ``raise``."""

    def __init__(self, chats: Chats, chat: Chat, asked: Asked) -> None:
        self._chats = chats
        self._chat = chat
        self.asked = asked
        self.so_far: Callable[[], Mapping[str, Any] | None] = lambda: None
        """Returns the part of a stream received so far."""
        self.leave: Callable[[], None] = lambda: None
        """Records a stream that no one is reading now: called at the end of the task's block."""
        self._lock = threading.Lock()
        self._is_settled = False

    @property
    def chats(self) -> Chats:
        return self._chats

    @property
    def errors(self) -> Errors:
        return self._chats.errors

    @property
    def session_id(self) -> str:
        return self._chat.dialogue.task.session_id

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
                self._chats.end(self._chat, "answer")

    def add_interruption(self, completion: Mapping[str, Any] | None, error: BaseException | None) -> None:
        """Records that there is no whole answer: an error, or (None) the caller stopped reading."""
        with guard(self._chats.errors):
            if self._settle():
                self._add_interruption(completion, error)

    def _add(self, document: Mapping[str, Any], names: Sequence[str]) -> bool:
        with self._chats.lock:
            if self._chat.dialogue.task.is_over:
                self._chat = self._chats.start_late(self)
            final = self._chat.dialogue.add_answer(self.asked.pending, document)
            said = [choice.get("message") for choice in document["choices"]]
            links = tuple(
                next_link(self.asked.link, identity({**message, "role": "assistant"}))
                for message in said
                if isinstance(message, Mapping)
            )
            self._free(links, self.asked.length + 1)
            answered = Answered(links[0], self.asked.length + 1, self.asked.system)
            self._chats.note_answered(names, answered)
        return final

    def _add_interruption(self, completion: Mapping[str, Any] | None, error: BaseException | None) -> None:
        if not isinstance(error, Exception):
            error = None  # a cancellation was requested by the caller
        with self._chats.lock:
            if self._chat.dialogue.task.is_over:
                if not self._chat.ambient:
                    return  # recorded when its chat was closed
                self._chat = self._chats.start_late(self)
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
        self._chats.note_heads(chat)


@contextmanager
def guard(errors: Errors) -> Iterator[None]:
    """Context in which an error of the recorder is logged and not raised, unless ``errors`` is ``raise``."""
    try:
        yield
    except Exception as error:
        if errors == "raise":
            raise
        tell(error)


def tell(error: Exception) -> None:
    _log.error("a call or task was not recorded", reason=loggable(error))


def identity(message: Message) -> list[Any]:
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
