"""Outcome of one rule on one artefact: scored, an error, or not applicable. An error is never a number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["scored", "error", "not_applicable"]
_SHOWN = 200
CLOSE = 1e-9
"""Distance below which two scores are the same: a sum of points may end a little beside its maximum."""


class NotApplicable(Exception):
    """Raised by a rule that does not apply to an artefact; its text is the reason."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a rule. ``raw`` is its score from 0 to ``max_score``; None unless scored."""

    status: Status
    max_score: float
    raw: float | None = None
    message: str = ""
    error: str = ""

    @property
    def normalized(self) -> float | None:
        return None if self.raw is None else self.raw / self.max_score


def failed(error: str, max_score: float) -> Outcome:
    """Returns the outcome of a rule that could not be evaluated."""
    return Outcome("error", max_score, error=_printable(error[:_SHOWN]))


def not_applicable(reason: str, max_score: float) -> Outcome:
    return Outcome("not_applicable", max_score, message=_printable(reason[:_SHOWN]))


def outcome_of(value: Any, max_score: float, *, clamp: bool = False) -> Outcome:
    """Returns the outcome of what a rule returned: a number, a bool, ``(score, reason)``, ``(score,)`` or an
    object with ``score``.

    True is ``max_score``. A number that is not finite is an error, and so is one outside of 0 to
    ``max_score`` unless ``clamp``.
    """
    number, message = unpacked(value)
    if is_bool(number):
        return Outcome("scored", max_score, max_score if number else 0.0, _printable(message))
    try:
        score = float(number)
    except (TypeError, ValueError, OverflowError):
        return failed(f"The rule returned {_shown(number)}: return a number or a bool.", max_score)
    if not math.isfinite(score):
        return failed(f"The rule returned {score}: return a finite number.", max_score)
    if not 0 <= score <= max_score:
        if not clamp and not -CLOSE * max_score <= score <= (1 + CLOSE) * max_score:
            return failed(f"The rule returned {score:g}: return 0 to {max_score:g}.", max_score)
        score = min(max_score, max(0.0, score))
    return Outcome("scored", max_score, score, _printable(message))


def unpacked(value: Any) -> tuple[Any, str]:
    """Returns the score and the reason of what a rule returned."""
    if isinstance(value, tuple | list) and len(value) in (1, 2):
        return value[0], str(value[1]) if len(value) == 2 and value[1] is not None else ""
    score = getattr(value, "score", None)
    if score is not None:
        return score, str(getattr(value, "reason", None) or getattr(value, "message", None) or "")
    return value, ""


def is_bool(value: Any) -> bool:
    """Returns True for a bool, of numpy as well."""
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")


def _printable(text: str) -> str:
    """Returns a text without lone surrogates, which no file can have."""
    return text.encode(errors="backslashreplace").decode()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
