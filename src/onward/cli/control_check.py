"""``onward control check``: findings about an environment of one's own, with remedies."""

from __future__ import annotations

from typing import Annotated

import typer

from onward.cli.control import EnvSet, control, env_kwargs, with_version
from onward.cli.output import Table, print_json, print_text, say


@control.command()
def check(
    env: Annotated[str, typer.Argument(metavar="ENV", help="A Gymnasium id, module:id or module:Class.")],
    steps: Annotated[int, typer.Option(min=1, help="Random steps to check.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of the environment and of the actions.")] = 0,
    env_set: EnvSet = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")] = False,
) -> None:
    """Check an environment of your own: spaces, reset, step, seeds, time limit; exit code 1 after an error.

    onward control check my_robot:Arm --env-set max_episode_steps=500

    my_robot.py lies in the current folder, or is installed. Training does the same check with 20 steps.
    """
    from onward.control.environments.check import check as found_in

    env = with_version(env)
    found = found_in(env, steps=steps, env_kwargs=env_kwargs(env_set), seed=seed)
    if as_json:
        print_json({"env": env, "findings": [one.as_dict() for one in found]})
    elif found:
        table = Table("", "finding", "remedy", title=f"{env}, {steps} random steps")
        for one in found:
            table.add_row(one.severity, one.what, one.remedy)
        print_text(table)
    else:
        say(f"{env}: nothing to correct after {steps} random steps.")
    if any(one.severity == "error" for one in found):
        raise typer.Exit(1)
