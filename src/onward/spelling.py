"""What a mistyped name was meant to be: used wherever a name that a person gave is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like ``name``, or whose words begin with its letters (``lr``:
    ``learning_rate``); None where none is near."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return near[0]
    return next((one for one in names if name == "".join(word[:1] for word in one.split("_"))), None)
