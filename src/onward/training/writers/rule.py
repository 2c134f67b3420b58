"""The rule by which a rubric writer passes its validation. Pure.

The writer and the released one write rubrics for the same tasks, of families that no job trains on. The
lower end of the 95 % interval of the paired difference in skill decides, within limits on invalid and
degenerate rubrics. The interval is over the tasks of these families.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onward.config.rubrics import RubricsSettings


@dataclass(frozen=True)
class Verdict:
    passed: bool
    why: str
    """One sentence with numbers."""


def verdict(found: Mapping[str, Any], settings: RubricsSettings) -> Verdict:
    """Returns the verdict on the figures of a job's validation (``job.rubrics.compared``).

    ``versus_released`` None: no writer is released, so the writer is compared with its warm start.
    ``problem``: why the released writer could not be compared with.
    """
    for name, most in (("invalid", settings.max_invalid), ("degenerate", settings.max_degenerate)):
        if not found[name] <= most:
            return Verdict(
                False, f"{found[name]:.1%} of its rubrics are {name}, above rubrics.max_{name} = {most:g}."
            )
    if not found["skill"] >= settings.min_skill:
        return Verdict(
            False,
            f"Its skill is {found['skill']:+.3f}, below rubrics.min_skill = {settings.min_skill:g} "
            f"(a constant score has 0).",
        )
    if found.get("problem"):
        return Verdict(False, f"It could not be compared with the released writer: {found['problem']}")
    against = found.get("versus_released")
    if against is None:
        return _compared(found["skill_gain"], "its warm start", least=0.0, above=True)
    name = str(found.get("released", "the released writer"))
    if settings.rule == "better":
        return _compared(against, name, least=0.0, above=True)
    return _compared(against, name, least=-settings.margin, above=False)


def _compared(gain: Mapping[str, float], other: str, *, least: float, above: bool) -> Verdict:
    low = gain["low"]
    passed = low > least if above else low >= least
    words = "better" if above else "not worse"
    limit = f"{'above' if above else 'at least'} {least:+.3f}".replace("-0.000", "0").replace("+0.000", "0")
    return Verdict(
        passed,
        f"{'Shown' if passed else 'Not shown'} to be {words} than {other}: the skill differs by "
        f"{gain['mean']:+.3f} (95 %: {low:+.3f} … {gain['high']:+.3f}; needed: lower end {limit}).",
    )
