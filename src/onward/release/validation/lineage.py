"""The work that models were trained on, from the frozen datasets of their jobs, back to the base model.

The questions of a dataset are read once, from the warehouse or else from its rows, and stored below
``suites/trained/`` of the data folder under the dataset's id, which is a hash of its content. Invariant: what
is not stored any more is named as unknown, never counted as nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onward.bus import read_stored
from onward.context import Context
from onward.contracts.buckets import JobEntry
from onward.envs.registry import BUILT_IN
from onward.errors import NotFoundError, ObjectError, TamperedError
from onward.export import records
from onward.files import make_folder, read_json, write_whole
from onward.release import versions
from onward.release.record import Model, Releases
from onward.suites.recorded.tasks import opening
from onward.suites.trained import TrainedOn, question
from onward.training.data import snapshots
from onward.warehouse import Objects

FOLDER = Path("suites") / "trained"
INDEX = "jobs.json"
"""Id of each known dataset → id of its job."""
Seen = dict[str, Any]
"""``{trajectories, tasks, questions, unread}`` of a dataset; ``unread``: trajectories whose text is gone."""


async def trained_on(ctx: Context, models: Sequence[Model]) -> TrainedOn:
    """Returns what the models and their ancestors were trained on."""
    lineage = await _lineage(ctx, models)
    store, folder = snapshots.open_store(ctx.settings, ctx.objects), ctx.settings.data_dir / FOLDER
    await asyncio.to_thread(make_folder, folder, 0o700)
    try:
        by_job = await _datasets(store, folder)
    except ObjectError as error:
        return TrainedOn(unknown=(f"The store of datasets cannot be read: {str(error).rstrip('.')}.",))
    seen: list[Seen] = []
    unknown: list[str] = []
    for model in lineage:
        if isinstance(model, str):
            unknown.append(f"The entry of {model} is gone, and with it what it was trained on.")
            continue
        names = by_job.get(model.training_job_id, [])
        if not names:
            why = await _why_none(ctx, model)
            unknown += [why] if why else []
        for name in names:
            try:
                one = await _seen(ctx, store, folder, name)
            except (NotFoundError, TamperedError, ObjectError) as error:
                unknown.append(f"Dataset {name[:12]} of {model.model_id} cannot be read: {error}")
                continue
            seen.append(one)
            if one["unread"]:
                unknown.append(
                    f"The text of {one['unread']:,} trajectories that {model.model_id} was trained on is "
                    f"gone: they are known by their ids alone."
                )
    trajectories, tasks, questions = (
        frozenset(text for one in seen for text in one[kind])
        for kind in ("trajectories", "tasks", "questions")
    )
    return TrainedOn(trajectories, tasks, questions, tuple(unknown))


async def _lineage(ctx: Context, models: Iterable[Model]) -> list[Model | str]:
    """Returns the models and their ancestors, each once; of an ancestor without an entry its id."""
    stored = await Releases(ctx.bus, ctx.clock).models()
    by_id = {model.model_id: model for model in stored}
    found: dict[str, Model | str] = {}
    for model in models:
        found.setdefault(model.model_id, model)
        for name in versions.ancestors([*stored, model], model.model_id):
            found.setdefault(name, by_id.get(name, name))
    return list(found.values())


async def _why_none(ctx: Context, model: Model) -> str | None:
    """Returns why no dataset of the model's job is known; None if it was not trained on recorded work."""
    if model.adapter_digest is None:
        return None
    job = (await read_stored(ctx.bus.bucket(JobEntry.BUCKET), JobEntry, model.training_job_id)).document
    if job is None:
        return f"{model.model_id} was trained outside of this loop: its data is not known."
    dataset: Mapping[str, Any] = (job.request.get("training_config") or {}).get("dataset") or {}
    if dataset.get("source") == "local" and dataset.get("environment"):
        return None  # it played; recorded work took no part
    return f"The dataset of {model.model_id}, job {model.training_job_id}, is not stored any more."


async def other_environments(ctx: Context, models: Sequence[Model]) -> list[str]:
    """Returns the suites of the environments that are built in or set (``training.environments``), and in
    which none of the models or their ancestors was trained."""
    jobs = ctx.bus.bucket(JobEntry.BUCKET)
    played: set[str] = set()
    for model in await _lineage(ctx, models):
        job = None
        if not isinstance(model, str):
            job = (await read_stored(jobs, JobEntry, model.training_job_id)).document
        dataset = {} if job is None else (job.request.get("training_config") or {}).get("dataset") or {}
        environment = dataset.get("environment") or {}
        played |= {str(environment[name]) for name in ("name", "url") if environment.get(name)}
    known = [*BUILT_IN, *ctx.settings.training.environments]
    return [f"env:{place}" for place in dict.fromkeys(known) if place not in played]


async def _datasets(store: Objects, folder: Path) -> dict[str, list[str]]:
    """Returns the ids of all datasets that ever were stored here, by job. Only descriptions that are new are
    read. Raises ObjectError."""
    known: dict[str, str] = await asyncio.to_thread(read_json, folder / INDEX) or {}
    new = [name for name in await snapshots.ids(store) if name not in known]
    for name in new:
        try:
            known[name] = str((await snapshots.load(store, name))["job_id"])
        except (NotFoundError, TamperedError, KeyError):
            known[name] = ""  # of no job: whose it was is unknown, which the model's own entry then says
    if new:
        await asyncio.to_thread(_write, folder / INDEX, known)
    by_job: dict[str, list[str]] = {}
    for name, job in known.items():
        by_job.setdefault(job, []).append(name)
    return by_job


async def _seen(ctx: Context, store: Objects, folder: Path, name: str) -> Seen:
    """Returns ids and questions of one dataset, as stored or read now. Raises NotFoundError, TamperedError,
    ObjectError, WarehouseError."""
    path = folder / f"{name}.json"
    stored = await asyncio.to_thread(read_json, path)
    if stored is not None:
        return stored
    description = await snapshots.load(store, name)
    ids = [str(one["trajectory_id"]) for one in description["members"]]
    tasks: set[str] = set()
    questions: set[str] = set()
    left = set(ids)
    async for record in records.documents(ctx.warehouse, ids):
        left.discard(record.trajectory["trajectory_id"])
        tasks.add(str(record.trajectory["task_context"].get("task_id") or ""))
        questions.add(question(opening(record.trajectory)))
    if left:
        left -= _of_rows(await _rows(store, description), left, tasks, questions)
    found = {
        "trajectories": ids,
        "tasks": sorted(tasks - {""}),
        "questions": sorted(questions),
        "unread": len(left),
    }
    await asyncio.to_thread(_write, path, found)
    return found


async def _rows(store: Objects, description: snapshots.Description) -> bytes:
    try:
        return await snapshots.rows(store, description)
    except NotFoundError:
        return b""


def _of_rows(body: bytes, wanted: set[str], tasks: set[str], questions: set[str]) -> set[str]:
    """Adds task ids and questions of the ``wanted`` rows. Returns the ids of those that have their text: a
    row of tokens has none."""
    read: set[str] = set()
    for line in body.splitlines():
        try:
            row = json.loads(line)
            name, messages = str(row["trajectory_id"]), row.get("messages")
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        if name not in wanted:
            continue
        tasks.add(str(row.get("task_id") or ""))
        if messages:
            questions.add(question(messages))
            read.add(name)
    return read


def _write(path: Path, document: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(document).encode(), 0o600)
