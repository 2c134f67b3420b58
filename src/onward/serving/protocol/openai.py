"""The OpenAI shapes: a chat request in, a completion out (``http/streaming.py`` has its stream). Pure.

A parameter that cannot be applied exactly is refused by name, never ignored: the behaviour of an agent whose
stop sequence was ignored would be hard to understand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from onward.capture.conversations.answers import MAX_DEPTH, ParsedAnswer
from onward.contracts import decode_document
from onward.errors import ContractError
from onward.http.app import HttpError
from onward.serving.engines import Generation
from onward.spelling import closest_name

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MAX_MESSAGES = 2000
MAX_TOOLS = 128
TOOL_DEPTH = MAX_DEPTH + 2
"""Maximum levels of a whole tool, around its schema: all of it is recorded, whatever its keys are."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HONOURED = (
    "messages", "model", "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "seed",
    "stream", "stream_options", "tools", "tool_choice", "parallel_tool_calls", "user",
)  # fmt: skip
_WITHOUT_EFFECT = (
    "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "request_id", "cache_salt", "priority",
)  # fmt: skip
"""Accepted: none of these changes an answer, here or at any other server."""
_NO_TEXT: tuple[Any, ...] = ("",)
_ZERO: tuple[Any, ...] = (0,)
_ONE: tuple[Any, ...] = (1,)
_OFF: tuple[Any, ...] = (False,)
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("stop", "chat_template", "suffix"), _NO_TEXT),
    **dict.fromkeys(("functions", "logit_bias", "audio", "prediction", "web_search_options"), ()),
    **dict.fromkeys(("stop_token_ids", "bad_words", "allowed_token_ids", "chat_template_kwargs"), ()),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), ()),
    **dict.fromkeys(("structured_outputs", "grammar", "documents", "reasoning", "thinking", "plugins"), ()),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "top_logprobs", "min_p", "min_tokens"), _ZERO),
    **dict.fromkeys(("top_a", "mirostat", "prompt_logprobs", "xtc_probability", "dry_multiplier"), _ZERO),
    **dict.fromkeys(("n", "best_of", "repetition_penalty", "length_penalty", "typical_p", "tfs_z"), _ONE),
    **dict.fromkeys(("logprobs", "ignore_eos", "use_beam_search", "echo", "continue_final_message"), _OFF),
    **dict.fromkeys(("include_stop_str_in_output", "return_token_ids", "add_special_tokens"), _OFF),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), (True,)),
    "add_generation_prompt": (True,),
    "function_call": ("auto", "none"),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "verbosity": ("medium",),
}
"""Parameter → its default values, which are accepted beside null and empty ones."""
_INSTEAD = {
    "n": "make several calls for several answers",
    "best_of": "make several calls for several answers",
    "logprobs": "every answer has the exact ones in onward.sampling",
    "top_logprobs": "every answer has the log-probs of its tokens in onward.sampling",
    "functions": "use 'tools'",
    "function_call": "use 'tools' and 'tool_choice'",
    "stop": "cut the answer in the client",
}
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
    calls_tools: bool
    """False: every answer is text, even if it looks like a call (no tools, or ``tool_choice`` "none")."""
    parallel: bool
    include_usage: bool
    """True if a stream ends with a chunk that holds the usage."""

    @property
    def first_user_message(self) -> str:
        return next((m["content"] for m in self.messages if m["role"] == "user"), "")


def parse_chat(document: dict[str, Any]) -> ChatRequest:
    """Parses a chat request. Raises HttpError 400 that names the parameter."""
    _refuse(document)
    limit = document.get("max_completion_tokens")
    limit = document.get("max_tokens") if limit is None else limit
    tools = check_tools(document.get("tools"))
    model = document.get("model") or ROUTED
    user = document.get("user")
    if not isinstance(model, str) or not (user is None or isinstance(user, str)):
        raise _bad("'model' and 'user' must be text.", "model" if not isinstance(model, str) else "user")
    return ChatRequest(
        model=model,
        messages=_messages(document.get("messages")),
        temperature=_number(document, "temperature", 1.0, 0.0, 2.0),
        top_p=_number(document, "top_p", 1.0, 1e-6, 1.0),
        top_k=None if document.get("top_k") == -1 else _whole("top_k", document.get("top_k"), 1),
        max_tokens=_whole("max_tokens", limit, 1),
        seed=_whole("seed", document.get("seed"), 0),
        stream=_flag(document, "stream", False),
        user=user or None,
        tools=tools,
        calls_tools=check_choice(document.get("tool_choice"), tools),
        parallel=_flag(document, "parallel_tool_calls", True),
        include_usage=_flag(document.get("stream_options") or {}, "include_usage", False),
    )


def _refuse(document: dict[str, Any]) -> None:
    """Refuses what would change the answer and cannot be applied. Defaults pass: clients send them."""
    for name, value in document.items():
        if name in _HONOURED or name in _WITHOUT_EFFECT or value is None:
            continue
        if name not in _UNSUPPORTED:
            raise _bad(_unknown(name), name[:64])
        defaults = _UNSUPPORTED[name]
        if value in ([], {}) or any(_equal(value, default) for default in defaults):
            continue
        given = f" or give {json.dumps(defaults[0])}" if defaults and defaults[0] != "" else ""
        instead = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
        raise _bad(f"{name!r} is not supported: leave it out{given}{instead}. {_SUPPORTED}", name)
    options = document.get("stream_options") or {}
    if not isinstance(options, dict):
        raise _bad("'stream_options' must be an object.", "stream_options")
    for name, value in options.items():
        if name != "include_usage" and value not in (None, False):
            raise _bad(
                f"'stream_options.{name[:64]}' is not supported: use 'include_usage'.", "stream_options"
            )


