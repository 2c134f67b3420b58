"""The OpenAI shapes: a chat request in, a completion out (``http/streaming.py`` has its stream). Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from onward.capture.conversations.answers import MAX_DEPTH, ParsedAnswer
from onward.http.app import HttpError
from onward.lm.stop_text import cut
from onward.serving.engines import AnswerOptions, Generation
from onward.serving.protocol.options import chat_logprobs, choices, read_options, usage_in_stream
from onward.serving.protocol.parameters import CHAT, bad, flag, number, refuse, whole
from onward.serving.protocol.tools import check_choice, check_tools, is_unfit

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MAX_MESSAGES = 2000
ROUTED = "onward"
"""The model name that follows releases; any other name must be a model id that is served now."""


@dataclass(frozen=True)
class ChatRequest:
    model: str
    messages: list[dict[str, Any]]
    """``role`` and ``content``; an assistant's ``tool_calls`` and a tool's ``tool_call_id`` if given."""
    temperature: float
    top_p: float
    top_k: int | None
    max_tokens: int | None
    seed: int | None
    stream: bool
    user: str | None
    tools: list[dict[str, Any]]
    callable: frozenset[str]
    """Names of the tools that may be called. Empty: every answer is text, even if it looks like a call (no
    tools, or ``tool_choice`` "none")."""
    parallel: bool
    include_usage: bool
    """True if a stream ends with a chunk that holds the usage."""
    n: int = 1
    """Number of choices."""
    options: AnswerOptions | None = None

    @property
    def calls_tools(self) -> bool:
        return bool(self.callable)

    @property
    def is_raw(self) -> bool:
        """True if the prompt is sampled from as it is; such a call becomes part of no trajectory."""
        return self.options is not None and self.options.prompt is not None

    @property
    def stops(self) -> Sequence[str]:
        """Texts before which the answer's text is cut."""
        return self.options.stop if self.options is not None else ()

    def choice(self, index: int) -> ChatRequest:
        """Returns the request for one of the choices."""
        return replace(self, n=1, seed=None if self.seed is None else (self.seed + index) % 2**63)

    @property
    def first_user_message(self) -> str:
        return next((m["content"] for m in self.messages if m["role"] == "user"), "")


def parse_chat(document: dict[str, Any]) -> ChatRequest:
    """Parses a chat request. Raises HttpError 400 that names the parameter."""
    refuse(document, CHAT)
    limit = document.get("max_completion_tokens")
    limit = document.get("max_tokens") if limit is None else limit
    tools = check_tools(document.get("tools"))
    choice = check_choice(document.get("tool_choice"), tools)
    parallel = flag(document, "parallel_tool_calls", True)
    stream = flag(document, "stream", False)
    top_logprobs = chat_logprobs(document)
    model = document.get("model") or ROUTED
    user = document.get("user")
    if not isinstance(model, str) or not (user is None or isinstance(user, str)):
        raise bad("'model' and 'user' must be text.", "model" if not isinstance(model, str) else "user")
    return ChatRequest(
        model=model,
        messages=_messages(document.get("messages")),
        temperature=number(document, "temperature", 1.0, 0.0, 2.0),
        top_p=number(document, "top_p", 1.0, 1e-6, 1.0),
        top_k=None if document.get("top_k") == -1 else whole("top_k", document.get("top_k"), 1),
        max_tokens=whole("max_tokens", limit, 1),
        seed=whole("seed", document.get("seed"), 0),
        stream=stream,
        user=user or None,
        tools=tools,
        callable=choice.names,
        parallel=parallel,
        include_usage=usage_in_stream(document),
        n=choices(document, stream),
        options=read_options(document, tools, choice, parallel=parallel, top_logprobs=top_logprobs),
    )


