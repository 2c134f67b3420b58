"""``onward control …``: trains, resumes and lists; evaluation is in ``control_evaluate.py``."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from onward.cli import app
from onward.cli.help import Commands
from onward.cli.output import Table, print_json, print_text, say
from onward.control.algorithms.registry import ALGORITHMS, check_fits, check_name
from onward.control.core import config, fields
from onward.control.running import presets
from onward.control.running.runs import Folder, RunConfig, following, going_on
from onward.errors import ControlError
from onward.files import keep_private_within

control = Commands(
    help="""Control policies for Gymnasium environments: train, evaluate, resume, export, compare.

    onward control train CartPole-v1 --algorithm ppo
    onward control eval runs/CartPole-v1-ppo-seed0
    """
)
app.add_typer(control, name="control")

_TRAIN = f"""Train a control policy in a Gymnasium environment.

{chr(10).join(f"[bold]{name}[/bold]: {about}.{chr(10)}" for name, (_, _, about) in ALGORITHMS.items())}
Start with one that is solved in seconds:

  onward control train CartPole-v1 --algorithm ppo

Five seeds, as many at a time as there are cores, with their learning curves in one picture:

  onward control train CartPole-v1 --algorithm dqn --seeds 5

Another setting (onward control list dqn shows all, with what they mean):

  onward control train LunarLander-v3 --algorithm dqn --preset zoo --set n_step=3 --set double=true

Go on from the weights of another run, in another environment or with another number of slots:

  onward control train CartPole-v1 --from runs/CartPole-v1-ppo-seed0 --env-set length=1.0 --set num_envs=16

Each run has a folder: runs/CartPole-v1-ppo-seed0 with policy/ (the best by evaluation), checkpoint/,
metrics.csv, TensorBoard events, curves.png and summary.json. Ctrl-C (or SIGTERM) saves; onward control resume
FOLDER goes on bit for bit, or says why it cannot (a3c never can).
"""
Out = Annotated[Path, typer.Option(help="Folder that the folders of runs go into.")]
EnvSet = Annotated[
    list[str] | None,
    typer.Option("--env-set", metavar="NAME=VALUE", help="Given to the environment (JSON values)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Events as JSON lines.")]


@control.command(help=_TRAIN)
def train(
    env: Annotated[str, typer.Argument(metavar="ENV", help="A Gymnasium id, module:id or module:Class.")],
    algorithm: Annotated[
        str | None,
        typer.Option(help=f"One of {', '.join(ALGORITHMS)}; not given with --from: that run's."),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="RUN", help="Run whose weights this one starts from; settings are its own too."
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="ours, zoo, cleanrl, seed or default. Default: ours, else zoo, else default."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs, with seeds from --seed on.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the (first) run.")] = 0,
    timesteps: Annotated[
        int | None, typer.Option(min=1, help="Environment steps at most. Default: the preset's.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Another setting. Repeatable.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Mean return that counts as solved. Default: Gymnasium's.")
    ] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Use all steps even when it is solved.")
    ] = False,
    env_set: EnvSet = None,
    obs_noise: Annotated[
        float | None,
        typer.Option(
            min=0, help="Train under noise of so many running deviations, such as 0.2; evaluate without."
        ),
    ] = None,
    eval_every: Annotated[int | None, typer.Option(min=1, help="Steps between two evaluations.")] = None,
    eval_share: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Largest share of the time for evaluations. Default: 0.15. 1: no limit."
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Seeds at a time. Default: one per core.")
    ] = None,
    env_processes: Annotated[
        int | None,
        typer.Option(min=1, help="Processes for slow environments. Default: one per core if a step is slow."),
    ] = None,
    out: Out = Path("runs"),
    as_json: AsJson = False,
) -> None:
    from onward.control.environments.check import require

    env = with_version(env)
    asked = {
        "obs_noise": obs_noise, "eval_every": eval_every, "eval_share": eval_share, "threshold": threshold,
        "timesteps": timesteps, "env_kwargs": env_kwargs(env_set), "env_processes": env_processes,
        "stop_when_solved": False if keep_going else None,
    }  # fmt: skip
    options = {name: value for name, value in asked.items() if value is not None}
    first, note = _first_run(env, algorithm, preset, start, changes or [], {**options, "seed": seed})
    warnings, slow = require(first.env, first.env_kwargs)
    for warning in warnings:
        say(warning, err=True)
    _check_world(first)
    if env_processes is None and slow and seeds == 1:
        first = replace(first, env_processes=os.cpu_count() or 1)
    runs = [RunConfig(**{**vars(first), "seed": seed + more}) for more in range(seeds)]
    tasks = [(run, Folder.of(out, run), False) for run in runs]
    if not as_json:
        say(f"{first.algorithm} on {env}, {note}, {first.timesteps:,} steps at most.")
    _go(tasks, as_json, processes, out / f"{tasks[0][1].path.name.rsplit('-seed', 1)[0]}-curves.png")


def _first_run(
    env: str,
    algorithm: str | None,
    preset: str | None,
    start: Path | None,
    changes: list[str],
    options: dict[str, Any],
) -> tuple[RunConfig, str]:
    """Returns the run of the first seed, and where its settings come from in words."""
    if start is not None:
        if preset is not None:
            raise ControlError("--from takes the settings of that run too: leave out --preset.")
        kind = algorithm or Folder(start).read().algorithm
        check_name(kind)
        given = fields.parse(config.CONFIGS[kind], kind, changes)
        return following(start, given, algorithm, env=env, **options), f"from {start}"
    if algorithm is None:
        raise ControlError(f"Give --algorithm, one of {', '.join(ALGORITHMS)}, or --from with a run.")
    chosen, tuned = presets.preset(preset, algorithm, env)
    given = fields.parse(config.CONFIGS[algorithm], algorithm, changes)
    fixed = {"env": env, "algorithm": algorithm, "preset": chosen, "timesteps": tuned.timesteps}
    run = RunConfig(
        **{**fixed, "settings": presets.settings(algorithm, tuned, given), **tuned.run, **options}
    )
    return run, f"preset {chosen}" + (f" ({tuned.note})" if tuned.note else "")


@control.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of a run that was stopped.")],
    timesteps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Another end, after what is done; schedules that depend on it (such as epsilon) change.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Resume a run that was stopped: bit for bit the same as without the stop.

    onward control resume runs/CartPole-v1-ppo-seed0

    Where that cannot be it says why and goes on: an environment that cannot be put back into its episode,
    other versions of libraries, another processor, a3c.
    """
    run = going_on(Folder(folder), timesteps)
    _check_world(run)
    _go([(run, Folder(folder), True)], as_json, 1, None)


