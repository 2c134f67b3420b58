"""Curricula: stages of rising difficulty, each trained from the weights of the one before.

A stage is one run with a folder of its own. It ends when a share of a hundred greedy episodes succeeds, and
not before its least number of training episodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from onward.control.api import Source, TrainedRun, resume, train
from onward.control.running.runs import Folder, RunConfig, read_json
from onward.control.running.trainer import Event
from onward.errors import ControlError


@dataclass(frozen=True)
class Stage:
    """One stage of a curriculum."""

    name: str
    env_config: Mapping[str, Any]
    """Arguments of the environment."""
    success_threshold: float
    """Share of a hundred greedy episodes that must succeed, in (0, 1]."""
    min_episodes: int
    """Least number of training episodes."""

    def __post_init__(self) -> None:
        for name, kind, expected in (
            ("name", str, "a text"),
            ("env_config", Mapping, "an object of arguments"),
            ("success_threshold", (int, float), "a number in (0, 1]"),
            ("min_episodes", int, "a whole number from 0 on"),
        ):
            given = getattr(self, name)
            if not isinstance(given, kind) or isinstance(given, bool):
                raise ControlError(f"Stage {self.name!r} has {name} {given!r}: give {expected}.")
        if not 0 < self.success_threshold <= 1:
            raise ControlError(
                f"Stage {self.name!r} has success_threshold {self.success_threshold}: give a share in (0, 1]."
            )
        if self.min_episodes < 0:
            raise ControlError(f"Stage {self.name!r} has min_episodes {self.min_episodes}: give 0 or more.")


PUBLISHED = (
    Stage("Basic Movement", {"difficulty": 0.1, "sparse_rewards": False}, 0.8, 100),
    Stage("Obstacle Navigation", {"difficulty": 0.3, "obstacles": True}, 0.7, 200),
    Stage("Complex Tasks", {"difficulty": 0.6, "multi_objective": True}, 0.6, 500),
    Stage("Expert Level", {"difficulty": 1.0, "sparse_rewards": True}, 0.5, 1000),
)
"""The four stages of the published profile. The environment has to take their arguments."""


def stages_of(documents: Iterable[Mapping[str, Any]]) -> list[Stage]:
    """Reads stages from plain values. Raises ControlError, which names the stage, for what is no stage."""
    known = [field.name for field in fields(Stage)]
    found = []
    for number, document in enumerate(documents, start=1):
        if not isinstance(document, Mapping) or set(document) != set(known):
            given = ", ".join(map(str, document)) if isinstance(document, Mapping) else repr(document)
            raise ControlError(f"Stage {number} has {given}: give {', '.join(known)}.")
        found.append(Stage(**document))
    if not found:
        raise ControlError("The curriculum has no stage: give at least one.")
    return found


@dataclass(frozen=True)
class StageResult:
    """Result of one stage."""

    stage: str
    episodes: int
    success_rate: float
    """Share of greedy episodes, on seeds that influenced no choice."""
    folder: Path


class CurriculumRLTrainer:
    """Trains one policy through the stages of a curriculum."""

    def __init__(
        self,
        agent: str,
        base_env: Source,
        stages: Iterable[Stage | Mapping[str, Any]] = PUBLISHED,
        *,
        folder: str | Path = "curriculum",
        timesteps: int = 200_000,
        settings: dict[str, Any] | None = None,
        seed: int = 0,
        tell: Callable[[str], None] = print,
        **options: Any,
    ) -> None:
        """Creates a trainer.

        - ``agent``: name of an algorithm, such as ``ppo``.
        - ``base_env``: id of an environment, or a function of the arguments in ``env_config``.
        - ``timesteps``: the most steps of a stage.
        - ``tell``: receives the lines that tell how it goes.
        - ``options``: other fields of a run, such as ``eval_every``.

        Raises ControlError for what is no stage.
        """
        self.agent, self.base_env = agent, base_env
        given = [asdict(one) if isinstance(one, Stage) else one for one in stages]
        self.curriculum_stages: Sequence[Stage] = stages_of(given)
        self.current_stage = 0
        """Number of stages that are completed."""
        self._folder, self._timesteps, self._seed = Path(folder), timesteps, seed
        self._settings, self._tell, self._options = settings or {}, tell, options

    def design_curriculum(self) -> list[dict[str, Any]]:
        """Returns the stages as plain values, which ``stages`` takes."""
        return [asdict(stage) for stage in self.curriculum_stages]

    def train_with_curriculum(self) -> list[StageResult]:
        """Trains all stages and returns their results. A stage that an earlier call completed in the same
        folder is not trained again; one that was interrupted, or that has more steps now, goes on.

        Raises ControlError where a stage does not reach its threshold within the steps, and where a folder
        holds a run of another stage.
        """
        results: list[StageResult] = []
        self.current_stage = 0
        for number, stage in enumerate(self.curriculum_stages, start=1):
            self._tell(f"Training Stage: {stage.name}")
            folder = Folder(self._folder / f"stage-{number}")
            summary = self._summary(folder, stage, results[-1].folder if results else None)
            if summary["solved"] is None:
                if summary["end"] == "interrupted":
                    raise ControlError(
                        f"Stage {stage.name!r} was interrupted at step {summary['steps']:,}: call "
                        f"train_with_curriculum again to go on."
                    )
                rate = (summary["final"] or {}).get("success")
                reached = "no success was reported" if rate is None else f"success rate {rate:.2f}"
                raise ControlError(
                    f"Stage {stage.name!r} ended after {summary['steps']:,} steps with {reached}, below "
                    f"{stage.success_threshold:g}: give more timesteps, add a stage before it in "
                    f"another folder, or report info['success'] at the end of an episode."
                )
            result = StageResult(
                stage.name, summary["solved"]["episode"], summary["final"]["success"], folder.path
            )
            results.append(result)
            self.current_stage += 1
            self._tell(f"Stage {stage.name} completed!")
        return results

    def _summary(self, folder: Folder, stage: Stage, before: Path | None) -> dict[str, Any]:
        """Returns the summary of a stage's run, trained now unless it has ended."""
        env, longer = self._environment(stage), None
        if folder.config.exists():
            run = self._same(folder, stage)
            longer = self._timesteps if self._timesteps > run.timesteps else None
        if folder.summary.exists():
            summary = read_json(folder.summary, f"{folder.path} holds no run")
            if summary["solved"] is not None or (summary["end"] != "interrupted" and longer is None):
                return summary
        if folder.config.exists():
            return resume(folder.path, env, timesteps=longer, callbacks=[self._watch()]).summary
        return self._trained(env, folder, stage, before).summary

    def _same(self, folder: Folder, stage: Stage) -> RunConfig:
        """Returns the run in ``folder``. Raises ControlError where it is one of another stage."""
        run = folder.read()
        wanted = json.loads(json.dumps(self._fields(stage), default=str))
        for name in ("stage", "until_success", "solve_episodes", "env_kwargs"):
            if name in wanted and wanted[name] != getattr(run, name):
                raise ControlError(
                    f"{folder.path} holds a run with {name} {getattr(run, name)!r}, and stage "
                    f"{stage.name!r} has {wanted[name]!r}: give another folder for a "
                    f"changed curriculum, or delete this one."
                )
        if run.algorithm != self.agent:
            raise ControlError(
                f"{folder.path} holds a run of {run.algorithm}, not of {self.agent}: give another folder."
            )
        return run

    def _fields(self, stage: Stage) -> dict[str, Any]:
        """Returns the fields of the stage's run that its definition decides."""
        options: dict[str, Any] = {
            "until_success": stage.success_threshold,
            "solve_episodes": stage.min_episodes,
            "stage": stage.name,
            "eval_every": max(1, min(10_000, self._timesteps // 20)),
            **self._options,
        }
        if isinstance(self.base_env, str):
            options["env_kwargs"] = dict(stage.env_config)
        return options

    def _trained(self, env: Source, folder: Folder, stage: Stage, before: Path | None) -> TrainedRun:
        return train(
            env,
            self.agent if before is None else None,
            timesteps=self._timesteps,
            seed=self._seed,
            folder=folder.path,
            settings=self._settings if before is None else None,
            start=before,
            callbacks=[self._watch()],
            **self._fields(stage),
        )

    def _environment(self, stage: Stage) -> Source:
        if isinstance(self.base_env, str):
            return self.base_env
        return _Configured(self.base_env, dict(stage.env_config))

    def _watch(self) -> Callable[[Event], None]:
        def watch(event: Event) -> None:
            row = event.get("row")
            if event["event"] == "row" and row is not None and "eval_success" in row:
                self._tell(f"Episodes: {row['episodes']:.0f}, Success Rate: {row['eval_success']:.2f}")

        return watch


class _Configured:
    """An environment's function with the arguments of a stage."""

    def __init__(self, make: Callable[..., Any], config: Mapping[str, Any]) -> None:
        self._make, self._config = make, config
        self.__qualname__ = getattr(make, "__qualname__", type(make).__name__)

    def __call__(self) -> Any:
        return self._make(**self._config)
