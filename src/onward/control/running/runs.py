"""One training run: its configuration and its files.

Invariants: besides the saved state, ``resume`` reads only ``config.json`` in a run's folder. A field that
changes what a run computes therefore belongs here.
"""

from __future__ import annotations

import json
import math
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from onward.control.core.config import CONFIGS, Amount, Config, Count, Share, Whole
from onward.control.core.fields import check_fields
from onward.errors import ControlError
from onward.files import locked, make_folder, write_whole


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Configuration of one training run: algorithm, environment, length, evaluations and checkpoints."""

    env: str
    """Id of a Gymnasium environment or of one of ours."""
    algorithm: str
    """A key of ``CONFIGS``."""
    settings: Config
    """Settings of the algorithm."""
    preset: str = "default"
    """Preset that the settings come from; for the record."""
    seed: Whole = 0
    """Seed of all randomness in the run."""
    timesteps: Count = 100_000
    """Environment steps, over all slots."""
    env_kwargs: dict[str, Any] | None = None
    """Arguments of the environment's constructor."""
    env_processes: Count = 1
    """Processes that step the environments; results do not depend on it. a3c has workers of its own."""
    obs_noise: Amount = 0.0
    """Gaussian noise on training observations, in running deviations of each number; never in evaluations."""
    eval_every: Count | None = None
    """Steps between two evaluations; none means a twentieth of the run."""
    eval_episodes: Count = 20
    """Greedy episodes per evaluation, on seeds that training never uses."""
    eval_share: Share = 0.15
    """Largest share of the run's time for evaluations; beyond it they are shortened or left out, except for
    those that confirm a solution."""
    checkpoint_every: Count | None = None
    """Steps between two saved states; none means a tenth of the run."""
    threshold: float | None = None
    """Mean return that counts as solved; none means Gymnasium's."""
    solve_success: Share = 0.0
    """Share of the hundred confirming episodes that must succeed; 0 tests their mean return alone."""
    until_success: Share = 0.0
    """Share of a hundred greedy episodes that must succeed for the run to count as solved; 0: the threshold
    decides."""
    solve_episodes: Whole = 0
    """Training episodes before which ``until_success`` is not looked at."""
    stage: str | None = None
    """Name of the stage of a curriculum that this run is."""
    stop_when_solved: bool = True
    """Stops at the first confirmed solution."""
    threads: Count = 1
    """Threads of numpy and PyTorch; 1 is fastest for small networks."""
    start: str | None = None
    """Folder of the run whose weights this one starts from; none means new weights."""

    def __post_init__(self) -> None:
        check_fields(self, "run")
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise ControlError(f"run: threshold is {self.threshold}: give a finite number.")

    @property
    def steps_between_evaluations(self) -> int:
        return self.eval_every or max(1, self.timesteps // 20)

    @property
    def steps_between_checkpoints(self) -> int:
        return self.checkpoint_every or max(1, self.timesteps // 10)

    def as_dict(self) -> dict[str, Any]:
        """Returns plain JSON values; ``run_config`` restores an equal object from them."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "settings": self.settings.as_dict()}


def run_config(document: dict[str, Any]) -> RunConfig:
    """Restores the object of ``RunConfig.as_dict``. Raises ControlError where the document is not one."""
    try:
        kind = CONFIGS[document["algorithm"]]
        settings: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in document["settings"].items()
        }
        return RunConfig(**{**document, "settings": kind(**settings)})
    except (KeyError, TypeError, AttributeError) as error:
        raise ControlError(
            f"config.json does not describe a run of this version ({error}): train into a new folder."
        ) from error


@dataclass(frozen=True)
class Folder:
    """The files of one run."""

    path: Path

    @classmethod
    def of(cls, parent: Path, run: RunConfig) -> Folder:
        """Returns ``<env>-<algorithm>-seed<k>`` under ``parent``; a slash or colon becomes a dash."""
        env = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in run.env)
        return cls(parent / f"{env}-{run.algorithm}-seed{run.seed}")

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.csv"

    @property
    def state(self) -> Path:
        """Everything needed to resume: see ``checkpoint``."""
        return self.path / "checkpoint" / "state.safetensors"

    @property
    def policy(self) -> Path:
        """The best policy, exported."""
        return self.path / "policy"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def fault(self) -> Path:
        """Traceback of an error that the environment raised."""
        return self.path / "environment-error.txt"

    @property
    def picture(self) -> Path:
        return self.path / "curves.png"

    def check_free(self) -> None:
        """Raises ControlError where the folder already holds a run."""
        if self.config.exists():
            raise ControlError(
                f"{self.path} already holds a run: go on with it by 'onward control resume {self.path}', "
                f"or give another --out."
            )

    def lock(self, new: bool) -> AbstractContextManager[None]:
        """Locks the folder while a run trains here, from its start (``new``) or from its saved state.

        Raises ConfigError where another process trains here. Raises ControlError where a new run finds a run,
        or a resumed one finds none.
        """
        if new:
            self.check_free()
        else:
            self.read()
        make_folder(self.path)
        busy = f"{self.path} is being trained in by another process: wait for it, or stop that one first."
        return locked(self.path / ".lock", busy)

    def begin(self, run: RunConfig) -> None:
        """Creates the folder of a new run. Raises ControlError where it already holds one and ConfigError
        where it cannot be created."""
        self.check_free()
        make_folder(self.path)
        write_json(self.config, run.as_dict())

    def read(self) -> RunConfig:
        """Returns the run's configuration. Raises ControlError where there is none."""
        return run_config(read_json(self.config, f"{self.path} holds no run"))


def following(
    start: Path, changes: dict[str, Any], algorithm: str | None = None, **fields_of_run: Any
) -> RunConfig:
    """Returns the configuration of a run that starts from the weights of the run in ``start``.

    Its settings are that run's with ``changes``; its other fields are ``fields_of_run`` or their defaults,
    except for the length, which is that run's. Raises ControlError where ``algorithm`` is another one.
    """
    before = Folder(start).read()
    if algorithm not in (None, before.algorithm):
        raise ControlError(
            f"The run in {start} is one of {before.algorithm}, and its weights do not fit {algorithm}: "
            f"leave the algorithm out, or start from a run of {algorithm}."
        )
    return RunConfig(
        **{
            "preset": before.preset,
            "timesteps": before.timesteps,
            **fields_of_run,
            "algorithm": before.algorithm,
            "settings": replace(before.settings, **changes),
            "start": str(start.resolve()),
        }
    )


def going_on(folder: Folder, timesteps: int | None = None) -> RunConfig:
    """Returns the configuration with which the run in ``folder`` is resumed; ``timesteps``: another end.

    A solved run with another end uses all of its steps. Raises ControlError where nothing is left to do.
    """
    run = folder.read()
    damaged = f"{folder.path} is damaged, and goes on without its {folder.summary.name}"
    before = read_json(folder.summary, damaged) if folder.summary.exists() else {}
    solved = before.get("solved") is not None and run.stop_when_solved
    done = before.get("steps", 0) >= run.timesteps and timesteps in (None, run.timesteps)
    if before.get("end") != "interrupted" and (done or (solved and timesteps is None)):
        raise ControlError(
            f"The run in {folder.path} is {before['end']}: give --timesteps with a later end to go on."
        )
    if timesteps is None:
        return run
    return replace(run, timesteps=timesteps, stop_when_solved=run.stop_when_solved and not solved)


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Replaces ``path`` as a whole: a reader sees the old or the new document."""
    write_whole(path, (json.dumps(document, indent=1) + "\n").encode())


def read_json(path: Path, otherwise: str) -> dict[str, Any]:
    """Reads a JSON object. Raises ControlError (``otherwise``, the reason, the remedy) where that fails."""
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        why = "does not exist"
    except (OSError, ValueError):
        why = "cannot be read"
    else:
        if isinstance(document, dict):
            return document
        why = "is not a JSON object"
    raise ControlError(
        f"{otherwise}: {path.name} {why}; give the folder of a run, such as runs/CartPole-v1-ppo-seed0."
    )
