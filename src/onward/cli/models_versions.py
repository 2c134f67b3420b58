"""``onward models tree|diff|verify|tag|register``: versions of the policy, and what they are made of."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from onward import host
from onward.bus import read_all
from onward.cli import ConfigFile, DataDir, load_settings, run_async
from onward.cli.models import add, models_app
from onward.cli.output import AsJson, Table, facts, ident, number, print_json, print_text
from onward.clock import SystemClock
from onward.config import Settings
from onward.contracts.buckets import GatewayReport
from onward.errors import ConflictError, NotFoundError, ObjectError, TamperedError
from onward.lm import probe
from onward.release import versions
from onward.release.record import Model, Releases
from onward.serving.engines.registry import verify_adapter
from onward.training import checkpoints, signatures
from onward.training.signatures import Trust
from onward.warehouse import Objects

Version = Annotated[str, typer.Argument(metavar="ID", help="An id or tag: see 'onward models list'.")]
Document = dict[str, Any]

models_app.command(name="register")(add)


@models_app.command()
def tree(file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show every version under the one that it was trained from, with its job and who asked for its release.

    onward models tree
    """
    settings = load_settings(file, data_dir)

    async def work() -> list[Document]:
        async with host.records(settings) as bus:
            releases = Releases(bus, SystemClock())
            models, records = await releases.models(), await releases.all()
        asked = {one.candidate.model_id: one for one in records if one.kind == "candidate"}
        rows = []
        for depth, model in versions.tree(models):
            record = asked.get(model.model_id)
            rows.append(
                {
                    "depth": depth,
                    "model_id": model.model_id,
                    "parent": model.parent,
                    "state": model.state,
                    "tags": model.tags,
                    "training_job_id": model.training_job_id if model.adapter_digest else None,
                    "training_samples": model.info.get("training_samples"),
                    "asked_by": None if record is None else record.asked_by,
                    "served_from": None if record is None else record.started_at,
                }
            )
        return rows

    rows = run_async(work())
    if as_json:
        print_json({"versions": rows})
        return
    table = Table(
        ident("version"), "state", "tags", ident("job"), number("trajectories"), ident("served from"),
        "asked by",
    )  # fmt: skip
    for row in rows:
        name = "  " * max(0, row["depth"] - 1) + ("└ " if row["depth"] else "") + row["model_id"]
        table.add_row(name, row["state"], ", ".join(row["tags"]), row["training_job_id"],
            row["training_samples"], row["served_from"], row["asked_by"] or "the loop")  # fmt: skip
    print_text(table)


@models_app.command()
def tag(
    model_id: Annotated[str, typer.Argument(metavar="ID", help="From the first column of 'list'.")],
    name: Annotated[str, typer.Argument(metavar="TAG", help="Small letters, digits, '.', '_' and '-'.")],
    move: Annotated[bool, typer.Option("--move", help="Take it from the version that has it.")] = False,
    file: ConfigFile = None,
    data_dir: DataDir = None,
) -> None:
    """Set a tag on a version, a name that it alone has. The audit stream keeps who did it.

    onward models tag agent-zero-rl-v3 before-the-prices
    onward models tag agent-zero-rl-v4 good --move
    """
    settings = load_settings(file, data_dir)

    async def work() -> str | None:
        async with host.records(settings) as bus:
            try:
                return await versions.tag(bus, model_id, name, move=move, clock=SystemClock())
            except ConflictError as error:
                if "already" in str(error):
                    raise
                raise ConflictError(
                    f"The entry of {model_id} was written meanwhile: run the command again."
                ) from None

    before = run_async(work())
    print_text(f"{model_id} has the tag {name}." if before is None else
        f"{model_id} has the tag {name} now, which {before} had.")  # fmt: skip


