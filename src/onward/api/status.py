"""The current state in one document, which ``onward status`` prints and ``/status`` serves.

Everything is read from the three places where state lives, side by side and with one deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import asdict
from typing import Any

import nats.errors

from onward.bus import Bus, read_all, read_document
from onward.bus.documents import is_learning_paused
from onward.bus.streams import STREAMS, stream_infos
from onward.capture.collecting import quarantine
from onward.clock import Clock
from onward.config import Settings
from onward.contracts import to_document
from onward.contracts.buckets import (
    DesiredRoutes,
    Document,
    GatewayReport,
    OptOutCount,
    Pin,
    RescoreProgress,
    RoleFailure,
    SetAside,
)
from onward.coordinator.coordinator import rewarded_since_snapshot
from onward.coordinator.outlook import outlook
from onward.errors import OnwardError
from onward.health.disk import room_now
from onward.health.readiness import answers_within
from onward.release.record import ReleaseRecord, Releases
from onward.release.wording import needed_evidence, validation_words, what_happened
from onward.training.role.job_table import JobRecord, JobTable
from onward.warehouse import Objects, Warehouse, queries, reward_queries

NEWEST = 5
STATUS_SECONDS = 4.0
"""Time limit for all reads together."""
_AWAY = (OnwardError, nats.errors.Error, OSError)
"""Errors of a part that does not answer; TimeoutError is an OSError."""


class _Reads:
    """Reads that run side by side. A part that does not answer is named, and its values are the defaults."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[str, Awaitable[Any], Any]] = {}
        self.silent: set[str] = set()

    def ask(self, part: str, name: str, work: Awaitable[Any], default: Any = None) -> None:
        self._asked[name] = (part, work, default)

    async def answers(self, seconds: float) -> dict[str, Any]:
        """Returns name → value. Raises an error that does not come from a part that is away."""
        found = await answers_within(seconds, {name: work for name, (_, work, _) in self._asked.items()})
        for name, (part, _, default) in self._asked.items():
            if isinstance(found[name], _AWAY):
                self.silent.add(part)
                found[name] = default
            elif isinstance(found[name], Exception):
                raise found[name]
        return found


async def collect(bus: Bus, warehouse: Warehouse, settings: Settings, clock: Clock) -> dict[str, Any]:
    """Reads streams with lag, counts, the current model, jobs, releases, gateways, switches.

    ``no_answer`` names the parts that did not answer in time (``bus``, ``warehouse``, ``objects``); what only
    they know is None or empty.
    """
    reads = _Reads()
    reads.ask("bus", "jobs", JobTable(bus.bucket("rl_jobs"), clock).all(), [])
    releases_of = Releases(bus, clock)
    reads.ask("bus", "releases", releases_of.all(), [])
    reads.ask("bus", "serving", read_document(bus, DesiredRoutes))
    reads.ask("bus", "learning", is_learning_paused(bus), False)
    reads.ask("bus", "triggers", outlook(bus, settings, clock))
    reads.ask("bus", "rescore", read_document(bus, RescoreProgress))
    reads.ask("bus", "opted_out", read_document(bus, OptOutCount))
    reads.ask("bus", "pin", read_document(bus, Pin))
    reads.ask("bus", "gateways", _documents(bus, GatewayReport), [])
    reads.ask("bus", "failing_roles", _documents(bus, RoleFailure), [])
    reads.ask("bus", "set_aside", bus.bucket(SetAside.BUCKET).keys(), [])
    reads.ask("bus", "streams", _streams(bus), [])
    reads.ask("", "rewarded", rewarded_since_snapshot(bus, warehouse))  # needs both
    reads.ask("warehouse", "counts", queries.counts(warehouse))
    reads.ask("warehouse", "unscored", queries.unscored_count(warehouse), {})
    share = reward_queries.unscored_share(warehouse)
    reads.ask("warehouse", "unscored_share", share, {"n": 0, "unscored": 0})
    reads.ask("objects", "held", quarantine.count_held(Objects.open(settings.objects_at)))
    reads.ask("", "disk", room_now(settings.data_dir))  # elsewhere for a remote command
    found = await reads.answers(STATUS_SECONDS)
    silent = sorted(reads.silent - {""})
    jobs, releases, serving = found["jobs"], found["releases"], found["serving"]
    paused, rescore = found["learning"], found["rescore"]
    next_job = {"rewarded": found["rewarded"], "threshold": settings.training.threshold}
    room = found["disk"]
    known = "bus" not in silent
    return {
        "sentences": {
            "serving": serving_sentence(serving) if known else _NOT_KNOWN,
            "next": next_sentence(next_job, [job for job, _ in jobs], paused) if known else _NOT_KNOWN,
            "last_release": release_sentence(releases) if known else _NOT_KNOWN,
        },
        "no_answer": silent,
        "streams": found["streams"],
        "disk": None if room is None else {**asdict(room), "used": round(room.used, 3)},
        "counts": found["counts"],
        "unscored": found["unscored"],
        "unscored_share": found["unscored_share"],
        "rescore": None if rescore is None else to_document(rescore),
        "held": found["held"],
        "opted_out": (found["opted_out"] or OptOutCount()).count,
        "next_job": next_job,
        "triggers": found["triggers"],
        "serving": None if serving is None else to_document(serving),
        "gateways": found["gateways"],
        "failing_roles": found["failing_roles"],
        "set_aside": len(found["set_aside"]),
        "jobs": [
            {
                "job_id": job.job_id,
                "state": job.state,
                "attempt": job.attempt,
                "samples": job.samples,
                "percent": job.progress.get("percent_complete"),
                "error": job.error.message if job.error else None,
            }
            for job, _ in jobs[-NEWEST:]
        ],
        "releases": [
            {
                "release_id": release.release_id,
                "model_id": release.candidate.model_id,
                "state": str(release.state),
                "sessions": release.sessions,
                "e_values": release.e_values,
                "rates": {arm: rates.model_dump() for arm, rates in release.rates.items()},
                "reason": release.reason or release.why_held,
                "reason_code": release.reason_code,
                "validation": validation_words(release),
                "evidence_needed": needed_evidence(release),
            }
            for release in releases[-NEWEST:]
        ],
        "learning_paused": paused,
        "pinned": (found["pin"] or Pin()).model_id,
    }


