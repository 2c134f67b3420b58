"""Operators' requests to the releaser, through bucket ``rl_control``: a pinned model or a release command.

A command is meant for the release that was under way when it was written. Its revision shows which one, so an
old abort can never reach a later release.
"""

from __future__ import annotations

from typing import Any, TypeVar

from onward.bus import Bus, Stored, read_document, read_stored
from onward.clock import Clock, utc_text
from onward.context import Context
from onward.contracts.buckets import COMMANDS, SHARE, Document, Pin, ReleaseCommand
from onward.errors import ConflictError, ContractError, NotFoundError
from onward.ids import new_id
from onward.release import proposals
from onward.release.ab.record import refuse_during_ab
from onward.release.plan import State
from onward.release.record import Model, ReleaseRecord, Releases
from onward.telemetry import audit

D = TypeVar("D", bound=Document)


ANSWERS = ("approve", "refuse")
"""Commands that need ``by`` and ``reason``."""


async def send_command(
    bus: Bus,
    name: str,
    release: str | None = None,
    *,
    clock: Clock,
    by: str | None = None,
    reason: str | None = None,
) -> None:
    """Sends one of COMMANDS to the releaser. ``release`` (its id, or its candidate's) limits it to that one;
    ``by`` and ``reason`` are those of an approval or refusal. Raises ContractError for an unknown command,
    NotFoundError if no such release is under way, ConflictError if it waits for no approval."""
    if name not in COMMANDS:
        raise ContractError("command", f"{name!r} is no release command: expected {', '.join(COMMANDS)}.")
    records = await Releases(bus, clock).all()
    under_way = [record for record in records if not record.closed]
    meant = [record for record in under_way if record.has_name(release)] if release else under_way
    if not meant:
        raise NotFoundError(
            f"No release {release + ' ' if release else ''}is under way, so there is nothing to {name}: "
            f"'onward releases list' shows what there was."
        )
    if name in ANSWERS and meant[-1].state is not State.WAITING:
        raise ConflictError(
            f"Release {meant[-1].release_id} is {meant[-1].state} and waits for no approval: there is "
            f"nothing to {name}."
        )
    target = meant[-1].release_id if release or name in ANSWERS else None
    asked = ReleaseCommand(command=name, release_id=target)
    if name in ANSWERS:
        asked = asked.model_copy(update={"by": by, "reason": reason})
    else:  # the releaser audits an answer with the name in it
        about = {"release_id": meant[-1].release_id, "model_id": meant[-1].candidate.model_id}
        await audit.record(bus, clock, f"release.{name}", **about)
    await bus.bucket(asked.BUCKET).put(asked.KEY, asked.dump())


async def pinned_model(bus: Bus) -> str | None:
    """Returns the id of the pinned model, as written; None if nothing is pinned."""
    return (await read_document(bus, Pin) or Pin()).model_id


async def refuse_if_busy(bus: Bus, records: list[ReleaseRecord], then: str) -> None:
    """Raises ConflictError while a release is under way or a model is pinned. ``then``: the next step."""
    await refuse_during_ab(bus, then)
    under_way = next((record for record in records if not record.closed), None)
    if under_way is not None:
        raise ConflictError(
            f"Release {under_way.release_id} of {under_way.candidate.model_id} is {under_way.state}: wait "
            f"for its end, or end it with 'onward releases abort', then {then}."
        )
    pinned = await pinned_model(bus)
    if pinned:
        raise ConflictError(f"{pinned} is pinned and serves alone: run 'onward unpin' first.")


async def requested_record(bus: Bus, clock: Clock, words: str, **fields: Any) -> ReleaseRecord:
    """Returns the record of an operator's request, not yet stored. ``fields`` are its models and its job;
    ``words`` follow the operator's name in its history. A command sent before it never applies to it."""
    command = await bus.bucket(ReleaseCommand.BUCKET).get(ReleaseCommand.KEY)
    now, user = utc_text(clock.now()), audit.current_user()
    return ReleaseRecord(
        release_id=new_id(),
        created_at=now,
        updated_at=now,
        command_revision=command.revision if command else 0,
        asked_by=user,
        history=[{"at": now, "state": "proposed", "step": 0, "why": f"{user} {words}"}],
        **fields,
    )


class OperatorRequests:
    """Reads the operator's requests."""

    def __init__(self, ctx: Context, releases: Releases) -> None:
        self._ctx = ctx
        self._releases = releases
        self._told: int | None = None

    async def read_pin(self) -> tuple[Model | None, bool]:
        """Returns (the pinned model if known, whether anything is pinned). Alerts once if it is unknown."""
        stored = await self._read(Pin)
        if stored.document is None:
            return None, not stored.readable
        model_id, revision = stored.document.model_id, stored.revision
        if not model_id:
            return None, False
        base = proposals.base_model(self._ctx.settings)
        model = await self._find(model_id) or (base if model_id == base.model_id else None)
        if model is None and self._told != revision:
            self._told = revision
            await self._ctx.alerts.raise_(
                "pin_unknown",
                f"Model {model_id[:64]!r} is pinned but not known: nothing is released, routes stay.",
            )
        return model, True

    async def newest_revision(self) -> int:
        """Returns the revision of the newest command; 0 if there never was one."""
        return (await self._read(ReleaseCommand)).revision

    async def next_command(self, record: ReleaseRecord) -> tuple[str, int, ReleaseCommand] | None:
        """Returns a new (command, revision, document) for ``record``. The command is "" if another release is
        meant, or if an answer does not say who gives it and why."""
        stored = await self._read(ReleaseCommand)
        asked, revision = stored.document or ReleaseCommand(), stored.revision
        if revision <= record.command_revision:
            return None
        meant = asked.release_id in (None, record.release_id)
        name = asked.command or ""
        usable = name in (*COMMANDS, SHARE) and (name not in ANSWERS or bool(asked.by and asked.reason))
        return (name if meant and usable else ""), revision, asked

    async def _find(self, model_id: str) -> Model | None:
        if not all(character.isalnum() or character in "._-" for character in model_id):
            return None
        return await self._releases.model(model_id)

    async def _read(self, kind: type[D]) -> Stored[D]:
        return await read_stored(self._ctx.bus.bucket(kind.BUCKET), kind)
