"""``onward releases audit``: who released, approved, rolled back, tagged or pinned what, and when."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from onward import host
from onward.cli import ConfigFile, DataDir, load_settings, run_async
from onward.cli.output import AsJson, Table, ident, print_json, print_text
from onward.cli.releases import releases_app
from onward.clock import SystemClock
from onward.release.record import Releases
from onward.release.trail import Action, entries, trail


@releases_app.command()
def audit(
    name: Annotated[
        str | None, typer.Argument(metavar="ID", help="Of a model or a release. Default: everything.")
    ] = None,
    limit: Annotated[int, typer.Option(help="At most this many, the newest.", min=1)] = 50,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show who released, approved, rolled back, tagged or pinned what, and when.

    Works without a running service.

    onward releases audit
    onward releases audit agent-zero-rl-v2 --json
    """

    async def work() -> list[Action]:
        async with host.records(load_settings(file, data_dir)) as bus:
            releases = Releases(bus, SystemClock())
            return trail(await entries(bus), await releases.all())

    found = [action for action in run_async(work()) if name is None or action.concerns(name)][-limit:]
    if as_json:
        print_json([asdict(action) for action in found])
    else:
        print_text(audit_table(found))


def audit_table(actions: list[Action]) -> Table:
    """Builds a table with one row per action, oldest first."""
    table = Table(ident("at"), "who", "what", ident("of"), "why", empty="nothing was done yet")
    for action in actions:
        at = action.at[:19].replace("T", " ")
        table.add_row(at, action.by, action.what, action.about or None, action.why or None)
    return table
