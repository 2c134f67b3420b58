"""The form that a request demands of an answer, as a grammar: JSON of a schema, calls of tools, or both.

A call is written as the model writes calls anyway: as its template teaches, or in the words of
``tool_words``. So a forced call is read by the same code as a free one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from onward.lm.constrained import WRITING, Grammar, GrammarError, closed, schema_source

CallStyle = Literal["words", "blocks", "arguments", "parameters"]
"""Ways of writing calls: ``{"tool_name", "tool_args"}``; ``<tool_call>`` blocks around ``{"name",
"arguments"}``; that object alone; or the same with ``parameters``."""
MOST_CALLS = 16
"""Calls in one forced answer."""
_KEYS = {"words": ("tool_name", "tool_args"), "parameters": ("name", "parameters")}
_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_TEXT = r"/[^{\[\s](?s:.)*/ & ~/(?s:.)*<tool_call>(?s:.)*/"
"""Text that no reader takes for a call."""


@dataclass(frozen=True)
class AnswerForm:
    """The demanded form. ``tools`` may be called, ``must_call``: at least one of them is. ``content`` is the
    schema of an answer that calls nothing; None is any text."""

    tools: Sequence[dict[str, Any]] = field(default_factory=list)
    must_call: bool = False
    parallel: bool = True
    content: dict[str, Any] | None = None
    kind: Literal["json_object", "json_schema"] = "json_schema"

    @property
    def constrains(self) -> bool:
        """False if any text has this form."""
        return (
            self.must_call
            or self.content is not None
            or any(tool["function"].get("strict") for tool in self.tools)
        )

    def grammar(
        self, style: CallStyle, compiled: Callable[[Grammar], object], *, json_only: bool = False
    ) -> Grammar:
        """Returns the grammar of this form. ``compiled`` raises GrammarError for one that cannot be enforced.
        ``json_only``: the sampler knows JSON schemas alone. Raises GrammarError."""
        if self.content is not None:
            content = Grammar(self.kind, schema_source(self.content, "response_format", "response_format"))
            self._require(content, compiled, "The schema of 'response_format'", "response_format")
            if not self.tools:
                return content
        arguments = {tool["function"]["name"]: self._arguments(tool, compiled) for tool in self.tools}
        if json_only:
            return self._as_json(arguments)
        return Grammar("tool_calls", self._lark(style, arguments), "lark")

    def _arguments(self, tool: dict[str, Any], compiled: Callable[[Grammar], object]) -> dict[str, Any]:
        """Returns the schema of a tool's arguments. One that is not strict, and that cannot be enforced, is
        any object, as a schema that is not strict is a wish."""
        function = tool["function"]
        schema = {**(function.get("parameters") or {}), **_ANY_OBJECT}
        where = f"The schema of the tool {function['name']!r}"
        try:
            grammar = Grammar("json_schema", schema_source(schema, where, "tools"))
            self._require(grammar, compiled, where, "tools")
        except GrammarError:
            if function.get("strict"):
                raise
            return _ANY_OBJECT
        return closed(schema)

    @staticmethod
    def _require(grammar: Grammar, compiled: Callable[[Grammar], object], where: str, part: str) -> None:
        try:
            compiled(grammar)
        except GrammarError as error:
            problem = f"{where} cannot be enforced: {error}. Change that part of it"
            raise GrammarError(problem, part) from None

    def _lark(self, style: CallStyle, arguments: dict[str, dict[str, Any]]) -> str:
        name_key, value_key = _KEYS.get(style, ("name", "arguments"))
        rules: list[str] = []
        for number, (name, schema) in enumerate(arguments.items()):
            head = f'{{"{name_key}": {json.dumps(name)}, "{value_key}": '
            rules.append(f"call{number}: {json.dumps(head)} arguments{number} {json.dumps('}')}")
            rules.append(f"arguments{number}: %json {_written({'x-guidance': WRITING, **schema})}")
        rules.append("call: " + " | ".join(f"call{number}" for number in range(len(arguments))))
        if style == "blocks":
            rules.append('block: "<tool_call>\\n" call "\\n</tool_call>"')
            more = f' ("\\n" block){{0,{MOST_CALLS - 1}}}' if self.parallel else ""
            rules.append(f"calls: block{more}")
        else:
            several = f' | "[" call (", " call){{0,{MOST_CALLS - 1}}} "]"' if self.parallel else ""
            rules.append(f"calls: call{several}")
        if self.must_call:
            return "\n".join(["start: calls", *rules])
        if self.content is not None:
            rules.append(f"content: %json {_written({'x-guidance': WRITING, **closed(self.content)})}")
            return "\n".join(["start: content | calls", *rules])
        rules.append(f"TEXT: {_TEXT}")
        return "\n".join(["start: TEXT | calls", *rules])

    def _as_json(self, arguments: dict[str, dict[str, Any]]) -> Grammar:
        """Returns calls as one JSON schema, for a sampler that knows no other grammar."""
        if not self.must_call and self.content is None:
            raise GrammarError(
                "A strict tool that may be called or not cannot be enforced on this engine: force the call "
                "with 'tool_choice', or leave 'strict' out",
                "tools",
            )
        definitions = {f"tool{number}": _moved(schema, f"#/$defs/tool{number}")
                       for number, schema in enumerate(arguments.values())}  # fmt: skip
        calls: list[dict[str, Any]] = [
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/tool{number}"}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for number, name in enumerate(arguments)
        ]
        options = calls
        if self.parallel:
            options = [*calls, {"type": "array", "items": {"anyOf": calls}, "minItems": 1,
                                "maxItems": MOST_CALLS}]  # fmt: skip
        if self.content is not None and not self.must_call:
            definitions["content"] = _moved(self.content, "#/$defs/content")
            options = [{"$ref": "#/$defs/content"}, *options]
        schema = {"anyOf": options, "$defs": definitions}
        return Grammar("tool_calls", json.dumps(closed(schema), ensure_ascii=False))


def _written(schema: Any) -> str:
    """Returns a schema as JSON with its characters as they are: redaction reads the source of a grammar."""
    return json.dumps(schema, ensure_ascii=False)


def _moved(schema: Any, place: str) -> Any:
    """Returns a schema whose references to its own root point to ``place``."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {name: _moved(value, place) for name, value in schema.items()}
    target = moved.get("$ref")
    if isinstance(target, str) and target.startswith("#"):
        moved["$ref"] = place + target[1:]
    return moved
