"""Code quality: uses results that a trajectory carries, else runs a linter and a scanner on its code.

Code of a trajectory is never executed here. Names are loaded on demand, since ``components.base`` needs
``CodeReport`` while the analyser needs ``components.base``.
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
        "onward.reward.code.analyser": "CodeAnalyser",
        "onward.reward.code.report": "CodeReport",
        "onward.reward.code.sandbox": "Limits",
    },
)
