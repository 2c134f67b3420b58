"""``onward buckets list|show|drop``: the records of the service in its key-value buckets."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any

import typer

from onward import host
from onward.bus import BUCKETS, Bucket, Bus, Entry
from onward.bus.buckets import is_key
from onward.bus.documents import NOT_OURS, why_unreadable
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.choosing import Yes, confirm_drop
from onward.cli.help import Commands
from onward.cli.output import AsJson, Table, ident, number, print_json, print_text, say
from onward.clock import SystemClock
from onward.contracts.buckets import Document
from onward.errors import NotFoundError
from onward.telemetry import audit

buckets_app = Commands(
    help="""Records of the service: look at them, find the unreadable ones, drop one.

    onward buckets list
    onward buckets show rl_jobs job.3f2a
    onward buckets drop rl_jobs job.3f2a
    """
)
app.add_typer(buckets_app, name="buckets")


def _bucket_names() -> list[str]:
    return sorted(BUCKETS)


Named = Annotated[
    str,
    typer.Argument(metavar="BUCKET", help="As 'onward buckets list' shows.", autocompletion=_bucket_names),
]
OneOrAll = Annotated[
    str | None,
    typer.Argument(
        metavar="BUCKET", help="Show its keys. Default: all buckets.", autocompletion=_bucket_names
    ),
]
Key = Annotated[str, typer.Argument(metavar="KEY", help="As 'onward buckets list BUCKET' shows.")]


def kind_of(bucket: str, key: str) -> type[Document] | None:
    """Returns the type of the full record that is stored under a key; None for a key of no known type."""
    from onward.contracts import buckets as declared
    from onward.release.ab.record import AbTest
    from onward.release.record import Model, ReleaseRecord
    from onward.training.role.job_table import JobRecord

    full = [Model, ReleaseRecord, AbTest, JobRecord, declared.Desired]
    kinds = [*full, *(kind for kind in vars(declared).values() if _is_kind(kind))]
    fitting = [kind for kind in kinds if bucket == kind.BUCKET]
    exact = next((kind for kind in fitting if key == kind.KEY), None)
    many = [kind for kind in fitting if kind.KEY == "" or kind.KEY.endswith(".")]
    return exact or next((kind for kind in many if key.startswith(kind.KEY)), None)


def _is_kind(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Document) and hasattr(value, "BUCKET")


@buckets_app.command(name="list")
def list_buckets(
    bucket: OneOrAll = None, file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Show all buckets with the number of their keys and the keys that cannot be read, or one bucket's keys.
    Works without a running service.

    onward buckets list
    onward buckets list rl_set_aside --json
    """

    async def work() -> list[dict[str, Any]]:
        async with host.records(load_settings(file, data_dir)) as bus:
            names = list(BUCKETS) if bucket is None else [bucket]
            return [fact for name in names for fact in await _keys(bus.bucket(name))]

    found = run_async(work())
    if bucket is not None:
        _show_keys(found, as_json)
        return
    rows = [_summary(name, [fact for fact in found if fact["bucket"] == name]) for name in BUCKETS]
    if as_json:
        print_json(rows)
        return
    table = Table(ident("bucket"), "written by", number("keys"), "cannot be read", title="Buckets")
    for row in rows:
        table.add_row(row["bucket"], row["writer"], row["keys"], ", ".join(row["unreadable"]) or "-")
    print_text(table)


def _summary(name: str, facts: list[dict[str, Any]]) -> dict[str, Any]:
    unreadable = [fact["key"] for fact in facts if fact["reason"] is not None]
    return {"bucket": name, "writer": BUCKETS[name].writer, "keys": len(facts), "unreadable": unreadable}


def _show_keys(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    table = Table(ident("key"), number("revision"), number("bytes"), "cannot be read", empty="no keys")
    for fact in found:
        table.add_row(fact["key"], fact["revision"], fact["bytes"], fact["reason"])
    print_text(table)


async def _keys(bucket: Bucket) -> list[dict[str, Any]]:
    return [_facts(bucket, entry) for entry in await bucket.entries(all_forms=True)]


def _facts(bucket: Bucket, entry: Entry) -> dict[str, Any]:
    return {
        "bucket": bucket.name,
        "key": entry.key,
        "revision": entry.revision,
        "bytes": len(entry.value),
        "reason": why_not_readable(bucket.name, entry),
    }


def why_not_readable(bucket: str, entry: Entry) -> str | None:
    """Returns why this program cannot read a value; None if it can."""
    kind = kind_of(bucket, entry.key) if is_key(entry.key) else None
    if kind is None:
        return "No record has a key of this form."
    if not entry.is_ours:
        return NOT_OURS
    try:
        kind.load(entry.value)
    except Exception as error:
        return why_unreadable(error, kind)
    return None


@buckets_app.command()
def show(
    bucket: Named, key: Key, file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Print one record as JSON, or as escaped bytes if it is none. Works without a running service.

    onward buckets show rl_control learning
    """

    async def work() -> Entry:
        async with host.records(load_settings(file, data_dir)) as bus:
            return await _entry(bus, bucket, key)

    entry = run_async(work())
    reason = why_not_readable(bucket, entry)
    try:
        value, is_json = json.loads(entry.value), True
    except (ValueError, RecursionError):
        value, is_json = None, False
    if as_json:
        body = {"value": value} if is_json else {"base64": base64.b64encode(entry.value).decode()}
        print_json({"bucket": bucket, "key": key, "revision": entry.revision, "reason": reason, **body})
        return
    if reason is not None:
        print_text(f"It cannot be read: {reason}", style="yellow")
    text = json.dumps(value, indent=1, ensure_ascii=False) if is_json else repr(entry.value)[2:-1]
    for line in text.splitlines():
        say(line)


@buckets_app.command()
def drop(
    bucket: Named, key: Key, yes: Yes = False, file: ConfigFile = None, data_dir: DataDir = None
) -> None:
    """Delete one record, after a question. What a role then does is in the docs page 'Operating'.

    onward buckets drop rl_jobs job.3f2a
    """

    async def work() -> None:
        async with host.records(load_settings(file, data_dir)) as bus:
            entry = await _entry(bus, bucket, key)
            if not yes:
                confirm_drop(1, "record")
            await audit.record(
                bus, SystemClock(), "buckets.drop", bucket=bucket, key=key, revision=entry.revision
            )
            await bus.bucket(bucket).delete(key)

    run_async(work())
    print_text(f"Dropped {key} of {bucket}.")


async def _entry(bus: Bus, bucket: str, key: str) -> Entry:
    entry = await bus.bucket(bucket).get(key)
    if entry is None:
        raise NotFoundError(
            f"There is no {key!r} in {bucket}: 'onward buckets list {bucket}' shows its keys."
        )
    return entry