_SUPPORTED = "Sampling is set by temperature, top_p, top_k, max_tokens and seed."


def _unknown(name: str) -> str:
    near = closest_name(name, (*_HONOURED, *_UNSUPPORTED))
    hint = f"did you mean {near!r}?" if near in _HONOURED else "leave it out."
    return f"{name[:64]!r} is not a parameter of this gateway: {hint} Parameters are {', '.join(_HONOURED)}."


def _equal(value: Any, default: Any) -> bool:
    """Returns whether they are equal in JSON, where true is not 1."""
    return value == default and isinstance(value, bool) == isinstance(default, bool)


def _messages(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not given or len(given) > MAX_MESSAGES:
        raise _bad(f"'messages' must be a list of 1 to {MAX_MESSAGES} messages.", "messages")
    messages = []
    for index, message in enumerate(given):
        where = f"messages[{index}]"
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role not in ROLES:
            raise _bad(f"{where} must have a role: system, user, assistant or tool.", where)
        if message.get("function_call") is not None:
            raise _bad(f"{where}.function_call is not supported: use 'tool_calls'.", f"{where}.function_call")
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
        raise _bad(f"{place} must be a list.", place)
    calls = []
    for call in given:
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if not isinstance(name, str) or not isinstance(arguments, str):
            raise _bad(f"{place} must hold functions with a name and arguments as JSON text.", place)
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
        is_unfit = _unfit(json.loads(text), MAX_DEPTH)
    except ValueError:
        return
    except RecursionError:
        is_unfit = True
    if is_unfit:
        raise _bad(
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
    raise _bad(f"{where}.content must be text or a list of text parts.", f"{where}.content")


def _flag(document: dict[str, Any], name: str, default: bool) -> bool:
    value = document.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _bad(f"{name!r} must be true or false.", name)
    return value


def _number(document: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = document.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _bad(f"{name!r} must be a number from {low:g} to {high:g}.", name)
    return float(value)


def _whole(name: str, value: Any, low: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**63:
        raise _bad(f"{name!r} must be a whole number of at least {low}.", name)
    return value


def unknown_model(name: str, served: Sequence[str]) -> HttpError:
    """Returns the error for a model that does not serve now."""
    return HttpError(
        404,
        f"Model {name[:64]!r} is not served: use {ROUTED!r}, which follows releases, or one of "
        f"{', '.join(dict.fromkeys(served))}.",
        type="not_found_error",
        param="model",
    )


def _bad(message: str, param: str) -> HttpError:
    return HttpError(400, message, param=param)


def completion(
    generation: Generation, said: ParsedAnswer, onward: dict[str, Any], created: int
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
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": generation.usage,
        "onward": onward,
    }


def check_tools(given: Any) -> list[dict[str, Any]]:
    """Checks ``tools`` of a request and returns it unchanged. Raises HttpError 400 that names the place."""
    if given is None:
        return []
    if not isinstance(given, list) or len(given) > MAX_TOOLS:
        raise _bad(f"'tools' must be a list of at most {MAX_TOOLS} tools.", "tools")
    names: set[str] = set()
    for index, tool in enumerate(given):
        where = f"tools[{index}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise _bad(f"{where} must have the type 'function'.", where)
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise _bad(f"{where}.function.name must be 1 to 64 letters, digits, '_' or '-'.", where)
        if name in names:
            raise _bad(f"{where} has the name {name!r} of another tool: give each its own.", where)
        names.add(name)
        if not isinstance(function.get("description") or "", str):
            raise _bad(f"{where}.function.description must be text.", where)
        parameters = function.get("parameters") or {}
        if not isinstance(parameters, dict) or _unfit(parameters, MAX_DEPTH):
            raise _bad(
                f"{where}.function.parameters must be a JSON Schema object of at most {MAX_DEPTH} levels.",
                where,
            )
        if _unfit(tool, TOOL_DEPTH):
            raise _bad(f"{where} must be JSON of at most {TOOL_DEPTH} levels.", where)
        if function.get("strict"):
            raise _bad(f"{where}.function.strict cannot be enforced by this engine: leave it out.", where)
    return given


def check_choice(given: Any, tools: Collection[Any]) -> bool:
    """Returns whether ``tool_choice`` allows calls. Raises HttpError 400 if it cannot be enforced."""
    if given is None or given == "auto":
        return bool(tools)
    if given == "none":
        return False
    raise _bad(
        "'tool_choice' must be 'auto' or 'none': this engine cannot force a call, so 'required' and a named "
        "tool are refused.",
        "tool_choice",
    )


def _unfit(given: Any, levels: int) -> bool:
    """Returns whether a trajectory cannot hold this part of a request: too deep, NaN, half a character."""
    try:
        decode_document(json.dumps(given).encode(), max_depth=levels)
    except (ContractError, ValueError, RecursionError):
        return True
    return False
