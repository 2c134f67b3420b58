"""Factories of the safety suites by name, for ``suites.finding``."""

from __future__ import annotations

from onward.suites.finding import Sources
from onward.suites.safety.items import ASPECTS
from onward.suites.safety.suite import SafetySuite

NAMES = ("safety", *ASPECTS)
"""``safety`` has all aspects, each other name one."""


async def make(rest: str, sources: Sources) -> SafetySuite:
    """Makes one of ``NAMES``; ``sources.items`` limits the items of each aspect. Raises ConfigError."""
    return SafetySuite(rest, ASPECTS if rest == "safety" else (rest,), limit=sources.items)
