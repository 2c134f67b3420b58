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
from onward.cli.train_display import Display, tell_plan
from onward.errors import ConfigError
from onward.lm.sizes import Sizes
from onward.serving import base_models
from onward.training.data import dataset
from onward.training.job import estimate, local
from onward.training.job.local import Wish
from onward.training.spec import recipes
from onward.training.spec.request import METHODS, JobSpec

DEFAULT_OUT = Path("onward-train")
_LIST = "\n\n".join(f"[bold]{name}[/bold]: {about}." for name, about in METHODS.items())
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

_Given = "What to learn from"
_Network = "The network"
_Learning = "Learning"
_Playing = "In an environment"
_Run = "The run"


@app.command(help=_HELP)
def train(
    ctx: typer.Context,
    algorithm: Annotated[
        str, typer.Option(help=f"One of {', '.join(METHODS)}.", rich_help_panel=_Given)
    ] = "",
    data: Annotated[
        list[Path] | None, typer.Option(help="JSON lines; may be repeated.", rich_help_panel=_Given)
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            help="A built-in name, package.module:object, or http://HOST:PORT.", rich_help_panel=_Given
        ),
    ] = None,
    demonstrations: Annotated[
        int,
        typer.Option(min=1, help="sft with --env: tasks that its reference shows.", rich_help_panel=_Given),
    ] = 400,
    min_reward: Annotated[
        float | None,
        typer.Option(
            help="sft: rows to imitate; dpo: chosen sides; groups: the best member.", rich_help_panel=_Given
        ),
    ] = None,
    return_from: Annotated[
        str, typer.Option(help="outcome or raw_total.", rich_help_panel=_Given)
    ] = "outcome",
    dense_rewards: Annotated[
        bool, typer.Option("--dense-rewards", help="Use rewards per turn (ppo).", rich_help_panel=_Given)
    ] = False,
    behaviour: Annotated[
        str,
        typer.Option(
            help="recorded, or recompute: take text for the policy's own work.", rich_help_panel=_Given
        ),
    ] = "recorded",
    model: Annotated[
        str,
        typer.Option(
            help="tiny (made for this run), smollm2, or a folder with a Llama network.",
            rich_help_panel=_Network,
        ),
    ] = "tiny",
    start: Annotated[
        Path | None, typer.Option(help="Go on from the adapter of this run.", rich_help_panel=_Network)
    ] = None,
    lora_rank: Annotated[
        int | None,
        typer.Option(min=1, help="Rank of the adapter: its size. Default: 16.", rich_help_panel=_Network),
    ] = None,
    lora_alpha: Annotated[
        float | None,
        typer.Option(help="The adapter counts alpha / rank times. Default: 32.", rich_help_panel=_Network),
    ] = None,
    lora_targets: Annotated[
        str | None, typer.Option(help="Such as q_proj,v_proj. Default: all seven.", rich_help_panel=_Network)
    ] = None,
    frozen_share: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=0.99,
            help="Share of the layers, from below, without adapter.",
            rich_help_panel=_Network,
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Train all weights, no adapter.", rich_help_panel=_Network)
    ] = False,
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16 or float16.", rich_help_panel=_Network)
    ] = "float32",
    checkpointing: Annotated[
        bool,
        typer.Option("--gradient-checkpointing", help="Less memory, more time.", rich_help_panel=_Network),
    ] = False,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", rich_help_panel=_Learning)] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the data of an update.", rich_help_panel=_Learning)
    ] = None,
    batch_rows: Annotated[
        int | None, typer.Option(min=1, help="Rows (dpo: pairs) per step.", rich_help_panel=_Learning)
    ] = None,
    micro_batch_tokens: Annotated[
        int, typer.Option(min=1, help="Memory against speed; never the result.", rich_help_panel=_Learning)
    ] = 2048,
    clip: Annotated[float | None, typer.Option(help="Clipping range.", rich_help_panel=_Learning)] = None,
    kl: Annotated[float | None, typer.Option(help="KL coefficient.", rich_help_panel=_Learning)] = None,
    spare_above: Annotated[
        float | None,
        typer.Option(
            help="Never push down tokens drawn with at least this probability: braces of a tool call.",
            rich_help_panel=_Learning,
        ),
    ] = None,
    hold: Annotated[
        float | None,
        typer.Option(help="Pull of those tokens back to that probability.", rich_help_panel=_Learning),
    ] = None,
    gamma: Annotated[
        float | None,
        typer.Option(
            help="Discount per token (ppo, reinforce_pp). Default: 1, none.", rich_help_panel=_Learning
        ),
    ] = None,
    gae_lambda: Annotated[
        float | None,
        typer.Option(help="ppo: how far an advantage looks ahead. Default: 0.95.", rich_help_panel=_Learning),
    ] = None,
    beta: Annotated[
        float | None,
        typer.Option(help="dpo: how closely it holds to the start. Default: 0.1.", rich_help_panel=_Learning),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Environment: updates (20). Data: optimiser steps at most.", rich_help_panel=_Run
        ),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Attempts per update.", rich_help_panel=_Playing)] = 64,
    group_size: Annotated[
        int, typer.Option(min=1, help="Attempts at one task.", rich_help_panel=_Playing)
    ] = 8,
    horizon: Annotated[
        str, typer.Option(help="Turn limits by stage, such as 4,8,12/20.", rich_help_panel=_Playing)
    ] = "",
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens per answer.", rich_help_panel=_Playing)
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="Of sampling while it plays.", rich_help_panel=_Playing)
    ] = 1.0,
    tasks: Annotated[
        int | None, typer.Option(min=1, help="The first so many tasks only.", rich_help_panel=_Playing)
    ] = None,
    held_out: Annotated[
        int, typer.Option(min=0, help="Held-out tasks, tried before and after.", rich_help_panel=_Playing)
    ] = 50,
    dialect: Annotated[
        str | None, typer.Option(help="Of a server that tells none.", rich_help_panel=_Playing)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything that chance decides.", rich_help_panel=_Run)] = 0,
    threads: Annotated[
        int | None, typer.Option(min=0, help="CPU threads; 0: all cores.", rich_help_panel=_Run)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the run.", rich_help_panel=_Run)] = DEFAULT_OUT,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out.", rich_help_panel=_Run)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run, memory and time.", rich_help_panel=_Run)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Events (or the dry run) as JSON.", rich_help_panel=_Run)
    ] = False,
) -> None:
    if resume:
        local.resumed(out, None)
        _refuse_others(
            ctx, {"resume", "out", "steps", "as_json"}, "with --resume, where a run goes on as it began"
        )
        _go(out, local.resumed(out, steps), as_json)
        return
    if not algorithm:
        raise ConfigError(f"No algorithm was given: add --algorithm with one of {', '.join(METHODS)}.")
    _refuse_idle(ctx, env is not None, algorithm)
    on_data = env is None or algorithm == "sft"
    spec = {
        "learning_rate": lr, "batch_rows": batch_rows, "clip_epsilon": clip, "kl_coef": kl, "gamma": gamma,
        "spare_above": spare_above, "hold_coef": hold,
        "gae_lambda": gae_lambda, "beta": beta, "lora_rank": lora_rank, "lora_alpha": lora_alpha,
        "first_lora_layer": frozen_share, "full": full, "dtype": dtype, "behaviour": behaviour,
        "lora_targets": lora_targets.split(",") if lora_targets else None, "min_reward": min_reward,
        "return_from": return_from, "dense_rewards": dense_rewards, "micro_batch_tokens": micro_batch_tokens,
        "gradient_checkpointing": checkpointing, "seed": seed, "threads": threads,
        "max_steps": steps if on_data else None,
        "epochs": epochs if epochs or not (on_data and steps) else _EPOCHS_WITHOUT_END,
    }  # fmt: skip
    plan = {
        "dialect": dialect, "steps": steps, "episodes": episodes, "group_size": group_size,
        "horizon": horizon, "max_tokens": max_tokens, "temperature": temperature, "tasks": tasks,
        "held_out": held_out,
    }  # fmt: skip
    extras.require("lm", "torch", "Training")
    wish = Wish(
        algorithm=algorithm,
        model=model if model in recipes.RECIPES else Path(model).name,
        model_folder=None if model == base_models.TINY else base_models.resolve(model, Path("models")),
        out=out,
        data=data or [],
        env=env,
        start=start,
        demonstrations=demonstrations,
        spec=spec,
        plan={name: value for name, value in plan.items() if value is not None},
    )
    prepared = local.prepare(wish)
    if prepared.excluded:
        typer.echo(f"Left out: {local.excluded_text(prepared.excluded)}.", err=True)
    if dry_run:
        _dry_run(prepared, as_json)
        return
    if env is not None and "://" in env:
        asyncio.run(local.reachable(env, dialect))
    local.write(prepared, wish)
    _go(out, prepared.spec, as_json)


