"""Named points at which a test kills the process, to prove that a restart loses and duplicates nothing.

A point is between two commits. It costs one comparison in production; the environment is read once.
"""

from __future__ import annotations

import os

VARIABLE = "ONWARD_CRASHPOINT"
EXIT_CODE = 137
"""Code that a shell shows for SIGKILL."""

_named = os.environ.get(VARIABLE, "")


def crashpoint(name: str) -> None:
    """Ends the process here, without any clean-up, if ``ONWARD_CRASHPOINT`` is ``name``."""
    if _named and _named == name:
        os._exit(EXIT_CODE)
