"""Cron expressions: five fields, as in crontab(5). ``onward.coordinator.schedule`` runs by them."""

from __future__ import annotations

import re

OFF = "off"
"""Word for no schedule."""
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[int, int, tuple[str, ...]], ...] = (
    (0, 59, ()), (0, 23, ()), (1, 31, ()), (1, 12, _MONTHS), (0, 7, _DAYS),
)  # fmt: skip
"""Minute, hour, day of month, month, day of week: least value, greatest value, names from the least on."""
_PART = re.compile(r"(?:\*|(\w+)(?:-(\w+))?)(?:/(\d+))?", re.ASCII)


def is_cron(text: str) -> bool:
    """Returns whether ``text`` is ``minute hour day month weekday``: ``*``, values, ranges, steps, lists."""
    fields = text.split()
    return len(fields) == len(_FIELDS) and all(
        _fits(part, *allowed)
        for field, allowed in zip(fields, _FIELDS, strict=True)
        for part in field.split(",")
    )


def _fits(part: str, least: int, most: int, names: tuple[str, ...]) -> bool:
    found = _PART.fullmatch(part)
    if found is None or (found[3] is not None and int(found[3]) == 0):
        return False
    ends = [_number(word, least, names) for word in found.group(1, 2) if word is not None]
    return all(least <= end <= most for end in ends) and ends == sorted(ends)


def _number(word: str, least: int, names: tuple[str, ...]) -> int:
    """Returns the value that ``word`` stands for; -1 if there is none."""
    if word.isdigit():
        return int(word)
    return names.index(word.lower()) + least if word.lower() in names else -1
