"""Settings of reward and training."""

from __future__ import annotations

import math
import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from onward.config.section import Section, split_at_commas
from onward.contracts.cron import OFF, is_cron

Algorithm = Literal["ppo", "dpo", "rloo", "grpo", "reinforce"]

REWARD_COMPONENTS = (
    "task_completion", "efficiency", "code_quality", "user_feedback", "safety", "accuracy", "rubric",
)  # fmt: skip
"""Names of the built-in reward components, each with a weight of its own."""


class CustomComponent(Section):
    """A user-defined reward component: ``[reward.custom.NAME]``."""

    source: str = ""
    """``module:function``; empty: the entry point of that name in ``onward.reward_components``."""
    weight: float = Field(ge=0, le=1)


class RubricSource(Section):
    """A rubric that scores trajectories: ``[reward.rubrics.NAME]``; one of document, family, checks."""

    document: str = ""
    """File of a free rubric in JSON: stages of code rules and judge rules over the final answer and files."""
    family: str = ""
    """Family of tasks with a known truth: trajectories whose task_id is ``FAMILY/SEED``."""
    checks: list[str] = Field(default_factory=list)
    """Checks of a final answer, such as ``min_words(50)``: those that the writer chooses from; without a
    writer all count alike."""
    writer: str = ""
    """Writes a rubric for each task: ``released`` (the released writer, see ``onward rubrics releases``), the
    folder of a run of ``onward rubrics train``, ``openai:NAME``, ``vllm:NAME@URL``, ``sglang:NAME@URL`` or
    ``local:FOLDER``."""
    judge: str = ""
    """Model of judge rules, in the same form; without one they cannot be checked."""
    task_types: list[str] = Field(default_factory=list)
    """Task types or domains that the rubric is about; empty: every one."""

    @model_validator(mode="after")
    def _one_kind(self) -> RubricSource:
        if sum(map(bool, (self.document, self.family, self.checks))) != 1:
            raise ValueError("give exactly one of document, family and checks")
        if self.writer and self.document:
            raise ValueError("a writer needs a family or checks; a document is a rubric already")
        if self.judge and not self.document:
            raise ValueError("a judge is for the judge rules of a document")
        return self


class RewardSettings(Section):
    task_completion: float = Field(0.40, ge=0, le=1)
    efficiency: float = Field(0.20, ge=0, le=1)
    code_quality: float = Field(0.15, ge=0, le=1)
    user_feedback: float = Field(0.25, ge=0, le=1)
    safety: float = Field(0.0, ge=0, le=1)
    """Weight of the safety rules. At 0 a component is scored and shown but does not count."""
    accuracy: float = Field(0.0, ge=0, le=1)
    """Weight of the comparison with the task's expected answer."""
    rubric: float = Field(0.0, ge=0, le=1)
    """Weight of the score by a rubric document."""
    rubrics: dict[str, RubricSource] = Field(default_factory=dict)
    """Rubrics of the component ``rubric``, the first that is about a task counts: name →
    `{document | family | checks, writer, judge, task_types}`."""
    custom: dict[str, CustomComponent] = Field(default_factory=dict)
    """User-defined components: name → `{source, weight}`; their weights count towards the sum of 1."""
    normalization: Literal["z-score", "min-max", "none"] = "z-score"
    window: int = Field(1000, ge=30, le=10_000)
    feedback_default: Literal["neutral", "exclude"] = "neutral"
    """Behaviour without feedback: ``neutral`` scores 0.5, ``exclude`` leaves the component out."""
    code_isolation: Literal["preferred", "required"] = "preferred"
    """``preferred``: without Landlock (Linux 5.13) the linter may read this machine's files, and a warning is
    logged; ``required``: code then stays unscored."""
    dense: bool = False
    """Adds each turn's part of the reward, in ``metadata.dense``."""

    def weights(self) -> dict[str, float]:
        """Component → weight, as configured; they sum to 1."""
        own = {name: custom.weight for name, custom in self.custom.items()}
        return {name: float(getattr(self, name)) for name in REWARD_COMPONENTS} | own

    @field_validator("custom")
    @classmethod
    def _names(cls, value: dict[str, CustomComponent]) -> dict[str, CustomComponent]:
        for name in value:
            if re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name) is None:
                raise ValueError(f"{name!r} is not a name of a component: use a-z, 0-9 and _, a letter first")
            if name in (*REWARD_COMPONENTS, "raw_total"):
                raise ValueError(f"{name!r} is a name that Onward uses itself: choose another")
        return value

    @model_validator(mode="after")
    def _sum_to_one(self) -> RewardSettings:
        total = math.fsum(self.weights().values())
        if abs(total - 1.0) > 1e-6:
            each = ", ".join(f"{name} {weight:g}" for name, weight in self.weights().items() if weight)
            raise ValueError(
                f"the weights sum to {total:g} ({each}): they must sum to 1, so change others too"
            )
        return self


