"""Checks the tools of a chat request and their schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from onward.capture.conversations.answers import MAX_DEPTH
from onward.contracts import decode_document
from onward.errors import ContractError
from onward.http.app import HttpError

MAX_TOOLS = 128
TOOL_DEPTH = MAX_DEPTH + 2
"""Maximum levels of a whole tool, around its schema: all of it is recorded, whatever its keys are."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


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
        if not isinstance(parameters, dict) or _too_deep(parameters, MAX_DEPTH):
            raise _bad(
                f"{where}.function.parameters must be a JSON Schema object of at most {MAX_DEPTH} levels.",
                where,
            )
        if _too_deep(tool, TOOL_DEPTH):
            raise _bad(f"{where} must be JSON of at most {TOOL_DEPTH} levels.", where)
        if function.get("strict"):
            raise _bad(
                f"{where}.function.strict cannot be enforced by this engine: leave it out.",
                where,
            )
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


def _too_deep(given: dict[str, Any], levels: int) -> bool:
    try:
        decode_document(json.dumps(given).encode(), max_depth=levels)
    except (ContractError, ValueError, RecursionError):
        return True
    return False


def _bad(message: str, param: str) -> HttpError:
    return HttpError(400, message, param=param)
