"""The record of one release: the only truth about it, changed by compare-and-set alone.

State, evidence, stream cursor and all pending announcements change in one write. ``outbox`` holds the events
and alerts of that write. They are sent after it and removed by a later write. A crash in between sends them
again under the same id and never loses them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from pydantic import Field

from onward.bus import Bus, read_all, read_stored
from onward.clock import Clock, utc_text
from onward.contracts.buckets import ModelEntry, Record, ReleaseEntry
from onward.ids import derived_id, model_key
from onward.release.evidence.evidence import Evidence, digest_of
from onward.release.evidence.rates import ArmRates
from onward.release.plan import SERVING, TERMINAL, Plan, State, move
from onward.telemetry.crashpoints import crashpoint

PREFIX = ReleaseEntry.KEY
HISTORY = 64

ModelState = Literal["added", "candidate", "current", "previous", "retired", "rolled_back", "aborted"]


HUMAN_SCORE = "human_eval_score"
"""Field of ``validation_results`` with a person's score of the model."""


class Model(Record):
    """A released model: the value in bucket ``rl_models``. Adapter None is the base model alone."""

    BUCKET = ModelEntry.BUCKET

    model_id: str
    adapter_digest: str | None
    object_prefix: str
    training_job_id: str
    manifest_sha256: str | None = None
    """SHA-256 of the checkpoint's manifest, as committed; None if no job made it."""
    base_digest: str | None = None
    """Digest of the base model, if it serves alone and an engine has reported it."""
    parent: str | None = None
    state: ModelState = "candidate"
    info: dict[str, Any] = Field(default_factory=dict)
    """Facts for ``model.deployed``: base_model, training_samples, final_reward, training_date."""
    validation: dict[str, Any] = Field(default_factory=dict)
    """``validation_results`` of its own release, needed again when the model is restored."""
    tags: list[str] = Field(default_factory=list)
    """Names that operators gave this version; each belongs to one version at a time."""

    def own_key(self) -> str:
        return model_key(self.model_id)

    @property
    def model_digest(self) -> str | None:
        """Digest in the generation records of this policy; None for a base model that no engine reported."""
        return self.adapter_digest or self.base_digest

    @property
    def registered(self) -> bool:
        """True if it was released or installed, and so has an entry; the bare fallback has none."""
        return self.model_digest is not None


NOT_HELD: dict[str, Any] = {"held_from": None, "held_why": None, "held_since": None, "overdue": False}
"""Fields of a record that is not held, or no longer."""


