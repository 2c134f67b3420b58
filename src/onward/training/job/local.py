"""Training without any service: a run folder is a job folder, made here from files or an environment.

The child that runs jobs also runs these, so that there is one way to train. Everything that a run depends on
is in its folder (``spec.json``, ``dataset.jsonl``, ``adapter/``, ``base/`` of a tiny model), so ``--resume``
needs nothing else.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onward import children
from onward.envs import recorded, registry
from onward.envs.environment import LocalSource
from onward.envs.policies import RecordedPolicy, ScriptedPolicy, reference_policy
from onward.envs.rollouts import Policy, rollouts
from onward.envs.solvers import find_solver
from onward.envs.sources import TaskSource, open_source
from onward.envs.tasks import TaskRef
from onward.errors import ConfigError, NotFoundError, TrainingError
from onward.files import keep_private, narrow_tree
from onward.lm import devices
from onward.training import checkpoints
from onward.training.data import dataset, files
from onward.training.data.report import DataReport
from onward.training.job import trackers
from onward.training.job.run_options import RunOptions, check
from onward.training.job.worker import PASSED
from onward.training.spec import environment_plan as plan
from onward.training.spec import recipes
from onward.training.spec.algorithms import ALGORITHMS
from onward.training.spec.request import JobSpec
from onward.training.warm_start import tiny_base

SPEC, LOG, REFERENCE = "spec.json", "run.log", "reference"
TINY = "tiny"

Event = dict[str, Any]


@dataclass
class PreparedRun:
    """A resolved run. ``lines`` is the data, None for an environment."""

    spec: JobSpec
    lines: list[dict[str, Any]] | None
    excluded: DataReport = field(default_factory=DataReport)
    tiny_from: list[dict[str, Any]] | None = None
    """Lines that a tiny model's tokenizer is made from; None if the model exists."""
    eval_lines: list[dict[str, Any]] | None = None
    """Data that the run is judged on."""
    reference: Path | None = None
    """An adapter to copy into the folder, which dpo refers to."""


def prepare(wanted: RunOptions) -> PreparedRun:
    """Resolves and checks all that is possible before a file is written. Raises ConfigError, NotFoundError or
    TrainingError with one sentence."""
    check(wanted)
    recipe = recipes.for_model(wanted.model)
    environment: plan.EnvironmentPlan | None = None
    lines: list[dict[str, Any]] | None = None
    excluded = DataReport()
    tiny_from: list[dict[str, Any]] | None = None
    if wanted.env is not None:
        if "://" not in wanted.env:
            registry.find(wanted.env)  # an unknown name is told first
        environment = plan.EnvironmentPlan(
            **{"max_tokens": recipe.max_tokens, **wanted.plan, "place": wanted.env}
        )
        if environment.schedule is not None:
            environment.schedule.turns_at(0)
        plan.check(environment, wanted.algorithm, ALGORITHMS[wanted.algorithm].grouped)
        if wanted.algorithm == "sft":
            lines = demonstrations(wanted, environment, wanted.demonstrations)
        if wanted.model_folder is None:
            tiny_from = lines or demonstrations(wanted, environment, 100)
    else:
        lines, excluded = _read(wanted, wanted.data)
        if wanted.model_folder is None:
            tiny_from = lines
        lines = dataset.select_lines(
            lines, wanted.algorithm, excluded, min_reward=wanted.spec.get("min_reward")
        )
    eval_lines = None
    if wanted.eval:
        eval_lines, left_out = _read(wanted, wanted.eval)
        excluded.add(left_out)
    folder = wanted.model_folder or wanted.out / "base"
    spec = _spec(wanted, recipe, folder.resolve(), environment)
    reference = None
    if spec.reference not in ("start", "base"):
        found = _reference(Path(spec.reference)).resolve()
        reference = None if (found / "config.json").is_file() else found
        spec = spec.model_copy(update={"reference": str(found) if reference is None else REFERENCE})
    return PreparedRun(spec, lines, excluded, tiny_from, eval_lines, reference)


def _read(wanted: RunOptions, paths: list[Path]) -> tuple[list[dict[str, Any]], DataReport]:
    return files.read(
        paths,
        wanted.algorithm,
        behaviour=wanted.spec.get("behaviour", "recorded"),
        dense=bool(wanted.spec.get("dense_rewards")),
    )


