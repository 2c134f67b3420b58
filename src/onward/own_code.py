"""The user's own code, which settings and commands name as ``module:name``.

Invariant: the current folder is searched last, so that no file in it hides a module of Python or of Onward.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from onward.errors import ConfigError

SHOWN = 200
"""Characters of an exception's text that are shown."""


def load(place: str) -> Any:
    """Returns the object at ``package.module:name``; the module may be a file of the current folder.

    Raises ConfigError with a sentence that begins with ``place`` or its module, for a caller to put its own
    words before.
    """
    module, _, name = place.partition(":")
    if not module or not name:
        raise ConfigError(f"{place!r} names no object: give module:name.")
    if "/" in module or "\\" in module or module.endswith(".py"):
        raise ConfigError(
            f"{module!r} is a path: start in its folder and give "
            f"{Path(module).name.removesuffix('.py')}:{name}."
        )
    here = search_here()
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(_broken(module, error)) from error
        raise ConfigError(
            f"{place!r} needs the module {error.name!r}, which is neither in {here} nor installed: start in "
            f"the folder of {module.replace('.', '/')}.py, or name that folder in PYTHONPATH."
        ) from error
    except (Exception, SystemExit) as error:  # importing runs the user's code, which may be a script
        raise ConfigError(_broken(module, error)) from error
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        file = getattr(sys.modules[module], "__file__", None) or "built in"
        raise ConfigError(f"{module!r} ({file}) has no {name!r}: give a name that it defines.") from error
    return found


def search_here() -> str:
    """Adds the current folder as the last place where modules are searched, and returns it."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    return here


def sentence(error: BaseException, *, text: bool = True) -> str:
    """Returns kind, text and innermost line of an error in the user's code, without a full stop. The text may
    repeat what the code was given: leave it out where that may hold secrets."""
    words = " ".join(str(error).split())[:SHOWN].rstrip(".") if text else ""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{': ' if words else ''}{words}{where}"


def _broken(module: str, error: BaseException) -> str:
    return f"{module!r} cannot be imported, {sentence(error)}: correct it."
