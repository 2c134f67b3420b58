"""Stratified sampling of dataset lines by task domain, with a seed and a preference for recent work. Pure.

Rules: a domain's sample is drawn without replacement, and the chance of a trajectory halves with every
``quota`` newer ones of its domain. What a domain lacks is filled from the others in proportion to their
shares, as often as one of them runs out. Attempts that are compared with each other are drawn together.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Line = dict[str, Any]


@dataclass(frozen=True)
class Stratum:
    """One domain of a sample: its share, and trajectories by that share, to choose from, and chosen."""

    share: float
    wanted: int
    available: int
    taken: int


@dataclass(frozen=True)
class Sample:
    """The chosen lines, newest first, and the strata by domain."""

    lines: list[Line]
    strata: dict[str, Stratum]

    def shortages(self) -> list[str]:
        """Returns one sentence for each domain that has less than its share."""
        more = {name: one.taken - one.wanted for name, one in self.strata.items()}
        rest = ", ".join(f"{name} +{count}" for name, count in more.items() if count > 0)
        filled = f"others fill in ({rest})" if rest else "no other domain fills in"
        return [
            f"The dataset was to have {one.wanted} trajectories of {name} and has {one.taken}, since "
            f"{one.available} were found; {filled}."
            if one.available < one.wanted
            else f"The dataset was to have {one.wanted} trajectories of {name} and has {one.taken}, since "
            f"attempts at one task are drawn together and no more of them fit: raise sample_size."
            for name, one in self.strata.items()
            if one.taken < one.wanted
        ]


def stratified(
    lines: Sequence[Line],
    domains: Mapping[str, str],
    shares: Mapping[str, float] | None,
    total: int,
    *,
    seed: int,
    grouped: bool,
) -> Sample:
    """Draws ``total`` of ``lines``, which are in order, newest first.

    ``domains`` maps a trajectory id to its domain, ``shares`` a domain to its part of the sample; None means
    equal parts of the domains that there are. ``grouped`` draws lines of one group together.
    """
    order = {line["trajectory_id"]: place for place, line in enumerate(lines)}
    strata: dict[str, list[list[Line]]] = {}
    for unit in _units(lines, grouped):
        strata.setdefault(domains[unit[0]["trajectory_id"]], []).append(unit)
    parts = dict(shares) if shares else dict.fromkeys(sorted(strata), 1.0)
    weight = sum(parts.values())
    parts = {name: share / weight for name, share in parts.items()}
    available = {name: sum(map(len, strata.get(name, ()))) for name in parts}
    wanted = _apportion(parts, total)
    counts = fill(parts, available, total)
    chosen: dict[str, list[Line]] = {
        name: _draw(strata.get(name, ()), counts[name], random.Random(f"{seed}:{name}")) for name in parts
    }
    picked = sorted(
        (line for drawn in chosen.values() for line in drawn), key=lambda line: order[line["trajectory_id"]]
    )
    return Sample(
        picked,
        {
            name: Stratum(share, wanted[name], available[name], len(chosen[name]))
            for name, share in parts.items()
        },
    )


def fill(shares: Mapping[str, float], available: Mapping[str, int], total: int) -> dict[str, int]:
    """Returns the number of trajectories of each domain: its share of ``total``, or all that it has, and what
    is then missing from the others in proportion to their shares."""
    taken = dict.fromkeys(shares, 0)
    while (missing := total - sum(taken.values())) > 0:
        able = {name: share for name, share in shares.items() if taken[name] < available[name]}
        if not able:
            break
        for name, count in _apportion(able, missing).items():
            taken[name] = min(available[name], taken[name] + count)
    return taken


def _apportion(shares: Mapping[str, float], total: int) -> dict[str, int]:
    """Splits ``total`` by shares into whole numbers (largest remainders; the first name among equal ones)."""
    weight = sum(shares.values())
    exact = {name: total * share / weight for name, share in shares.items()}
    counts = {name: math.floor(value + 1e-9) for name, value in exact.items()}
    rest = sorted(shares, key=lambda name: (counts[name] - exact[name], name))
    for name in rest[: total - sum(counts.values())]:
        counts[name] += 1
    return counts


def _units(lines: Sequence[Line], grouped: bool) -> list[list[Line]]:
    """Returns the lines that are drawn together, in order of the newest of each."""
    if not grouped:
        return [[line] for line in lines]
    units: dict[tuple[Any, int], list[Line]] = {}
    for line in lines:
        units.setdefault((line["group_key"], line.get("staleness", 0)), []).append(line)
    return list(units.values())


def _draw(units: Sequence[list[Line]], count: int, rnd: random.Random) -> list[Line]:
    """Draws whole units of ``count`` lines together, newer ones likelier (Efraimidis and Spirakis, 2006: the
    largest of ln(u)/w). A unit that no longer fits is passed over."""
    keyed: list[tuple[float, list[Line]]] = []
    before = 0
    for unit in units:
        age = min(before / max(1, count), 1000.0)  # 2^1000 is a float still
        keyed.append((math.log(1.0 - rnd.random()) * 2.0**age, unit))
        before += len(unit)
    drawn: list[Line] = []
    for _, unit in sorted(keyed, key=lambda one: -one[0]):
        if len(drawn) + len(unit) <= count:
            drawn += unit
    return drawn
