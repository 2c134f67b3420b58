"""Evidence of an A/B test: outcomes prepared as those of a release are, and the interval from them.

Invariants: repeats, late outcomes and sessions in two arms are dropped by the same rules as in a release.
"""

from __future__ import annotations

from typing import Any

from onward.release.ab.interval import DifferenceInterval
from onward.release.evidence.evidence import Evidence, GateRules


class AbEvidence(Evidence):
    """Evidence in which ``current`` is A and ``candidate`` is B. The gates of a release watch B as well."""

    def __init__(
        self, ab_id: str, rules: GateRules, cursor: int, models: tuple[str, str] | None, alpha: float
    ) -> None:
        super().__init__(ab_id, rules, cursor, models)
        self.interval = DifferenceInterval(alpha)

    def _judge(self, gate: Any, key: str, unit: list[Any]) -> None:
        super()._judge(gate, key, unit)
        if gate == "reward":
            _, is_b, _, outcome, *_ = unit
            self.interval.value(bool(is_b), outcome)

    def whole_state(self) -> dict[str, Any]:
        """Returns everything as JSON."""
        return {"evidence": self.state(), "interval": self.interval.state()}

    @classmethod
    def from_whole_state(cls, state: dict[str, Any]) -> AbEvidence:
        plain = Evidence.from_state(state["evidence"])
        interval = DifferenceInterval.from_state(state["interval"])
        made = cls(plain.release_id, plain.rules, plain.cursor, plain.models, interval.alpha)
        vars(made).update(vars(plain))
        made.interval = interval
        return made
