"""Open conversations: finds the answer that a request continues, without any hint from the client.

A conversation is found by a hash chain over its messages: a request belongs to it if it repeats everything up
to its latest answer and adds to that.

Invariants: one answer is continued once. If several conversations are equal word for word, each request takes
the one that has waited longest. A request that goes back to an older answer, or to one that is being
continued, starts a new conversation. Two conversations never mix.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from onward.capture.conversations import exchange
from onward.capture.conversations.answers import ToolCall
from onward.capture.conversations.links import Heads, chain, next_link
from onward.ids import new_id
from onward.lm.tool_words import with_objects

Message = dict[str, Any]
"""``role`` and ``content``; ``tool_calls`` and ``tool_call_id`` as in the chat API, if present."""
_MESSAGE_BYTES = 200


@dataclass(eq=False)
class Exchange:
    """One answer, with the messages that were new in its request."""

    asked_at: datetime
    new: list[Message]
    text: str
    """All text that the model wrote."""
    action: dict[str, Any]
    """The action if no tool was called in the API's form."""
    calls: tuple[ToolCall, ...]
    sampling: dict[str, Any] | None
    """None for an answer of a provider, which gives no tokens."""
    tools: list[dict[str, Any]] | None
    """Tools that were offered, if they differ from those of the previous exchange."""
    error: str | None = None
    is_whole: bool = True
    """False if only a part of the answer was sent."""
    results: dict[int, str] = field(default_factory=dict)
    """Number of the call (0 for a call that was written as text) → its result."""

    @property
    def is_final(self) -> bool:
        return not self.calls and self.action["type"] != "tool_call"


@dataclass(eq=False)
class Conversation:
    """One task in progress. ``id`` is the id of the trajectory that it becomes."""

    id: str
    session_id: str
    owner: str
    """Hash of the API key. Only this key may continue it; only this key or an administrator may close it."""
    is_named: bool
    """True if the client named the session."""
    recorded: bool
    """False if it does not become a trajectory and is only followed so that its tokens stay exact."""
    exchanges: list[Exchange] = field(default_factory=list)
    raw: dict[int, str] = field(default_factory=dict)
    """Position among the messages → the text that was really sampled there."""
    length: int = 0
    """Number of messages up to and including the latest answer."""
    busy: bool = False
    touched: float = 0.0
    """Monotonic seconds of the latest event."""
    ended_at: datetime | None = None
    size: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    tokens: int = 0
    outcome: dict[str, Any] | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    """Tools that were offered last."""
    choices: list[Conversation] = field(default_factory=list)
    """Conversations that end with the choices of one request and were not continued yet, this one among them.
    All of them share the list; empty if the latest answer was the only one."""
    is_used: bool = True
    """False for a choice that the client did not take: the outcome of the session is not about it."""

    @property
    def is_final(self) -> bool:
        """True if the latest answer calls no tool."""
        return bool(self.exchanges) and self.exchanges[-1].is_final

    def branch_into(self, branches: Sequence[Conversation]) -> None:
        """Makes this conversation the first choice and ``branches`` the further ones. The first counts as the
        one that is used until another is continued."""
        shared = [self, *branches]
        for conversation in shared:
            conversation.choices = shared
        for branch in branches:
            branch.is_used = False

    def use(self) -> None:
        """Notes that the client continues this conversation, and so left the other choices."""
        if not self.choices:
            return
        self.choices.remove(self)
        for other in self.choices:
            other.is_used = False
        self.choices, self.is_used = [], True

    def engine_messages(self, messages: Sequence[Message]) -> list[Message]:
        """Returns ``messages`` with the gateway's answers as sampled, not as the client repeats them."""
        return [
            {"role": "assistant", "content": self.raw[index]} if index in self.raw else message
            for index, message in enumerate(with_objects(messages))
        ]

    def take_results(self, new: Sequence[Message]) -> None:
        """Stores the results of the latest answer's calls: matched by their ids, else in their order."""
        if not self.exchanges or self.exchanges[-1].is_final:
            return
        latest = self.exchanges[-1]
        latest.results = exchange.results([call.id for call in latest.calls] or [exchange.WRITTEN], new)


