"""Rebuilding of a snapshot from its source, row by row, with the rewards and corrections of that time.

A later reward or correction does not matter: those that the description names are read. The ids decide, so
newer trajectories do not matter either.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from onward.capture import provenance
from onward.capture.collecting import trajectory_row
from onward.contracts import Feedback, decode
from onward.contracts.training import DatasetSpec
from onward.training.data import admission, corrections, sources
from onward.training.data.admission import AdmissionRules, ScoredTrajectory
from onward.training.data.dataset import line_bytes
from onward.training.data.selection import REACH, member
from onward.training.data.snapshots import Description
from onward.training.data.sources import Reading, Stores, Wanted
from onward.warehouse import queries, reward_queries


@dataclass(frozen=True)
class Rebuilt:
    """The rows that were made again, and one sentence for each that is not as it was."""

    rows: bytes
    faults: list[str]


async def rebuild(stores: Stores, description: Description) -> Rebuilt:
    """Makes the rows of a snapshot again. Raises TrainingError("DATA") for a source that is gone, BusError,
    ObjectError, WarehouseError."""
    members: dict[str, Mapping[str, Any]] = {one["trajectory_id"]: one for one in description["members"]}
    found, faults = await _find(stores, description, members)
    rules = _rules(stores, description)
    lines: list[bytes] = []
    for name, one in members.items():
        if name not in found:
            faults.append(f"Trajectory {name} is no longer in the source.")
            continue
        why = _difference(found[name], one)
        line = None if why else await asyncio.to_thread(_line, found[name], rules, one)
        if line is None or hashlib.sha256(line).hexdigest() != one["sha256"]:
            faults.append(f"Trajectory {name} {why or _other_row(found[name].identity, one['identity'])}.")
        else:
            lines.append(line)
    return Rebuilt(b"".join(lines), faults)


async def _find(
    stores: Stores, description: Description, members: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, ScoredTrajectory], list[str]]:
    """Reads the source again; returns its members, and one sentence for each changed file."""
    place, policies = description["source"], description["policies"]
    dataset = DatasetSpec.model_validate(description["dataset"])
    wanted = Wanted(
        dataset.model_copy(update={"filter": None}),
        None if policies is None else tuple(policies),
        most=REACH * max(dataset.sample_size, len(members)),
        first=place.get("first", 1),
        last=place.get("last"),
    )
    reading = Reading()
    found: dict[str, ScoredTrajectory] = {}
    async with aclosing(sources.find(dataset.source)(stores, wanted, reading)) as pages:
        async for page in pages:
            chosen = [item for item in page if item.trajectory["trajectory_id"] in members]
            for item in await _pinned(stores, chosen, members):
                found.setdefault(item.trajectory["trajectory_id"], item)
            if len(found) == len(members):
                break
    before = {one["name"]: one["sha256"] for one in place.get("files", ())}
    now = {one["name"]: one["sha256"] for one in reading.place.get("files", ())}
    return found, [
        f"File {name} {'was changed' if name in now else 'is gone'}."
        for name, sha256 in before.items()
        if now.get(name) != sha256
    ]


async def _pinned(
    stores: Stores, page: Sequence[ScoredTrajectory], members: Mapping[str, Mapping[str, Any]]
) -> list[ScoredTrajectory]:
    """Returns the page with the rewards and corrections that the description names."""
    about = {item.trajectory["trajectory_id"]: members[item.trajectory["trajectory_id"]] for item in page}
    other = [
        one["reward_id"]
        for item in page
        for one in (about[item.trajectory["trajectory_id"]],)
        if one["reward_id"] and (item.reward or {}).get("reward_id") != one["reward_id"]
    ]
    rewards = await queries.rewards_by_id(stores.warehouse, other) if other else {}
    said = [one["feedback_id"] for one in about.values() if one["feedback_id"]]
    feedback = await reward_queries.feedback_by_id(stores.warehouse, said) if said else {}
    pinned: list[ScoredTrajectory] = []
    for item in page:
        one = about[item.trajectory["trajectory_id"]]
        row, words = rewards.get(one["reward_id"]), feedback.get(one["feedback_id"])
        pinned.append(
            replace(
                item,
                reward=json.loads(row["payload"]) if row else item.reward if one["reward_id"] else None,
                correction=decode(words["payload"].encode(), Feedback) if words else None,
            )
        )
    return pinned


def _difference(item: ScoredTrajectory, recorded: Mapping[str, Any]) -> str | None:
    """Returns what differs from the record, as the end of a sentence; None if nothing does."""
    now = member(item)
    if not trajectory_row.same(now["identity"], recorded["identity"]):
        return "is another document than it was"
    if now["reward_id"] != recorded["reward_id"]:
        return f"has lost its reward {recorded['reward_id']}"
    if now["reward_sha256"] != recorded["reward_sha256"]:
        return f"has another reward under the id {recorded['reward_id']}"
    if now["feedback_id"] != recorded["feedback_id"]:
        return f"has lost its correction {recorded['feedback_id']}"
    return None


def _other_row(now: str, recorded: str) -> str:
    """Returns the end of a sentence about a row that differs although its document and reward do not."""
    if now.partition(":")[0] == recorded.partition(":")[0]:
        return "gives another row than it did"
    return "gives another row than it did, since other redaction rules apply by now"


def _line(item: ScoredTrajectory, rules: AdmissionRules, recorded: Mapping[str, Any]) -> bytes | None:
    line = admission.line(item, rules)
    if not isinstance(line, str):
        line = corrections.apply_correction(line, item, Counter())
    if isinstance(line, str):
        return None
    spare = {line["trajectory_id"]} if recorded.get("spare_vote") else set[str]()
    if "vote" in line:
        admission.settle_votes([line], spare)
    return line_bytes(line)


def _rules(stores: Stores, description: Description) -> AdmissionRules:
    return AdmissionRules(
        staleness=None if description["text_is_enough"] else description["policies"],
        signing_key=provenance.load_key(stores.settings.run_dir),
        text_is_enough=description["text_is_enough"],
        dense=description["dense"],
    )
