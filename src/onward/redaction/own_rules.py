"""Rules and an allow list of the operator, from a TOML file.

    [[rule]]
    kind = "EMPLOYEE_ID"
    pattern = 'EMP-([0-9]{6})'

    [[allow]]
    value = "ada@corp-mail.de"

    [[allow]]
    pattern = 'test-[a-z]{1,20}'
    kinds = ["PASSWORD"]

A rule replaces group 1 of its pattern, or the match if there is no group. A value that is found and is on the
allow list stays, unless it is a known secret. Patterns are RE2: linear time for every text.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import re2

from onward.errors import ConfigError
from onward.redaction import placeholders
from onward.redaction.expressions import compiled
from onward.redaction.rule import Hit

_KIND = compiled(rb"[A-Z][A-Z0-9_]{0,31}")
_LONGEST_PATTERN = 2000
_LAYER = 2


@dataclass(frozen=True)
class OwnRules:
    """Rules of the operator. ``digest`` identifies them: it is part of the policy version."""

    rules: tuple[tuple[str, Any], ...] = ()
    """Pairs of (kind, compiled pattern)."""
    values: frozenset[bytes] = frozenset()
    """Values that stay, of any kind."""
    patterns: tuple[tuple[frozenset[str], Any], ...] = ()
    """Pairs of (kinds, or none for all; compiled pattern): a whole value that matches stays."""
    digest: str = ""

    def __call__(self, buffer: bytes) -> list[Hit]:
        """Returns the matches of the rules, except where they overlap a placeholder."""
        return list(self._matches(buffer))

    def _matches(self, buffer: bytes) -> Iterator[Hit]:
        kept = placeholders.spans(buffer)
        for kind, expression in self.rules:
            group = 1 if expression.groups else 0
            for first, last in _texts(buffer, expression):
                for match in expression.finditer(buffer, first, last):
                    start, end = match.span(group)
                    if start < end and not placeholders.overlap(kept, start, end):
                        yield Hit(start, end, kind, _LAYER)

    def allows(self, value: bytes, kind: str) -> bool:
        """Returns whether a found value stays."""
        return value in self.values or any(
            (not kinds or kind in kinds) and expression.fullmatch(value) is not None
            for kinds, expression in self.patterns
        )

    @property
    def has_allow_list(self) -> bool:
        return bool(self.values or self.patterns)


def read_rules(path: Path) -> OwnRules:
    """Reads a file of rules. Raises ConfigError that names the file and the line of what is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text: give redaction rules as TOML.") from None
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from None
    unknown = sorted(set(content) - {"rule", "allow"})
    if unknown:
        raise ConfigError(f"{path} has {unknown[0]!r}: expected only [[rule]] and [[allow]] tables.")
    rules = [_rule(entry, where) for entry, where in _entries(content, "rule", text, path)]
    allowed = [_allow(entry, where) for entry, where in _entries(content, "allow", text, path)]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    return OwnRules(
        tuple(rules),
        frozenset(value for value, _ in allowed if value is not None),
        tuple(pattern for _, pattern in allowed if pattern is not None),
        digest if rules or allowed else "",
    )


def _entries(
    content: dict[str, Any], name: str, text: str, path: Path
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields (table, "FILE, line N") for each ``[[name]]`` table."""
    tables = content.get(name, [])
    if not isinstance(tables, list):
        raise ConfigError(f"{path} has one [{name}]: write [[{name}]], with two brackets, for each.")
    heads = [
        i for i, line in enumerate(text.splitlines(), 1) if line.replace(" ", "").startswith(f"[[{name}]]")
    ]
    for i, entry in enumerate(tables):
        where = f"{path}, line {heads[i]}" if len(heads) == len(tables) else f"{path}, [[{name}]] {i + 1}"
        if not isinstance(entry, dict):
            raise ConfigError(f"{where}: expected a table with the members of a {name}.")
        yield entry, where


def _rule(entry: dict[str, Any], where: str) -> tuple[str, Any]:
    _known(entry, ("kind", "pattern"), where)
    return _kind(entry.get("kind"), where), _pattern(entry.get("pattern"), where)


def _allow(entry: dict[str, Any], where: str) -> tuple[bytes | None, tuple[frozenset[str], Any] | None]:
    _known(entry, ("value", "pattern", "kinds"), where)
    if ("value" in entry) == ("pattern" in entry):
        raise ConfigError(f"{where}: give either 'value' or 'pattern' for what stays.")
    kinds = entry.get("kinds", [])
    if not isinstance(kinds, list):
        raise ConfigError(f"{where}: 'kinds' is {kinds!r}: expected a list such as [\"PASSWORD\"].")
    if "pattern" in entry:
        return None, (frozenset(_kind(kind, where) for kind in kinds), _pattern(entry["pattern"], where))
    value = entry["value"]
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}: 'value' must be text that is not empty.")
    if kinds:
        raise ConfigError(f"{where}: 'kinds' goes with 'pattern'; a 'value' stays whatever its kind.")
    return value.encode("utf-8", "surrogatepass"), None


def _known(entry: dict[str, Any], names: tuple[str, ...], where: str) -> None:
    unknown = sorted(set(entry) - set(names))
    if unknown:
        raise ConfigError(f"{where}: {unknown[0]!r} is unknown; expected {', '.join(names)}.")


def _kind(kind: Any, where: str) -> str:
    if not isinstance(kind, str) or _KIND.fullmatch(kind.encode("utf-8", "replace")) is None:
        raise ConfigError(
            f"{where}: 'kind' is {kind!r}: expected capitals, digits and underscores, such as EMPLOYEE_ID."
        )
    return kind


def _pattern(pattern: Any, where: str) -> Any:
    if not isinstance(pattern, str) or not pattern:
        raise ConfigError(f"{where}: 'pattern' is missing; give an expression in the syntax of RE2.")
    if len(pattern) > _LONGEST_PATTERN:
        raise ConfigError(
            f"{where}: 'pattern' has {len(pattern)} characters; give at most {_LONGEST_PATTERN}."
        )
    try:
        expression = compiled(pattern.encode())
    except re2.error as error:
        raise ConfigError(f"{where}: 'pattern' is not an expression of RE2: {_text(error)}.") from None
    if expression.search(b"") is not None:
        raise ConfigError(
            f"{where}: 'pattern' matches the empty text; let it require at least one character."
        )
    return expression


def _text(error: Exception) -> str:
    part = error.args[0] if error.args else ""
    return part.decode("utf-8", "replace") if isinstance(part, bytes) else str(part)


def _texts(buffer: bytes, expression: Any) -> Iterator[tuple[int, int]]:
    """Yields the span of each text of ``buffer``, or the whole buffer if no match crosses two texts."""
    if all(b"\x00" not in match.group() for match in expression.finditer(buffer)):
        yield 0, len(buffer)
        return
    first = 0
    for part in buffer.split(b"\x00"):
        yield first, first + len(part)
        first += len(part) + 1


NO_RULES = OwnRules()
