"""``onward incidents``: what rolled-back candidates failed at, with cause and recommendation."""

from __future__ import annotations

from typing import Annotated

import typer

from onward.cli import ConfigFile, DataDir, app
from onward.cli.help import Commands
from onward.cli.output import AsJson, Table, facts, ident, number, plain, print_json, print_text
from onward.cli.releases import load_records
from onward.errors import NotFoundError
from onward.release.incidents.report import sentence
from onward.release.record import ReleaseRecord
from onward.release.wording import what_happened

incidents_app = Commands(
    help="""What rolled-back candidates failed at, with cause and recommendation.

    onward incidents list
    onward incidents show
    """
)
app.add_typer(incidents_app, name="incidents")


@incidents_app.command(name="list")
def list_incidents(file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show incidents, newest first. Works without a running service.

    onward incidents list
    """
    records = _with_incident(load_records(file, data_dir))[::-1]
    if as_json:
        print_json([_document(record) for record in records])
        return
    table = Table(ident("candidate"), ident("at"), "cause", "recommendation", empty="no incident yet")
    for record in records:
        incident = record.incident or {}
        table.add_row(
            record.candidate.model_id, incident["at"][:19], incident["cause"], incident["recommendation"]
        )
    print_text(table)


@incidents_app.command()
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="ID", help="Of the release or its candidate. Default: the newest.")
    ] = None,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show one incident: the failures of both models in groups, cause and recommendation.

    onward incidents show agent-zero-rl-v2
    """
    records = _with_incident(load_records(file, data_dir))
    called = [record for record in records if name is None or record.has_name(name)]
    if not called:
        what = "There is no incident yet" if name is None else f"No incident is about {name!r}"
        raise NotFoundError(f"{what}: each candidate that is taken back opens one.")
    record = called[-1]
    if as_json:
        print_json(_document(record))
        return
    incident = record.incident or {}
    print_text(plain(what_happened(record)), "", plain(sentence(incident)), "")
    known = {"release": record.release_id, "at": incident["at"], "reason": incident["reason"]}
    print_text(facts(known, title="Incident"), "")
    table = Table("group", "value", number("candidate"), number("current"), title="Failing sessions")
    table.add_row("all", "", *(str(incident["failures"][arm]) for arm in ("candidate", "current")))
    for group, values in incident["groups"].items():
        for value, counts in values.items():
            table.add_row(group, value, str(counts["candidate"]), str(counts["current"]))
    print_text(table)


def _with_incident(records: list[ReleaseRecord]) -> list[ReleaseRecord]:
    return [record for record in records if record.incident is not None]


def _document(record: ReleaseRecord) -> dict[str, object]:
    names = {"release_id": record.release_id, "model_id": record.candidate.model_id}
    return {**names, "sentence": sentence(record.incident or {}), **(record.incident or {})}
