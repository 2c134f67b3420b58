"""The job child: ``python -m onward.training.job.worker DIR`` reads a job folder and trains.

It uses no bus, warehouse or bucket. Its input is ``spec.json``, ``dataset.jsonl`` and ``adapter/``; its
output is JSON-line events on stdout and ``checkpoint/`` (``model/`` if all weights are trained). It may be
killed at any time; a later attempt on the same folder continues from ``state/``. On SIGTERM and SIGINT it
saves first.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import pickle
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onward.errors import OnwardError, TrainingError
from onward.files import is_disk_failure
from onward.processes import CALLING, COMPUTING, die_with_parent
from onward.training import checkpoints
from onward.training.data import dataset
from onward.training.data.report import DataReport
from onward.training.job import rows
from onward.training.job.state import StateFolder
from onward.training.spec.environment_plan import KEY_VARIABLE
from onward.training.spec.request import JobSpec

if TYPE_CHECKING:
    from onward.lm.policy import Policy
    from onward.training.job.kept import KeptPolicy
    from onward.training.job.methods import Method

LAST = "last"
"""Folder of the policy after the last step, if another one is handed out."""
STOPPED = 3
"""Exit code after a requested stop."""
PASSED = (*COMPUTING, *CALLING, KEY_VARIABLE)
"""Variables of the parent that a job needs, beside those of every child."""


class StopError(Exception):
    """A requested stop of this run; its state is saved."""


class Stop:
    """Stop flag, set by a signal; calling it raises StopError once it is set."""

    def __init__(self) -> None:
        self.asked = False

    def listen(self) -> None:
        def ask(_: int, __: Any) -> None:
            self.asked = True

        signal.signal(signal.SIGTERM, ask)
        signal.signal(signal.SIGINT, ask)

    def __call__(self) -> None:
        if self.asked:
            raise StopError


def emit(event: str, **facts: Any) -> None:
    """Writes one JSON line for the parent process."""
    sys.stdout.write(json.dumps({"event": event, **facts}, allow_nan=False) + "\n")
    sys.stdout.flush()


def main(folder: Path) -> int:
    die_with_parent()
    stop = Stop()
    stop.listen()
    try:
        _Run(folder, stop).run()
    except StopError:
        emit("stopped")
        return STOPPED
    except TrainingError as error:
        emit("failed", code=error.code, message=str(error))
        return 1
    except MemoryError:
        emit("failed", code="OOM", message="The job ran out of memory: lower training.batch_size.")
        return 1
    except OnwardError as error:
        emit("failed", code="DATA", message=str(error))
        return 1
    except Exception as error:
        if not is_disk_failure(error, folder):
            raise
        emit("failed", code="INFRA", message=f"The job's folder cannot be used ({type(error).__name__}).")
        return 1
    return 0


class _Run:
    """One attempt at the job in ``folder``."""

    def __init__(self, folder: Path, stop: Stop) -> None:
        self.folder, self.stop = folder, stop
        self.spec = JobSpec.model_validate_json((folder / "spec.json").read_bytes())
        self.state = StateFolder(folder / "state")
        self.kept: KeptPolicy
        self.started = time.monotonic()
        self._saved = time.monotonic()

    def run(self) -> None:
        import torch

        from onward.training.job import methods
        from onward.training.job.kept import KeptPolicy

        spec = self.spec
        if spec.reference not in ("start", "base"):
            spec = spec.model_copy(update={"reference": str(self.folder / spec.reference)})
        plays = spec.plays
        torch.set_num_threads(1 if plays else spec.thread_count)  # see OnPolicy
        torch.manual_seed(spec.seed)
        emit("stage", name="load")
        policy, baseline = _load(self.folder, spec)
        method = methods.make(policy, spec)
        method.load_state(baseline or {})
        method.load_beside(self.folder / "adapter")
        facts = self._restored(method)
        self.kept = KeptPolicy(self.folder / "kept", method.tensors, facts.get("kept"))
        learn = self._on_policy if plays else self._on_data
        self._finish(policy, method, *learn(policy, method, facts))

    def _restored(self, method: Method) -> dict[str, Any]:
        """Restores an earlier attempt's state if it can be read; otherwise starts over."""
        current = self.state.current
        if current is None:
            return {}
        try:
            facts = self.state.facts()
            method.restore(current)
        except (
            OnwardError,
            RuntimeError,
            OSError,
            EOFError,
            ValueError,
            KeyError,
            pickle.UnpicklingError,
        ) as e:
            self.state.clear()
            emit("stage", name="state not readable, starting over", cause=type(e).__name__)
            return {}
        method.load_state(facts.get("algorithm") or {})
        emit("stage", name="resumed", step=int(facts.get("step", 0)))
        return facts

    def _save(self, method: Method, facts: dict[str, Any], *, always: bool = False) -> bool:
        """Saves when it is due: after ``save_seconds``, every ``save_steps``, or ``always``. Then raises
        StopError if a stop was requested.
        """
        due = always or self.stop.asked or time.monotonic() - self._saved > self.spec.save_seconds
        due = due or (self.spec.save_steps is not None and facts["step"] % self.spec.save_steps == 0)
        saved = due and self.state.save(method.save, {**facts, "kept": self.kept.facts})
        if saved:
            self._saved = time.monotonic()
            self.kept.remove_others()
        self.stop()
        return saved

    def _on_data(
        self, policy: Policy, method: Method, facts: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Takes the remaining optimiser steps on the frozen dataset; returns facts of the run and metrics of
        the last step. ``facts`` are those of the saved state; after its last step only the summary remains.
        """
        lines = dataset.read(self.folder / dataset.FILE)
        _refuse_work_of_others(lines, self.spec.start_digest or policy.base_digest)
        report = DataReport()
        trajectories = rows.trajectories_of(lines, self.spec, policy, report, method.max_tokens)
        algorithm = method.state()  # as it was before these rows: a resumed update estimates again
        count = method.prepare(trajectories)
        report.update(method.excluded)
        emit("stage", name="train", rows=count, trajectories=len(lines), excluded=dict(report),
             places=report.places)  # fmt: skip
        judge = self._judge(policy, method)
        if self.kept.step is None and self.spec.start_counts:
            judge(0, {})
        trained = sum(sum(one.counts) for one in trajectories)
        per_step = trained / len(lines) * min(count, self.spec.batch_rows)
        metrics: dict[str, Any] = facts.get("metrics") or {}
        before = time.monotonic()
        for step, total, found in method.steps():
            now = time.monotonic()
            speed = per_step / max(1e-9, now - before)
            due = step == total or step % self.spec.evaluation_period(total) == 0
            judged, changed = judge(step, found) if due else ({}, False)
            before = time.monotonic()
            metrics = {**found, **judged, "steps": total}
            emit(
                "progress",
                step=step,
                total_steps=total,
                total_epochs=self.spec.epochs,
                elapsed=now - self.started,
                metrics={**metrics, "tokens_per_second": speed},
            )
            self._save(method, {"step": step, "algorithm": algorithm, "metrics": metrics}, always=changed)
        return {**rows.summary(lines, self.spec), "baseline": method.state() or None}, metrics

    def _judge(
        self, policy: Policy, method: Method
    ) -> Callable[[int, dict[str, Any]], tuple[dict[str, Any], bool]]:
        """Returns a function that judges the policy after a step, which has these metrics, on the run's own
        evaluation file: further metrics, and True if it is the best so far. Without such a file it returns
        nothing."""
        path = self.folder / dataset.EVAL_FILE
        if not path.is_file():
            return lambda step, found: ({}, False)
        lines = dataset.read(path)
        report = DataReport()
        trajectories = rows.trajectories_of(lines, self.spec, policy, report, method.max_tokens)

        def judge(step: int, found: dict[str, Any]) -> tuple[dict[str, Any], bool]:
            judged = method.judge(trajectories)
            figures = {name: value for name, value in judged.items() if math.isfinite(value)}
            # JSON has no NaN; a policy whose loss is none or infinite is the worst
            emit("eval", step=step, excluded=dict(report), **{name: figures.get(name) for name in judged})
            if "eval_loss" not in figures:
                return figures, False
            return figures, self.kept.offer(step, -figures["eval_loss"], metrics={**found, **figures})

        return judge

    def _on_policy(
        self, policy: Policy, method: Method, facts: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Plays the remaining steps; returns facts of the run and metrics of the last step."""
        from onward.envs.sources import open_source
        from onward.training.job.onpolicy import OnPolicy, RunProgress

        plan = self.spec.environment
        assert plan is not None
        course = RunProgress(**facts["course"]) if "course" in facts else RunProgress()

        def save(told: dict[str, Any]) -> bool:
            saved = {"course": told, "step": told["step"], "algorithm": method.state()}
            return self._save(method, saved, always=told["step"] == plan.steps)

        async def learn() -> dict[str, Any]:
            key = os.environ.get(KEY_VARIABLE)
            async with open_source(plan.place, dialect=plan.dialect, key=key) as source:
                on_policy = OnPolicy(
                    method,
                    source,
                    self.spec,
                    course=course,
                    emit=emit,
                    save=save,
                    stop=self.stop,
                    kept=self.kept,
                )
                try:
                    return await on_policy.run()
                except StopError:  # requested during play: nothing has changed since the last step
                    if course.before is not None:
                        facts = {"course": vars(course), "step": course.step, "kept": self.kept.facts}
                        self.state.save(method.save, {**facts, "algorithm": method.state()})
                    raise

        return {**asyncio.run(learn()), "baseline": method.state() or None}, course.last

    def _finish(self, policy: Policy, method: Method, run: dict[str, Any], last_step: dict[str, Any]) -> None:
        """Writes the result: facts of the run, and metrics of the policy that is handed out. Raises
        TrainingError (CONVERGENCE) after a last step that was not finite."""
        spec = self.spec
        last = int(last_step.get("steps", 0))
        if method.skipped_steps and last <= method.skipped_steps:
            raise TrainingError(
                "CONVERGENCE", "No step was finite, so none was taken: lower the learning rate."
            )
        if not method.finite:
            raise TrainingError(
                "CONVERGENCE",
                "The last step was not finite, so nothing is released: lower the learning rate.",
            )
        run = {**run, "steps": last, "skipped_steps": method.skipped_steps, "algorithm": spec.algorithm}
        if spec.ignored:
            run["ignored_hyperparameters"] = spec.ignored
        if spec.not_as_asked:
            run["not_as_asked"] = spec.not_as_asked
        kept, metrics = self.kept, {**last_step, **run}
        shutil.rmtree(self.folder / LAST, ignore_errors=True)  # of an end before the run was extended
        if kept.step is not None and kept.step != last:
            self._write(policy, method, self.folder / LAST, metrics)
            kept.put_back()
            if spec.full:
                policy.weights.unpack()
            metrics = _metrics_of_kept(kept, run, last_step)
        if kept.step is not None:
            by = "held-out success" if spec.plays else "loss on --eval"
            figure = kept.figures[0] if spec.plays else -kept.figures[0]
            metrics["handed_out"] = {
                "step": kept.step, "of": last, "by": by, "figure": figure, "evaluations": kept.evaluations,
            }  # fmt: skip
        told = self._write(policy, method, self.folder / ("model" if spec.full else "checkpoint"), metrics)
        emit(
            "done",
            seconds=time.monotonic() - self.started,
            peak_memory_gb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20),
            **told,
        )

    def _write(self, policy: Policy, method: Method, out: Path, metrics: dict[str, Any]) -> dict[str, Any]:
        """Writes the present policy to ``out``; returns its facts for the last event."""
        spec = self.spec
        if spec.full:
            policy.save(out)
            told: dict[str, Any] = {"metrics": metrics}
            (out / "training.json").write_text(json.dumps(told, indent=1, sort_keys=True))
            return {**told, "model": out.name}
        out.mkdir(exist_ok=True)
        policy.save_adapter(_adapter(), out)
        method.save_beside(out)
        manifest = checkpoints.write_manifest(
            out,
            job_id=spec.job_id,
            epoch=spec.epoch,
            base_digest=policy.base_digest,
            start_digest=spec.start_digest,
            metrics=metrics,
        )
        return {"adapter_digest": manifest.adapter_digest, "metrics": manifest.metrics}


