"""Onward: a closed reinforcement-learning loop for agents.

Importing this package loads nothing heavy; agents embed it. ``from onward import Recorder`` is what they
need (see ``onward.capture.recorder``); it is loaded when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.capture.recorder import Recorder

__version__ = "0.1.0"
__all__ = ["Recorder", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Recorder":
        from onward.capture.recorder import Recorder

        return Recorder
    raise AttributeError(f"module 'onward' has no attribute {name!r}")
