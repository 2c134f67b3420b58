"""``onward control curriculum``: one policy through stages of rising difficulty."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from onward.cli.control import control, with_version
from onward.cli.output import print_json, say
from onward.control.algorithms.registry import ALGORITHMS, check_name
from onward.control.core import config, fields
from onward.errors import ControlError


@control.command()
def curriculum(
    env: Annotated[str, typer.Argument(metavar="ENV", help="A Gymnasium id, module:id or module:Class.")],
    stages: Annotated[Path, typer.Argument(metavar="STAGES", help="JSON file: a list of stages.")],
    algorithm: Annotated[str, typer.Option(help=f"One of {', '.join(ALGORITHMS)}.")] = "ppo",
    timesteps: Annotated[int, typer.Option(min=1, help="Environment steps of a stage at most.")] = 200_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every stage.")] = 0,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting; repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the stages.")] = Path("curriculum"),
    as_json: Annotated[bool, typer.Option("--json", help="The results as one JSON document.")] = False,
) -> None:
    """Train one policy through stages, each from the weights of the one before.

    onward control curriculum my_robot:Arm stages.json --algorithm ppo

    A stage is {"name": …, "env_config": {…}, "success_threshold": 0.8, "min_episodes": 100}: arguments of the
    environment, the share of a hundred greedy episodes that must succeed, and the least training episodes.
    Called again it goes on where it stopped.
    """
    from onward.control.curriculum import CurriculumRLTrainer

    check_name(algorithm)
    settings = fields.parse(config.CONFIGS[algorithm], algorithm, changes or [])
    trainer = CurriculumRLTrainer(
        algorithm,
        with_version(env),
        _stages(stages),
        folder=out,
        timesteps=timesteps,
        settings=settings,
        seed=seed,
        tell=partial(say, err=as_json),
    )
    results = trainer.train_with_curriculum()
    if as_json:
        print_json([{**asdict(one), "folder": str(one.folder)} for one in results])
    else:
        say(f"Report on all stages: onward control solution {results[-1].folder}")


def _stages(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ControlError(f"{path} cannot be read as JSON ({error}): give a list of stages.") from error
    if not isinstance(found, list):
        raise ControlError(f"{path} holds no list: give a list of stages.")
    return found