@control.command("list")
def list_(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="An algorithm or an environment.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON document.")] = False,
) -> None:
    """List algorithms and presets, the settings of one algorithm, or the presets for one environment.

    onward control list

    onward control list ppo

    onward control list LunarLander-v3
    """
    if name is None:
        _show(_everything(), as_json, ("name", "what it is"))
    elif name in ALGORITHMS:
        _show(_settings(name), as_json, ("setting", "default, kind and meaning"))
    else:
        from onward.control.environments import missing_package

        known = presets.environments()
        name = with_version(name) if missing_package(name) is None else name
        if name not in known:
            raise ControlError(
                f"There is neither an algorithm nor a preset for {name!r}: use one of "
                f"{', '.join([*ALGORITHMS, *known])}."
            )
        _show(_presets(name), as_json, ("preset", "steps and settings"))
        missing = missing_package(name)
        if missing is not None:
            say(missing, err=True)


def _everything() -> dict[str, str]:
    about = {name: text for name, (_, _, text) in ALGORITHMS.items()}
    return about | {env: "presets for " + ", ".join(names) for env, names in presets.environments().items()}


def _settings(algorithm: str) -> dict[str, str]:
    check_name(algorithm)
    kind = config.CONFIGS[algorithm]
    kinds, why, defaults = fields.field_types(kind), fields.explanations(kind), kind().as_dict()
    return {name: f"{defaults[name]}  ({fields.describe(kinds[name])}) {why[name]}" for name in kinds}


def _presets(env: str) -> dict[str, str]:
    return {
        f"{algorithm} {name}": f"{found.timesteps:,} steps; "
        + ", ".join(f"{key}={value}" for key, value in found.settings.items())
        + (f"; {found.note}" if found.note else "")
        for algorithm in presets.environments()[env]
        for name, found in presets.available(algorithm, env).items()
        if name != "default"
    }


def _show(rows: dict[str, str], as_json: bool, columns: tuple[str, str]) -> None:
    if as_json:
        print_json(rows)
        return
    table = Table(*columns)
    for row in rows.items():
        table.add_row(*row)
    print_text(table)


def env_kwargs(assignments: list[str] | None) -> dict[str, Any] | None:
    """Parses NAME=VALUE into arguments of the environment; None when there are none. Raises ControlError."""
    values: dict[str, Any] = {}
    for assignment in assignments or []:
        name, equals, text = assignment.partition("=")
        if not equals or not name.isidentifier():
            raise ControlError(f"--env-set {assignment}: give NAME=VALUE, such as --env-set gravity=-5.0.")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values or None


def with_version(env: str) -> str:
    """Returns the environment id; adds the newest version when it has none, and reports that on stderr.
    Presets know full ids only."""
    from onward.control.environments import newest_version

    newest = newest_version(env)
    if newest != env:
        say(f"{env} has no version: {newest}, the newest, is taken.", err=True)
    return newest


def _check_world(run: RunConfig) -> None:
    """Checks the environment and the algorithm before any folder is made or any process is started."""
    from onward.control.environments import make

    env = make(run.env, 1, env_kwargs=run.env_kwargs)
    try:
        check_fits(run.algorithm, env.spec)
    finally:
        env.close()


def _go(
    tasks: list[tuple[RunConfig, Folder, bool]], as_json: bool, processes: int | None, picture: Path | None
) -> None:
    from onward.cli.control_display import Display, outcome
    from onward.control.running.curves import draw
    from onward.control.running.seeds_in_parallel import Task, train_all

    keep_private_within(tasks[0][1].path)
    for _, folder, again in tasks:
        if not again:
            folder.check_free()
    with Display(as_json) as display:
        result = train_all([Task(*task) for task in tasks], display.show_event, processes)
    summaries = result.summaries
    trained = {summary["seed"]: summary for summary in summaries}
    for run, folder, _ in tasks:
        if run.seed in trained:
            draw([folder.path], folder.picture)
            for line in outcome(trained[run.seed], folder.path):
                display.print_text(line)
    if picture is not None and len(summaries) > 1:
        draw([folder.path for run, folder, _ in tasks if run.seed in trained], picture)
        display.print_text(f"Curves of all seeds: {picture}")
    if result.failure is not None:
        raise result.failure
    if any(summary["end"] == "interrupted" for summary in summaries) or len(summaries) < len(tasks):
        raise typer.Exit(130)
