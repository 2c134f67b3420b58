"""The plan of a release and its possible states. Pure: no clock, no bus.

A release is a state machine: a table of legal transitions and one function. A step ends when its time *and*
its minimum of candidate sessions with a known outcome have passed. Compressing the schedule scales time only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal

from onward.clock import utc_text
from onward.config import ReleaseSettings
from onward.errors import ConfigError, IllegalTransitionError
from onward.ids import model_key
from onward.release.evidence.rates import KnownAndLost


class State(StrEnum):
    PROPOSED = "proposed"
    VALIDATING = "validating"
    WAITING = "waiting"
    RESTORING = "restoring"
    RAMPING = "ramping"
    BAKING = "baking"
    HELD = "held"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    REJECTED = "rejected"
    ABORTED = "aborted"
    SHADOWED = "shadowed"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.PROPOSED: frozenset({State.VALIDATING, State.RESTORING, State.REJECTED, State.ABORTED}),
    State.VALIDATING: frozenset(
        {State.WAITING, State.RAMPING, State.BAKING, State.REJECTED, State.ABORTED, State.SHADOWED}
    ),
    State.WAITING: frozenset({State.RAMPING, State.BAKING, State.REJECTED, State.ABORTED}),
    State.RESTORING: frozenset({State.ROLLED_BACK, State.ABORTED}),
    State.RAMPING: frozenset({State.RAMPING, State.BAKING, State.HELD, State.ROLLED_BACK, State.ABORTED}),
    State.BAKING: frozenset({State.PROMOTED, State.HELD, State.ROLLED_BACK, State.ABORTED}),
    State.HELD: frozenset(
        {State.RAMPING, State.BAKING, State.PROMOTED, State.ROLLED_BACK, State.ABORTED, State.HELD}
    ),
    State.PROMOTED: frozenset(),
    State.ROLLED_BACK: frozenset(),
    State.REJECTED: frozenset(),
    State.ABORTED: frozenset(),
    State.SHADOWED: frozenset(),
}
TERMINAL = frozenset(state for state, after in TRANSITIONS.items() if not after)
SERVING = frozenset({State.RAMPING, State.BAKING, State.HELD})
"""States in which both arms take traffic."""

Strategy = Literal["canary", "blue_green", "immediate"]
BLUE_GREEN_FROM = 0.15
CANARY_FROM = 0.05
CAUTIOUS_SHARE = 0.05
UNPROVEN = ("not shown", "not validated")
"""Verdicts of a validation that measured nothing: the start is the careful one."""
MOST_SESSIONS = (50, 100, 200)
"""Upper limits of the least sessions that follow from traffic, per step; the last one for later steps too."""
USED_SHARE = 1 / 3
"""Part of a step's expected sessions that the step needs, so that chance seldom prolongs it."""
DAY = 86_400.0
SUPPORT = 10.0
"""E-value (1/β, β = 0.1) from which "not worse than the margin" counts as shown."""


def move(state: State, to: State) -> State:
    """Returns ``to`` if the table allows it from ``state``. Raises IllegalTransitionError otherwise."""
    if to not in TRANSITIONS[state]:
        raise IllegalTransitionError(f"A release that is {state} cannot become {to}.")
    return to


@dataclass(frozen=True)
class Step:
    """``share`` of new sessions for at least ``seconds`` and ``sessions`` known outcomes of the candidate."""

    share: float
    seconds: float
    sessions: int


