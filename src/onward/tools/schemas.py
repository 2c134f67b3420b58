"""The tools as other systems describe them: MCP tools, and OpenAI functions under strict mode. Pure.

Strict mode wants closed objects with every property required. So an optional argument may be null, and a
free document is JSON text; the tools take both.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from onward.tools.catalogue import TOOLS
from onward.tools.tool import DEFAULT_SCOPES, Scope, Tool

_NOT_STRICT = frozenset({"default", "title", "maxLength", "minLength"})
"""Keywords that strict mode does not know, or that say nothing to a model."""


def mcp_tools(scopes: Collection[Scope] = DEFAULT_SCOPES) -> list[dict[str, Any]]:
    """Returns the tools as ``tools/list`` of the Model Context Protocol shows them."""
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "inputSchema": input_schema(tool),
            "annotations": hints(tool),
        }
        for tool in _within(scopes)
    ]


def openai_tools(scopes: Collection[Scope] = DEFAULT_SCOPES) -> list[dict[str, Any]]:
    """Returns the tools as ``tools`` of a chat completion takes them, valid under strict mode."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": strict(input_schema(tool)),
                "strict": True,
            },
        }
        for tool in _within(scopes)
    ]


def input_schema(tool: Tool) -> dict[str, Any]:
    """Returns the JSON Schema of a tool's arguments."""
    schema = _without(tool.arguments.model_json_schema(by_alias=True), frozenset({"title"}))
    schema.pop("description", None)
    return {**schema, "properties": schema.get("properties", {})}


def hints(tool: Tool) -> dict[str, bool]:
    """Returns what a client may show its user before a call."""
    return {
        "readOnlyHint": not tool.changes,
        "destructiveHint": tool.scope == "release" or tool.name == "cancel_job",
        "openWorldHint": False,
    }


def strict(schema: Any) -> Any:
    """Returns a schema that strict mode accepts, for the same arguments."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if isinstance(kind, list) and "string" in kind and "properties" not in schema:
        about = schema.get("description", "")
        text = {"type": "string", "description": f"{about} As JSON text.".strip()}
        return text
    shown = {
        name: {key: strict(value) for key, value in part.items()} if name == "properties" else strict(part)
        for name, part in schema.items()
        if name not in _NOT_STRICT
    }
    if kind == "object":
        names = list(shown.get("properties", {}))
        needed = set(schema.get("required", ()))
        shown["properties"] = {
            name: part if name in needed else _nullable(part) for name, part in shown["properties"].items()
        }
        shown |= {"required": names, "additionalProperties": False}
    return shown


def _nullable(part: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in part:
        kinds = [one for one in part["anyOf"] if one != {"type": "null"}]
        return {**part, "anyOf": [*kinds, {"type": "null"}]}
    if "enum" in part:
        return {**part, "type": ["string", "null"], "enum": [*part["enum"], None]}
    return {**part, "type": [part["type"], "null"]}


def _within(scopes: Collection[Scope]) -> list[Tool]:
    return [tool for tool in TOOLS.values() if tool.scope in scopes]


def _without(schema: Any, names: Collection[str]) -> Any:
    """Returns a schema without some keywords; the properties of an object are no keywords."""
    if isinstance(schema, list):
        return [_without(one, names) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: {key: _without(value, names) for key, value in part.items()}
        if name == "properties"
        else _without(part, names)
        for name, part in schema.items()
        if name not in names or not isinstance(part, str)
    }
