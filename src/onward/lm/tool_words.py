"""Tools and their calls written as plain text, for a model whose chat template does not support tools.

The engine and the training data use the same words, so training matches inference. No torch and no tokenizer
is loaded here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]
TOOL_RULES = (
    'You can call tools. To call one, answer with one JSON object and nothing else: {"tool_name": name, '
    '"tool_args": {arguments}}. To call several at once, answer with a list of such objects. Tools:'
)
"""Instruction on calling a tool, for a model without a tool template."""


def in_words(messages: Sequence[Message], tools: Sequence[Message]) -> list[Message]:
    """Rewrites a conversation for a template without tools: schemas in the system text, calls as JSON."""
    plain = [{"role": message["role"], "content": _content(message)} for message in messages]
    if not tools:
        return plain
    lines = [TOOL_RULES]
    for tool in tools:
        function = tool["function"]
        schema = json.dumps(function.get("parameters") or {}, ensure_ascii=False)
        lines.append(f"- {function['name']}: {function.get('description') or ''} Arguments: {schema}")
    rules = "\n".join(lines)
    if plain and plain[0]["role"] == "system":
        return [{"role": "system", "content": f"{plain[0]['content']}\n\n{rules}"}, *plain[1:]]
    return [{"role": "system", "content": rules}, *plain]


def alternating(messages: Sequence[Message]) -> list[Message]:
    """Rewrites a conversation for a template that knows only a user and an assistant who take turns.

    The system's text and the results of tools become text of the user; neighbours become one message.
    """
    result: list[Message] = []
    for message in messages:
        one = {**message, "role": "assistant" if message["role"] == "assistant" else "user"}
        if result and result[-1]["role"] == one["role"] == "user":
            both = (result[-1].get("content") or "", one.get("content") or "")
            result[-1] = {**result[-1], "content": "\n\n".join(both)}
        else:
            result.append(one)
    return result


def _content(message: Message) -> str:
    calls = message.get("tool_calls")
    if not calls:
        return str(message.get("content") or "")
    functions = [call["function"] for call in calls]
    items = [{"tool_name": one["name"], "tool_args": arguments_of(one)} for one in functions]
    written = json.dumps(items[0] if len(items) == 1 else items, ensure_ascii=False)
    return f"{message['content']}\n{written}" if message.get("content") else written


def arguments_of(function: Mapping[str, Any]) -> Any:
    """Returns the arguments of a call as an object, also if they are JSON text, as in OpenAI's format."""
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def with_objects(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages with call arguments as objects, as chat templates of open models expect."""
    return [
        {**message, "tool_calls": [_with_object(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    return {**call, "function": {**call["function"], "arguments": arguments_of(call["function"])}}
