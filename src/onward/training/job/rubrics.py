"""The child of a rubrics job: ``python -m onward.training.job.rubrics DIR`` trains a rubric writer.

Its input is ``rubrics.json``, an ``agent.rl.training.rubrics.v1``, and maybe ``released.json``; its output is
JSON-line events on stdout and the folder ``run/``. A later attempt on the same folder goes on from the saved
state there. At the end the writer is compared with its warm start, and with the writer that is released, on
the same validation tasks.
"""

from __future__ import annotations

import faulthandler
import math
import signal
import sys
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onward.contracts.training import RubricsRequest
from onward.errors import ConfigError, TrainingError
from onward.files import read_json
from onward.processes import die_with_parent, end_first_for_memory
from onward.training.job.pace import Pace
from onward.training.job.worker import STOPPED, emit, emit_failure

if TYPE_CHECKING:  # loads torch
    from onward.rubrics.policy.evaluation import Judged
    from onward.rubrics.policy.plan import Plan

SPEC, RUN = "rubrics.json", "run"
RELEASED = "released.json"
"""Released writer to compare with: ``{"version", "folder"}``; absent if there is none."""
VALIDATION_TASKS = 128


def main(folder: Path) -> int:
    die_with_parent()
    try:
        return _run(folder, RubricsRequest.model_validate_json((folder / SPEC).read_bytes()))
    except Exception as error:
        emit_failure(error, folder)
    return 1


def plan_of(asked: RubricsRequest) -> Plan:
    """Returns the plan that a request asks for. Raises ConfigError for a number that cannot be."""
    from onward.rubrics.policy.plan import Plan as TheirPlan
    from onward.rubrics.policy.plan import nested

    given = {"algorithm": asked.algorithm, "seed": asked.seed, "steps": asked.steps}
    settings = dict(asked.settings or {})
    for name in given:
        if name in settings:
            raise ConfigError(f"The request has {name} among its settings: give it at the top.")
    if "model" in settings:  # a message must not name a path of this machine
        raise ConfigError("The request names a model, but a rubrics job trains the tiny one: leave it out.")
    at_the_top = {name: value for name, value in given.items() if value is not None}
    return TheirPlan.from_dict({**nested(settings), **at_the_top})


def refuse_wrong_settings(asked: RubricsRequest) -> None:
    """Raises TrainingError("DATA") for a request whose plan cannot be, and MissingExtraError where it cannot
    be checked, since a part is not installed."""
    try:
        plan_of(asked)
    except ConfigError as error:
        raise TrainingError("DATA", str(error)) from None


def _run(folder: Path, asked: RubricsRequest) -> int:
    from onward.rubrics.policy.training import BASE, train

    started, where, plan = time.monotonic(), folder / RUN, plan_of(asked)
    watch = _Watch(plan)
    signal.signal(signal.SIGTERM, watch.stop)
    writer = train(plan, where, emit=watch, stop=lambda: watch.stopped)
    if writer is None:
        emit("stopped")
        return STOPPED
    metrics = compared(writer, where / BASE, read_json(folder / RELEASED))
    emit("done", seconds=time.monotonic() - started, metrics=metrics)
    return 0


def compared(writer: Path, start: Path, released: dict[str, str] | None = None) -> dict[str, Any]:
    """Returns the figures of a writer on validation tasks, and its gains in skill over ``start`` and over the
    ``released`` writer there: by family, and with the 95 % interval over the tasks of these families. As in
    scoring, no question is asked."""
    from onward.rubrics.policy.evaluation import difference, judged
    from onward.rubrics.policy.figures import interval_within
    from onward.rubrics.policy.splits import validation_tasks
    from onward.rubrics.policy.writer import load_player
    from onward.rubrics.writers import no_stakeholder

    tasks = validation_tasks(VALIDATION_TASKS)
    after, before = (judged(load_player(one), tasks, stakeholder=no_stakeholder) for one in (writer, start))
    gain, found = difference([after], [before], interval_within), after.report()
    versus = {}
    if released is not None:
        other = judged(load_player(Path(released["folder"])), tasks, stakeholder=no_stakeholder)
        versus = {
            "released": released["version"],
            "versus_released": asdict(difference([after], [other], interval_within)),
            "versus_released_by_family": _by_family(after, other),
        }
    return {
        "reward_mean": found["reward"],
        "skill": found["skill"],
        "invalid": found["invalid"],
        "degenerate": found["degenerate"],
        "tasks": len(tasks),
        "skill_gain": asdict(gain),
        "skill_gain_by_family": _by_family(after, before),
        "better": gain.low > 0,
        **versus,
        "episodes": 0,
    }


def _by_family(after: Judged, before: Judged) -> dict[str, float]:
    """Returns the difference in mean skill for each family."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for family, new, old in zip(after.families, after.skills, before.skills, strict=True):
        found[family].append(new - old)
    return {family: math.fsum(gains) / len(gains) for family, gains in found.items()}


class _Watch:
    """Writes an event for each step, and remembers that the process was asked to stop.

    Steps of the warm start and of the learning are counted together. How long the learning takes is known
    when it has begun: before, the progress has no time left.
    """

    def __init__(self, plan: Plan) -> None:
        self._warm, self._total = plan.warm_start.steps, plan.warm_start.steps + plan.steps
        self._pace: Pace | None = None
        self.stopped = False

    def stop(self, *_: Any) -> None:
        self.stopped = True

    def __call__(self, event: str, **facts: Any) -> None:
        if event == "warm_start":
            self._emit(facts["step"], {"loss": facts["loss"]})
        elif event == "step":
            self._learned(self._warm + facts["step"], facts)

    def _learned(self, step: int, facts: dict[str, Any]) -> None:
        metrics = {
            name: facts[name]
            for name in ("skill", "f1", "questions", "degenerate", "invalid", "loss", "grad_norm")
            if facts[name] is not None
        }
        metrics["reward_mean"] = facts["reward"]
        self._emit(step, metrics)
        self._pace = self._pace or Pace(1, done=step)

    def _emit(self, step: int, metrics: dict[str, float]) -> None:
        progress = (self._pace or Pace(1)).progress(step, self._total)
        if self._pace is None:
            del progress["eta_seconds"]
        emit("progress", step=step, progress=progress, metrics=metrics)


if __name__ == "__main__":
    faulthandler.enable()
    end_first_for_memory()
    sys.exit(main(Path(sys.argv[1])))
