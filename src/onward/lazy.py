"""Packages whose names are loaded on first access, since agents embed Onward and load only what they use.

A package lists its public names by module; type checkers see ordinary imports under ``TYPE_CHECKING``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attributes(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns the ``__getattr__`` of ``package``; ``names`` maps a full module name to its public names,
    separated by spaces."""
    where = {name: module for module, listed in names.items() for name in listed.split()}

    def load(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(where[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
