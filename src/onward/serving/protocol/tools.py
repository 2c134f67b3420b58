"""Tools of a request, and what may be called: ``tools``, ``tool_choice``, ``parallel_tool_calls``. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onward.capture.conversations.answers import MAX_DEPTH
from onward.contracts import decode_document
from onward.errors import ContractError
from onward.serving.protocol.parameters import bad

MAX_TOOLS = 128
TOOL_DEPTH = MAX_DEPTH + 2
"""Maximum levels of a whole tool, around its schema: all of it is recorded, whatever its keys are."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class ToolChoice:
    """Tools that the answer may call, and whether it must."""

    names: frozenset[str]
    """Empty: the answer is text, even if it looks like a call."""
    must_call: bool = False
    is_single: bool = False
    """True if the answer is one call of a named tool."""


def check_tools(given: Any) -> list[dict[str, Any]]:
    """Checks ``tools`` of a request and returns it unchanged. Raises HttpError 400 that names the place."""
    if given is None:
        return []
    if not isinstance(given, list) or len(given) > MAX_TOOLS:
        raise bad(f"'tools' must be a list of at most {MAX_TOOLS} tools.", "tools")
    names: set[str] = set()
    for index, tool in enumerate(given):
        where = f"tools[{index}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise bad(f"{where} must have the type 'function'; other tools are refused.", where)
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise bad(f"{where}.function.name must be 1 to 64 letters, digits, '_' or '-'.", where)
        if name in names:
            raise bad(f"{where} has the name {name!r} of another tool: give each its own.", where)
        names.add(name)
        if not isinstance(function.get("description") or "", str):
            raise bad(f"{where}.function.description must be text.", where)
        parameters = function.get("parameters") or {}
        if not isinstance(parameters, dict) or is_unfit(parameters, MAX_DEPTH):
            raise bad(
                f"{where}.function.parameters must be a JSON Schema object of at most {MAX_DEPTH} levels.",
                where,
            )
        if is_unfit(tool, TOOL_DEPTH):
            raise bad(f"{where} must be JSON of at most {TOOL_DEPTH} levels.", where)
        if not isinstance(function.get("strict") or False, bool):
            raise bad(f"{where}.function.strict must be true or false.", where)
        if function.get("strict") and parameters.get("type", "object") != "object":
            raise bad(f"{where}.function.parameters must have the type 'object' with 'strict'.", where)
    return given


def check_choice(given: Any, tools: Sequence[dict[str, Any]]) -> ToolChoice:
    """Reads ``tool_choice``. Raises HttpError 400 for a choice that the tools do not allow."""
    names = frozenset(tool["function"]["name"] for tool in tools)
    if given is None or given == "auto":
        return ToolChoice(names)
    if given == "none":
        return ToolChoice(frozenset())
    if given == "required":
        return ToolChoice(_some(names, names), must_call=True)
    given = given if isinstance(given, dict) else {}
    kind = given.get("type")
    if kind == "function":
        name = given.get("name")  # the form of the responses API
        if isinstance(given.get("function"), dict):
            name = given["function"].get("name")
        return ToolChoice(_some([name], names), must_call=True, is_single=True)
    if kind == "allowed_tools":
        allowed = given.get("allowed_tools") if isinstance(given.get("allowed_tools"), dict) else given
        listed = allowed.get("tools")
        chosen = [check_choice(tool, tools) for tool in listed] if isinstance(listed, list) else []
        if allowed.get("mode") not in ("auto", "required") or not all(one.is_single for one in chosen):
            raise bad("'tool_choice.allowed_tools' must have a mode, auto or required, and functions.",
                      "tool_choice")  # fmt: skip
        allowed_names = _some([name for one in chosen for name in one.names], names)
        return ToolChoice(allowed_names, must_call=allowed["mode"] == "required")
    raise bad(
        "'tool_choice' must be 'auto', 'none', 'required', a named function or 'allowed_tools'.",
        "tool_choice",
    )


def _some(chosen: Any, offered: frozenset[str]) -> frozenset[str]:
    """Returns the chosen names, which must be offered, and at least one."""
    missing = [name for name in chosen if not isinstance(name, str) or name not in offered]
    if missing or not chosen:
        named = f"the tool {str(missing[0])[:64]!r}, which is not among" if missing else "a call without"
        raise bad(f"'tool_choice' forces {named} 'tools': offer the tool.", "tool_choice")
    return frozenset(chosen)


def is_unfit(given: Any, levels: int) -> bool:
    """Returns whether a trajectory cannot hold this part of a request: too deep, NaN, half a character."""
    try:
        decode_document(json.dumps(given).encode(), max_depth=levels)
    except (ContractError, ValueError, RecursionError):
        return True
    return False
