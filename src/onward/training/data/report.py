"""The records that a run leaves out, by reason, with the first places of each; and fields not read."""

from __future__ import annotations

from collections import Counter

SHOWN = 3
"""Records named per reason."""


class DataReport(Counter[str]):
    """Counts by reason what is left out of a run's data."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, list[str]] = {}
        """Reason → the first records that it left out, where they are known."""
        self.unread: dict[str, str] = {}
        """Field that no form has → the first record with it."""

    def copy(self) -> DataReport:
        """Returns a copy with places of its own. ``Counter`` would give its counts to the constructor."""
        made = DataReport()
        made.add(self)
        return made

    __copy__ = copy

    def __reduce__(self) -> tuple[object, ...]:
        """Returns the parts for ``deepcopy`` and ``pickle``."""
        return (DataReport, (), self.__dict__, None, iter(self.items()))

    def leave_out(self, reason: str, place: str) -> None:
        """Counts one record."""
        self[reason] += 1
        self.note(reason, place)

    def note(self, reason: str, place: str) -> None:
        """Keeps the place of a record that is counted elsewhere."""
        named = self.places.setdefault(reason, [])
        if len(named) < SHOWN:
            named.append(place)

    def add(self, other: DataReport) -> None:
        """Adds the counts and places of another report."""
        self.update(other)
        for reason, places in other.places.items():
            for place in places:
                self.note(reason, place)
        for name, place in other.unread.items():
            self.unread.setdefault(name, place)

    @property
    def text(self) -> str:
        """The counts as ``3 unscored, 1 too_long (data.jsonl, record 4)``; empty for none."""
        return told(self, self.places)


def told(counts: dict[str, int] | Counter[str], places: dict[str, list[str]] | None = None) -> str:
    """Returns counts by reason as text, with the places that are known."""
    parts = []
    for reason, count in sorted(counts.items()):
        if not count:
            continue
        named = (places or {}).get(reason, [])
        where = f" ({'; '.join(named)}{', …' if count > len(named) else ''})" if named else ""
        parts.append(f"{count} {reason}{where}")
    return ", ".join(parts)
