"""Facts about the code of one trajectory, from which ``code_quality`` computes its score.

It makes no judgement and imports nothing of Onward. ``None`` means that a part was not measured, which is not
a zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class CodeReport:
    linter: float | None = None
    """0 to 1: pylint's rating / 10, or the formula of ``results`` over the counts of another linter."""
    tests: float | None = None
    """Share of the tests that passed, 0 to 1."""
    security_criticals: int | None = None
    """Security issues of high severity."""
    tools: tuple[str, ...] = ()
    """Names of the tools with results, with versions where known; sorted."""
    complexity: float | None = None
    """Highest cyclomatic complexity of a function (McCabe 1976); reported, never scored."""
    snippets: int = 0
    """Number of pieces of Python found, after later versions of a file replaced earlier ones."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """Plain JSON values for ``raw_data``: the source of each part and its counts."""