@dataclass(frozen=True)
class Plan:
    """The whole schedule, fixed when a release starts. The last step is the bake."""

    strategy: Strategy
    steps: tuple[Step, ...]
    deadline_seconds: float
    on_inconclusive: Literal["promote", "hold", "ask"]
    max_bake_seconds: float = 0.0
    """Seconds up to which the last step is prolonged until "not worse" is shown."""
    per_day: float | None = None
    """Measured sessions a day of both arms when the plan was made; None: not known."""

    @property
    def bake(self) -> int:
        """Index of the bake, in which the candidate has all traffic but a small share."""
        return len(self.steps) - 1

    def state(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Plan:
        """Raises KeyError, TypeError or ValueError for whatever is no plan. Keys of a newer version are left
        out: the record keeps them."""
        steps = tuple(
            Step(float(s["share"]), float(s["seconds"]), int(s["sessions"])) for s in state["steps"]
        )
        if not steps:
            raise ValueError("a plan needs a step")
        return cls(
            state["strategy"],
            steps,
            float(state["deadline_seconds"]),
            state["on_inconclusive"],
            float(state.get("max_bake_seconds") or 0.0),
            state.get("per_day"),
        )


@dataclass(frozen=True)
class Choice:
    """``strategy`` None means do not release. ``reason`` explains the choice."""

    strategy: Strategy | None
    careful: bool
    """True if the canary starts at 5 %."""
    reason: str


def choose(improvement: float, settings: ReleaseSettings, verdict: str = "passed") -> Choice:
    """Returns the strategy for a measured ``improvement`` of the mean outcome over current.

    ``settings.strategy`` "auto" follows the table: ≥ 0.15 blue-green, ≥ 0.05 canary, ≥ 0 canary from 5 %,
    below 0 none. A ``verdict`` that measured nothing is a careful start, whatever the improvement. "canary"
    never switches at once and accepts all down to ``min_delta``.
    """
    measured = f"improvement {improvement:+.3f}"
    if improvement < settings.min_delta:
        limit = f"validation {improvement:+.3f} is below the limit of {settings.min_delta:+.3f}"
        return Choice(None, False, limit)
    if settings.strategy != "auto":
        return Choice(settings.strategy, False, f"{measured}, strategy {settings.strategy} is set")
    if improvement < 0:
        return Choice(None, False, f"{measured} is below 0: worse than the current model")
    if verdict in UNPROVEN:
        return Choice("canary", True, f"{verdict}: careful start")
    if improvement >= BLUE_GREEN_FROM:
        return Choice("blue_green", False, f"{measured} is at least {BLUE_GREEN_FROM}")
    if improvement >= CANARY_FROM:
        return Choice("canary", False, measured)
    return Choice("canary", True, f"{measured} is below {CANARY_FROM}: careful start")


def make(choice: Choice, settings: ReleaseSettings, per_day: float | None = None) -> Plan:
    """Returns the schedule for a choice. ``per_day``: sessions of both arms a day; None if not known.

    A careful start puts a step of 5 % before the others and gives each an equal part of the ramp. Raises
    ValueError if the choice has no strategy.
    """
    if choice.strategy is None:
        raise ValueError(f"No plan without a strategy: {choice.reason}.")
    last = len(settings.steps) - 1
    given = [(settings.steps[index], settings.step_seconds(index)) for index in range(last)]
    ramp = given if choice.strategy == "canary" else []
    if choice.careful and given and given[0][0] > CAUTIOUS_SHARE:
        part = sum(seconds for _, seconds in given) / (last + 1)
        ramp = [(CAUTIOUS_SHARE, part), *((share, part) for share, _ in given)]
    least = _least_sessions(ramp, settings, per_day)
    steps = [Step(share, seconds, number) for (share, seconds), number in zip(ramp, least, strict=True)]
    bake = max(settings.step_seconds(last), settings.bake_minutes * 60.0 * settings.time_scale)
    return Plan(
        strategy=choice.strategy,
        steps=(
            *steps,
            Step(
                share=1.0 - settings.bake_share,
                seconds=bake,
                sessions=settings.min_sessions[last] if settings.min_sessions else 0,
            ),
        ),
        deadline_seconds=settings.step_deadline_minutes * 60.0,
        on_inconclusive=settings.on_inconclusive,
        max_bake_seconds=max(bake, settings.max_bake * 3600.0 * settings.time_scale),
        per_day=per_day,
    )


def _least_sessions(
    ramp: list[tuple[float, float]], settings: ReleaseSettings, per_day: float | None
) -> list[int]:
    """Returns the least known candidate sessions of each step of ``ramp``. Explicit numbers win; a careful
    first step has the number of the step after it."""
    if settings.min_sessions:
        given = settings.min_sessions[: len(settings.steps) - 1]
        return (given[:1] + given)[len(given) + 1 - len(ramp) :] if ramp else []
    limits = [MOST_SESSIONS[min(index, len(MOST_SESSIONS) - 1)] for index in range(len(ramp))]
    if per_day is None:
        return limits
    expected = (USED_SHARE * per_day * share * seconds / DAY for share, seconds in ramp)
    return [max(1, min(limit, int(number))) for limit, number in zip(limits, expected, strict=True)]


def ramp_schedule(plan: Plan, start: datetime) -> list[dict[str, Any]]:
    """Returns the planned traffic for ``model.deployed``: earliest time of each step, percentage 0 to 100."""
    schedule, moment = [], start
    for index, step in enumerate(plan.steps):
        percentage = 100.0 if index == plan.bake else round(step.share * 100, 6)
        schedule.append({"timestamp": utc_text(moment), "percentage": percentage})
        moment += timedelta(seconds=step.seconds)
    return schedule


Verdict = Literal["stay", "advance", "ask", "hold", "deadline", "lost"]


def step_verdict(
    plan: Plan,
    step: int,
    *,
    served: float,
    total: float,
    candidate: KnownAndLost,
    current: KnownAndLost,
    support: float,
) -> tuple[Verdict, str]:
    """Returns the verdict on a step that no gate has stopped, and the evidence in words.

    ``served`` counts seconds in this step without holds, ``total`` all of them, ``candidate`` and ``current``
    the sessions that ended in this step, ``support`` is the promotion e-value. A step never ends without its
    minimum of known outcomes, and one at least, whatever the policy. Where most sessions are lost, the few
    known ones are no sample of the rest: with the candidate alone it is evidence against it, which the gates
    weigh; with both arms it is silence, also after the deadline. The policy decides if there is enough and no
    proof either way.
    """
    asked = plan.steps[step]
    shown = "not worse" if support >= SUPPORT else "none-against"
    known = candidate.known >= max(1, asked.sessions) and candidate.known >= candidate.lost
    if served >= asked.seconds and known:
        if support >= SUPPORT:
            return "advance", shown
        if step == plan.bake and served < plan.max_bake_seconds:
            return "stay", shown
        if plan.on_inconclusive == "promote":
            return "advance", shown
        return plan.on_inconclusive, shown
    mostly_lost = candidate.lost > candidate.known and current.lost > current.known
    if served >= asked.seconds and mostly_lost and sum(candidate) >= asked.sessions:
        return "lost", shown
    if total >= plan.deadline_seconds:
        return "deadline", shown
    return "stay", shown


def next_model_id(pattern: str, keys: Iterable[str]) -> str:
    """Returns the id after the highest one among ``keys`` (of ``rl_models``) made by ``pattern``; 1 if none.
    ``agent-zero-rl-v{n}``; in ``agent-zero-rl-v2.{n}`` only the last number counts: after v2.3, v2.4."""
    numbers = [0, *_numbers(pattern, keys)]
    return pattern.replace("{n}", str(max(numbers) + 1))


def first_model_id(pattern: str) -> str:
    """Returns the id of the warm-started model, against which all later models are measured."""
    _numbers(pattern, ())
    return pattern.replace("{n}", "0")


def _numbers(pattern: str, keys: Iterable[str]) -> list[int]:
    if pattern.count("{n}") != 1 or re.fullmatch(r"[A-Za-z0-9._{}-]{1,128}", pattern) is None:
        raise ConfigError(
            f"model.id_pattern is {pattern!r}: expected letters, digits, '.', '_', '-' and '{{n}}' once."
        )
    before, after = (re.escape(model_key(part)) for part in pattern.split("{n}"))
    form = re.compile(f"{before}([0-9]+){after}")
    return [int(found[1]) for key in keys if (found := form.fullmatch(key))]
