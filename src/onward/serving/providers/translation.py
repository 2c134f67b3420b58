"""A chat of OpenAI's API that a model of Anthropic's answers: request, answer and stream translated. Pure.

A parameter that Anthropic's API does not have is refused by name, as the gateway does for its own models.
"""

from __future__ import annotations

import json
import re
from typing import Any

from onward.http.app import error_body
from onward.serving.protocol.events import DONE, event
from onward.serving.protocol.openai import ChatRequest
from onward.serving.protocol.parameters import bad
from onward.serving.providers.chat import calls_of, messages_of
from onward.serving.providers.dialect import Document, chat_request, objects, text_of, usage
from onward.serving.providers.messages import REASONS, MessageBuilder, as_completion, tokens_of

_READ = frozenset(
    ("model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "stop",
     "stream", "stream_options", "tools", "tool_choice", "parallel_tool_calls", "user")
)  # fmt: skip
_WITHOUT_EFFECT = frozenset(
    ("metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
)
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "n": (1,), "presence_penalty": (0,), "frequency_penalty": (0,), "logprobs": (False,),
    "response_format": ({"type": "text"},), "logit_bias": ({},),
}  # fmt: skip
_DATA_URL = re.compile(r"data:([\w.+/-]+);base64,(.*)", re.DOTALL)


class Translation:
    path = "/v1/messages"

    def __init__(self, max_tokens: int, created: int = 0) -> None:
        """``max_tokens``: of an answer whose call gives no limit. ``created``: the time in an answer."""
        self._max_tokens, self._created = max_tokens, created

    def request(self, document: Document, model: str) -> Document:
        """Returns the request for a message. Raises HttpError 400 that names the parameter."""
        _refuse(document)
        system, messages = _split(document)
        limit = document.get("max_completion_tokens") or document.get("max_tokens") or self._max_tokens
        body: Document = {"model": model, "max_tokens": limit, "messages": messages}
        if system:
            body["system"] = system
        temperature = document.get("temperature")
        if isinstance(temperature, int | float) and temperature > 1:
            raise bad("'temperature' above 1 is not supported by this provider: give 0 to 1.", "temperature")
        names = ("temperature", "top_p", "top_k", "stream")
        body |= {name: document[name] for name in names if document.get(name) is not None}
        if stop := document.get("stop"):
            body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
        if tools := objects(document.get("tools")):
            body["tools"] = [_tool(tool, index) for index, tool in enumerate(tools)]
            if (choice := _choice(document)) is not None:
                body["tool_choice"] = choice
        if isinstance(document.get("user"), str):
            body["metadata"] = {"user_id": document["user"]}
        return body

    def observed(self, document: Document) -> ChatRequest:
        return chat_request(document, messages_of(document), document.get("tools"))

    def answer(self, body: Document) -> Document:
        return as_completion(body)

    def reply(self, body: Document) -> Document:
        return as_completion(
            body, id=f"chatcmpl-{body.get('id')}", created=self._created, model=body.get("model")
        )

    def reader(self, document: Document) -> TranslationReader:
        options = document.get("stream_options")
        wants = isinstance(options, dict) and options.get("include_usage") is True
        return TranslationReader(self._created, wants_usage=wants)


