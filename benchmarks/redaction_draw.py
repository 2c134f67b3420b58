"""Strings that match a regular expression, drawn with a seed: the same seed gives the same strings.

The expression is parsed once by Python's own parser and walked. Look-around is ignored, so the caller must
check the drawn string. Expressions of Rust and Go are read as Python's.
"""

from __future__ import annotations

import random
import re
import string
from re import _constants as code  # pyright: ignore[reportAttributeAccessIssue]
from re import _parser as parser  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any

_OPEN = (24, 40)
"""Length range for an open repeat of letters, since real tokens are long. Other open repeats are short."""
_PRINTABLE = string.ascii_letters + string.digits + "-_.:/+=!#%&*@ "
_CATEGORIES = {
    code.CATEGORY_DIGIT: string.digits,
    code.CATEGORY_WORD: string.ascii_letters + string.digits + "_",
    code.CATEGORY_SPACE: " ",
    code.CATEGORY_NOT_DIGIT: string.ascii_letters + "-_",
    code.CATEGORY_NOT_WORD: " -.:",
    code.CATEGORY_NOT_SPACE: string.ascii_letters + string.digits + "-_.",
}


class Drawer:
    """Draws strings: ``draw()`` returns the next one, or None if the expression cannot be parsed."""

    def __init__(self, pattern: str, seed: str) -> None:
        self._rng = random.Random(seed)
        self._groups: dict[int, str] = {}
        try:
            self._tree: Any = parser.parse(as_python(pattern))
        except (re.error, OverflowError, RecursionError):
            self._tree = None

    def draw(self) -> str | None:
        if self._tree is None:
            return None
        self._groups.clear()
        return self._row(self._tree)

    def _row(self, row: Any) -> str:
        return "".join(self._one(operation, given) for operation, given in row)

    def _one(self, operation: Any, given: Any) -> str:
        if operation is code.LITERAL:
            return chr(given)
        if operation is code.NOT_LITERAL:
            return self._rng.choice([c for c in _PRINTABLE if ord(c) != given])
        if operation is code.ANY:
            return self._rng.choice(_PRINTABLE)
        if operation is code.IN:
            return self._rng.choice(_members(given))
        if operation is code.BRANCH:
            return self._row(self._rng.choice(given[1]))
        if operation in (code.MAX_REPEAT, code.MIN_REPEAT, code.POSSESSIVE_REPEAT):
            return "".join(self._row(given[2]) for _ in range(self._times(*given)))
        if operation is code.SUBPATTERN:
            text = self._row(given[3])
            self._groups[given[0]] = text
            return text
        if operation is code.ATOMIC_GROUP:
            return self._row(given)
        if operation is code.GROUPREF:
            return self._groups.get(given, "")
        return ""  # anchors and look-around match no text

    def _times(self, least: int, most: Any, row: Any) -> int:
        if most is not code.MAXREPEAT:
            return self._rng.randint(least, most)
        letters = len(row) == 1 and row[0][0] is code.IN and set("abc234") & set(_members(row[0][1]))
        return max(least, self._rng.randint(*_OPEN)) if letters else least + self._rng.randint(0, 1)


def _members(given: Any) -> list[str]:
    """Returns the characters of a set, in order; for a negated set only printable ones."""
    negated, found = False, []
    for operation, value in given:
        if operation is code.NEGATE:
            negated = True
        elif operation is code.LITERAL:
            found.append(chr(value))
        elif operation is code.RANGE:
            found += [chr(c) for c in range(value[0], min(value[1], 0x17F) + 1)]
        elif operation is code.CATEGORY:
            found += _CATEGORIES[value]
    if negated:
        return [c for c in _PRINTABLE if c not in found] or ["x"]
    return [c for c in dict.fromkeys(found) if c.isprintable()] or found


def as_python(pattern: str) -> str:
    sets = {"alnum": "A-Za-z0-9", "alpha": "A-Za-z", "digit": "0-9", "xdigit": "0-9a-f"}
    for name, members in sets.items():
        pattern = pattern.replace(f"[:{name}:]", members)
    pattern = pattern.replace(r"\z", r"\Z").replace("[:punct:]", "!#-/").replace("(?<name", "(?P<name")
    flags = {flag for found in re.findall(r"\(\?([imsx]+)\)", pattern) for flag in found} - {"i"}
    return (f"(?{''.join(sorted(flags))})" if flags else "") + re.sub(r"\(\?[imsx]+\)", "", pattern)
