"""Judges of a policy that trains on logged work: replay in an environment, an off-policy estimate, or a loss.

Invariants: no judge takes the rewards of the policy that did the work for those of the policy in training.
Where a judge cannot tell, it gives a reason and no number, and the policy is not ranked.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from jinja2.exceptions import TemplateError

from onward.envs.sources import TaskSource, open_source
from onward.envs.tasks import TaskRef
from onward.errors import OnwardError
from onward.lm import doubly_robust, off_policy
from onward.lm.batches import Batches, Prepared
from onward.lm.off_policy import LoggedAttempt
from onward.lm.tokens import TokenRow
from onward.lm.trajectories import Trajectory
from onward.training.data import admission
from onward.training.data.report import DataReport
from onward.training.job import playing, rows
from onward.training.job.methods import Method
from onward.training.spec import environment_plan as plans
from onward.training.spec.algorithms import ALGORITHMS
from onward.training.spec.environment_plan import EnvironmentPlan
from onward.training.spec.request import JobSpec

RETURN_ESTIMATED = "held-out return, estimated off policy"
SUCCESS_REPLAYED = "held-out success"
LOSS = "loss on --eval"
LOSS_HELD_OUT = "held-out loss"
_TASK_ID = re.compile(r"(?P<environment>.+)-(?P<split>[a-z]+)-(?P<seed>\d+)-(?P<index>\d+)")

Lines = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Verdict:
    """A judge's finding."""

    figures: dict[str, Any]
    """Facts for the event and the manifest."""
    rank: tuple[float, ...] | None
    """Figures that policies are compared by, the first number first; None: it could not be judged."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Numbers for the curves."""


class Judge(ABC):
    """Judges the policy as it is now."""

    by: str
    """The figure that it compares policies by, in words."""
    event: str = "held_out"
    higher_is_better = True

    def __init__(self, excluded: Mapping[str, int] | None = None) -> None:
        self.excluded = dict(excluded or {})
        """Held-out lines that it cannot use, counted by reason."""

    @abstractmethod
    def judge(self) -> Verdict: ...

    def state(self) -> Any:
        """Returns what a resumed run needs besides the data, as JSON."""
        return None


