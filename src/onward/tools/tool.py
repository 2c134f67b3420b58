"""The form of one tool: its name, scope, arguments and description, and where its work is done."""

from __future__ import annotations

import importlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from onward.errors import ConfigError
from onward.tools.arguments import Arguments

if TYPE_CHECKING:
    from onward.tools.toolbox import Toolbox

Scope = Literal["read", "train", "release"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
DEFAULT_SCOPES: frozenset[Scope] = frozenset({"read"})
KEY_SCOPES: dict[Scope, str] = {"read": "read", "train": "train", "release": "deploy"}
"""Scope of a tool → the scope that an API key must have for it."""
Run = Callable[["Toolbox", Any], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class Tool:
    """One tool. ``description`` is all that a model knows when it chooses."""

    name: str
    scope: Scope
    arguments: type[Arguments]
    description: str
    place: str
    """``module:function`` below ``onward.tools``; it is imported at the first call."""
    seconds: float = 30.0
    """Time limit of a call."""
    changes: bool = False
    """True if a call changes something: clients ask their user before."""

    @property
    def summary(self) -> str:
        """The begin of the description, for tables."""
        return re.split(r"[.:;(]", self.description, maxsplit=1)[0].strip()

    async def run(self, box: Toolbox, arguments: Arguments) -> dict[str, Any]:
        """Does the work. Raises OnwardError with one sentence."""
        module, _, function = self.place.partition(":")
        work: Run = getattr(importlib.import_module(f"onward.tools.{module}"), function)
        return await work(box, arguments)


def parse_scopes(text: str) -> frozenset[Scope]:
    """Reads ``read,train``. Raises ConfigError for an unknown or missing scope."""
    names = {name.strip() for name in text.split(",") if name.strip()}
    if not names or names - set(SCOPES):
        raise ConfigError(f"--scope is {text[:80]!r}: expected one or more of {','.join(SCOPES)}.")
    return frozenset(scope for scope in SCOPES if scope in names)
