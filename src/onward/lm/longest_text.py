"""The longest answer that a JSON schema allows, as a number of tokens that none exceeds. Pure.

A token of text has at least one byte, so the longest text in bytes, with the end of the turn, bounds the
tokens. White space is that of Python's ``json.dumps``.
"""

from __future__ import annotations

import json
from typing import Any

_CHARACTER = 12
"""Most bytes of one character of a JSON string: two escapes of six bytes each."""
_PLAIN = frozenset(("title", "description", "default", "examples", "$schema", "$id", "$comment"))


def most_tokens(source: str) -> int | None:
    """Returns a number of tokens that no answer of this schema exceeds, the end of the turn included; None if
    the schema is unbounded, or has keywords whose bound is not known here."""
    schema = json.loads(source)
    found = _bytes(schema, schema, ())
    return None if found is None else found + 1


def _bytes(schema: Any, whole: Any, within: tuple[str, ...]) -> int | None:
    """Returns the most bytes of a value; ``within`` are the references that are being followed."""
    if not isinstance(schema, dict):
        return 0 if schema is False else None
    if "const" in schema:
        return _written(schema["const"])
    if isinstance(schema.get("enum"), list):
        return max(map(_written, schema["enum"]), default=0)
    if isinstance(schema.get("$ref"), str):
        target = _referred(schema["$ref"], whole)
        return None if schema["$ref"] in within else _bytes(target, whole, (*within, schema["$ref"]))
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list):
            return _most([_bytes(one, whole, within) for one in schema[name]])
    types = schema.get("type")
    if isinstance(types, list):
        return _most([_typed(one, schema, whole, within) for one in types])
    return _typed(types, schema, whole, within)


def _typed(kind: Any, schema: dict[str, Any], whole: Any, within: tuple[str, ...]) -> int | None:
    if kind == "null":
        return 4
    if kind == "boolean":
        return 5
    if kind == "string":
        most = schema.get("maxLength")
        return 2 + _CHARACTER * most if isinstance(most, int) else None
    if (
        kind == "integer"
        and isinstance(schema.get("minimum"), int)
        and isinstance(schema.get("maximum"), int)
    ):
        return max(len(str(schema["minimum"])), len(str(schema["maximum"])), 2)  # 2: -0
    if kind == "array":
        return _array(schema, whole, within)
    if kind == "object":
        return _object(schema, whole, within)
    return None


def _array(schema: dict[str, Any], whole: Any, within: tuple[str, ...]) -> int | None:
    first = schema.get("prefixItems", [])
    sizes = [_bytes(one, whole, within) for one in first]
    most = schema.get("maxItems")
    if schema.get("items") is False or most == len(first):
        more = 0
    elif isinstance(most, int):
        sizes.append(_bytes(schema.get("items"), whole, within))
        more = max(0, most - len(first) - 1)
    else:
        return None
    if None in sizes:
        return None
    known = [size for size in sizes if size is not None]
    total = sum(known) + more * (known[-1] if known else 0)
    return 2 + total + 2 * max(0, len(known) + more - 1)


def _object(schema: dict[str, Any], whole: Any, within: tuple[str, ...]) -> int | None:
    named = schema.get("properties", {})
    if schema.get("additionalProperties") is not False or "patternProperties" in schema:
        return None
    total = 2 + 2 * max(0, len(named) - 1)
    for name, one in named.items():
        size = _bytes(one, whole, within)
        if size is None:
            return None
        total += _written(name) + 2 + size
    return total


def _written(value: Any) -> int:
    """Returns the most bytes of a constant, whichever of its characters are escaped."""
    return len(json.dumps(value).encode())


def _referred(reference: str, whole: Any) -> Any:
    found = whole
    for part in reference.removeprefix("#").split("/")[1:]:
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _most(sizes: list[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return max(known, default=0) if len(known) == len(sizes) else None
