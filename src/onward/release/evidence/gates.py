"""Gates: sequential tests that may be read after every event, on every day, without adding up false alarms.

Each gate is an e-process. It starts at 1, and its expectation does not rise while the candidate is no worse
than its null allows. By Ville's inequality it ever reaches 1/α with probability at most α. All work is in log
space with O(bets) per event.

Invariants: a unit is one session and counts once per gate. Its weight is the candidate's share at *its*
assignment. A gate is never reset between steps.

Sources: (A) Lindon & Malek, NeurIPS 2022, arXiv 2011.03567; (B), (C) Waudby-Smith & Ramdas, JRSS-B 2023,
arXiv 2010.09686; the weighted average and the minimum of e-processes are e-processes again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

ALTERNATIVES = tuple(math.exp(math.log(1.25) + i / 15 * math.log(40 / 1.25)) for i in range(16))
"""Rate ratios to bet on, as multiples of the ratio that the null allows."""
CEILING_BETS = (0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Bets of the ceiling gate as shares of 1/c, the largest bet that can never go broke."""
MEAN_BETS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9)
"""Bets of the mean gates as shares of their largest safe bet."""
RATIO_ALTERNATIVES = (0.125, 0.25, 0.5, 2 / 3, 1.5, 2.0, 4.0, 8.0)
"""Odds multipliers that the sample-ratio guard bets on, in both directions."""
WEIGHTS = {"error": 1 / 3, "reward": 4 / 9, "feedback": 2 / 9}
"""Share of the total false-alarm budget that each gate gets."""
Signal = Literal["both", "outcome"]
BOTH: Signal = "both"
OUTCOME: Signal = "outcome"
ERROR_RATIO = 1.0
FEEDBACK_RATIO = 2.0
_LARGEST = 700.0


def log_mean_exp(logs: Sequence[float]) -> float:
    top = max(logs)
    return top + math.log(math.fsum(math.exp(value - top) for value in logs) / len(logs))


def e_value(log_e: float) -> float:
    """exp, capped so that it stays a finite number in JSON."""
    return math.exp(min(log_e, _LARGEST))


def candidate_share(weight: float, ratio: float) -> float:
    """Chance that a failing unit is the candidate's, at traffic share ``weight`` and rate ratio ``ratio``."""
    return weight * ratio / (weight * ratio + 1.0 - weight)


class RateGate:
    """(A): tests that the candidate's failure rate is more than ``allowed`` times the current one's. Only
    failing units matter, so the base rate, its drift and outages of both arms cancel."""

    def __init__(self, allowed: float) -> None:
        self.allowed = allowed
        self.logs = [0.0] * len(ALTERNATIVES)
        self.log_e = 0.0

    def failure(self, candidate: bool, weight: float) -> None:
        """Adds one failing unit. A unit with weight 0 or 1 could go to one arm only: it is ignored."""
        if not 0.0 < weight < 1.0:
            return
        null = candidate_share(weight, self.allowed)
        for i, multiple in enumerate(ALTERNATIVES):
            share = candidate_share(weight, self.allowed * multiple)
            self.logs[i] += math.log(share / null) if candidate else math.log((1 - share) / (1 - null))
        self.log_e = log_mean_exp(self.logs)


class CeilingGate:
    """(B): tests that the candidate's failure rate is above ``ceiling``."""

    def __init__(self, ceiling: float) -> None:
        self.ceiling = ceiling
        self.logs = [0.0] * len(CEILING_BETS)
        self.log_e = 0.0

    def outcome(self, failed: bool) -> None:
        for i, share in enumerate(CEILING_BETS):
            self.logs[i] += math.log1p(share / self.ceiling * (float(failed) - self.ceiling))
        self.log_e = log_mean_exp(self.logs)