def write(prepared: PreparedRun, wanted: RunOptions) -> None:
    """Makes the run folder, the spec last. It holds conversations, so it is for its owner alone. Raises
    ConfigError if it is in use or cannot be made."""
    out = wanted.out
    if (out / SPEC).exists():
        raise ConfigError(
            f"{out} holds a run already: go on with --resume --out {out}, or give another folder."
        )
    keep_private(out)
    if prepared.tiny_from is not None:
        tiny_base.build(out / "base", prepared.tiny_from, prepared.spec.seed)
    for name, lines in ((dataset.FILE, prepared.lines), (dataset.EVAL_FILE, prepared.eval_lines)):
        if lines is not None:
            body = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
            (out / name).write_text(body, encoding="utf-8")
    start = None if wanted.start is None else _checkpoint(wanted.start)
    for name, adapter in (("adapter", start), (REFERENCE, prepared.reference)):
        if adapter is not None:
            shutil.rmtree(out / name, ignore_errors=True)
            shutil.copytree(adapter, out / name, copy_function=shutil.copyfile)
            narrow_tree(out / name)
    (out / SPEC).write_text(prepared.spec.model_dump_json(indent=1), encoding="utf-8")


def resumed(out: Path, steps: int | None) -> JobSpec:
    """Returns the spec of the run in ``out``; an environment's ``steps`` may be raised. Raises ConfigError if
    there is no run, or if its steps cannot be changed."""
    try:
        spec = JobSpec.model_validate_json((out / SPEC).read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{out} holds no run to go on with: give --out of one that was started.") from None
    except ValueError:
        raise ConfigError(f"{out / SPEC} is not a run's: start a new run in another folder.") from None
    devices.refuse_missing(spec.device)
    if steps is not None:
        if spec.environment is None or spec.algorithm == "sft":
            raise ConfigError("The steps of a run on data are fixed when it starts: leave --steps out.")
        spec = spec.model_copy(update={"environment": spec.environment.model_copy(update={"steps": steps})})
        (out / SPEC).write_text(spec.model_dump_json(indent=1), encoding="utf-8")
    return spec


async def run(out: Path, spec: JobSpec, on_event: Callable[[Event], None]) -> Event:
    """Runs the child to its end and returns its last event (``done``, ``stopped``). At the first Ctrl-C the
    child saves its state; a second one kills it. Raises TrainingError with the child's message."""
    child = await children.start(
        "onward.training.job.worker",
        str(out),
        log=out / LOG,
        group=True,
        environment={"OMP_NUM_THREADS": str(spec.thread_count)},
        passed=(*PASSED, *trackers.variables(spec.trackers)),
    )
    loop = asyncio.get_running_loop()
    asked = 0

    def stop() -> None:
        nonlocal asked
        asked += 1
        on_event({"event": "stopping", "times": asked})
        children.send(child, signal.SIGTERM if asked == 1 else signal.SIGKILL)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    last: Event | None = None
    try:
        async for event in children.events(child):
            on_event(event)
            if event["event"] in ("done", "stopped", "failed"):
                last = event
        code = await child.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        await children.end(child)
    if last is None and asked:
        return {"event": "stopped"}
    if last is None:
        cause = "ran out of memory or was killed" if code == -signal.SIGKILL else f"ended with code {code}"
        raise TrainingError(
            "UNKNOWN", f"The training process {cause} and left no result: see {out / LOG}, then --resume."
        )
    if last["event"] == "failed":
        raise TrainingError(last["code"], last["message"])
    return last


def demonstrations(wanted: RunOptions, environment: plan.EnvironmentPlan, count: int) -> list[dict[str, Any]]:
    """Returns conversations in which training tasks are solved, as dataset lines.

    A task is shown by ``wanted.solver``, by an attempt of ``wanted.data``, which is played again, or by the
    environment's own reference. Only what the environment calls a success counts. Raises ConfigError,
    NotFoundError, OnwardError.
    """
    return asyncio.run(_demonstrations(wanted, environment, count))


async def _demonstrations(
    wanted: RunOptions, environment: plan.EnvironmentPlan, count: int
) -> list[dict[str, Any]]:
    key = os.environ.get(plan.KEY_VARIABLE)
    async with open_source(environment.place, dialect=environment.dialect, key=key) as source:
        tasks = _shown_tasks(environment, source)
        if wanted.data:
            attempts = recorded.read(wanted.data)
            policy: Policy = RecordedPolicy(attempts)
            tasks = [task for task in tasks if task.index in attempts]
            if not tasks:
                raise ConfigError(
                    f"The files have attempts at {len(attempts)} tasks of {source.name}, all of them held "
                    f"out or unknown: give attempts at others."
                )
        else:
            policy = _shown_by(wanted, environment, source)
        episodes = await rollouts(source, policy, tasks[:count], concurrency=8)
    solved = [one for one in episodes if one.success]
    if not solved:
        raise ConfigError(
            f"None of {len(episodes)} demonstrations succeeded in {source.name}: give others, with --solver "
            f"or --data."
        )
    return [
        {
            "trajectory_id": one.key, "session_id": "", "task_type": source.name, "group_key": None,
            "outcome": 1.0, "success": True, "unparsable": False, "raw_total": 1.0,
            "messages": [dict(message) for message in one.messages],
        }
        for one in solved
    ]  # fmt: skip


def _shown_tasks(environment: plan.EnvironmentPlan, source: TaskSource) -> list[TaskRef]:
    """Returns all training tasks in the order in which they are shown: those of a server in a drawn order,
    because it may sort them by difficulty."""
    if isinstance(source, LocalSource):
        return source.panel("train")
    tasks, _ = plan.panels(environment, source)
    return plan.tasks_of(0, tasks, len(tasks), seed=0)


def _shown_by(wanted: RunOptions, environment: plan.EnvironmentPlan, source: TaskSource) -> Policy:
    """Returns the player of demonstrations: the given solver, or the environment's own."""
    if wanted.solver is not None:
        make = find_solver(wanted.solver)
        return ScriptedPolicy(lambda _: make())
    if isinstance(source, LocalSource):
        return reference_policy(source.environment)
    if (known := getattr(source, "solver", None)) is not None:
        return ScriptedPolicy(lambda _: known())
    raise ConfigError(
        f"The server at {environment.place[:60]} has no player that shows how its tasks are solved, and sft "
        f"and a tiny model are made from that: give one with --solver package.module:object, or attempts at "
        f"its tasks with --data FILE."
    )


async def reachable(place: str, dialect: str | None) -> dict[str, Any]:
    """Returns an environment server's self-description. Raises OnwardError when it cannot be reached."""
    key = os.environ.get(plan.KEY_VARIABLE)
    async with open_source(place, dialect=dialect, key=key) as source:
        return {"name": source.name, "horizon": source.horizon, "panel_hash": source.panel_hash}


def _checkpoint(folder: Path) -> Path:
    """Returns the checkpoint in a run folder, or the folder itself. Raises NotFoundError."""
    for candidate in (folder / "checkpoint", folder):
        if (candidate / checkpoints.MANIFEST).is_file():
            checkpoints.verify(candidate)
            return candidate
    raise NotFoundError(f"{folder} holds no checkpoint: give the folder of a finished run of an adapter.")


def _reference(folder: Path) -> Path:
    """Returns the adapter or the model in the folder of a run, or the folder itself. Raises NotFoundError."""
    for candidate in (folder / "checkpoint", folder / "model", folder):
        if (candidate / "config.json").is_file() or (candidate / "adapter_config.json").is_file():
            return candidate
    raise NotFoundError(
        f"{folder} holds neither an adapter nor a model to refer to: give --reference start, base, or the "
        f"folder of a finished run."
    )


def _spec(
    wanted: RunOptions, recipe: recipes.Recipe, folder: Path, environment: plan.EnvironmentPlan | None
) -> JobSpec:
    values: dict[str, Any] = {
        "job_id": "local",
        "epoch": 1,
        "algorithm": wanted.algorithm,
        "base_model": wanted.model,
        "model_folder": str(folder),
        "start_digest": None
        if wanted.start is None
        else checkpoints.adapter_digest(_checkpoint(wanted.start)),
        "learning_rate": recipe.learning_rate,
        "epochs": 1 if environment is not None and wanted.algorithm != "sft" else recipe.epochs,
        "batch_rows": recipe.batch_size,
        "clip_epsilon": recipe.clip_epsilon,
        "lora_rank": recipe.lora_rank,
        "lora_alpha": recipe.lora_alpha,
        "first_lora_layer": recipe.first_lora_layer,
        "normaliser": recipe.normaliser,
        "threads": recipe.threads,
        "environment": environment,
        "replay": None
        if wanted.replay is None
        else plan.EnvironmentPlan(**{"place": wanted.replay, "max_tokens": recipe.max_tokens}),
        **wanted.spec,
    }
    try:
        return JobSpec.model_validate(values)
    except ValueError as error:
        told = error.errors()[0] if hasattr(error, "errors") else {"loc": ("?",), "msg": str(error)}  # type: ignore[attr-defined]
        where = ".".join(str(part) for part in told["loc"])
        raise ConfigError(f"The option {where} is wrong: {told['msg']}.") from None
