"""``onward train``: trains a policy from files or in an environment, on this machine, without a service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from onward import extras
from onward.cli import app, run_async
from onward.cli.choosing import expanded
from onward.cli.command_options import was_given, with_options
from onward.cli.output import say
from onward.cli.spec_options import by_panel, spec_options
from onward.cli.train_display import Display, print_plan
from onward.envs import registry
from onward.envs.environment import LocalSource
from onward.errors import ConfigError
from onward.lm.chat_files import json_object
from onward.lm.model_folder import inspect
from onward.lm.model_path import path_of
from onward.lm.sizes import NetworkSizes
from onward.serving import base_models
from onward.training.data import dataset
from onward.training.job import estimate, local, shares
from onward.training.job.model_needs import refuse_too_large
from onward.training.job.run_options import RunOptions
from onward.training.spec import recipes
from onward.training.spec.algorithms import ALGORITHMS
from onward.training.spec.environment_plan import EnvironmentPlan
from onward.training.spec.numbers import DATA, NETWORK, RUN, options
from onward.training.spec.request import JobSpec

DEFAULT_OUT = Path("onward-train")
_LIST = "\n\n".join(f"[bold]{name}[/bold]: {kind.about}." for name, kind in ALGORITHMS.items())
_HELP = f"""Train a policy from files (--data) or in an environment (--env). No service is needed.

{_LIST}

A first policy that never succeeds is warmed up on demonstrations (sft), then learns by itself:

  onward train --algorithm sft --model tiny --full --env maze --steps 300 --out warm

  onward train --algorithm rloo --model warm/model --env maze --horizon 16 --lr 2e-3 --steps 24 --out better

From files (forms: docs/train-command.md), and first only a look at what it would take:

  onward train --algorithm dpo --model smollm2 --data pairs.jsonl --dry-run

Ctrl-C saves; --resume --out FOLDER goes on exactly there. The result is FOLDER/checkpoint, an adapter in
peft's form, or FOLDER/model with --full; curves are in FOLDER/metrics.csv and FOLDER/curves.png, and
`tensorboard --logdir FOLDER` shows them.
"""


@app.command(help=_HELP)
@with_options("numbers", spec_options(JobSpec, EnvironmentPlan), order=by_panel)
def train(
    ctx: typer.Context,
    algorithm: Annotated[
        str, typer.Option(help=f"One of {', '.join(ALGORITHMS)}.", rich_help_panel=DATA)
    ] = "",
    data: Annotated[
        list[Path] | None, typer.Option(help="JSON lines. Repeatable.", rich_help_panel=DATA)
    ] = None,
    eval: Annotated[
        list[Path] | None,
        typer.Option(
            help="sft, dpo: a file to judge the policy on; the best is handed out.", rich_help_panel=DATA
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            help="A built-in name, package.module:object, or http://HOST:PORT.", rich_help_panel=DATA
        ),
    ] = None,
    demonstrations: Annotated[
        int, typer.Option(min=1, help="sft with --env: tasks that are shown.", rich_help_panel=DATA)
    ] = 400,
    solver: Annotated[
        str | None,
        typer.Option(
            help="sft with --env: who shows them, as package.module:object. By default the environment's own "
            "reference or, with --data, the attempts in these files, played again.",
            rich_help_panel=DATA,
        ),
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(
            help="With --holdout: the environment in which held-out tasks are played. By default the return "
            "is estimated off policy.",
            rich_help_panel=DATA,
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="tiny (made for this run), smollm2, an alias, or a folder with a model.",
            rich_help_panel=NETWORK,
        ),
    ] = "tiny",
    start: Annotated[
        Path | None, typer.Option(help="Go on from the adapter of this run.", rich_help_panel=NETWORK)
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Environment: updates (20). Data: optimiser steps at most.", rich_help_panel=RUN
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the run.", rich_help_panel=RUN)] = DEFAULT_OUT,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out.", rich_help_panel=RUN)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run, memory and time.", rich_help_panel=RUN)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Events (or the dry run) as JSON.", rich_help_panel=RUN)
    ] = False,
    **numbers: Any,
) -> None:
    if resume:
        local.resumed(out, None)
        _refuse_others(
            ctx, {"resume", "out", "steps", "as_json"}, "with --resume, where a run goes on as it began"
        )
        _go(out, local.resumed(out, steps), as_json)
        return
    if not algorithm:
        raise ConfigError(f"No algorithm was given: add --algorithm with one of {', '.join(ALGORITHMS)}.")
    _refuse_idle(ctx, env is not None, algorithm)
    on_data = env is None or algorithm == "sft"
    spec = {name: numbers[name] for name in options(JobSpec) if was_given(ctx, name)}
    plan = {name: numbers[name] for name in options(EnvironmentPlan) if was_given(ctx, name)}
    if steps and on_data:
        spec = {"epochs": _EPOCHS_WITHOUT_END, **spec, "max_steps": steps}
    if steps:
        plan["steps"] = steps
    extras.require("lm", "torch", "Training")
    model = expanded(model)
    wanted = RunOptions(
        algorithm=algorithm,
        model=model if model in recipes.RECIPES else Path(model).name,
        model_folder=None if model == base_models.TINY else base_models.resolve(model, Path("models")),
        out=out,
        data=data or [],
        eval=eval or [],
        env=env,
        start=start,
        demonstrations=demonstrations,
        solver=solver,
        replay=replay,
        spec=spec,
        plan=plan,
    )
    prepared = local.prepare(wanted)
    if prepared.excluded.text:
        say(f"Left out: {prepared.excluded.text}.", err=True)
    for name, place in prepared.excluded.unread.items():
        say(f"The field {name!r} is not read (first in {place}).", err=True)
    if dry_run:
        _dry_run(prepared, as_json)
        return
    if model != base_models.TINY:
        purpose = "full" if prepared.spec.full else "lora"
        found = inspect(Path(prepared.spec.model_folder))
        refuse_too_large(found, purpose, device=prepared.spec.device, dtype=prepared.spec.dtype)
    if env is not None and "://" in env:
        asyncio.run(local.reachable(env, plan.get("dialect")))
    local.write(prepared, wanted)
    _go(out, prepared.spec, as_json)


_EPOCHS_WITHOUT_END = 1_000_000
_SCORED = frozenset({"min_reward", "return_from", "dense_rewards"})


def _refuse_idle(ctx: typer.Context, in_environment: bool, algorithm: str) -> None:
    """Raises ConfigError for an option that has no effect in this kind of run."""
    shows = in_environment and algorithm == "sft"
    if not in_environment or shows:
        where = "in sft, which plays nothing" if shows else "without --env"
        shown_too = {"dialect", "tasks", "held_out"} if shows else set()  # they say which tasks are shown
        _refuse(ctx, options(EnvironmentPlan).keys() - shown_too, where)
    if in_environment:
        _refuse(ctx, _SCORED, "with --env, whose own verdict is the return")
    if not shows:
        _refuse(ctx, {"demonstrations", "solver"}, "but in sft with --env")


def _refuse(ctx: typer.Context, names: Collection[str], where: str) -> None:
    for option in ctx.command.params:
        if option.name in names and was_given(ctx, str(option.name)):
            raise ConfigError(f"{option.opts[0]} does nothing {where}: leave it out.")


def _refuse_others(ctx: typer.Context, allowed: Collection[str], where: str) -> None:
    _refuse(ctx, {str(option.name) for option in ctx.command.params} - set(allowed), where)


def _go(out: Path, spec: JobSpec, as_json: bool) -> None:
    with Display(out, spec, as_json) as display:
        last = run_async(local.run(out, spec, display.show_event))
    display.show_end(last)
    if last["event"] == "stopped":
        raise typer.Exit(130)


def _dry_run(prepared: local.PreparedRun, as_json: bool) -> None:
    """Prints the settings, memory by formula, and time by formula from the machine's measured speed."""
    told = forecast(prepared)
    if as_json:
        say(json.dumps(told, indent=1))
        return
    print_plan(Console(), told)


