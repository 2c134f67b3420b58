"""Settings of validation and release."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from onward.config.section import Section


class ReleaseSettings(Section):
    steps: list[float] = Field(default=[0.10, 0.25, 0.50, 1.0])
    """The candidate's share of new sessions in each step."""
    step_minutes: list[float] = Field(default=[60, 60, 120, 0])
    """Least time in each step, in minutes. The share changes at 0, 60, 120 and 240 minutes."""
    min_sessions: list[int] = Field(default=[])
    """Candidate sessions with a known outcome that a step needs before it may end: one at least, and lost
    sessions do not count. Empty: a third of what the traffic of the last days brings in the step's time,
    at most 50, 100 and 200. ``time_scale`` never lowers numbers."""
    time_scale: float = Field(1.0, gt=0)
    """Factor on the times of the schedule: 1 is real time; 0.01 is a hundred times faster."""
    bake_minutes: float = Field(60, ge=0)
    bake_share: float = Field(0.05, ge=0, le=0.5)
    """Share that stays on the previous model while the release bakes at 100 %."""
    alpha: float = Field(0.045, gt=0, lt=1)
    """Total false-rollback budget of all gates together."""
    error_ceiling: float = Field(0.05, gt=0, lt=1)
    reward_margin: float = Field(0.05, ge=0, lt=1)
    """Tolerated drop of the mean reward (ROLLBACK_REWARD_THRESHOLD, sign dropped)."""
    reward_signal: Literal["both", "outcome"] = "both"
    """Numbers that the reward gate judges: the outcome of a session and the raw total of its reward where it
    is known, or the outcome alone. Both are from 0 to 1."""
    error_maturity_seconds: float = Field(30, ge=0)
    reward_maturity_seconds: float = Field(120, ge=0)
    lost_after_seconds: float = Field(600, gt=0)
    """Seconds without any outcome after which a session counts as lost on its arm."""
    max_bake: float = Field(4.0, ge=0)
    """Most hours of the last step: it is prolonged so far until "not worse" is shown; 0: never prolonged.
    ``on_inconclusive`` decides what happens then."""
    on_inconclusive: Literal["promote", "hold", "ask"] = "promote"
    step_deadline_minutes: float = Field(24 * 60, gt=0)
    """Minutes after which a step with too few sessions is inconclusive: it holds and alerts."""
    min_delta: float = Field(-0.05, le=0)
    """Paired difference to the current model below which validation fails."""
    strategy: Literal["auto", "canary", "immediate"] = "auto"
    """``auto`` follows the measured improvement: from 0.15 blue-green, from 0.05 canary, from 0 a careful
    canary that starts at 5 %, below 0 no release. ``canary``: every release goes through all steps, down to
    ``min_delta``. ``immediate``: the candidate gets all traffic but ``bake_share`` at once."""
    mode: Literal["release", "shadow"] = "release"
    """``shadow``: candidates are trained and validated, and none is released."""
    approval: Literal["never", "critical", "always"] = "never"
    """Releases that wait for a person's approval. ``critical``: those not validated or not shown, with a
    safety check that is not passed, or with nearly all traffic at once."""
    approval_hours: float = Field(24.0, gt=0)
    """Hours after which ``on_approval_timeout`` decides about a release that waits."""
    on_approval_timeout: Literal["refuse", "approve", "wait"] = "refuse"
    """Decision if no person has answered by then."""
    gates: Literal["sequential", "threshold"] = "sequential"
    """``sequential``: E-values with a budget of false alarms. ``threshold``: fixed limits, read every
    ``threshold_minutes``; at low traffic they often take back a model that is as good."""
    threshold_minutes: float = Field(5.0, gt=0)
    """Minutes between two checks of the limits; each reads the last 30 minutes."""
    consecutive: int = Field(1, ge=1, le=12)
    """Checks in a row that must break a limit (gates = "threshold" alone)."""
    threshold_sessions: int = Field(20, ge=1)
    """Least sessions of an arm in a window of the threshold rule: with fewer it counts neither as broken nor
    as passed."""
    canary_ramp_hours: float = Field(4.0, gt=0)
    """Hours of the ramp (CANARY_RAMP_HOURS); scales ``step_minutes`` by n/4."""

    @model_validator(mode="before")
    @classmethod
    def _moved(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and not {"suite", "suite_size"}.isdisjoint(given):
            raise ValueError(
                'release.suite and release.suite_size have moved: set validation.suites = ["desk"] and '
                "validation.size"
            )
        return given

    @model_validator(mode="after")
    def _same_length(self) -> ReleaseSettings:
        given = self.min_sessions or self.steps
        if not (len(self.steps) == len(self.step_minutes) == len(given)):
            raise ValueError("release.steps, step_minutes and min_sessions must have the same length")
        if sorted(self.steps) != list(self.steps) or self.steps[-1] != 1.0 or self.steps[0] <= 0:
            raise ValueError("release.steps must rise from above 0 to exactly 1.0")
        return self

    def step_seconds(self, step: int) -> float:
        """Least duration of step ``step`` in seconds, after both time scalings."""
        return self.step_minutes[step] * 60.0 * self.time_scale * (self.canary_ramp_hours / 4.0)


class ValidationSettings(Section):
    suites: list[str] = Field(default_factory=list)
    """Suites that a candidate is validated with, such as ``recorded:agent=NAME,days=30``. Empty: a release
    says "not validated"."""
    other_tasks: list[str] = Field(default_factory=list)
    """Suites of other tasks than the candidate was trained for: they may only stop a release. ``auto``: every
    environment that is known here and that the candidate did not play in training."""
    size: int = Field(100, ge=10)
    """Most items of a suite that can choose how many it has; both models get the same ones."""
    regression: Literal["interval", "point"] = "interval"
    """Number that must not be below ``release.min_delta``: the lower end of the difference's interval, or the
    difference."""
    required: bool = False
    """Reject a candidate whose validation is "not shown" or "not validated"."""
    max_unscored: float = Field(0.1, ge=0, le=1)
    """Share of a suite's items that may be left unjudged; above it the suite shows nothing."""
    rubric: str | None = None
    """``module:function`` that judges recorded tasks, in place of the recorded outcome."""


class TensorZeroSettings(Section):
    """A TensorZero gateway that follows the releases beside the built-in ones."""

    apply: Literal["", "embedded", "file", "endpoint"] = ""
    """The way on which routes reach it: a gateway within the releaser's process, ``config_file`` and
    ``reload_command``, or its own apply endpoint. Empty: there is none."""
    config_file: str = ""
    """File for ``embedded`` and ``file``; what else it contains stays. Empty: ``run/tensorzero.toml``."""
    reload_command: list[str] = Field(default_factory=list)
    """Command that makes TensorZero read ``config_file`` again, such as ``["docker", "restart", "t0"]``."""
    urls: list[str] = Field(default_factory=list)
    """Addresses of all replicas for ``endpoint``. Empty: ``external.tensorzero_base_url``."""
    function: str = Field("agent", pattern=r"[a-z][a-z0-9_]{0,63}")
    """Function whose variants split the traffic."""
    upstream: str = ""
    """Address of the OpenAI-compatible engine behind it. Empty: this gateway, which serves both models by
    name."""
    upstream_key: str = ""
    """Place of that engine's key in TensorZero's form, such as ``env::ENGINE_KEY``. Empty: none is sent."""

    @field_validator("reload_command", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        """Accepts text as a shell splits it, the form used in the environment."""
        return shlex.split(value) if isinstance(value, str) else value
