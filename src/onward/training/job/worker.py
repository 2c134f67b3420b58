"""The job child: ``python -m onward.training.job.worker DIR`` reads a job folder and trains.

It uses no bus, warehouse or bucket. Its input is ``spec.json``, ``dataset.jsonl`` and ``adapter/``; its
output is JSON-line events on stdout and ``checkpoint/`` (``model/`` if all weights are trained). It may be
killed at any time; a later attempt on the same folder continues from ``state/``. On SIGTERM and SIGINT it
saves first.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import pickle
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onward.errors import OnwardError, TrainingError
from onward.files import is_disk_failure
from onward.lm.sizes import Sizes
from onward.memory import is_out_of_memory
from onward.processes import CALLING, COMPUTING, die_with_parent, end_first_for_memory
from onward.saved_state import StateFolder
from onward.training import checkpoints
from onward.training.data.report import DataReport
from onward.training.job import card, estimate, result, shares, steps
from onward.training.job.placing import peak_gigabytes, place_job
from onward.training.job.run_record import RunRecord
from onward.training.spec.environment_plan import KEY_VARIABLE
from onward.training.spec.request import JobSpec

if TYPE_CHECKING:
    from onward.lm.model import LanguageModel
    from onward.training.job.evaluation import Judge
    from onward.training.job.kept import KeptPolicy
    from onward.training.job.methods import Method

STOPPED = 3
"""Exit code after a requested stop."""
MOST_TRACE = 4000
"""Characters of a traceback that are passed on: its end says where."""
PASSED = (*COMPUTING, *CALLING, KEY_VARIABLE)
"""Variables of the parent that a job needs, beside those of every child."""


Learned = tuple[dict[str, Any], dict[str, Any], "Judge | None"]
"""Facts of a run, metrics of its last step, and the judge of its policies if it has one of its own."""


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
    except Exception as error:
        emit_failure(error, folder)
        return 1
    return 0


def emit_failure(error: Exception, folder: Path) -> None:
    """Reports the error that ended a job with ``folder``. The text of an error that is not Onward's own may
    have data of the job, so only its kind is reported. An unexpected one is raised again, for the log."""
    if isinstance(error, OnwardError):
        emit("failed", code=error.code if isinstance(error, TrainingError) else "DATA", message=str(error))
    elif is_out_of_memory(error):
        emit("failed", code="OOM", message="The job ran out of memory: give it a smaller batch.")
    elif is_disk_failure(error, folder):
        emit("failed", code="INFRA", message=f"The job's folder cannot be used ({type(error).__name__}).")
    elif isinstance(error, json.JSONDecodeError):
        emit("failed", code="DATA", message=f"A row of the job's data cannot be read: {error}.")
    else:
        why = str(error) if isinstance(error, ImportError) else type(error).__name__
        message = f"The training process failed ({why})."
        emit("failed", code="UNKNOWN", message=message, traceback=traceback.format_exc()[-MOST_TRACE:])
        raise error


class _Run:
    """One attempt at the job in ``folder``."""

    def __init__(self, folder: Path, stop: Stop) -> None:
        self.folder, self.stop = folder, stop
        self.spec = JobSpec.model_validate_json((folder / "spec.json").read_bytes())
        self.state = StateFolder(folder / "state")
        self.kept: KeptPolicy
        self.record: RunRecord
        self.policy: LanguageModel
        self.excluded = DataReport()
        self.started = time.monotonic()
        self._saved = time.monotonic()
        self._expected = 0.0
        """Gigabytes that the run needs by formula."""

    def run(self) -> None:
        import torch

        spec = self.spec
        if spec.reference not in ("start", "base"):
            spec = spec.model_copy(update={"reference": str(self.folder / spec.reference)})
        torch.set_num_threads(1 if spec.plays else spec.thread_count)  # see OnPolicy
        torch.manual_seed(spec.seed)
        spec, why = place_job(self.folder, spec)
        self.spec = spec
        emit("stage", name="load", device=spec.device, dtype=spec.dtype, why=why)
        self.record = RunRecord(self.folder, spec, lambda sentence: emit("warning", message=sentence))
        try:
            self._train(spec)
        except BaseException:
            self.record.close()
            raise

    def _train(self, spec: JobSpec) -> None:
        from onward.training.job import methods
        from onward.training.job.kept import KeptPolicy

        policy, baseline = _load(self.folder, spec)
        emit("stage", name="loaded", path=policy.path, reason=policy.reason, notes=list(policy.notes))
        self.policy = policy
        method = methods.make(policy, spec)
        self._method = method
        method.warn = lambda sentence: emit("warning", message=sentence)
        method.load_state(baseline or {})
        method.load_beside(self.folder / "adapter")
        facts = self._restored(method)
        self.kept = KeptPolicy(self.folder / "kept", method.tensors, facts.get("kept"))
        learn = self._on_policy if spec.plays else self._on_data
        self._finish(policy, method, *learn(policy, method, facts))

    def _restored(self, method: Method) -> dict[str, Any]:
        """Restores an earlier attempt's state if it can be read; otherwise starts over."""
        current = self.state.current
        if current is None:  # an attempt that was killed before its first state, or had other numbers or rows
            self._start_at(0)
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
            if is_out_of_memory(e):  # the state is good, and another attempt may have the memory for it
                raise
            self.state.clear()
            self._start_at(0)
            emit("stage", name="state not readable, starting over", cause=type(e).__name__)
            return {}
        method.load_state(facts.get("algorithm") or {})
        step = int(facts.get("step", 0))
        self._start_at(step)
        emit("stage", name="resumed", step=step)
        return facts

    def _start_at(self, step: int) -> None:
        """Removes what earlier attempts recorded of the steps after ``step``, which the run takes again."""
        self.record.start_at(step)
        steps.start_at(self.folder, step)

    def _emit(self, event: str, **facts: Any) -> None:
        """Writes the event for the parent. Metrics of a step are recorded, with the count of those that were
        not finite."""
        if event == "progress":
            facts["skipped_steps"] = self._method.skipped_steps
            self.record.add_step(facts["step"], facts["metrics"])
        emit(event, **facts)

    def _save(self, method: Method, facts: dict[str, Any], *, always: bool = False) -> bool:
        """Saves when it is due: after ``save_seconds``, every ``save_steps``, or ``always``. Then raises
        StopError if a stop was requested.
        """
        due = always or self.stop.asked or time.monotonic() - self._saved > self.spec.save_seconds
        step, interval = facts["step"], self.spec.save_steps
        if step and interval is not None and step % interval == 0:
            due = True
            self._keep_step(method, step, facts.get("metrics") or facts["course"]["last"])
        saved = due and self.state.save(method.save, {**facts, "kept": self.kept.facts})
        if saved:
            self._saved = time.monotonic()
            self.kept.remove_others()
        self.stop()
        return saved

    def _keep_step(self, method: Method, step: int, metrics: dict[str, Any]) -> None:
        """Keeps the present policy as a checkpoint of its own beside the result."""
        if not self.spec.full:
            most = self.spec.max_checkpoints
            steps.add(
                self.folder,
                step,
                most,
                lambda out: result.write_policy(self.policy, method, self.spec, out, metrics, self._describe),
            )

    def _describe(self, out: Path, metrics: dict[str, Any]) -> None:
        """Writes the model card beside a policy."""
        spec, peak = self.spec, peak_gigabytes(self.policy)
        used = card.Resources(self.record.seconds, spec.device, str(spec.dtype), peak, spec.cost_per_hour)
        card.save_card(self.folder, out, spec, metrics, self.excluded, used, self.policy.base_digest)

    def _on_data(self, policy: LanguageModel, method: Method, facts: dict[str, Any]) -> Learned:
        """Takes the remaining optimiser steps on the frozen dataset."""
        from onward.training.job.logged import OnData

        def expect(lines: list[dict[str, Any]]) -> None:
            rows, tokens = estimate.tokens_of(lines)
            computed = shares.computed_of(lines)
            self._expect(policy, estimate.load_of(self.spec, rows, tokens, computed=computed))

        return OnData(
            self.folder,
            policy,
            method,
            self.spec,
            kept=self.kept,
            emit=self._emit,
            save=lambda facts, always: self._save(method, facts, always=always),
            stop=self.stop,
            expect=expect,
            report=self.excluded,
        ).run(facts)

    def _expect(self, policy: LanguageModel, load: estimate.Load) -> None:
        """Reports the memory that the run needs by formula, before it needs it. The formulas are those of our
        own forward."""
        if not isinstance(policy.shape, Sizes):
            return
        self._expected = estimate.memory(self.spec, policy.shape, load).total / (1 << 30)
        emit("stage", name="memory", expected_gb=self._expected, device=self.spec.device)

    def _on_policy(self, policy: LanguageModel, method: Method, facts: dict[str, Any]) -> Learned:
        """Plays the remaining steps."""
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
                prompts = shares.prompts_of(self.spec, source)
                self._expect(policy, estimate.load_of(self.spec, prompts=prompts))
                on_policy = OnPolicy(
                    method,
                    source,
                    self.spec,
                    course=course,
                    emit=self._emit,
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

        return {**asyncio.run(learn()), "baseline": method.state() or None}, course.last, None

    def _finish(self, policy: LanguageModel, method: Method, *learned: Any) -> None:
        """Writes the result. Raises TrainingError (CONVERGENCE) after a last step that was not finite."""
        told = result.write(
            self.folder, policy, method, self.spec, self.kept, *learned, describe=self._describe
        )
        out = None if self.spec.full else self.folder / "checkpoint" / card.CARD
        self.record.finish(told["metrics"], out)
        emit(
            "done",
            seconds=time.monotonic() - self.started,
            total_seconds=self.record.seconds,
            peak_memory_gb=peak_gigabytes(policy),
            expected_memory_gb=self._expected,
            **told,
        )


def _adapter() -> str:
    from onward.training.job.methods import ADAPTER

    return ADAPTER


def _load(folder: Path, spec: JobSpec) -> tuple[LanguageModel, dict[str, Any] | None]:
    """Loads the policy with the start adapter (or a new one), and the baseline saved with that adapter."""
    from onward.lm import paths

    policy = paths.load(Path(spec.model_folder), device=spec.device, dtype=spec.dtype, path=spec.path)
    if spec.full:
        return policy, None
    if (folder / "adapter").is_dir():
        manifest = checkpoints.verify(folder / "adapter")
        policy.add_adapter(_adapter(), folder / "adapter")
        baseline = manifest.metrics.get("baseline")
        return policy, baseline if spec.algorithm == "reinforce" else None
    layers = policy.shape.layers
    chosen = range(int(spec.first_lora_layer * layers), layers)
    policy.new_adapter(
        _adapter(), spec.lora_rank, spec.lora_alpha, chosen, spec.seed, spec.lora_targets, spec.rslora
    )
    return policy, None


if __name__ == "__main__":
    faulthandler.enable()  # a crash of native code leaves a traceback too
    end_first_for_memory()
    sys.exit(main(Path(sys.argv[1])))
