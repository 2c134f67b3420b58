"""A dialect: how a client's call reads to the provider and to the recorder, and its answer likewise. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from onward.serving.protocol.openai import ChatRequest

Document = dict[str, Any]


class StreamReader(Protocol):
    """Reads the events of one answer."""

    @property
    def ended(self) -> bool:
        """True after the event that completes the answer."""
        ...

    def read(self, event: str, data: Document | None, block: bytes) -> bytes:
        """Takes one event, with its JSON and its bytes, and returns what the client gets for it."""
        ...

    def answer(self) -> Document:
        """Returns what was read so far as a chat completion."""
        ...

    def failure(self, message: str) -> bytes:
        """Returns the event for a stream that breaks off."""
        ...


class Dialect(Protocol):
    """One API for clients, over one API of a provider."""

    path: str
    """The provider's path below its address."""

    def request(self, document: Document, model: str) -> Document:
        """Returns the body for the provider. Raises HttpError for what it cannot answer."""
        ...

    def observed(self, document: Document) -> ChatRequest:
        """Returns the call as the recorder reads it; what it cannot read is left out."""
        ...

    def answer(self, body: Document) -> Document:
        """Returns the provider's answer as a chat completion."""
        ...

    def reply(self, body: Document) -> Document:
        """Returns the provider's answer in the client's form."""
        ...

    def reader(self, document: Document) -> StreamReader: ...


def chat_request(document: Mapping[str, Any], messages: Sequence[Document], tools: Any) -> ChatRequest:
    """Returns a request as the recorder reads it."""
    temperature, user = document.get("temperature"), document.get("user")
    is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    offered = [one for one in tools if _is_function(one)] if isinstance(tools, list) else []
    return ChatRequest(
        model=str(document.get("model") or ""),
        messages=list(messages) or [{"role": "user", "content": ""}],
        temperature=float(temperature) if is_number and temperature is not None else 1.0,
        top_p=1.0,
        top_k=None,
        max_tokens=None,
        seed=None,
        stream=document.get("stream") is True,
        user=user if isinstance(user, str) and user else None,
        tools=offered,
        callable=frozenset(),
        parallel=True,
        include_usage=False,
    )


def completion(
    text: str | None, calls: Sequence[Document], reason: str | None, tokens: tuple[int, int], **more: Any
) -> Document:
    """Returns a chat completion. ``tokens``: of the prompt and of the answer."""
    message: Document = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = list(calls)
    return {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": usage(*tokens),
        **more,
    }


def usage(prompt: int, answer: int) -> Document:
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def call(name: str, arguments: str, call_id: str) -> Document:
    """Returns a tool call of a chat completion."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def objects(given: Any) -> list[Document]:
    """Returns the objects in a list, and nothing for any other value."""
    return [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []


def text_of(content: Any) -> str:
    """Returns content as text. A part that is no text becomes a mark with its type."""
    if isinstance(content, str):
        return content
    return "".join(
        part["text"] if isinstance(part.get("text"), str) else f"[{part.get('type', 'part')}]"
        for part in objects(content)
    )


def count(given: Any) -> int:
    """Returns a number of tokens; 0 for anything else."""
    return given if isinstance(given, int) and not isinstance(given, bool) and given > 0 else 0


def _is_function(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)
