"""``onward models pull|add|list|show|release|rollback`` : base models of this machine, and stored policies.

``check`` is in ``models_check``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from onward import host
from onward.bus import Bus
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.help import Commands
from onward.cli.output import AsJson, Table, facts, ident, number, print_json, print_text, say
from onward.clock import Clock, SystemClock
from onward.config import Settings
from onward.errors import ConfigError, NotFoundError, nothing_runs
from onward.release import adding, restore
from onward.release.record import Model, ReleaseRecord, Releases
from onward.serving import base_models
from onward.warehouse import Objects

models_app = Commands(
    help="""Base models on this machine, and the policies that were released.

    onward models list
    onward models check /models/qwen
    onward models pull smollm2
    onward models add runs/sft --name invoices-1
    onward models release invoices-1
    onward models rollback --reason "answers got shorter"
    """
)
app.add_typer(models_app, name="models")

WAIT_SECONDS = 90.0
"""Longest wait of ``rollback`` for the confirmation of the gateways, which have 60 s."""
LOOK_SECONDS = 0.3
Document = dict[str, Any]


@models_app.command()
def pull(name: Annotated[str, typer.Argument(help="Only smollm2; a folder of your own needs none.")]) -> None:
    """Download a base model by pinned version and checksum; a second call does nothing.

    onward models pull smollm2
    """
    folder = base_models.pull(name, progress=typer.echo)
    say(f"{name} is at {folder}")


@models_app.command()
def add(
    folder: Annotated[
        Path, typer.Argument(help="A run of 'onward train', or a LoRA adapter of peft or TRL.")
    ],
    name: Annotated[str | None, typer.Option(help="Its name here. Default: made of its digest.")] = None,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Store an adapter that was trained elsewhere, so that 'onward models release' can release it.

    It must be LoRA on the loop's base model: its files, names, shapes and numbers are checked first. Works
    also while nothing runs.

    onward models add runs/sft
    onward models register my-adapter --name invoices-1
    """
    settings = load_settings(file, data_dir)

    async def work() -> Model:
        async with host.records(settings) as bus:
            objects = Objects.open(settings.objects_at)
            return await adding.add_adapter(bus, objects, settings, folder, name, clock=SystemClock())

    model = run_async(work())
    if as_json:
        print_json(_document(model, None))
        return
    print_text(f"{model.model_id} is stored. Release it with 'onward models release {model.model_id}'.")


