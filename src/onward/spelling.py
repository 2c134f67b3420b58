"""Suggestion for a mistyped name, wherever a name from a user is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST = 64
"""Characters of a given name that are compared: the time grows with them."""
_SIMILAR = 0.7
"""Similarity from which a name is suggested: at 0.6 ``nope`` would be taken for ``notes``."""


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name most similar to ``name``, or one whose words begin with its letters (``lr``:
    ``learning_rate``); None if there is none."""
    name, names = name[:_LONGEST], list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=_SIMILAR)
    if near:
        return near[0]
    return next((one for one in names if name == "".join(word[:1] for word in one.split("_"))), None)