class MeanGate:
    """(C): tests that the candidate's mean is more than ``margin`` below the current one's.

    With ``support`` it makes the opposite bet, (E): evidence that the mean has *not* fallen that far. Blocks:
    a candidate value is compared with the mean of the current values since the last block. If there is none,
    it waits; the next current value is then compared with the mean of all waiting values. Blocks are
    contemporaneous, so a drift that both arms share cancels.
    """

    def __init__(self, margin: float, *, support: bool = False) -> None:
        self.margin = margin
        self.sign = -1.0 if support else 1.0
        largest = 1.0 / (1.0 - margin) if support else 1.0 / (1.0 + margin)
        self._bets = [share * largest for share in MEAN_BETS]
        self.logs = [0.0] * len(MEAN_BETS)
        self.log_e = 0.0
        self.sums = [0.0, 0.0]
        self.counts = [0, 0]

    def value(self, candidate: bool, value: float) -> None:
        """Adds one judged value in [0, 1]."""
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"A reward is {value!r}: the mean gates take numbers from 0 to 1.")
        self.sums[candidate] += value
        self.counts[candidate] += 1
        if not all(self.counts):
            return
        gap = self.sums[0] / self.counts[0] - self.sums[1] / self.counts[1] - self.margin
        for i, bet in enumerate(self._bets):
            self.logs[i] += math.log1p(bet * self.sign * gap)
        self.log_e = log_mean_exp(self.logs)
        self.sums, self.counts = [0.0, 0.0], [0, 0]

    def state(self) -> dict[str, Any]:
        return {"logs": list(self.logs), "sums": list(self.sums), "counts": list(self.counts)}

    def restore(self, state: dict[str, Any]) -> None:
        _restore(self, state["logs"])
        self.sums = [float(value) for value in state["sums"]]
        self.counts = [int(value) for value in state["counts"]]


class RewardGate:
    """Tests that the candidate's mean outcome or its mean raw total is more than ``margin`` below current's.

    Each of the two has a ``MeanGate``. The outcome has the whole capital at first. It is split into halves,
    one for each, at the end of the first block whose last session has a raw total; raw totals count from
    then on. So a split never depends on values that are still to be bet on, and the sum is again an
    e-process, whatever decides which raw totals are known. A fall of either is found. A fall of the outcome
    alone is found as if the capital were half as large.
    """

    def __init__(self, margin: float) -> None:
        self.margin = margin
        self.outcome = MeanGate(margin)
        self.raw_total: MeanGate | None = None
        self._split_at = 0.0
        """Log of the capital when it was split."""

    def session(self, candidate: bool, outcome: float, raw_total: float | None = None) -> None:
        """Adds one judged session; both numbers are in [0, 1]."""
        self.outcome.value(candidate, outcome)
        if raw_total is None:
            return
        if self.raw_total is not None:
            self.raw_total.value(candidate, raw_total)
        elif not any(self.outcome.counts):  # the block ended with this session
            self.raw_total, self._split_at = MeanGate(self.margin), self.outcome.log_e

    @property
    def log_e(self) -> float:
        if self.raw_total is None:
            return self.outcome.log_e
        return log_mean_exp([self.outcome.log_e, self._split_at + self.raw_total.log_e])

    def e_values(self) -> dict[str, float]:
        """Returns the two parts, each with the capital that it had before the split; empty before it."""
        if self.raw_total is None:
            return {}
        raw = e_value(self._split_at + self.raw_total.log_e)
        return {"reward_outcome": e_value(self.outcome.log_e), "reward_raw_total": raw}

    def state(self) -> dict[str, Any]:
        if self.raw_total is None:
            return self.outcome.state()
        return {**self.outcome.state(), "raw_total": {**self.raw_total.state(), "split_at": self._split_at}}

    def restore(self, state: dict[str, Any]) -> None:
        self.outcome.restore(state)
        raw = state.get("raw_total")
        if raw is not None:
            self.raw_total, self._split_at = MeanGate(self.margin), float(raw["split_at"])
            self.raw_total.restore(raw)


class RatioGuard:
    """(F): tests that the split of sessions between the arms differs from the weights they were drawn with. A
    rejection means that assignment or reporting is broken: hold, never roll back."""

    def __init__(self) -> None:
        self.logs = [0.0] * len(RATIO_ALTERNATIVES)
        self.log_e = 0.0

    def session(self, candidate: bool, weight: float) -> None:
        if not 0.0 < weight < 1.0:
            return
        for i, ratio in enumerate(RATIO_ALTERNATIVES):
            share = candidate_share(weight, ratio)
            self.logs[i] += math.log(share / weight) if candidate else math.log((1 - share) / (1 - weight))
        self.log_e = log_mean_exp(self.logs)


