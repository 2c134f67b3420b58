"""Learning from logged work: optimiser steps on a frozen dataset, judged on tasks that were held out.

Invariants: held-out tasks are left out before anything is made of the data. The start is judged first, by the
same judge; where the start counts, a policy that could not be judged never takes its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onward.errors import TrainingError
from onward.lm.model import LanguageModel
from onward.training.data import dataset
from onward.training.data.report import DataReport
from onward.training.job import evaluation, holdout, rows
from onward.training.job.kept import KeptPolicy
from onward.training.job.methods import Method
from onward.training.job.onpolicy import HELD_OUT
from onward.training.job.pace import Pace
from onward.training.job.placing import peak_gigabytes
from onward.training.job.replayed import MaskReplay
from onward.training.spec.algorithms import ALGORITHMS
from onward.training.spec.request import JobSpec

Emit = Callable[..., None]
Facts = dict[str, Any]


class OnData:
    """Trains on the dataset in ``folder``; ``run`` takes the remaining steps."""

    def __init__(
        self,
        folder: Path,
        policy: LanguageModel,
        method: Method,
        spec: JobSpec,
        *,
        kept: KeptPolicy,
        emit: Emit,
        save: Callable[[Facts, bool], bool],
        stop: Callable[[], None],
        expect: Callable[[list[dict[str, Any]]], None],
        report: DataReport,
    ) -> None:
        """``save(facts, always)`` saves the state when it is due; ``stop`` may raise; ``expect`` reports the
        memory that lines need; what is left out is counted in ``report``."""
        self.folder, self.policy, self.method, self.spec = folder, policy, method, spec
        self._kept, self._emit, self._save, self._stop, self._expect = kept, emit, save, stop, expect
        self._report = report
        self._replay = MaskReplay.of_model(policy, stop)
        self._judge: evaluation.Judge | None = None
        self._before: dict[str, Any] | None = None
        """The judge's figures of the start."""
        self._last: dict[str, Any] | None = None

    def run(self, facts: Facts) -> tuple[Facts, Facts, evaluation.Judge | None]:
        """Returns facts of the run, metrics of the last step, and the judge. ``facts`` are those of the saved
        state; after its last step only the summary remains. Raises TrainingError (DATA)."""
        spec, method = self.spec, self.method
        lines = dataset.read(self.folder / dataset.FILE)
        refuse_work_of_others(lines, spec.start_digest or self.policy.base_digest)
        lines = self._with_masks(lines)
        split = self._split(lines)
        self._expect(split.train)
        report = self._report
        trajectories = rows.trajectories_of(split.train, spec, self.policy, report, method.max_tokens)
        algorithm = method.state()  # as it was before these rows: a resumed update estimates again
        count = method.prepare(trajectories)
        report.update(method.excluded)
        self._emit("stage", name="train", rows=count, trajectories=len(split.train), excluded=dict(report),
                   places=report.places, held_out=len(split.held_out))  # fmt: skip
        self._judge = self._choose_judge(split, facts)
        self._before, self._last = facts.get("before"), facts.get("after")
        if self._judge is not None and not facts:
            self._judge_start(algorithm)
        summary = rows.summary(split.train, spec)
        constant = {name: summary[name] for name in ("reward_mean", "reward_std")}
        per_step = sum(sum(one.counts) for one in trajectories) / len(trajectories)
        per_step *= min(count, spec.batch_rows)
        pace, before = Pace(spec.epochs), time.monotonic()
        metrics: Facts = facts.get("metrics") or {}
        for step, total, found in method.steps():
            speed = per_step / max(1e-9, time.monotonic() - before)
            metrics, changed = self._judge_if_due(step, total, found)
            before = time.monotonic()
            machine = {"tokens_per_second": speed, "memory_gb": peak_gigabytes(self.policy)}
            self._emit("progress", step=step, total_steps=total, progress=pace.progress(step, total),
                       metrics={**constant, **metrics, **machine})  # fmt: skip
            self._save(self._facts(step, algorithm, metrics), changed)
        told = {**summary, "baseline": method.state() or None, **self._held_out_facts(split)}
        return told, metrics, self._judge

    def _with_masks(self, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the lines that can be trained on, with the masks of their answers. Raises TrainingError
        (DATA) if too many answers have none."""
        kept = self._replay.lines(lines, self._report)
        if warning := self._replay.warning:
            self._emit("warning", message=warning)
            shares = dataset.Shares()
            for line in lines:
                shares.count_read_line(line)
            shares.refuse(1.0, self.spec.max_masked_share, warning)
        if not kept:
            raise TrainingError("DATA", f"No row is left to train on. {self._replay.warning}")
        return kept

    def _facts(self, step: int, algorithm: Facts, metrics: Facts) -> Facts:
        judge = None if self._judge is None else self._judge.state()
        return {"step": step, "algorithm": algorithm, "metrics": metrics, "before": self._before,
                "after": self._last, "judge": judge}  # fmt: skip

    def _split(self, lines: list[dict[str, Any]]) -> holdout.Holdout:
        fewest = 1 if self.spec.algorithm == "sft" else 2
        split = holdout.split(lines, self.spec.holdout, self.spec.seed, fewest=fewest)
        if split.reason is not None:
            sentence = f"Nothing is held out: {split.reason}."
            if self.spec.strict:
                raise TrainingError("DATA", f"{sentence} This job is strict, so it does not run without.")
            self._emit("stage", name="nothing held out", reason=split.reason)
        return split

    def _choose_judge(self, split: holdout.Holdout, facts: Facts) -> evaluation.Judge | None:
        """Returns the judge of this run: the user's own file, the environment, the estimate, or for text the
        loss; None if nothing is held out."""
        spec, method, report = self.spec, self.method, DataReport()
        path = self.folder / dataset.EVAL_FILE
        if path.is_file():
            told = rows.trajectories_of(dataset.read(path), spec, self.policy, report, method.max_tokens)
            return evaluation.LossJudge(method, told, excluded=report)
        if spec.replay is not None and (split.held_out or not spec.holdout):
            return evaluation.ReplayJudge(method, spec, spec.replay, split.train, split.held_out, self._stop)
        if not split.held_out:
            return None
        names = holdout.task_names(split.held_out)
        attempts = evaluation.weighable_attempts(split.held_out, names, method, spec, report)
        if not attempts and ALGORITHMS[spec.algorithm].text_is_enough:
            told = rows.trajectories_of(split.held_out, spec, self.policy, DataReport(), method.max_tokens)
            return evaluation.LossJudge(method, told, evaluation.LOSS_HELD_OUT)
        returns = [one.reward for _, one in attempts if one.reward is not None]
        bounds = min([0.0, *returns]), max([1.0, *returns])
        return evaluation.EstimateJudge(method, spec, attempts, bounds, facts.get("judge"), excluded=report)

    def _judge_start(self, algorithm: Facts) -> None:
        if self._judge is not None and self._judge.event != HELD_OUT and not self.spec.start_counts:
            return  # a loss of the start is nobody's figure
        verdict = self._look(0, "before")
        self._before = verdict.figures
        if self.spec.start_counts and verdict.rank is not None:
            self._offer(0, verdict, dict(verdict.metrics))
        self._save(self._facts(0, algorithm, {}), False)

    def _judge_if_due(self, step: int, total: int, found: Facts) -> tuple[Facts, bool]:
        """Returns the metrics of a step, and True if its policy is the best so far."""
        metrics = {**found, "steps": total}
        if self._judge is None or (step != total and step % self.spec.evaluation_period(total)):
            return metrics, False
        verdict = self._look(step, f"step {step}" if step < total else "after")
        metrics |= verdict.metrics
        self._last = verdict.figures
        return metrics, verdict.rank is not None and self._offer(step, verdict, {**found, **verdict.metrics})

    def _look(self, step: int, when: str) -> evaluation.Verdict:
        assert self._judge is not None
        verdict = self._judge.judge()
        self._emit(self._judge.event, step=step, when=when, excluded=dict(self._judge.excluded),
                   **verdict.figures)  # fmt: skip
        return verdict

    def _offer(self, step: int, verdict: evaluation.Verdict, metrics: Facts) -> bool:
        assert verdict.rank is not None and self._judge is not None
        figures = {HELD_OUT: verdict.figures} if self._judge.event == HELD_OUT else {}
        return self._kept.offer(step, *verdict.rank, metrics={**metrics, **figures})

    def _held_out_facts(self, split: holdout.Holdout) -> Facts:
        if split.reason is not None:
            return {HELD_OUT: {"reason": split.reason}}
        if self._judge is None or self._judge.event != HELD_OUT:
            return {}
        return {HELD_OUT: {"before": self._before, "after": self._last}}


def refuse_work_of_others(lines: list[dict[str, Any]], trained: str) -> None:
    """Raises TrainingError for files with the work of another policy than the one in training. ``policy`` in
    a line is the policy that sampled it. Another policy's log-probs give no valid ratio."""
    others = sorted({line["policy"] for line in lines if "policy" in line} - {trained})
    if others:
        raise TrainingError(
            "DATA",
            f"The files hold the work of policy {others[0][:12]} and this run trains {trained[:12]}: give "
            f"the one that sampled them (--model, --start), or train with dpo or sft.",
        )
