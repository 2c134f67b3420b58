"""Experiment trackers beside TensorBoard: Weights & Biases and MLflow, behind one small interface.

Their packages are extras (``wandb``, ``mlflow``) and are imported when a run uses them. Without an address or
a key of the user's both work offline, in the folder of the run.

Invariants: a tracker that fails is left out from then on with one warning, since it must never end a run.
"""

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

VARIABLES = {"wandb": ("WANDB_*", "HOME"), "mlflow": ("MLFLOW_*", "HOME")}
"""Tracker → variables of the parent that it needs."""
PROJECT = "onward"
_LONGEST = 500
"""Characters of a hyperparameter's value."""


class Tracker(Protocol):
    """One run in one tracker. A run that goes on opens the same one again."""

    def add_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Reports the metrics of a step. A step that is repeated after a resume may come twice."""

    def finish(self, results: Mapping[str, float], files: Sequence[Path]) -> None:
        """Reports the results and uploads ``files``; the run is then complete."""

    def close(self) -> None:
        """Ends the connection of a run that stopped before its end."""


class Wandb:
    """A run of Weights & Biases: online with WANDB_API_KEY or WANDB_MODE, else offline in ``wandb/``; then
    ``wandb sync`` uploads it later."""

    def __init__(self, folder: Path, run_id: str, parameters: Mapping[str, Any]) -> None:
        wandb: Any = importlib.import_module("wandb")
        offline = "WANDB_MODE" not in os.environ and "WANDB_API_KEY" not in os.environ
        self._wandb = wandb
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=run_id,
            name=run_id,
            resume="allow",
            dir=str(folder),
            config=dict(parameters),
            mode="offline" if offline else None,
            settings=wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True),
        )

    def add_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def finish(self, results: Mapping[str, float], files: Sequence[Path]) -> None:
        for name, value in results.items():
            self._run.summary[name] = value
        for path in files:
            self._run.save(str(path), base_path=str(path.parent), policy="now")
        self._end(0)

    def close(self) -> None:
        self._end(1)

    def _end(self, code: int) -> None:
        self._run.finish(exit_code=code)
        self._wandb.teardown(exit_code=code)  # its process may write on after ``finish``, and ends with ours


class Mlflow:
    """A run of MLflow at MLFLOW_TRACKING_URI, else in the folder ``mlruns/``."""

    def __init__(self, folder: Path, run_id: str, parameters: Mapping[str, Any]) -> None:
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if address is None:
            address = (folder / "mlruns").as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a folder needs no server or database
        # Type checkers cannot see the packages, which a checkout need not have.
        entities: Any = importlib.import_module("mlflow.entities")
        tracking: Any = importlib.import_module("mlflow.tracking")
        self._metric: Any = entities.Metric
        self._client: Any = tracking.MlflowClient(tracking_uri=address)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        before = self._client.search_runs([experiment], f"tags.`onward.run` = '{run_id}'", max_results=1)
        if before:
            self._id = before[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        made = self._client.create_run(experiment, run_name=run_id, tags={"onward.run": run_id})
        self._id = made.info.run_id
        named = [entities.Param(key, str(value)[:_LONGEST]) for key, value in parameters.items()]
        self._client.log_batch(self._id, params=named)

    def add_step(self, step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        named = [self._metric(name, value, now, step) for name, value in metrics.items()]
        self._client.log_batch(self._id, metrics=named)

    def finish(self, results: Mapping[str, float], files: Sequence[Path]) -> None:
        for name, value in results.items():
            self._client.log_metric(self._id, f"final.{name}", value)
        for path in files:
            self._client.log_artifact(self._id, str(path))
        self._client.set_terminated(self._id)

    def close(self) -> None:
        self._client.set_terminated(self._id, status="KILLED")


KINDS: dict[str, Callable[[Path, str, Mapping[str, Any]], Tracker]] = {"wandb": Wandb, "mlflow": Mlflow}


def variables(names: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the variables of the parent that a child with these trackers needs."""
    return tuple(variable for name in names or () for variable in VARIABLES[name])


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Returns the finite numbers of ``metrics``: no tracker has a place for the rest."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


class Trackers:
    """The trackers of one run. ``warn`` gets one sentence for each that fails."""

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        run_id: str,
        parameters: Mapping[str, Any],
        warn: Callable[[str], None],
    ) -> None:
        """Opens them. Raises MissingExtraError for a package that is not installed."""
        self._warn = warn
        self._open: dict[str, Tracker] = {}
        for name in names:
            self._try(name, lambda made=KINDS[name], name=name: self._open.update(
                {name: made(folder, run_id, parameters)}
            ))  # fmt: skip

    def add_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        found = numbers(metrics)
        for name, tracker in list(self._open.items()):
            self._try(name, lambda one=tracker: one.add_step(step, found))

    def finish(self, results: Mapping[str, Any], files: Sequence[Path]) -> None:
        found = numbers(results)
        for name, tracker in list(self._open.items()):
            self._try(name, lambda one=tracker: one.finish(found, files))
        self._open.clear()

    def close(self) -> None:
        for name, tracker in list(self._open.items()):
            self._try(name, tracker.close)
        self._open.clear()

    def _try(self, name: str, work: Callable[[], object]) -> None:
        try:
            work()
        except ImportError:
            raise
        except Exception as error:  # of any kind: both libraries raise their own, and those of their network
            self._open.pop(name, None)
            self._warn(
                f"The tracker {name} failed ({type(error).__name__}) and gets nothing more of this run."
            )
