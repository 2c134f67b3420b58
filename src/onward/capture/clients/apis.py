"""The APIs of an OpenAI client whose answers are recorded, and the kinds of call that are not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from onward.capture.clients import responses
from onward.capture.conversations.assembly import Assembly
from onward.capture.conversations.exchange import Message

Body = Mapping[str, Any]


class Assembling(Protocol):
    """Assembles one answer from the chunks of a stream."""

    @property
    def document(self) -> Mapping[str, Any]:
        """The answer so far, in the form of its API."""
        ...

    @property
    def is_complete(self) -> bool:
        """True once the end of the answer was received."""
        ...

    def add_chunk(self, chunk: Any) -> None: ...


@dataclass(frozen=True)
class Api:
    """The form of one API. Requests and answers are converted to those of chat completions."""

    messages: Callable[[Body], Sequence[Message]]
    tools: Callable[[Body], Any]
    completion: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    assembly: Callable[[], Assembling]
    continued: Callable[[Body], str | None] = lambda _: None
    """Returns the id of the answer that a request continues."""
    names: Callable[[Mapping[str, Any]], Sequence[str]] = lambda _: ()
    """Returns the ids by which a request may continue an answer."""
    is_pending: Callable[[Mapping[str, Any]], bool] = lambda _: False
    """Returns whether the server still works on the answer."""


class _Chunks:
    """Assembles completions, of the chat API or the legacy one."""

    def __init__(self) -> None:
        self._assembly = Assembly()
        self._error: Any = None

    @property
    def document(self) -> Mapping[str, Any]:
        made = self._assembly.completion()
        return made if self._error is None else {**made, "error": self._error}

    @property
    def is_complete(self) -> bool:
        return all(choice.get("finish_reason") for choice in self.document["choices"])

    def add_chunk(self, chunk: Any) -> None:
        if isinstance(chunk, Mapping) and chunk.get("error"):
            self._error = chunk["error"]
        else:
            self._assembly.add_chunk(chunk)


def _chat_messages(body: Body) -> list[Message]:
    return [
        message if isinstance(message, Mapping) else message.model_dump(mode="json", exclude_none=True)
        for message in body.get("messages") or ()
    ]


def _chat_tools(body: Body) -> Any:
    tools, functions = body.get("tools"), body.get("functions")
    if isinstance(tools, (list, tuple)):
        return list(tools)
    if isinstance(functions, (list, tuple)):  # the API's old form
        return [{"type": "function", "function": function} for function in functions]
    return None


def _legacy_messages(body: Body) -> list[Message]:
    prompt = body.get("prompt")
    if isinstance(prompt, (list, tuple)):
        texts = [text for text in prompt if isinstance(text, str)]
        # Token ids hide their text from the redactor.
        prompt = texts if len(texts) == len(prompt) else "(a prompt of token ids)"
        prompt = prompt[0] if len(prompt) == 1 else prompt
    if body.get("suffix"):
        prompt = {"prompt": prompt, "suffix": body["suffix"]}
    told = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
    return [{"role": "user", "content": told}]


def _legacy_completion(document: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = [dict(choice) for choice in document.get("choices") or ()]
    for choice in choices:
        if "text" in choice:
            choice["message"] = {"role": "assistant", "content": choice["text"]}
    return {**document, "choices": choices}


CHAT = Api(_chat_messages, _chat_tools, lambda document: document, _Chunks)
LEGACY = Api(_legacy_messages, lambda _: None, _legacy_completion, _Chunks)
RESPONSES = Api(
    responses.messages,
    responses.tools,
    responses.completion,
    responses.ResponseAssembly,
    responses.continued,
    responses.names,
    responses.is_pending,
)
_RECORDED = (("/chat/completions", CHAT), ("/completions", LEGACY), ("/responses", RESPONSES))
"""End of the path of a request → its API. Azure and compatible servers put more before it."""
_NOT_RECORDED = {
    "/audio/": "its content is sound",
    "/embeddings": "it has no answer",
    "/images/": "its answer is a picture",
    "/moderations": "it has no answer",
    "/videos": "its answer is a film",
    "/batches": "its answers come in files",
    "/threads": "the server holds the conversation: use the chat or the responses API",
    "/responses/compact": "it has no answer: the shortened conversation is recorded when it is used",
}
"""Part of the path → the reason."""


def api_of(path: str) -> Api | None:
    """Returns the API that a request is sent to, if its answers are recorded."""
    path = path.partition("?")[0].rstrip("/")
    return next((api for end, api in _RECORDED if path.endswith(end)), None)


def late_id(path: str) -> str:
    """Returns the id of the response that a request fetches or cancels; "" for any other request."""
    parts = path.partition("?")[0].strip("/").removesuffix("/cancel").split("/")
    return parts[-1] if len(parts) > 1 and parts[-2] == "responses" else ""


def not_recorded(path: str) -> tuple[str, str] | None:
    """Returns the kind of a call of a model that is not recorded, and the reason."""
    return next(((part, why) for part, why in _NOT_RECORDED.items() if part in path), None)


def failure(document: Mapping[str, Any]) -> str | None:
    """Returns the error of an answer that failed on the server."""
    error = document.get("error")
    if not error and document.get("status") != "failed":
        return None
    told = error if isinstance(error, Mapping) else {"message": error}
    return f"{told.get('code') or 'failed'}: {told.get('message') or 'the server gave no reason'}"