@models_app.command(name="list")
def list_models(file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the base models that Onward knows, and the policies of a data folder, newest first.

    States: current serves; previous served before it; rolled_back was rolled back; retired served earlier;
    added waits for 'onward models release'.

    onward models list
    """
    settings = load_settings(file, data_dir)
    released = run_async(_released(settings))
    base = base_models.list_known()
    if as_json:
        print_json({"base": base, "released": released})
        return
    table = Table("name", "state", "what it is", title="Base models")
    for model in base:
        table.add_row(model["name"], model["state"], model["about"])
    print_text(table, "")
    if released is None:
        print_text(nothing_runs(settings.data_dir))
        return
    table = Table(
        ident("model"), "state", ident("made from"), number("trajectories"), ident("served from"),
        title="Policies",
    )  # fmt: skip
    for model in released:
        table.add_row(*(model[name] for name in ("model_id", "state", "parent", "samples", "since")))
    print_text(table)


@models_app.command()
def show(
    model_id: Annotated[str, typer.Argument(metavar="ID", help="From the first column of 'list'.")],
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show one model: its state, its origin, and each release that decided about it.

    onward models show agent-zero-rl-v3
    """
    found = run_async(_found(load_settings(file, data_dir), model_id))
    if as_json:
        print_json(found)
        return
    releases = found.pop("releases", [])
    print_text(facts(found))
    if releases:
        table = Table(ident("release"), "as", "state", ident("when"), "why", title="Releases")
        for one in releases:
            table.add_row(*(one[name] for name in ("release_id", "as", "state", "at", "why")))
        print_text("", table)


@models_app.command()
def release(
    model_id: Annotated[str, typer.Argument(metavar="ID", help="From the first column of 'list'.")],
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Release a stored model: validation against the serving one, then a growing share of traffic.

    onward models release invoices-1
    """
    settings = load_settings(file, data_dir)

    async def work() -> ReleaseRecord:
        async with host.records(settings) as bus:
            return await adding.request_release(bus, model_id, clock=SystemClock())

    record = run_async(work())
    runs = host.is_running(settings)
    if as_json:
        print_json(
            {"release_id": record.release_id, "model_id": model_id, "state": record.state, "runs": runs}
        )
        return
    begins = "It begins now" if runs else "It begins when the loop runs ('onward up')"
    print_text(f"{begins}: {model_id} is compared with {record.current.model_id}. "
        f"'onward releases show {model_id}' shows what came of it.")  # fmt: skip


@models_app.command()
def rollback(
    reason: Annotated[str, typer.Option("--reason", help="Why, in your words; the audit stream keeps it.")],
    model_id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="A model that served everybody. Default: the one before."),
    ] = None,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Roll back to an earlier released model for good: learning continues from it, and no pin is needed.

    This is a release decision, with a record and an event. The command waits until every live gateway has
    confirmed it. Exit code 1: it was not carried out, or not yet.

    onward models rollback --reason "answers got shorter"
    onward models rollback agent-zero-rl-v3 --reason "the two after it are worse"
    """
    if not reason.strip() or len(reason) > 500:
        raise ConfigError(f"--reason has {len(reason.strip())} characters: say why in 1 to 500.")

    async def work() -> ReleaseRecord:
        clock = SystemClock()
        async with host.attached(load_settings(file, data_dir)) as (bus, _):
            asked = await restore.request_restore(bus, model_id, reason.strip(), clock=clock)
            if not as_json:
                say(f"Going back from {asked.candidate.model_id} to {asked.current.model_id}.")
            return await _carried_out(bus, asked, clock)

    done = run_async(work())
    taken, restored = done.candidate.model_id, done.current.model_id
    if as_json:
        print_json(
            {
                "release_id": done.release_id,
                "taken_back": taken,
                "restored": restored,
                "state": done.state,
                "why": done.history[-1]["why"],
                "verified_at": done.verified_zero_at,
            }
        )
    elif done.verified_zero_at:
        print_text(f"{restored} serves alone on every live gateway; {taken} is rolled back.")
    elif done.settled:
        what = f"{taken} serves on" if done.undone else "Nothing was changed"
        say(f"{what}: {done.history[-1]['why']}.", err=True)
    else:
        say(
            f"Not every gateway has confirmed it in {WAIT_SECONDS:.0f} s. It is still to be carried out: "
            f"'onward models show {restored}' says when it was.",
            err=True,
        )
    if not done.verified_zero_at:
        raise typer.Exit(1)


async def _carried_out(bus: Bus, asked: ReleaseRecord, clock: Clock) -> ReleaseRecord:
    """Returns the record once it is settled, or its present state after ``WAIT_SECONDS``."""
    releases = Releases(bus, clock)
    until = clock.monotonic() + WAIT_SECONDS
    while True:
        found = await releases.get(asked.release_id)
        record = found[0] if found else asked
        if record.settled or clock.monotonic() > until:
            return record
        await clock.sleep(LOOK_SECONDS)


async def _released(settings: Settings) -> list[Document] | None:
    """Returns every released model, newest first; None when nothing ever ran."""
    if not host.has_records(settings):
        return None
    async with host.records(settings) as bus:
        releases = Releases(bus, SystemClock())
        records = await releases.all()
        models = await releases.models()
    since = {record.candidate.model_id: record.started_at for record in records if record.kind == "candidate"}
    found = [_document(model, since.get(model.model_id)) for model in models]
    return sorted(found, key=lambda model: model["since"] or "", reverse=True)


def _document(model: Model, since: str | None) -> Document:
    return {
        "model_id": model.model_id,
        "state": model.state,
        "parent": model.parent,
        "training_job_id": model.training_job_id if model.adapter_digest else None,
        "samples": model.info.get("training_samples"),
        "since": since,
        "adapter_digest": model.adapter_digest,
        "base_digest": model.base_digest,
        "object_prefix": model.object_prefix or None,
    }


async def _found(settings: Settings, model_id: str) -> Document:
    base = next((model for model in base_models.list_known() if model["name"] == model_id), None)
    if not host.has_records(settings):
        if base is None:
            raise NotFoundError(
                f"{model_id!r} is no base model, and nothing ever ran on {settings.data_dir}: "
                f"name the folder of your loop with --dir."
            )
        return base
    async with host.records(settings) as bus:
        releases = Releases(bus, SystemClock())
        model = await releases.model(model_id)
        records = await releases.all()
        known = await releases.model_keys()
    if model is None:
        if base is None:
            raise NotFoundError(
                f"There is no model {model_id!r}: known are {', '.join(sorted(known)) or 'none'}."
            )
        return base
    about = [_decision(record, model_id) for record in records if model_id in _concerned(record)]
    since = next((one["at"] for one in about if one["as"] == "candidate"), None)
    return {**(base or {}), **_document(model, since), "validation": model.validation, "releases": about}


def _concerned(record: ReleaseRecord) -> tuple[str, ...]:
    """Returns the models that ``record`` decides about. The model beside a candidate is not one of them."""
    if record.kind == "rollback":
        return record.candidate.model_id, record.current.model_id
    return (record.candidate.model_id,)


def _decision(record: ReleaseRecord, model_id: str) -> Document:
    is_candidate = record.candidate.model_id == model_id
    role = "candidate" if record.kind == "candidate" else "taken back" if is_candidate else "restored"
    return {
        "release_id": record.release_id,
        "as": role,
        "state": str(record.state),
        "at": record.closed_at or record.updated_at,
        "why": record.history[-1]["why"] if record.history else record.reason,
    }
