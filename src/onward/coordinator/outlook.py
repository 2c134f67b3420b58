"""Causes of the next job, for ``onward status``: the schedule, the test for degradation, a cool-down."""

from __future__ import annotations

from typing import Any

from onward.bus import Bus, read_document
from onward.clock import Clock, utc_text
from onward.config import Settings
from onward.contracts.buckets import LastRequest, PolicyWatch, ScheduleMark
from onward.coordinator import degradation, schedule, watching
from onward.coordinator.open_work import OpenWork
from onward.coordinator.policy import current_policy


async def outlook(bus: Bus, settings: Settings, clock: Clock) -> dict[str, Any]:
    """Returns ``schedule``, ``degradation``, ``cooldown`` and ``sentences`` about them. Raises BusError."""
    training = settings.training
    mark = await read_document(bus, ScheduleMark)
    record = await read_document(bus, LastRequest) or LastRequest()
    policy = await current_policy(bus)
    watch = None if policy is None else await watching.stored_watch(bus, settings, policy.digest)
    cooldown = (await OpenWork.read(bus)).cooldown(training.cooldown_minutes, clock)
    known = mark is not None and mark.expression == training.schedule
    since = schedule.counts_from(mark, record) if mark is not None and known else clock.now()
    run = schedule.next_run(training.schedule, since)
    next_run = None if run is None else utc_text(run)
    is_late = run is not None and run <= clock.now()
    left_out = mark.left_out if mark is not None and known else None
    return {
        "schedule": {"expression": training.schedule, "next": next_run, "due": is_late, "left_out": left_out},
        "degradation": None if watch is None else _facts(watch, settings),
        "cooldown": None if cooldown is None else str(cooldown),
        "sentences": [
            _schedule_sentence(training.schedule, next_run, is_late, left_out),
            *([] if watch is None else [f"Degradation: {_state(watch, settings)}"]),
            *([] if cooldown is None else [f"No job starts by itself now: {cooldown}."]),
        ],
    }


def _schedule_sentence(expression: str, next_run: str | None, due: bool, left_out: str | None) -> str:
    if next_run is None:
        return "Schedule: off."
    when = "a run is due since" if due else "the next run is at"
    last = f"; the last one was left out ({left_out})" if left_out else ""
    return f"Schedule: {expression} (UTC), {when} {next_run}{last}."


def _facts(watch: PolicyWatch, settings: Settings) -> dict[str, Any]:
    return {
        "model_id": watch.model_id,
        "baseline": watch.baseline,
        "baseline_sessions": watch.collected,
        "frozen_at": watch.frozen_at,
        "sessions": watch.sessions,
        "trailing_mean": degradation.trailing_mean(watch),
        "e_value": degradation.e_number_of(watch),
        "fires_at": 2 / settings.training.degradation_alpha,
        "degraded_since": watch.degraded_since,
    }


def _state(watch: PolicyWatch, settings: Settings) -> str:
    training = settings.training
    if watch.baseline is None:
        needed = degradation.baseline_sessions(training.degradation_alpha, training.degradation_drop)
        return f"baseline of {watch.model_id} from {watch.collected} of {needed} sessions."
    verdict = "none shown" if watch.degraded_since is None else f"shown since {watch.degraded_since}"
    return f"{verdict}. {watching.sentence(watch)}"