class LossJudge(Judge):
    """The loss on data that is not trained on: for sft and dpo, which need no sampled tokens."""

    event = "eval"
    higher_is_better = False

    def __init__(
        self,
        method: Method,
        trajectories: Sequence[Trajectory],
        by: str = LOSS,
        *,
        excluded: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(excluded)
        self.by = by
        self._method, self._trajectories = method, trajectories

    def judge(self) -> Verdict:
        judged = self._method.judge(self._trajectories)
        finite = {name: value for name, value in judged.items() if math.isfinite(value)}
        # JSON has no NaN; a policy whose loss is none or infinite is the worst
        rank = (-finite["eval_loss"],) if "eval_loss" in finite else None
        return Verdict({name: finite.get(name) for name in judged}, rank, finite)


class EstimateJudge(Judge):
    """The mean return on held-out tasks, from the attempts of the policy that did the work, weighted by how
    much likelier the policy in training is to do the same."""

    by = RETURN_ESTIMATED

    def __init__(
        self,
        method: Method,
        spec: JobSpec,
        attempts: Sequence[tuple[str, Trajectory]],
        bounds: tuple[float, float],
        behaviour: list[list[float]] | None = None,
        *,
        excluded: Mapping[str, int] | None = None,
    ) -> None:
        """``attempts`` are (task, trajectory), all of them ``weighable``. ``behaviour`` is the state of an
        earlier attempt at this job. ``bounds`` are the least and the greatest return."""
        super().__init__(excluded)
        self._method, self._spec, self._bounds = method, spec, bounds
        self._attempts = attempts
        self._dense = all(one.turn_rewards is not None for _, one in attempts)
        self._behaviour = behaviour

    def judge(self) -> Verdict:
        now = self._turns(self._logprobs())
        if self._behaviour is None:
            # Recomputed where nothing was recorded. Rows of the start count as drawn by the learner's own
            # arithmetic: in half precision a sampler's small errors would add up over thousands of tokens.
            recorded = self._spec.behaviour == "recorded"
            own = self._spec.dtype != "float32" and not ALGORITHMS[self._spec.algorithm].text_is_enough
            told = self._turns(self._recorded()) if recorded else now
            self._behaviour = [
                start if own and one.staleness == 0 else turns
                for start, turns, (_, one) in zip(now, told, self._attempts, strict=True)
            ]
        attempts = [
            LoggedAttempt(task, [a - b for a, b in zip(new, old, strict=True)], _rewards(one, len(new)))
            for new, old, (task, one) in zip(now, self._behaviour, self._attempts, strict=True)
        ]
        found = off_policy.estimate(attempts, per_decision=self._dense, bounds=self._bounds)
        facts = found.facts()
        value = facts.pop("value", None)
        kind = "per_decision_importance_sampling" if self._dense else "importance_sampling"
        metrics = {"holdout_effective_tasks": found.effective}
        if value is None:
            return Verdict({**facts, "method": kind}, None, metrics)
        metrics |= {"holdout_reward": value, "holdout_low": facts["low"], "holdout_high": facts["high"]}
        values = doubly_robust.task_values(attempts)
        second = doubly_robust.estimate(attempts, values, bounds=self._bounds).facts()
        ends = {"": second.get("value"), "_low": second.get("low"), "_high": second.get("high")}
        robust = {f"doubly_robust{end}": number for end, number in ends.items() if number is not None}
        metrics |= {f"holdout_{name}": number for name, number in robust.items()}
        return Verdict({"reward": value, **facts, **robust, "method": kind}, (value,), metrics)

    def state(self) -> Any:
        return self._behaviour

    def _logprobs(self) -> list[torch.Tensor]:
        """Returns per attempt the log-probs of its trained tokens under the policy now, in row order."""
        policy, method = self._method.policy, self._method
        chosen = [[row for row in one.rows if row.trained] for _, one in self._attempts]
        prepared = Prepared.from_rows(
            [row for some in chosen for row in some], policy.shape.max_positions, self._spec.behaviour
        )
        batches = Batches(policy, method.adapter, prepared, self._spec.micro_batch_tokens, cache_bytes=0)
        found = iter(batches.logprobs(method.adapter))
        return [torch.cat([next(found) for _ in some]) for some in chosen]

    def _recorded(self) -> list[torch.Tensor]:
        return [
            torch.tensor([row.logprobs[t] for row in one.rows for t in row.trained])
            for _, one in self._attempts
        ]

    def _turns(self, logprobs: Sequence[torch.Tensor]) -> list[list[float]]:
        """Sums log-probs by sampled turn, in the order of sampling."""
        found = []
        for values, (_, one) in zip(logprobs, self._attempts, strict=True):
            sums = torch.cat([values.new_zeros(1), values[one.order()]]).double().cumsum(0)
            ends = [0, *(end + 1 for end in one.turn_ends())]
            found.append(torch.diff(sums[ends]).tolist())
        return found


def _rewards(one: Trajectory, turns: int) -> list[float]:
    if one.turn_rewards is not None:
        return [float(value) for value in one.turn_rewards]
    return [0.0] * (turns - 1) + [float(one.reward or 0.0)]


class ReplayJudge(Judge):
    """Success and reward at the held-out tasks, played again in their environment."""

    by = SUCCESS_REPLAYED

    def __init__(
        self, method: Method, spec: JobSpec, plan: EnvironmentPlan, train: Lines, held_out: Lines,
        stop: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__()
        self._method, self._spec, self._plan, self._stop = method, spec, plan, stop
        self._train, self._held_out = train, held_out

    def judge(self) -> Verdict:
        figures = asyncio.run(self._play())
        if figures["success"] is None:
            return Verdict({**figures, "reason": "no episode was scored"}, None)
        names = {"success": "holdout_success", "reward": "holdout_reward"}
        metrics = {name: figures[key] for key, name in names.items()}
        return Verdict(figures, (figures["success"], figures["reward"]), metrics)

    async def _play(self) -> dict[str, Any]:
        plan, key = self._plan, os.environ.get(plans.KEY_VARIABLE)
        thread = ThreadPoolExecutor(
            1, "torch", initializer=torch.set_num_threads, initargs=(self._spec.thread_count,)
        )
        with thread:
            async with open_source(plan.place, dialect=plan.dialect, key=key) as source:
                episodes, _ = await playing.play(
                    self._method, source, plan, thread, self._tasks(source), stop=self._stop,
                    seed=f"{self._spec.seed}/held-out", temperature=plan.held_out_temperature,
                )  # fmt: skip
        return playing.figures(episodes)

    def _tasks(self, source: TaskSource) -> list[TaskRef]:
        """Returns the held-out tasks that are this environment's; if there are none, those that it holds out
        itself and that were not trained on."""
        known = tasks_of(self._held_out, source.name)
        if known:
            return known[: plans.HELD_OUT if self._plan.held_out is None else self._plan.held_out]
        trained = set(tasks_of(self._train, source.name))
        return [task for task in plans.panels(self._plan, source)[1] if task not in trained]


def tasks_of(lines: Lines, environment: str) -> list[TaskRef]:
    """Returns the tasks of ``environment`` that the lines' task ids name, each once."""
    found = []
    for line in lines:
        told = _TASK_ID.fullmatch(str(line.get("task_id") or ""))
        if told is not None and told["environment"] == environment:
            found.append(TaskRef(environment, told["split"], int(told["index"]), int(told["seed"])))
    return list(dict.fromkeys(found))


def weighable(one: Trajectory, line: Mapping[str, Any], max_tokens: int, *, recorded: bool) -> bool:
    """Reports if every token that a policy chose in this attempt has a probability that can be compared."""
    chosen = [row for row in one.rows if row.trained]
    if (
        one.reward is None
        or not chosen
        or one.longest > max_tokens
        or admission.masked(line.get("calls", ()))
    ):
        return False
    return all(_is_known(row, recorded) for row in chosen)


def _is_known(row: TokenRow, recorded: bool) -> bool:
    full = row.top_p >= 1.0 and row.top_k is None and 0 < row.temperature < math.inf
    if not full or not recorded:
        return full
    return row.behaviour_known and all(-math.inf < row.logprobs[t] <= 1e-4 for t in row.trained)


def weighable_attempts(
    held_out: Lines, names: Sequence[str], method: Method, spec: JobSpec, report: DataReport
) -> list[tuple[str, Trajectory]]:
    """Returns (task, trajectory) of the held-out lines that an estimate can use; counts the others."""
    found = []
    chat = None
    recorded = spec.behaviour == "recorded"
    for line, name in zip(held_out, names, strict=True):
        if "calls" not in line and recorded:
            report.leave_out("no_logprobs", str(line.get("place") or line["trajectory_id"]))
            continue
        if "calls" not in line and chat is None:
            chat = rows.chat_of(method.policy)
        try:
            one = rows.trajectory_of(line, spec, chat)
        except (OnwardError, TemplateError):
            report.leave_out("bad_row", str(line.get("place") or line["trajectory_id"]))
            continue
        if weighable(one, line, method.max_tokens, recorded=recorded):
            found.append((name, one))
        else:
            report.leave_out("not_weighable", str(line.get("place") or line["trajectory_id"]))
    return found