def _messages(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not given or len(given) > MAX_MESSAGES:
        raise bad(f"'messages' must be a list of 1 to {MAX_MESSAGES} messages.", "messages")
    messages = []
    for index, message in enumerate(given):
        where = f"messages[{index}]"
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role not in ROLES:
            raise bad(f"{where} must have a role: system, user, assistant or tool.", where)
        if message.get("function_call") is not None:
            raise bad(f"{where}.function_call is not supported: use 'tool_calls'.", f"{where}.function_call")
        calls = _calls(message.get("tool_calls"), where) if role == "assistant" else []
        content = message.get("content")
        text = "" if calls and content is None else _text(content, where)
        kept: dict[str, Any] = {"role": ROLES[role], "content": text}
        if calls:
            kept["tool_calls"] = calls
        if role == "tool" and isinstance(message.get("tool_call_id"), str):
            kept["tool_call_id"] = message["tool_call_id"]
        messages.append(kept)
    return messages


def _calls(given: Any, where: str) -> list[dict[str, Any]]:
    if given is None:
        return []
    place = f"{where}.tool_calls"
    if not isinstance(given, list):
        raise bad(f"{place} must be a list.", place)
    calls = []
    for call in given:
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if not isinstance(name, str) or not isinstance(arguments, str):
            raise bad(f"{place} must hold functions with a name and arguments as JSON text.", place)
        _check_arguments(arguments, place)
        calls.append(
            {
                "id": str(call.get("id") or ""),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
        )
    return calls


def _check_arguments(text: str, place: str) -> None:
    """Checks arguments that are JSON; others are an unreadable call of a model, and stay text."""
    try:
        unfit = is_unfit(json.loads(text), MAX_DEPTH)
    except ValueError:
        return
    except RecursionError:
        unfit = True
    if unfit:
        raise bad(
            f"{place} has arguments that cannot be stored: give JSON of at most {MAX_DEPTH} levels, with "
            f"whole characters and finite numbers.",
            place,
        )


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in content
    ):
        return "".join(part["text"] for part in content)
    parts = content if isinstance(content, list) else []
    kinds = sorted(str(part.get("type")) for part in parts if isinstance(part, dict))
    shown = next((kind for kind in kinds if kind in _MEDIA), None)
    if shown is not None:
        problem = f"{where}.content has a part of the type {shown!r}, but the model has no {_MEDIA[shown]}"
        raise bad(f"{problem}: send text.", f"{where}.content")
    raise bad(f"{where}.content must be text or a list of text parts.", f"{where}.content")


_MEDIA = {
    "image_url": "vision", "input_image": "vision", "input_audio": "hearing", "file": "reader of files",
    "input_file": "reader of files",
}  # fmt: skip
"""Type of a part that is no text → what the model lacks for it."""


def unknown_model(name: str, served: Sequence[str]) -> HttpError:
    """Returns the error for a model that does not serve now. ``served``: other names than ``ROUTED``."""
    return HttpError(
        404,
        f"Model {name[:64]!r} is not served: use {ROUTED!r}, which follows releases, or one of "
        f"{', '.join(dict.fromkeys(served))}.",
        type="not_found_error",
        param="model",
    )


def completion(
    generation: Generation,
    said: ParsedAnswer,
    onward: dict[str, Any],
    created: int,
    options: AnswerOptions | None = None,
) -> dict[str, Any]:
    """Returns the answer to a chat request; ``onward`` is Onward's own part of it."""
    message: dict[str, Any] = {"role": "assistant", "content": said.content}
    reason = generation.sampling["finish_reason"]
    if said.calls:
        message["tool_calls"] = [call.document() for call in said.calls]
        reason = "tool_calls"
    return {
        "id": f"chatcmpl-{generation.sampling['generation_id']}",
        "object": "chat.completion",
        "created": created,
        "model": onward["model_id"],
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": reason,
                "logprobs": logprobs(generation, options),
            }
        ],
        "usage": generation.usage,
        "onward": onward,
    }


def logprobs(generation: Generation, options: AnswerOptions | None) -> dict[str, Any] | None:
    """Returns the log-probs of the tokens of which the cut text has a part; None if they are not wanted."""
    if options is None or options.top_logprobs is None:
        return None
    length = len(cut(generation.text, options.stop))
    return token_logprobs(generation.logprobs, length, with_places=options.prompt is not None)


def token_logprobs(
    entries: Sequence[dict[str, Any]], length: int, *, with_places: bool = False
) -> dict[str, Any]:
    """Returns the entries that begin within the first ``length`` characters, in the form of the chat API.
    ``with_places`` keeps ``at``, each token's place in the text, which the completions API shows."""
    content = [
        {name: value for name, value in one.items() if with_places or name != "at"}
        for one in entries
        if one["at"] < length
    ]
    return {"content": content, "refusal": None}


def several(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the answers to the choices of one request as one. The prompt counts once; ``onward.choices``
    has Onward's part of the further ones."""
    first = answers[0]
    tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
    prompt = first["usage"]["prompt_tokens"]
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
    listed = [{**answer["choices"][0], "index": index} for index, answer in enumerate(answers)]
    onward = {**first["onward"], "choices": [answer["onward"] for answer in answers[1:]]}
    return {**first, "choices": listed, "usage": usage, "onward": onward}
