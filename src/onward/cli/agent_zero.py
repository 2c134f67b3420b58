"""``onward agent-zero install|check|uninstall``: the plugin in an Agent Zero folder."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onward.cli import app, run_async
from onward.cli.help import Commands
from onward.cli.output import AsJson, print_json, say
from onward.errors import ConfigError

if TYPE_CHECKING:
    from onward.integrations.agent_zero.install import Step

agent_zero = Commands(
    help="""The plugin for Agent Zero: install it, check it, remove it.

    onward agent-zero install --path /a0
    onward agent-zero check --path /a0
    """
)
app.add_typer(agent_zero, name="agent-zero")

Root = Annotated[
    Path,
    typer.Option("--path", metavar="FOLDER", help="Folder that Agent Zero runs in (/a0 in its container)."),
]
PLANNED = {
    "new": "would add",
    "updated": "would update",
    "removed": "would remove",
    "kept": "would keep",
}
"""Words of a dry run for what a step would do."""
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")]


@agent_zero.command("install")
def install_(
    path: Root,
    dry_run: DryRun = False,
    python: Annotated[
        str | None, typer.Option(help="Interpreter for the plugin's worker. Default: the present one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Install or update the plugin and its profiles. A file that you changed stays.

    onward agent-zero install --path /a0 --dry-run
    onward agent-zero install --path /a0
    """
    from onward.integrations.agent_zero import install

    given = {} if python is None else {"python": python}
    _report(install.install(path, dry_run=dry_run, **given), dry_run, as_json)
    if python is not None and not (Path(python).is_file() and os.access(python, os.X_OK)):
        say(
            f"There is no program {python} on this machine, and without it the plugin records nothing: give "
            f"--python an interpreter that has Onward, by its full path.",
            err=True,
        )
    if not dry_run and not as_json:
        say(
            f"The plugin is in {path / install.PLUGIN}. Restart Agent Zero, then switch the plugin on in its "
            f"web page: Plugins, tab Custom, the switch of the card 'Onward'. 'Config' on that card has the "
            f"addresses of the gateway and of NATS."
        )


@agent_zero.command()
def check(
    path: Root,
    gateway: Annotated[str | None, typer.Option(help="Gateway. Default: that of the settings.")] = None,
    nats: Annotated[str | None, typer.Option(help="NATS server. Default: that of the settings.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check files, versions, hooks, the gateway and the bus. Exit code 1 if a check fails.

    onward agent-zero check --path /a0
    """
    from onward.integrations.agent_zero.check import check as checks

    found = run_async(checks(path, gateway=gateway, nats=nats))
    if as_json:
        print_json([vars(one) for one in found])
    else:
        for one in found:
            say(f"{'ok  ' if one.passed else 'FAIL'} {one.name}: {one.message}")
    if not all(one.passed for one in found):
        raise typer.Exit(1)


@agent_zero.command()
def uninstall(path: Root, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Remove what was installed and not changed. Settings and work that waits for NATS stay.

    onward agent-zero uninstall --path /a0
    """
    from onward.integrations.agent_zero import install

    _report(install.uninstall(path, dry_run=dry_run), dry_run, as_json)


@agent_zero.command()
def retry(path: Root) -> None:
    """Try the tasks again that were put aside, since the worker ended or hung on each of them.

    The running worker records them one by one. One that fails again stays where it is.

    onward agent-zero retry --path /a0
    """
    from onward.integrations.agent_zero import install
    from onward.integrations.agent_zero.worker.failed import FailedTasks

    install.require_agent_zero(path)
    try:
        count = FailedTasks(path / install.PLUGIN / "data").ask_again()
    except OSError as error:
        raise ConfigError(
            f"{path / install.PLUGIN / 'data'} cannot be written ({error.strerror}): run this as the user "
            f"that Agent Zero runs as."
        ) from None
    if not count:
        say("No task was put aside.")
        return
    say(
        f"{count} put aside: the worker tries each once more while Agent Zero runs. What is left then: "
        f"onward agent-zero check --path {path}"
    )


def _report(steps: Sequence[Step], dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json([vars(step) for step in steps])
        return
    words = PLANNED if dry_run else {}
    width = max(map(len, words.values()), default=8)
    for step in steps:
        if step.action != "unchanged":
            action = words.get(step.action, step.action)
            say(f"{action:{width}} {step.path}" + (f" ({step.note})" if step.note else ""))
    counts = Counter(step.action for step in steps)
    text = ", ".join(
        f"{words[action]} {number}" if action in words else f"{number} {action}"
        for action, number in counts.items()
    )
    say(f"{text}. Nothing was changed: this was a dry run." if dry_run else f"{text}.")