class Conversations:
    """All open conversations of this gateway, the least recently used first."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Conversation] = OrderedDict()
        self._heads: Heads[Conversation] = Heads()
        self.size = 0
        """Approximate bytes of text and tokens."""

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Conversation]:
        return iter(list(self._open.values()))

    def find(self, links: Sequence[bytes]) -> Conversation | None:
        """Returns the conversation whose latest answer is the last one in a request that was given here.
        ``links`` are those of ``chain`` over its messages. A conversation with a running call is skipped."""
        return self._heads.find(links[:-1], lambda conversation: not conversation.busy)

    def begin(self, session_id: str, owner: str, *, is_named: bool, recorded: bool) -> Conversation:
        conversation = Conversation(new_id(), session_id, owner, is_named, recorded)
        self._open[conversation.id] = conversation
        return conversation

    def add_exchange(
        self, conversation: Conversation, exchange: Exchange, links: Sequence[bytes], said: Message
    ) -> None:
        """Adds an exchange. ``said`` answers the messages of ``links``; later requests must follow it."""
        conversation.exchanges.append(exchange)
        conversation.length = length = len(links)
        heads = [next_link(links[-1], _identity(said))]
        if said.get("tool_calls"):  # many clients drop the words beside a call
            heads.append(next_link(links[-1], _identity({**said, "content": ""})))
        self._heads.put(conversation, *heads)
        if exchange.is_whole and exchange.sampling is not None:
            conversation.raw[length - 1] = exchange.text
        grown = _size_of(exchange)
        conversation.size += grown
        self.size += grown
        self._open.move_to_end(conversation.id)

    def remove(self, conversation: Conversation) -> None:
        if self._open.pop(conversation.id, None) is not None:
            self._heads.forget(conversation)
            self.size -= conversation.size

    def get(self, conversation_id: str) -> Conversation | None:
        return self._open.get(conversation_id)

    def of_session(self, session_id: str, owner: str | None) -> list[Conversation]:
        """Returns recorded conversations of a session, in order of their start; ``owner`` None: any owner."""
        found = [
            c
            for c in self._open.values()
            if c.recorded and c.session_id == session_id and owner in (None, c.owner)
        ]
        return sorted(found, key=lambda c: c.exchanges[0].asked_at if c.exchanges else datetime.max)

    def oldest(self) -> Conversation | None:
        """Returns the least recently used conversation without a running call."""
        return next((c for c in self._open.values() if not c.busy), None)


def seed_of(owner: str, session_id: str | None) -> str:
    """Returns the seed of a chain: conversations of two keys, or of two named sessions, never meet."""
    return f"{owner}\x1f{session_id or ''}"


def links_of(seed: str, messages: Sequence[Message]) -> list[bytes]:
    """Returns the links of these messages (``capture.conversations.links``)."""
    return chain(seed, map(_identity, messages))


def _identity(message: Message) -> list[Any]:
    """Returns the content that identifies a message. White space and ids do not count."""
    calls = [
        [call["function"]["name"], _arguments(call["function"]["arguments"])]
        for call in message.get("tool_calls") or ()
    ]
    return [message["role"], " ".join(message["content"].split()), calls]


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text.strip()


def _size_of(exchange: Exchange) -> int:
    text = sum(len(message["content"]) + _MESSAGE_BYTES for message in exchange.new) + 2 * len(exchange.text)
    tools = len(json.dumps(exchange.tools)) if exchange.tools else 0
    sampling = exchange.sampling or {}
    ids = sum(len(sampling.get(name) or ()) for name in ("prompt_ids", "token_ids", "logprobs"))
    source = len((sampling.get("constraint") or {}).get("source") or "")
    return text + tools + source + 32 * ids + _MESSAGE_BYTES
