"""Implicit signals of an Agent Zero user, as names of ``feedback.v1``.

The plugin sends the raw signal; the reward gives it a value (``reward.components.user_feedback``). Pure.

Invariants: a signal comes from an action in the web interface. Messages that an agent or the scheduler wrote
never reach this module.
"""

from __future__ import annotations

from onward.reward.measures.correction_requests import asks_for_correction, says_thanks

MESSAGE = "message"
"""Raw signal of the plugin: the user wrote again. ``of_message`` decides on its meaning."""
IMPLICIT = ("abandoned", "reset", "nudged", "interrupted", "branched", "copied", "correction", "thanks")
"""Names that the plugin may send as implicit signals; each has a value in the reward."""


def of_message(text: str) -> str | None:
    """Returns the signal in the message that follows an answer: correction, thanks, or None for a new
    task."""
    if asks_for_correction(text):
        return "correction"
    return "thanks" if says_thanks(text) else None


def value_of(signal: str) -> float | None:
    """Returns the worth of an implicit signal in the reward; None for an unknown one."""
    from onward.reward.components.user_feedback import (
        VALUES,
    )  # not in the worker, which starts faster without

    return VALUES.get(signal)
