"""Onward: a closed reinforcement-learning loop for agents.

Importing this package loads nothing heavy, because agents embed it. They use ``from onward import Recorder``
(see ``onward.capture.recorder``); the recorder is loaded on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.extras import install_hint
from onward.lazy import attributes

if TYPE_CHECKING:
    from onward.capture.clients.langchain import langchain_handler
    from onward.capture.clients.openai import wrap_openai
    from onward.capture.recorder import Recorder

__version__ = "0.1.0"
__all__ = ["Recorder", "__version__", "langchain_handler", "wrap_openai"]
__getattr__ = attributes(
    __name__,
    {
        "onward.capture.clients.langchain": "langchain_handler",
        "onward.capture.clients.openai": "wrap_openai",
        "onward.capture.recorder": "Recorder",
    },
)
install_hint()


def __dir__() -> list[str]:
    return list(__all__)
