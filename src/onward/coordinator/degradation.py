"""Test for degradation: has the mean raw total of the current policy fallen more than ``drop`` below its
frozen baseline? Pure.

The baseline is the mean of the policy's first sessions and is frozen after ``baseline_sessions`` of them.
Each later session is one bet of the mean gate of ``onward.release.evidence``, against the frozen number. A
fall may begin at any time, so a bet begins anew every ``START_EVERY`` sessions, the k-th with the share
1/(k(k+1)) of the capital. The shares sum to 1, so the sum of the bets is again an e-process. The good
sessions before a late fall cost no more than the share.

Budget: with chance ``alpha`` / 2 at most, the baseline is estimated more than ``drop`` too high (Hoeffding's
inequality). That holds at once for every number of sessions from there on, since a mean of exchangeable
values is a reverse martingale: a canary may end whenever its evidence says so. With chance ``alpha`` / 2 at
most, the e-process of an unchanged policy ever reaches 2/``alpha`` (Ville's inequality). Together they bound
by ``alpha`` the chance of a false alarm in the life of a policy.

Invariants: a unit is one session and counts once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from onward.contracts.buckets import PolicyWatch
from onward.release.evidence.gates import MEAN_BETS, MeanGate, e_value, log_mean_exp

START_EVERY = 100
"""Sessions between two starts of the bet."""
LEAST_SESSIONS = 30
"""Sessions after the baseline before the test may fire."""
TRAILING = 100
"""Sessions in the trailing mean that people see."""
MOST_LOG_E = math.log(1e6)
"""Limit of the log capital, so that a policy that recovers is seen to do so. A lower capital is still an
e-process."""


def baseline_sessions(alpha: float, drop: float) -> int:
    """Returns the sessions n with exp(-2 n drop²) ≤ alpha / 2: 190 for 0.045 and 0.10."""
    return math.ceil(math.log(2 / alpha) / (2 * drop * drop))


def observe(
    watch: PolicyWatch, values: Iterable[tuple[int, float]], *, alpha: float, drop: float, at: str
) -> PolicyWatch:
    """Returns ``watch`` after further sessions, each a stream sequence and a mean raw total in [0, 1], in
    order. ``at`` is the time, in ISO 8601."""
    changed = watch
    for sequence, value in values:
        value = min(1.0, max(0.0, value))
        if changed.baseline is None:
            changed = _collected(changed, value, baseline_sessions(alpha, drop), at)
        else:
            changed = _tested(changed, value, alpha=alpha, drop=drop, at=at)
        changed = changed.model_copy(update={"sequence": max(sequence, changed.sequence)})
    return changed


def begun(
    watch: PolicyWatch, values: Iterable[tuple[int, float]], *, alpha: float, drop: float, at: str
) -> PolicyWatch:
    """Returns the watch of a policy that has just become current. All of its sessions so far make the
    baseline, which is frozen at once if they are enough."""
    found = list(values)
    if len(found) < baseline_sessions(alpha, drop):
        return observe(watch, found, alpha=alpha, drop=drop, at=at)
    total = math.fsum(min(1.0, max(0.0, value)) for _, value in found)
    last = max(sequence for sequence, _ in found)
    return _frozen(watch.model_copy(update={"total": total, "collected": len(found), "sequence": last}), at)


def e_number_of(watch: PolicyWatch) -> float:
    """Returns the E-value of the test; 1 before its first session."""
    return e_value(log_mean_exp(watch.logs)) if watch.logs else 1.0


def trailing_mean(watch: PolicyWatch) -> float | None:
    """Returns the mean of the newest sessions after the baseline, at most ``TRAILING``; None without any."""
    return math.fsum(watch.trailing) / len(watch.trailing) if watch.trailing else None


def _collected(watch: PolicyWatch, value: float, needed: int, at: str) -> PolicyWatch:
    more = {"total": watch.total + value, "collected": watch.collected + 1}
    changed = watch.model_copy(update=more)
    return _frozen(changed, at) if changed.collected >= needed else changed


def _frozen(watch: PolicyWatch, at: str) -> PolicyWatch:
    return watch.model_copy(update={"baseline": watch.total / watch.collected, "frozen_at": at})


def _tested(watch: PolicyWatch, value: float, *, alpha: float, drop: float, at: str) -> PolicyWatch:
    gate = MeanGate(drop)
    gate.logs = list(watch.logs) if len(watch.logs) == len(MEAN_BETS) else [-math.inf] * len(MEAN_BETS)
    if watch.sessions % START_EVERY == 0:
        start = watch.sessions // START_EVERY + 1
        share = -math.log(start * (start + 1))
        gate.logs = [_log_sum(log, share) for log in gate.logs]
    gate.value(False, watch.baseline or 0.0)
    gate.value(True, value)
    logs = [min(log, MOST_LOG_E) for log in gate.logs]
    sessions = watch.sessions + 1
    degraded = watch.degraded_since
    log_e = log_mean_exp(logs)
    if log_e >= math.log(2 / alpha) and sessions >= LEAST_SESSIONS:
        degraded = degraded or at
    elif log_e < 0:
        degraded = None
    return watch.model_copy(
        update={
            "sessions": sessions,
            "logs": logs,
            "trailing": [*watch.trailing, value][-TRAILING:],
            "degraded_since": degraded,
        }
    )


def _log_sum(a: float, b: float) -> float:
    """Returns log(exp(a) + exp(b)); ``b`` is finite."""
    top = max(a, b)
    return top + math.log1p(math.exp(min(a, b) - top))