class TrainingSettings(Section):
    algorithm: Algorithm = "ppo"
    """Algorithm of the requests that Onward makes itself. If it is not set, the data decides: ``dpo`` with
    enough corrections, ``rloo`` for repeated tasks, else ``reinforce``."""
    min_corrections: int = Field(64, ge=1)
    """Least number of new trajectories with a corrected answer for which ``dpo`` is requested: four steps of
    16 pairs. Fewer wait for the next job."""
    threshold: int = Field(5000, ge=1)
    """Number of rewarded trajectories of the current policy, since the last snapshot, that starts a job."""
    schedule: str = "0 2 * * *"
    """Cron expression, UTC, of scheduled jobs, or ``off``. A run that was missed is made once."""
    summary_schedule: str = "0 8 * * *"
    """Cron expression, UTC, of the daily summary for the superior agent, or ``off``."""
    min_new: int = Field(64, ge=1)
    """Least number of rewarded trajectories since the last snapshot for a job by the schedule or by
    degradation (``threshold``, if that is lower): the same data is not trained on again."""
    cooldown_minutes: float = Field(60.0, ge=0)
    """Time after a failed or cancelled job, or a candidate that was not promoted, without a job by threshold,
    schedule or degradation. A manual one starts all the same."""
    degradation_drop: float = Field(0.10, gt=0, le=1)
    """Fall of the current policy's mean raw total below its frozen baseline that counts as degradation. 1
    switches the test off."""
    degradation_alpha: float = Field(0.045, gt=0, lt=1)
    """Budget of false alarms of the degradation test, over the whole life of one policy."""
    learning_rate: float = Field(1e-5, gt=0)
    batch_size: int = Field(32, ge=1)
    epochs: int = Field(3, ge=1)
    clip_epsilon: float = Field(0.2, gt=0)
    sample_size: int = Field(10_000, ge=1)
    max_unscored_share: float = Field(0.2, ge=0, le=1)
    """Share of unscored trajectories above which a job fails with code DATA."""
    max_masked_share: float = Field(0.5, ge=0, le=1)
    """Share of sampled answers without tokens to train on (redacted, or continuing redacted ones) above which
    a policy gradient fails with code DATA, so that nothing trains silently on a remnant."""
    preset: Literal["default", "seed"] = "default"
    """``seed``: the requests that Onward makes itself are the RL trainer profile's, word for word (PPO, 1e-5,
    32, 3 epochs …). The default leaves the numbers to the model's recipe, which learns more."""
    strict: bool = False
    """A job fails with code DATA if a part of its request cannot be met, instead of reporting it."""
    checkpoint_days: float = Field(90, ge=0)
    """Days after a job's end for which its checkpoints are kept; 0 keeps all. Those of the current and the
    previous model and of a release under way are never deleted."""
    cost_per_hour: float = Field(0, ge=0)
    """Price of an hour of the training machine in US dollars, for the cost in a job's status and card."""
    trackers: list[Literal["wandb", "mlflow"]] = Field(default_factory=list)
    """Trackers that jobs report to beside TensorBoard: ``wandb``, ``mlflow``, each an extra of its own."""
    max_attempts: int = Field(3, ge=1)
    """Attempts of a job that may end by its own fault. Kills and outages do not count."""
    infra_pause_seconds: float = Field(600.0, gt=0)
    """Longest pause before the next attempt of a job that a part which is away has interrupted. The first
    pause is 5 s, and each one in a row is twice as long."""
    timeout_seconds: float = Field(86_400.0, gt=0)
    """Longest time of one attempt. It is then ended (TIMEOUT), and the next one continues from its state."""
    max_kl: float = Field(10.0, gt=0)
    """KL divergence of a step, in nats per token, above which an attempt ends with CONVERGENCE."""
    min_entropy: float = Field(0.0, ge=0)
    """Entropy of a step below which an attempt ends with CONVERGENCE. 0: never, since a policy that has
    learnt its task has little."""
    falling_evaluations: int = Field(3, ge=2)
    """Evaluations in a row with a falling reward after which an attempt ends with CONVERGENCE, if the whole
    fall is more than chance explains."""
    lease_seconds: float = Field(15.0, gt=0)
    return_from: Literal["outcome", "raw_total"] = "outcome"
    environments: list[str] = Field(default_factory=list)
    """Environments that a training request on the bus may name besides the built-in ones: addresses, such as
    ``https://envs.example.org/webshop`` (and what is below it), and ``package.module:object``."""
    data_roots: list[str] = Field(default_factory=list)
    """Folders with trajectories that a training request of source ``local`` may name files in; none by
    default."""
    unparsable_penalty: float = Field(0.5, ge=0, le=1)
    """Penalty subtracted from the return of a trajectory with an answer that could not be parsed. 0 counts it
    like any other failure, and the policy then loses its output format while it learns the task."""

    @field_validator("environments", "data_roots", "trackers", mode="before")
    @classmethod
    def _text_with_commas(cls, value: Any) -> Any:
        return split_at_commas(value)

    @field_validator("environments")
    @classmethod
    def _places(cls, value: list[str]) -> list[str]:
        for place in value:
            address = re.fullmatch(r"https?://[^\s/?#@\\]+(/[^\s?#\\]*)?", place)
            if address is None and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", place) is None:
                raise ValueError(
                    "an entry is neither http://HOST:PORT/PATH (no user, no query) nor package.module:object"
                )
        return value

    @field_validator("schedule", "summary_schedule")
    @classmethod
    def _cron(cls, value: str) -> str:
        if value != OFF and not is_cron(value):
            raise ValueError(
                f"{value!r} is not a cron expression: five fields, for example '0 2 * * *', or 'off'"
            )
        return value