class ReleaseRecord(Record):
    """One release. Times are ISO 8601 text for people; durations are seconds of the releaser's clock."""

    BUCKET, KEY = ReleaseEntry.BUCKET, PREFIX

    release_id: str
    job_id: str
    epoch: int
    kind: Literal["candidate", "rollback"] = "candidate"
    """``rollback``: an operator goes back from ``candidate``, which serves, to ``current``."""
    asked_by: str | None = None
    """Operator who requested this release; None for the candidate of a job."""
    asked_why: str | None = None
    needs_approval: str | None = None
    """Reason for a person's approval that holds whatever ``release.approval`` says; None: there is none."""
    state: State = State.PROPOSED
    created_at: str
    updated_at: str
    candidate: Model
    current: Model
    """Model that served when the release was proposed. It is restored if the release fails."""
    start_digest: str | None = None
    skip_validation: bool = False
    validation: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    power: dict[str, Any] | None = None
    """Defects that the gates find within the ramp at the measured traffic; None if that is not known."""
    approval: dict[str, Any] | None = None
    """``{status, why, by, reason, at}`` of a release that waits or waited for a person's approval."""
    incident: dict[str, Any] | None = None
    """Report about a rolled-back candidate: its failures, grouped, with cause and recommendation."""
    step: int = 0
    step_served: float = 0.0
    """Seconds of this step without holds. Measured, so clock jumps and downtime never shorten it."""
    step_total: float = 0.0
    step_rates: dict[str, ArmRates] = Field(default_factory=dict)
    """Counts of both arms when this step began: the step's own sessions are those since."""
    silent_seconds: float = 0.0
    """Seconds since a session was assigned after the last known outcome of either arm.

    Measured like ``step_served``: restarts and leases continue it, jumps of the wall clock do not count.
    """
    silent_from: int | None = None
    """Number of assignments when the silence began; None after a known outcome, and when a hold or a
    step ends."""
    held_from: State | None = None
    held_why: str | None = None
    held_since: str | None = None
    evidence: dict[str, Any] | None = None
    started_at: str | None = None
    """Time at which the candidate got its first traffic."""
    closed_at: str | None = None
    decision: Literal["promoted", "rolled_back", "rejected", "inconclusive", "aborted", "shadowed"] | None = (
        None
    )
    reason: str | None = None
    """Reason for its end, in one sentence with numbers."""
    reason_code: str | None = None
    """The same in one word, for programs: ``validation_failed``, ``high_error_rate``, …"""
    shown: str | None = None
    """``not worse`` or ``none-against``: result of the evidence when the last step ended."""
    sessions: dict[str, int] = Field(default_factory=dict)
    """Matured sessions per arm."""
    e_values: dict[str, float] = Field(default_factory=dict)
    rates: dict[str, ArmRates] = Field(default_factory=dict)
    """Errors, outcomes and feedback per arm, as the gates judged them."""
    crossed_at: str | None = None
    verified_zero_at: str | None = None
    desired_revision: int | None = None
    verified_revision: int | None = None
    overdue: bool = False
    """True if an alert reported that the gateways did not follow in time."""
    settled: bool = False
    """True if it is closed and every live gateway serves the routes it should."""
    command_revision: int = 0
    """Revision of the newest operator command that was read; older ones were for other releases."""
    outbox: list[dict[str, Any]] = Field(default_factory=list)
    history: list[dict[str, Any]] = Field(default_factory=list)

    def own_key(self) -> str:
        return self.KEY + self.release_id

    def check(self) -> None:
        if self.plan is not None or self.serving:
            steps = self.schedule.steps
            if not 0 <= self.step < len(steps):
                raise ValueError(f"step {self.step} is none of the {len(steps)} steps of the plan")
        for item in self.outbox:
            if item["type"] == "event":
                _need(item["document"], "deployment_id")
                _need(item["document"]["metadata"], "event")
            else:
                _need(item, "kind", "message", "severity", "facts")
        for line in self.history:
            _need(line, "at", "state", "step", "why")

    @property
    def serving(self) -> bool:
        return self.state in SERVING

    @property
    def closed(self) -> bool:
        return self.state in TERMINAL

    @property
    def why_held(self) -> str | None:
        """Reason of the present hold, in one sentence with numbers; None if it is not held."""
        return self.history[-1]["why"] if self.state is State.HELD and self.history else None

    @property
    def undone(self) -> bool:
        """True if it was to restore an earlier model and was aborted: ``candidate`` serves on."""
        return self.kind == "rollback" and self.state is State.ABORTED

    @property
    def left_serving(self) -> Model | None:
        """Model that serves alone after this release, if it changed that."""
        if self.state is State.PROMOTED:
            return self.candidate
        return self.current if self.kind == "rollback" and self.state is State.ROLLED_BACK else None

    def has_name(self, name: str) -> bool:
        """Returns whether ``name`` is this release's id or the id of its candidate."""
        return name in (self.release_id, self.candidate.model_id)

    @property
    def schedule(self) -> Plan:
        if self.plan is None:
            raise ValueError(f"Release {self.release_id} has no plan yet.")
        return Plan.from_state(self.plan)

    def moved(self, to: State, at: str, why: str, **changes: Any) -> ReleaseRecord:
        """Returns a copy in state ``to``. Raises IllegalTransitionError."""
        step = changes.get("step", self.step)
        line = {"at": at, "state": str(move(self.state, to)), "step": step, "why": why}
        line |= _mark(changes.get("evidence", self.evidence))
        history = [*self.history, line][-HISTORY:]
        return self.model_copy(update={**changes, "state": to, "history": history})

    def close(
        self, to: State, at: str, why: str, *, reason: str = "", code: str | None = None, **changes: Any
    ) -> ReleaseRecord:
        """Returns a copy that is closed in state ``to``. ``reason`` is ``why`` unless given; ``code`` is the
        reason in one word."""
        ended = {**NOT_HELD, "closed_at": at, **changes}
        return self.moved(to, at, why, decision=str(to), reason=reason or why, reason_code=code, **ended)

    def outbox_with(self, *items: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns the outbox with ``items`` added."""
        return [*self.outbox, *items]

    def with_outbox(self, *items: dict[str, Any]) -> ReleaseRecord:
        """Returns a copy with ``items`` added to the outbox."""
        return self.model_copy(update={"outbox": self.outbox_with(*items)})


def _mark(evidence: dict[str, Any] | None) -> dict[str, Any]:
    """Returns what a replay compares: how far the outcomes were read at a decision, and the evidence then."""
    if evidence is None:
        return {}
    return {"cursor": evidence["cursor"], "evidence_sha256": digest_of(evidence)}


def release_id(job_id: str, epoch: int) -> str:
    """Returns the release id for one commit of a job."""
    return derived_id("release", job_id, str(epoch))


def alert(kind: str, message: str, severity: str = "warning", **facts: Any) -> dict[str, Any]:
    """Returns an outbox item."""
    return {"type": "alert", "kind": kind, "message": message, "severity": severity, "facts": facts}


def report(message: str, **facts: Any) -> dict[str, Any]:
    """Returns an outbox item that is reported to the superior agent. It has the fields of an alert, which an
    earlier version makes of it."""
    return {**alert("release_started", message, **facts), "type": "report"}


class Releases:
    """Typed access to buckets ``rl_releases`` and ``rl_models``."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._releases, self._models = bus.bucket("rl_releases"), bus.bucket("rl_models")
        self._clock = clock
        self._settled: set[str] = set()

    async def create(self, record: ReleaseRecord) -> int:
        """Stores a new record. Raises ConflictError if the release exists."""
        crashpoint("release.create.before")
        revision = await self._releases.create(PREFIX + record.release_id, record.dump())
        crashpoint("release.create.after")
        return revision

    async def write(self, record: ReleaseRecord, revision: int) -> tuple[ReleaseRecord, int]:
        """Writes by compare-and-set. Raises ConflictError if the record was written elsewhere since."""
        changed = record.model_copy(update={"updated_at": utc_text(self._clock.now())})
        crashpoint("release.record.before")
        new = await self._releases.update(PREFIX + record.release_id, changed.dump(), revision)
        crashpoint("release.record.after")
        return changed, new

    async def get(self, release_id: str) -> tuple[ReleaseRecord, int] | None:
        """Returns a record with its revision; None if it is absent or unreadable."""
        stored = await read_stored(self._releases, ReleaseRecord, release_id)
        return None if stored.document is None else (stored.document, stored.revision)

    async def exists(self, release_id: str) -> bool:
        return await self._releases.get(PREFIX + release_id) is not None

    async def all(self) -> list[ReleaseRecord]:
        """Returns every release that can be read, oldest first."""
        stored = await read_all(self._releases, ReleaseRecord)
        found = [entry.document for entry in stored if entry.document is not None]
        return sorted(found, key=lambda record: (record.created_at, record.release_id))

    async def unsettled(self) -> tuple[ReleaseRecord, int] | None:
        """Returns the oldest release that is not settled, or None."""
        found = []
        for key in await self._releases.keys(PREFIX):
            if key in self._settled:
                continue
            stored = await read_stored(
                self._releases, ReleaseRecord, key.removeprefix(PREFIX), check=_check_evidence
            )
            record = stored.document
            if record is None:
                continue
            if record.settled:
                self._settled.add(key)
            else:
                found.append((record, stored.revision))
        return min(found, key=lambda pair: (pair[0].created_at, pair[0].release_id), default=None)

    async def model(self, model_id: str) -> Model | None:
        return (await read_stored(self._models, Model, model_key(model_id))).document

    async def models(self) -> list[Model]:
        """Returns every model that was released or installed and can be read, in the order of their keys."""
        stored = await read_all(self._models, Model)
        return [entry.document for entry in stored if entry.document is not None]

    async def model_keys(self) -> list[str]:
        return await self._models.keys()

    async def all_model_keys(self) -> list[str]:
        """Returns the keys of all names that a model ever had, also of candidates that were never released. A
        name is stored with its proposal. So a restart finds it, and no other candidate gets it."""
        candidates = [model_key(record.candidate.model_id) for record in await self.all()]
        return sorted({*await self._models.keys(), *candidates})

    async def is_given(self, model_id: str) -> bool:
        """Returns whether a model ever had this name, or one with the same key."""
        return model_key(model_id) in await self.all_model_keys()

    async def create_model(self, model: Model) -> None:
        """Stores a new entry. Raises ConflictError if its name was given meanwhile."""
        await self._models.create(model_key(model.model_id), model.dump())

    async def current(self) -> Model | None:
        """Returns the model in state ``current``; None before the first one. If its entry cannot be read, the
        release after which it serves names it: the base model must not come back by a damaged entry."""
        stored = await read_all(self._models, Model)
        models = [entry.document for entry in stored if entry.document is not None]
        found = next((model for model in models if model.state == "current"), None)
        if found is None and len(models) < len(stored):
            found = next(
                (record.left_serving for record in (await self.all())[::-1] if record.left_serving), None
            )
        return found

    async def put_model(self, model: Model, fence: Callable[[], Awaitable[None]]) -> None:
        """Writes an entry unless the same entry is already stored.

        ``fence`` raises ConflictError if another releaser took over. It is called after the entry was read,
        and the entry is written by compare-and-set, so an entry of the other releaser is never overwritten.
        """
        stored = await read_stored(self._models, Model, model_key(model.model_id))
        before = stored.document
        if before is not None:  # a tag and a person's score are an operator's: no release changes them
            model = model.model_copy(update={"tags": before.tags}).with_unknown_fields(before)
            scored = {name: before.validation[name] for name in (HUMAN_SCORE,) if name in before.validation}
            model = model.model_copy(update={"validation": {**model.validation, **scored}})
        body = model.dump()
        if before is not None and stored.readable and before.dump() == body:
            return
        await fence()
        crashpoint("release.model.before")
        if stored.revision == 0:
            await self._models.create(stored.key, body)
        else:
            await self._models.update(stored.key, body, stored.revision)
        crashpoint("release.model.after")


def _need(given: dict[str, Any], *names: str) -> None:
    missing = [name for name in names if name not in given]
    if missing:
        raise ValueError(f"an entry of outbox or history has no {missing[0]}")


def _check_evidence(record: ReleaseRecord) -> None:
    """Raises whatever it breaks if the releaser could not go on with the evidence of a record."""
    if record.evidence is not None or record.serving:
        Evidence.from_state(record.evidence or {})