@models_app.command()
def verify(
    model_id: Version, file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Check a version's stored files (manifest, hashes, signature, digest, probe), and name who serves it.

    Exit code 1: something is wrong with it.

    onward models verify agent-zero-rl-v3
    """
    settings = load_settings(file, data_dir)
    found = run_async(_verified(settings, model_id))
    if as_json:
        print_json(found)
    else:
        print_text(facts(found))
    if not found["sound"]:
        raise typer.Exit(1)


@models_app.command()
def diff(
    a: Version, b: Version, file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Show what differs between two versions: facts, settings, metrics, validation, weights by layer.

    onward models diff agent-zero-rl-v2 agent-zero-rl-v3
    """
    settings = load_settings(file, data_dir)
    fields, layers = run_async(_compared(settings, a, b))
    if as_json:
        print_json({"a": a, "b": b, "fields": fields, "layers": layers})
        return
    table = Table("field", a, b)
    for one in fields[: versions.MOST_DIFFERENCES]:
        table.add_row(one["name"], _short(one["a"]), _short(one["b"]))
    norms = Table("layer", number(a), number(b), number("difference"), title="Change of the weights, norm")
    for row in layers:
        norms.add_row(row["layer"], *(f"{row[name]:.4g}" for name in ("a", "b", "difference")))
    print_text(table, "", norms)


def _short(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= 40 else text[:39] + "…"


async def _verified(settings: Settings, name: str) -> Document:
    async with host.records(settings) as bus:
        model = versions.resolve(await Releases(bus, SystemClock()).models(), name)
        reports = [
            entry.document for entry in await read_all(bus.bucket(GatewayReport.BUCKET), GatewayReport)
        ]
    digest = model.adapter_digest
    serves = [
        report.gateway_id for report in reports
        if report is not None and any(arm.model_id == model.model_id for arm in report.arms)
        and (digest is None or digest in report.served)
    ]  # fmt: skip
    about = {
        "model_id": model.model_id, "state": model.state, "adapter_digest": digest,
        "served_by": ", ".join(sorted(str(one) for one in serves)) or None,
    }  # fmt: skip
    if digest is None:
        return {**about, "sound": True, "why": "It is the base model alone, which has no stored files."}
    with tempfile.TemporaryDirectory(prefix="onward-verify-") as scratch:
        folder = Path(scratch) / model.model_id
        try:
            manifest = await _fetched(settings, model, folder)
            stored = await asyncio.to_thread(probe.Probe.read, folder)
        except (TamperedError, NotFoundError, ObjectError) as error:
            return {**about, "sound": False, "why": str(error)}
        signature = folder / checkpoints.SIGNATURE
        signed = "not signed"
        if signature.is_file():
            key = signatures.Signature.model_validate_json(signature.read_bytes()).key
            trusted = key in Trust.from_settings(settings).keys
            signed = f"by key {key}, {'trusted' if trusted else 'not trusted here, so not checked'}"
    return {
        **about, "sound": True, "files": len(manifest.files), "manifest": "as committed",
        "signature": signed, "base_digest": manifest.base_digest,
        "probe": "compared at each load" if stored is not None else "none: it was made elsewhere",
        "training_job_id": manifest.job_id, "start_digest": manifest.start_digest,
    }  # fmt: skip


async def _fetched(settings: Settings, model: Model, folder: Path) -> checkpoints.Manifest:
    assert model.adapter_digest is not None
    trust, objects = Trust.from_settings(settings), Objects.open(settings.objects_at)
    await checkpoints.fetch(
        objects, model.object_prefix, folder, manifest_sha256=model.manifest_sha256, trust=trust
    )
    return await asyncio.to_thread(verify_adapter, folder, model.adapter_digest, trust)


async def _compared(settings: Settings, *names: str) -> tuple[list[Document], list[Document]]:
    async with host.records(settings) as bus:
        models = await Releases(bus, SystemClock()).models()
    with tempfile.TemporaryDirectory(prefix="onward-diff-") as scratch:
        documents, folders = [], []
        for number_, model in enumerate(versions.resolve(models, name) for name in names):
            document = model.model_dump(mode="json")
            document["ancestors"] = versions.ancestors(models, model.model_id)
            folder = Path(scratch) / str(number_)
            if model.adapter_digest is None:
                folders.append(None)
            else:
                document["metrics"] = (await _fetched(settings, model, folder)).metrics
                config = await asyncio.to_thread((folder / "adapter_config.json").read_bytes)
                document["adapter"] = json.loads(config)
                folders.append(folder)
            documents.append(document)
        layers = await asyncio.to_thread(versions.layer_norms, *folders)
    return list(versions.differences(*documents)), layers