class TranslationReader:
    """Turns the events of a message into chunks of a chat completion."""

    def __init__(self, created: int, *, wants_usage: bool) -> None:
        self._builder = MessageBuilder()
        self._created, self._wants_usage = created, wants_usage
        self._calls: dict[int, int] = {}
        """Index of a block → number of the call that it is."""

    @property
    def ended(self) -> bool:
        return self._builder.ended

    def read(self, event: str, data: Document | None, block: bytes) -> bytes:
        if data is None:
            return b""
        self._builder.add(data)
        kind, delta = data.get("type"), data.get("delta")
        if kind == "message_start":
            return self._chunk({"role": "assistant", "content": ""})
        if kind == "content_block_start":
            return self._begun(data)
        if kind == "content_block_delta" and isinstance(delta, dict):
            return self._more(data, delta)
        if kind == "message_stop":
            return self._end()
        if kind == "error":
            told = data.get("error")
            message = told.get("message") if isinstance(told, dict) else None
            return self.failure(str(message or "The provider broke off the answer."))
        return b""

    def answer(self) -> Document:
        return as_completion(self._builder.whole())

    def failure(self, message: str) -> bytes:
        return event(error_body("provider_error", message))

    def _begun(self, data: Document) -> bytes:
        block = data.get("content_block")
        if not isinstance(block, dict) or block.get("type") != "tool_use":
            return b""
        number = self._calls.setdefault(data.get("index", 0), len(self._calls))
        function = {"name": block.get("name"), "arguments": ""}
        opening = {"index": number, "id": block.get("id"), "type": "function", "function": function}
        return self._chunk({"tool_calls": [opening]})

    def _more(self, data: Document, delta: Document) -> bytes:
        if isinstance(delta.get("text"), str):
            return self._chunk({"content": delta["text"]})
        number = self._calls.get(data.get("index", 0))
        if number is None or not isinstance(delta.get("partial_json"), str):
            return b""
        part = {"index": number, "function": {"arguments": delta["partial_json"]}}
        return self._chunk({"tool_calls": [part]})

    def _end(self) -> bytes:
        message = self._builder.message
        reason = REASONS.get(str(message.get("stop_reason")), "stop")
        events = self._chunk({}, reason)
        if self._wants_usage:
            used = usage(*tokens_of(message.get("usage")))
            events += event({**self._head(), "choices": [], "usage": used})
        return events + DONE

    def _chunk(self, delta: Document, reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        return event({**self._head(), "choices": [choice]})

    def _head(self) -> Document:
        message = self._builder.message
        return {
            "id": f"chatcmpl-{message.get('id')}",
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": message.get("model"),
        }


def _refuse(document: Document) -> None:
    for name, value in document.items():
        if value is None or name in _READ or name in _WITHOUT_EFFECT or value in _DEFAULTS.get(name, ()):
            continue
        raise bad(f"{name[:64]!r} is not supported by this provider, an Anthropic API: leave it out.", name)


def _split(document: Document) -> tuple[str, list[Document]]:
    """Returns the system text and the other messages; neighbours of one role become one message."""
    system: list[str] = []
    messages: list[Document] = []
    for message in objects(document.get("messages")):
        role = message.get("role")
        if role in ("system", "developer"):
            system.append(text_of(message.get("content")))
            continue
        said = "assistant" if role == "assistant" else "user"
        blocks = _blocks(message)
        if messages and messages[-1]["role"] == said:
            messages[-1]["content"] += blocks
        elif blocks:
            messages.append({"role": said, "content": blocks})
    if not messages:
        raise bad("'messages' must be a list with a message of the user.", "messages")
    return "\n\n".join(system), messages


def _blocks(message: Document) -> list[Document]:
    content = message.get("content")
    if message.get("role") == "tool":
        result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id")}
        return [{**result, "content": text_of(content)}]
    if isinstance(content, str):
        blocks: list[Document] = [{"type": "text", "text": content}] if content else []
    else:
        blocks = [_part(part) for part in objects(content)]
    return [*blocks, *(_use(one) for one in calls_of(message.get("tool_calls")))]


def _part(part: Document) -> Document:
    if part.get("type") == "text":
        return {"type": "text", "text": part.get("text")}
    picture = part.get("image_url")
    url = picture.get("url") if isinstance(picture, dict) else None
    if part.get("type") != "image_url" or not isinstance(url, str):
        kind = str(part.get("type"))[:64]
        raise bad(f"A part of the type {kind!r} is not supported by this provider: send text.", "messages")
    if (found := _DATA_URL.fullmatch(url)) is not None:
        return {"type": "image", "source": {"type": "base64", "media_type": found[1], "data": found[2]}}
    return {"type": "image", "source": {"type": "url", "url": url}}


def _use(one: Document) -> Document:
    try:
        arguments = json.loads(one["function"]["arguments"])
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise bad("'messages' has a tool call whose arguments are no JSON object: repeat it as it was given.",
                  "messages")  # fmt: skip
    return {"type": "tool_use", "id": one["id"], "name": one["function"]["name"], "input": arguments}


def _tool(tool: Document, index: int) -> Document:
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad(f"tools[{index}] must be a function with a name.", "tools")
    made = {"name": function["name"], "input_schema": function.get("parameters") or {"type": "object"}}
    if function.get("description"):
        made["description"] = function["description"]
    return made


def _choice(document: Document) -> Document | None:
    given, is_single = document.get("tool_choice"), document.get("parallel_tool_calls") is False
    named = given.get("function") if isinstance(given, dict) else None
    if isinstance(named, dict) and isinstance(named.get("name"), str):
        choice: Document = {"type": "tool", "name": named["name"]}
    elif given in (None, "auto", "none", "required"):
        choice = {"type": {"none": "none", "required": "any"}.get(str(given), "auto")}
    else:
        raise bad("'tool_choice' must be 'auto', 'none', 'required' or a function.", "tool_choice")
    if is_single and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = True
    return choice if given is not None or is_single else None