def _metrics_of_kept(kept: KeptPolicy, run: dict[str, Any], last_step: dict[str, Any]) -> dict[str, Any]:
    """Returns the metrics of the best policy, if it is not the last one, whose own are under ``last``."""
    found = {**kept.metrics, **run}
    last = {name: value for name, value in last_step.items() if name != "steps"}
    if "held_out" in run:
        last["held_out"] = run["held_out"]["after"]
        found["held_out"] = {**run["held_out"], "after": kept.metrics["held_out"]}
    return {**found, "last": last}


def _adapter() -> str:
    from onward.training.job.methods import ADAPTER

    return ADAPTER


def _load(folder: Path, spec: JobSpec) -> tuple[Policy, dict[str, Any] | None]:
    """Loads the policy with the start adapter (or a new one), and the baseline saved with that adapter."""
    from onward.lm.policy import Policy

    policy = Policy.load(Path(spec.model_folder), dtype=spec.dtype)
    if spec.full:
        return policy, None
    if (folder / "adapter").is_dir():
        manifest = checkpoints.verify(folder / "adapter")
        policy.add_adapter(_adapter(), folder / "adapter")
        baseline = manifest.metrics.get("baseline")
        return policy, baseline if spec.algorithm == "reinforce" else None
    layers = policy.shape.layers
    chosen = range(int(spec.first_lora_layer * layers), layers)
    policy.new_adapter(_adapter(), spec.lora_rank, spec.lora_alpha, chosen, spec.seed, spec.lora_targets)
    return policy, None


def _refuse_work_of_others(lines: list[dict[str, Any]], trained: str) -> None:
    """Raises TrainingError for files with the work of another policy than the one in training. ``policy`` in
    a line is the policy that sampled it. Another policy's log-probs give no valid ratio."""
    others = sorted({line["policy"] for line in lines if "policy" in line} - {trained})
    if others:
        raise TrainingError(
            "DATA",
            f"The files hold the work of policy {others[0][:12]} and this run trains {trained[:12]}: give "
            f"the one that sampled them (--model, --start), or train with dpo or sft.",
        )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