def forecast(prepared: local.PreparedRun) -> dict[str, Any]:
    """Estimates a run before its start: ``{spec, parameters, trained, memory_bytes, seconds, data}``."""
    spec = prepared.spec
    network: NetworkSizes = estimate.TINY
    if prepared.tiny_from is None:
        network = inspect(Path(spec.model_folder)).sizes(spec.path)
    if spec.lora_targets is not None and not spec.full:
        network.refuse_other_targets(spec.lora_targets)
    rows, tokens = estimate.tokens_of(prepared.lines or [])
    load = _load_of(prepared, rows, tokens)
    memory = estimate.memory(spec, network, load)
    parts = {name: getattr(memory, name) for name in (*estimate.PARTS, "total")}
    return {
        "spec": spec.model_dump(mode="json"),
        "parameters": network.parameters,
        "trained": network.parameters if spec.full else estimate.adapter_parameters(spec, network),
        "memory_bytes": {name: int(value) for name, value in parts.items()},
        "seconds": estimate.seconds(spec, network, load, estimate.matrix_rate()),
        "data": {"rows": rows, "tokens_per_row": tokens, "excluded": prepared.excluded,
                 "file": dataset.FILE if prepared.lines is not None else None},
    }  # fmt: skip


def _load_of(prepared: local.PreparedRun, rows: int, tokens: float) -> estimate.Load:
    """Returns the load, in which our own forward computes a shared prompt once."""
    spec = prepared.spec
    if not _is_fast(prepared):
        return estimate.load_of(spec, rows, tokens)
    if prepared.lines is not None:
        return estimate.load_of(spec, rows, tokens, computed=shares.computed_of(prepared.lines))
    place = "" if spec.environment is None else spec.environment.place
    source = None if "://" in place else LocalSource(registry.find(place))
    return estimate.load_of(spec, prompts=None if source is None else shares.prompts_of(spec, source))


def _is_fast(prepared: local.PreparedRun) -> bool:
    """Reports if our own forward computes the network, whose matrices have known names."""
    spec = prepared.spec
    if prepared.tiny_from is not None:
        return spec.path == "auto"
    config = json_object(Path(spec.model_folder) / "config.json")
    return path_of(config, spec.path).name == "fast"
