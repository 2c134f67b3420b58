"""A check: one yes-or-no question about an artefact, the unit of every rubric."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Check:
    """A predicate by name, with the one argument that it takes from a finite list; an empty text if none.

    The order by (name, argument) is the canonical order of the criteria of a rubric.
    """

    name: str
    arg: str = ""

    def __str__(self) -> str:
        return f"{self.name}({self.arg})" if self.arg else self.name