_EPOCHS_WITHOUT_END = 1_000_000
_PLAYS = frozenset({"episodes", "group_size", "horizon", "max_tokens", "temperature", "tasks", "held_out"})
_SCORED = frozenset({"min_reward", "return_from", "dense_rewards"})


def _refuse_idle(ctx: typer.Context, in_environment: bool, algorithm: str) -> None:
    """Raises ConfigError for an option that has no effect in this kind of run."""
    shows = in_environment and algorithm == "sft"
    if not in_environment or shows:
        where = "in sft, which plays nothing" if shows else "without --env"
        _refuse(ctx, _PLAYS | {"dialect"}, where)
    if in_environment:
        _refuse(ctx, _SCORED, "with --env, whose own verdict is the return")
    if not shows:
        _refuse(ctx, {"demonstrations"}, "but in sft with --env")


def _refuse(ctx: typer.Context, names: Collection[str], where: str) -> None:
    for option in ctx.command.params:
        source = ctx.get_parameter_source(str(option.name))
        if option.name in names and source is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"{option.opts[0]} does nothing {where}: leave it out.")


def _refuse_others(ctx: typer.Context, allowed: Collection[str], where: str) -> None:
    _refuse(ctx, {str(option.name) for option in ctx.command.params} - set(allowed), where)


def _go(out: Path, spec: JobSpec, as_json: bool) -> None:
    with Display(out, spec, as_json) as display:
        last = run_async(local.run(out, spec, display.take))
    display.tell_end(last)
    if last["event"] == "stopped":
        raise typer.Exit(130)


def _dry_run(prepared: local.Prepared, as_json: bool) -> None:
    """Prints the settings, memory by formula, and time by formula from the machine's measured speed."""
    told = forecast(prepared)
    if as_json:
        typer.echo(json.dumps(told, indent=1))
        return
    tell_plan(Console(), told)


def forecast(prepared: local.Prepared) -> dict[str, Any]:
    """Estimates a run before its start: ``{spec, parameters, trained, memory_bytes, seconds, data}``."""
    spec = prepared.spec
    network = estimate.TINY if prepared.tiny_from is not None else Sizes.read(Path(spec.model_folder))
    rows, tokens = estimate.tokens_of(prepared.lines or [])
    load = estimate.load_of(spec, rows, tokens)
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
