"""Efficiency: less effort than usual for this type of task, times the completion score.

There are four signals, each a z-score against the running baseline (positive: less effort), capped to ±2:
turns 0.4, seconds 0.2, tokens 0.2, redundant calls 0.2. Their weighted mean z becomes (z + 2)/4. That is
multiplied by the completion score: otherwise a fast failure would beat honest slow work. Where that factor is
0, as for a failure or an unreported outcome, the score is 0 with or without a baseline. If the component did
not apply there, its weight would go to the others, and failing at an unknown type of task would pay.
"""

from __future__ import annotations

from onward.contracts import Trajectory
from onward.reward.components.base import NotApplicable, Scored, ScoringContext
from onward.reward.measures.baselines import MINIMUM_SAMPLES, Baseline, effort
from onward.reward.measures.judgement import Judgement, earned_score, evidence

SIGNAL_WEIGHTS = {"turns": 0.4, "seconds": 0.2, "tokens": 0.2, "redundant_calls": 0.2}
Z_CAP = 2.0


class Efficiency:
    name = "efficiency"

    def score(self, trajectory: Trajectory, context: ScoringContext) -> Scored | NotApplicable:
        achieved = earned_score(context.judgement)
        found = context.baselines.find(trajectory)
        if achieved == 0.0 and found is None:
            return Scored(
                score=0.0,
                source="automated",
                reasoning=f"{_no_completion(context.judgement)}, so no efficiency is earned.",
                raw_data={"baseline": None, "completion": 0.0},
                evidence=evidence(context.judgement),
            )
        if found is None:
            return NotApplicable(f"fewer than {MINIMUM_SAMPLES} comparable trajectories are known yet")
        key, baseline = found
        signals: dict[str, dict[str, float]] = {}
        weight = total = 0.0
        for name, value in effort(trajectory).items():
            running = baseline.get(name)
            if running is None or running.n < MINIMUM_SAMPLES:
                continue
            z = _less_is_better(value, running)
            signals[name] = {
                "value": value,
                "mean": running.mean,
                "std": running.std,
                "z": z,
                "weight": SIGNAL_WEIGHTS[name],
            }
            weight += SIGNAL_WEIGHTS[name]
            total += SIGNAL_WEIGHTS[name] * z
        if weight == 0.0:
            return NotApplicable("no signal has a baseline yet")
        z = total / weight
        thrift = (z + Z_CAP) / (2 * Z_CAP)
        best = min(signals, key=lambda name: -abs(signals[name]["z"]))
        return Scored(
            score=thrift * achieved,
            source="automated",
            reasoning=(
                f"Effort {z:+.2f} deviations below the usual of {key} gives {thrift:.3f}, times completion "
                f"{achieved:.3f}; the largest part is {best} {signals[best]['value']:g} "
                f"(usual {signals[best]['mean']:.3g})."
            ),
            raw_data={"baseline": key, "signals": signals, "z": z, "thrift": thrift, "completion": achieved},
            evidence=evidence(context.judgement),
        )


def _no_completion(judgement: Judgement) -> str:
    if judgement.contradictions and judgement.derived:
        return "The results contradict the reported outcome"
    if judgement.derived:
        return "Completion was not reported but derived from the results"
    return "The reported completion is 0"


def _less_is_better(value: float, baseline: Baseline) -> float:
    """Returns (mean − value)/deviation, capped to ±2; without deviation the sign of the difference counts."""
    if baseline.std > 0.0:
        return max(-Z_CAP, min(Z_CAP, (baseline.mean - value) / baseline.std))
    if value == baseline.mean:
        return 0.0
    return Z_CAP if value < baseline.mean else -Z_CAP