class Gates:
    """All gates of one release and their combination.

    ``log_e_all`` is the log of Σ ω·E, again an e-process. It fires whenever one gate alone would with its
    share of the budget, and earlier if several are moderately sure.
    """

    def __init__(self, *, ceiling: float, margin: float) -> None:
        self.relative = RateGate(ERROR_RATIO)
        self.ceiling = CeilingGate(ceiling)
        self.reward = RewardGate(margin)
        self.support = MeanGate(margin, support=True)
        self.feedback = RateGate(FEEDBACK_RATIO)
        self.ratio = RatioGuard()

    def observe_error(self, candidate: bool, failed: bool, weight: float) -> None:
        """Adds the error verdict of one session: failed or not."""
        self.ratio.session(candidate, weight)
        if candidate:
            self.ceiling.outcome(failed)
        if failed:
            self.relative.failure(candidate, weight)

    def observe_reward(self, candidate: bool, outcome: float, raw_total: float | None = None) -> None:
        """Adds the judged outcome of one session, in [0, 1], and its raw total if it is judged too. That a
        candidate is not worse is shown by its outcomes."""
        self.reward.session(candidate, outcome, raw_total)
        self.support.value(candidate, outcome)

    def observe_feedback(self, candidate: bool, negative: bool, weight: float) -> None:
        """Adds one session's feedback."""
        if negative:
            self.feedback.failure(candidate, weight)

    def log_e(self) -> dict[str, float]:
        """Log e-value per gate. The error gate is min(A, B): both nulls must be refuted."""
        return {
            "error": min(self.relative.log_e, self.ceiling.log_e),
            "reward": self.reward.log_e,
            "feedback": self.feedback.log_e,
        }

    @property
    def log_e_all(self) -> float:
        terms = [math.log(WEIGHTS[name]) + value for name, value in self.log_e().items()]
        return log_mean_exp(terms) + math.log(len(terms))

    def crossed(self, alpha: float) -> bool:
        """Σ ω·E ≥ 1/α: roll back, with a false-alarm chance of at most ``alpha`` over the whole release."""
        return self.log_e_all >= -math.log(alpha)

    def leading(self) -> str:
        """Returns the gate that contributes most to Σ ω·E."""
        logs = self.log_e()
        return max(logs, key=lambda name: math.log(WEIGHTS[name]) + logs[name])

    def e_values(self) -> dict[str, float]:
        """Returns E per gate and ``all``, with both halves of the error gate and the promotion evidence."""
        found = {name: e_value(value) for name, value in self.log_e().items()}
        found["all"] = e_value(self.log_e_all)
        found["error_relative"] = e_value(self.relative.log_e)
        found["error_ceiling"] = e_value(self.ceiling.log_e)
        found["support"] = e_value(self.support.log_e)
        found["sample_ratio"] = e_value(self.ratio.log_e)
        return found | self.reward.e_values()

    def state(self) -> dict[str, Any]:
        """Returns everything as JSON; ``from_state`` restores the same object bit for bit."""
        return {
            "ceiling_rate": self.ceiling.ceiling,
            "margin": self.reward.margin,
            "relative": list(self.relative.logs),
            "ceiling": list(self.ceiling.logs),
            "feedback": list(self.feedback.logs),
            "ratio": list(self.ratio.logs),
            "reward": self.reward.state(),
            "support": self.support.state(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Gates:
        gates = cls(ceiling=state["ceiling_rate"], margin=state["margin"])
        for name in ("relative", "ceiling", "feedback", "ratio"):
            _restore(getattr(gates, name), state[name])
        gates.reward.restore(state["reward"])
        gates.support.restore(state["support"])
        return gates


def _restore(gate: Any, logs: Sequence[float]) -> None:
    if len(logs) != len(gate.logs):
        raise ValueError(f"A stored gate has {len(logs)} bets, this version has {len(gate.logs)}.")
    gate.logs = [float(value) for value in logs]
    gate.log_e = log_mean_exp(gate.logs) if any(gate.logs) else 0.0
