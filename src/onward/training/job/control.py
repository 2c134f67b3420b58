"""The child of a control job: ``python -m onward.training.job.control DIR`` trains for an environment.

Its input is ``control.json``, an ``agent.rl.training.control.v1``; its output is JSON-line events on stdout
and the folder ``run/``, as ``onward control train`` leaves it. A later attempt on the same folder continues
from the saved state there.
"""

from __future__ import annotations

import faulthandler
import json
import math
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onward.contracts.training import ControlRequest
from onward.processes import die_with_parent, end_first_for_memory
from onward.training.job.pace import Pace
from onward.training.job.worker import STOPPED, emit, emit_failure

if TYPE_CHECKING:  # needs an optional part; the service reads the names of this module without it
    from onward.control.api import TrainedRun
    from onward.control.running.runs import Folder

SPEC, RUN = "control.json", "run"


def main(folder: Path) -> int:
    die_with_parent()
    try:
        return _run(folder, ControlRequest.model_validate_json((folder / SPEC).read_bytes()))
    except Exception as error:
        emit_failure(error, folder)
    return 1


def _run(folder: Path, asked: ControlRequest) -> int:
    from onward.control.api import resume, train
    from onward.control.running.runs import Folder

    started, where = time.monotonic(), Folder(folder / RUN)
    watch = _Watch()
    run = _finished(where)
    if run is None and where.state.is_file():
        run = resume(where.path, callbacks=[watch])
    elif run is None:
        shutil.rmtree(where.path, ignore_errors=True)  # of an attempt that saved no state
        run = train(
            asked.environment,
            asked.algorithm,
            timesteps=asked.timesteps,
            seed=asked.seed or 0,
            folder=where.path,
            settings=asked.settings or {},
            callbacks=[watch],
        )
    if run.summary["end"] == "interrupted":
        emit("stopped")
        return STOPPED
    emit("done", seconds=time.monotonic() - started, metrics=_result(run))
    return 0


def _finished(where: Folder) -> TrainedRun | None:
    """Returns the run of an attempt that ended before anyone read its result."""
    from onward.control.api import TrainedRun

    if not where.summary.is_file():
        return None
    summary = json.loads(where.summary.read_bytes())
    return None if summary["end"] == "interrupted" else TrainedRun(where.path, summary)


class _Watch:
    """Writes an event for each row of metrics."""

    def __init__(self) -> None:
        self._pace = Pace(1)
        self._total = 1
        self._evaluated: float | None = None

    def __call__(self, event: dict[str, Any]) -> None:
        if event["event"] == "started":
            self._total, self._pace = event["total"], Pace(1, done=event["step"])
        elif event["event"] == "evaluated":
            self._evaluated = event["eval_return"]
        elif event["event"] == "row":
            row = {name: value for name, value in event["row"].items() if math.isfinite(value)}
            reward = row.get("return_mean") if self._evaluated is None else self._evaluated
            emit(
                "progress",
                step=event["step"],
                progress=self._pace.progress(event["step"], max(self._total, event["step"], 1)),
                metrics=row if reward is None else {**row, "reward_mean": reward},
            )


def _result(run: TrainedRun) -> dict[str, Any]:
    from onward.control.solution import solution, yaml_text

    final = run.summary["final"]
    return {
        "reward_mean": final["return"],
        "reward_std": final["std"],
        "steps": run.summary["steps"],
        "solved": bool(run.summary["solved"]),
        "episodes": 0,
        "success": final["success"],
        "solution": yaml_text(solution(run.folder)),
    }


if __name__ == "__main__":
    faulthandler.enable()
    end_first_for_memory()
    sys.exit(main(Path(sys.argv[1])))
