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
    RESTORING = "restoring"
    RAMPING = "ramping"
    BAKING = "baking"
    HELD = "held"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    REJECTED = "rejected"
    ABORTED = "aborted"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.PROPOSED: frozenset({State.VALIDATING, State.RESTORING, State.REJECTED, State.ABORTED}),
    State.VALIDATING: frozenset({State.RAMPING, State.BAKING, State.REJECTED, State.ABORTED}),
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
}
TERMINAL = frozenset(state for state, after in TRANSITIONS.items() if not after)
SERVING = frozenset({State.RAMPING, State.BAKING, State.HELD})
"""States in which both arms take traffic."""

Strategy = Literal["canary", "blue_green"]
BLUE_GREEN_FROM = 0.15
CANARY_FROM = 0.05
CAUTIOUS_SHARE = 0.05
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
        return cls(state["strategy"], steps, float(state["deadline_seconds"]), state["on_inconclusive"])


@dataclass(frozen=True)
class Choice:
    """``strategy`` None means do not release. ``reason`` explains the choice."""

    strategy: Strategy | None
    first_share: float | None
    reason: str


def choose(improvement: float, settings: ReleaseSettings, *, strategy: str = "canary") -> Choice:
    """Returns the strategy for a measured ``improvement`` of the mean outcome over current.

    ``strategy`` "canary" never switches at once, however large the improvement; "auto" follows the table: ≥
    0.15 blue-green, ≥ 0.05 canary, below that canary from 5 %.
    """
    if improvement < settings.min_delta:
        return Choice(
            None, None, f"validation {improvement:+.3f} is below the limit of {settings.min_delta:+.3f}"
        )
    if strategy == "auto" and improvement >= BLUE_GREEN_FROM:
        return Choice("blue_green", None, f"improvement {improvement:+.3f} is at least {BLUE_GREEN_FROM}")
    if improvement >= CANARY_FROM or strategy != "auto":
        return Choice("canary", settings.steps[0], f"improvement {improvement:+.3f}")
    share = min(CAUTIOUS_SHARE, settings.steps[0])
    return Choice("canary", share, f"improvement {improvement:+.3f} is below {CANARY_FROM}: careful start")


def make(choice: Choice, settings: ReleaseSettings) -> Plan:
    """Returns the schedule for a choice. Raises ValueError if the choice has no strategy."""
    if choice.strategy is None:
        raise ValueError(f"No plan without a strategy: {choice.reason}.")
    last = len(settings.steps) - 1
    bake = Step(
        share=1.0 - settings.bake_share,
        seconds=max(settings.step_seconds(last), settings.bake_minutes * 60.0 * settings.time_scale),
        sessions=settings.min_sessions[last],
    )
    steps: list[Step] = []
    if choice.strategy == "canary":
        for index in range(last):
            share = choice.first_share if index == 0 and choice.first_share else settings.steps[index]
            steps.append(Step(share, settings.step_seconds(index), settings.min_sessions[index]))
    return Plan(
        strategy=choice.strategy,
        steps=(*steps, bake),
        deadline_seconds=settings.step_deadline_minutes * 60.0,
        on_inconclusive=settings.on_inconclusive,
    )


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
        if support >= SUPPORT or plan.on_inconclusive == "promote":
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
