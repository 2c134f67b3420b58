"""Code quality: results that a trajectory carries, else a linter and a scanner on the code it wrote.

Nothing here ever executes code of a trajectory. Names are loaded on demand, since ``components.base``
needs ``CodeReport`` while the analyser needs ``components.base``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.lazy import attributes

if TYPE_CHECKING:
    from onward.reward.code.analyser import CodeAnalyser
    from onward.reward.code.report import CodeReport
    from onward.reward.code.sandbox import Limits

__all__ = ["CodeAnalyser", "CodeReport", "Limits"]

__getattr__ = attributes(
    __name__,
    {
        "CodeAnalyser": "onward.reward.code.analyser",
        "CodeReport": "onward.reward.code.report",
        "Limits": "onward.reward.code.sandbox",
    },
)