_NOT_KNOWN = "Not known: NATS does not answer."


def serving_sentence(desired: DesiredRoutes | None) -> str:
    """Names the serving model, or two of them with their shares of new sessions."""
    if desired is None or not desired.arms:
        return "No model was released yet: the base model serves."
    arms = desired.arms
    if len(arms) == 1:
        return f"{arms[0].model_id} serves."
    first, second = (f"{arm.model_id} ({arm.arm})" for arm in arms)
    shares = [f"{arm.weight:.0%}" for arm in arms]
    return f"{first} serves {shares[0]} of new sessions, {second} serves {shares[1]}."


def next_sentence(next_job: dict[str, Any], jobs: list[JobRecord], paused: bool) -> str:
    """Describes the next step of the loop: the running job, or the progress towards the next one."""
    open_jobs = [job for job in reversed(jobs) if job.state in ("queued", "running")]
    if open_jobs:
        job = next((job for job in open_jobs if job.state == "running"), open_jobs[0])
        percent = job.progress.get("percent_complete")
        done = "" if percent is None else f", {percent:.0f} % done"
        why = "" if job.error is None else f" again: {job.error.message.rstrip('.')}"
        return f"Training job {job.job_id} is {job.state}{done}{why}."
    if next_job["rewarded"] is None:
        counted = f"an unknown number of {next_job['threshold']:,} rewarded trajectories"
    else:
        counted = f"{next_job['rewarded']:,} of {next_job['threshold']:,} rewarded trajectories"
    if paused:
        return f"No next training job: learning is paused ('onward resume'); there are {counted}."
    return f"Next training job: {counted} of this policy."


def release_sentence(releases: list[ReleaseRecord]) -> str:
    """Describes the newest release."""
    if not releases:
        return "Last release: none yet."
    validated = validation_words(releases[-1])
    return f"Last release: {what_happened(releases[-1])}{validated and f' ({validated})'}"


def release_in_short(releases: list[ReleaseRecord]) -> str:
    """Describes the newest release without its reason, which may have a path of this machine."""
    if not releases:
        return "none yet"
    newest = releases[-1]
    words = f"{newest.candidate.model_id}: {str(newest.state).replace('_', ' ')}"
    validated = validation_words(newest)
    return f"{words}, {validated}" if validated else words


async def _streams(bus: Bus) -> list[dict[str, Any]]:
    """Returns of each stream its messages, bytes and limit, and per durable consumer the number that waits or
    is unacknowledged."""
    infos = await stream_infos(bus)
    there = [name for name in STREAMS if name in infos]
    consumers = dict(
        zip(there, await asyncio.gather(*(bus.js.consumers_info(name) for name in there)), strict=True)
    )
    return [
        {
            "name": name,
            "messages": infos[name].state.messages,
            "bytes": infos[name].state.bytes,
            "limit": infos[name].config.max_bytes,
            "lag": {
                consumer.config.durable_name: (consumer.num_pending or 0) + (consumer.num_ack_pending or 0)
                for consumer in consumers[name]
                if consumer.config.durable_name  # a gateway's or a release's view is no backlog
            },
        }
        if name in infos
        else {"name": name, "missing": True}
        for name in STREAMS
    ]


async def _documents(bus: Bus, kind: type[Document]) -> list[dict[str, Any]]:
    """Returns the documents of a bucket that can be read."""
    stored = await read_all(bus.bucket(kind.BUCKET), kind)
    return [to_document(entry.document) for entry in stored if entry.document is not None]
