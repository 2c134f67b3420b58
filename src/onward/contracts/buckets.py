"""Documents in the key-value buckets: one type each, with its bucket, its key and its legal transitions.

A document is JSON. A reader tolerates keys that it does not know, at every level, and a writer that changes a
document keeps them. A field that a reader can do without has a default; a field that must stay readable
whatever its value is ``Loose``. The full records of jobs, releases and models are defined where they are
written (``onward.training.role.job_table``, ``onward.release.record``); here are the parts of them that other
roles read.

Readers use ``onward.bus.read_document``, ``read_stored``, ``read_all`` and ``load_entry``. They never fail at
a value that cannot be read: it is set aside, and the newest readable value of the key counts instead where
``may_stand_in`` allows it. The docstring of each type describes what happens without either.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, SkipValidation, model_validator

from onward.clock import read_time, utc_text
from onward.contracts.base import Part, nullable, optional, required
from onward.contracts.codec import canonical_json
from onward.errors import IllegalTransitionError


def _moment(text: str) -> str:
    given = read_time(text)
    return text if datetime.fromisoformat(text).tzinfo else utc_text(given)


BEGINNING = "1970-01-01T00:00:00.000Z"
"""Time before every trajectory."""
T = TypeVar("T")
Loose = Annotated[T, SkipValidation]
"""A value that is read as it is: its reader checks it, or no one reads it."""
EmptyList = BeforeValidator(lambda value: value or [])
"""null counts as an empty list."""
EmptyObject = BeforeValidator(lambda value: value or {})
"""null counts as an empty object."""
Moment = Annotated[str, AfterValidator(_moment)]
"""A time in ISO 8601; one without an offset is read as UTC."""
NotNegative = Annotated[float, Field(ge=0)]
Truth = Annotated[bool, BeforeValidator(bool)]
"""Any JSON value, read as Python's truth of it."""


class Piece(Part):
    """A part of a document. Immutable like the document itself: a change is a copy (``model_copy``)."""

    model_config = ConfigDict(frozen=True)

    def with_unknown_fields(self, before: Part) -> Self:
        """Returns a copy with the undeclared fields of ``before``, at every level: a newer version wrote
        them. Parts in lists are matched by their position."""
        changes: dict[str, Any] = {
            name: value
            for name, value in (before.__pydantic_extra__ or {}).items()
            if name not in type(self).model_fields
        } | (self.__pydantic_extra__ or {})
        for name in type(self).model_fields:
            now = getattr(self, name)
            kept = _with_unknown_fields(now, getattr(before, name, None))
            if kept is not now:
                changes[name] = kept
        return self.model_copy(update=changes) if changes else self


def _with_unknown_fields(now: Any, before: Any) -> Any:
    if isinstance(now, Piece) and isinstance(before, Part):
        return now.with_unknown_fields(before)
    if isinstance(now, list) and isinstance(before, list) and any(isinstance(item, Piece) for item in now):
        older = [*before, *[None] * len(now)]
        return [_with_unknown_fields(item, older[index]) for index, item in enumerate(now)]
    return now


class Document(Piece):
    """The value of one key."""

    BUCKET: ClassVar[str]
    KEY: ClassVar[str] = ""
    """Key of this type; for a type with many keys, the prefix that they share (maybe empty)."""

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Reads a stored value. Raises ValueError for whatever is no document of this type (pydantic's
        ValidationError for a wrong shape)."""
        try:
            document = cls.model_validate(json.loads(data))
            document.check()
            return document
        except (TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise ValueError(f"It is no {cls.__name__} ({type(error).__name__}).") from None

    def check(self) -> None:
        """Raises ValueError, KeyError or TypeError for a stored document that its readers could not use,
        beyond what the types say."""

    def own_key(self) -> str | None:
        """Returns the key under which this document belongs, if it names itself. Under another key it is
        unreadable: its writer would change another record."""
        return None

    def may_stand_in(self) -> bool:
        """Returns whether this older value of its key counts while the newest one cannot be read."""
        return True

    def dump(self) -> bytes:
        """Returns the value to store: canonical JSON, without the optional fields that were never set."""
        return canonical_json(self)


class Record(Document):
    """A full record: every field is written, also one that is null."""

    def dump(self) -> bytes:
        return canonical_json(self.model_dump(mode="json"))


# rl_control: switches and requests of operators.


class Learning(Document):
    """Switch of ``onward pause`` and ``onward resume``: no job is requested or started while it is paused.
    A switch that was never readable pauses (``onward.bus.documents.is_learning_paused``)."""

    BUCKET, KEY = "rl_control", "learning"

    paused: Truth = False


class Traffic(Document):
    """Switch of a maintenance window: gateways refuse new calls with 429. A deleted key resumes. While it is
    unreadable, gateways go on as they are."""

    BUCKET, KEY = "rl_control", "traffic"

    paused: Annotated[bool, BeforeValidator(lambda value: value is True)] = Field(
        default=False, description="Paused by true alone; any other value resumes."
    )
    until: Loose[str | None] = optional("Time in ISO 8601 (UTC without a zone) at which traffic resumes.")

    def check(self) -> None:
        if self.paused and self.until is not None:
            read_time(self.until)


class Pin(Document):
    """Model that ``onward pin`` keeps serving: nothing is released meanwhile. A pin that was never readable
    counts as one of an unknown model: nothing is released, and the routes stay."""

    BUCKET, KEY = "rl_control", "pin"

    model_id: str | None = nullable("Null after 'onward unpin'.")


COMMANDS = ("abort", "promote", "hold", "resume", "approve", "refuse")
SHARE = "share"
"""Command of the admin API alone, beside COMMANDS: gives the candidate ``share`` of new sessions."""


class ReleaseCommand(Document):
    """Newest command to the release under way. The releaser obeys each revision of the key once; one that is
    unreadable is consumed, changing nothing."""

    BUCKET, KEY = "rl_control", "release"

    command: str | None = optional("One of COMMANDS, or SHARE; an unknown one is consumed, changing nothing.")
    release_id: str | None = nullable("Release that is meant; null: whichever is under way.")
    by: str | None = nullable("Who asked; needed to approve or refuse. Null: an operator's command line.")
    reason: str | None = optional("Why it is approved or refused; needed for these two.")
    share: float | None = nullable("Share of new sessions for the candidate, in (0, 1); for SHARE alone.")

    def may_stand_in(self) -> bool:
        return False


class AdminResult(Piece):
    """Answer of the releaser to a request of the admin API."""

    status: int = required("Status of HTTP.")
    document: dict[str, Any] = required("Body of the answer, or of the error.")


class AdminRequest(Document):
    """Request of the gateway's admin API to the releaser: ``admin.<id>``. The releaser decides and writes the
    result; the gateway deletes the key after reading it. An unreadable request is never carried out."""

    BUCKET, KEY = "rl_control", "admin."

    request_id: str
    kind: str = required("register or traffic.")
    by: str = required("Name of the API key; anonymous without one.")
    body: dict[str, Any] = required("Body of the call, checked by the gateway.")
    asked_at: Moment
    result: AdminResult | None = nullable("Null until the releaser has answered.")

    def own_key(self) -> str:
        return self.KEY + self.request_id

    def may_stand_in(self) -> bool:
        return False


class RescoreRequest(Document):
    """Newest request of ``onward rescore``. An unknown key could narrow the work: it is refused. An
    unreadable request begins nothing, and ends the run of the one before it."""

    BUCKET, KEY = "rl_control", "rescore"
    model_config = ConfigDict(extra="forbid")

    run_id: str
    since: Moment = required("ISO 8601; selects trajectories that began then or later.")
    component: str | None = nullable("Component computed anew, others retain their raw scores; null: all.")
    limit: int | None = nullable("Maximum number of trajectories, the oldest first.")
    dry_run: bool
    requested_at: Moment
    stop: bool = Field(default=False, description="Set by 'onward rescore --stop': the run ends early.")

    def may_stand_in(self) -> bool:
        return False


# rl_rewarder: the rewarder's own state.


class RescoreProgress(Document):
    """Progress of the newest run of ``onward rescore``: a restart continues from it. Without it the run
    begins again, and recognises what it has done."""

    BUCKET, KEY = "rl_rewarder", "rescore"

    run_id: str
    total: int = required("Trajectories that the run will look at.")
    seen: int = 0
    start_ts: str = Field(default=BEGINNING, description="Cursor: start of the last one seen.")
    trajectory_id: str = Field(default="", description="Cursor: id of the last one seen.")
    counts: dict[str, int] = Field(
        default_factory=dict, description="changed, unchanged, unscored, waiting, gone."
    )
    finished: bool = Field(default=False, description="Final: only another request starts a new run.")
    stopped: bool = Field(default=False, description="Finished early, by --stop or for an unknown component.")


class RewarderState(Document):
    """Windows and baselines that rewards are normalised by. Without it new windows begin, and the trajectory
    stream is read from its beginning; what was scored is recognised."""

    BUCKET, KEY = "rl_rewarder", "state"
    VERSION: ClassVar[int] = 1

    version: int
    stream_seq: int = required("Last message of the trajectory stream that counted.")
    windows: dict[str, list[float]] = required("Newest raw scores per component, oldest first.")
    baselines: list[tuple[str, dict[str, tuple[int, float, NotNegative]]]] = required(
        "Pairs of a key and its baselines per measure: number, mean, variance."
    )
    recent: list[str] = Field(
        default_factory=list, description="Newest trajectories: why each is unscored, empty for a scored one."
    )

    @model_validator(mode="before")
    @classmethod
    def _is_readable(cls, document: Any) -> Any:
        if document["version"] != cls.VERSION:
            raise ValueError(
                f"the rewarder's record has another version than {cls.VERSION}, which this program reads"
            )
        return document


# rl_coordinator: the coordinator's own state.

RequestPhase = Literal["planned", "published"]
REQUEST_TRANSITIONS: dict[RequestPhase | None, frozenset[RequestPhase]] = {
    None: frozenset({"planned", "published"}),
    "planned": frozenset({"published"}),
    "published": frozenset({"planned", "published"}),
}
"""Phases of the coordinator's record; None before the first request. After "published" the next job is
planned in the same key. A job on stored trajectories that someone else requested is recorded as published."""


class LastRequest(Document):
    """Last training request: recorded as planned, then published under its job's id, then marked. Without it
    the coordinator takes the snapshot of the newest job."""

    BUCKET, KEY = "rl_coordinator", "state"

    phase: str | None = optional("A RequestPhase; see REQUEST_TRANSITIONS.")
    snapshot: int = Field(
        default=0, description="Newest stored trajectory when it was made; later ones count next."
    )
    model_digest: str | None = nullable("Policy that is trained; null: a base without a digest.")
    job_id: str | None = optional("Id of the requested job.")
    request: str | None = optional("The request as encoded, published again after a crash.")
    published_at: str | None = optional("Absent while it is only planned.")
    reported: bool | None = optional("True once its start was reported, with the number of the job.")

    def check(self) -> None:
        if self.phase == "planned":
            self.planned()

    def planned(self) -> tuple[str, str]:
        """Returns the request as encoded, and its job's id. Raises ValueError if there is none."""
        if self.request is None or self.job_id is None:
            raise ValueError("There is no request in this record.")
        return self.request, self.job_id

    def checked_phase(self, to: RequestPhase) -> RequestPhase:
        """Returns ``to`` if the table allows it (unknown phase: none). Raises IllegalTransitionError."""
        known: dict[str | None, frozenset[RequestPhase]] = {**REQUEST_TRANSITIONS}
        if to not in known.get(self.phase, REQUEST_TRANSITIONS[None]):
            raise IllegalTransitionError(f"A request that is {self.phase} cannot become {to}.")
        return to


class ScheduleMark(Document):
    """Time from which runs of the schedule count: the first start, a change of the expression, or a run that
    was left out. Without it they count from now on."""

    BUCKET, KEY = "rl_coordinator", "schedule"

    expression: str
    since: Moment
    left_out: str | None = optional("Reason why the last run made no job.")


class PolicyWatch(Document):
    """Frozen baseline of a policy and the state of its test for degradation: ``watch.<id>``. Without it a new
    baseline is collected. An older value never counts: sessions would count twice."""

    BUCKET, KEY = "rl_coordinator", "watch."

    watch_id: str = required("Derived from policy, reward weights and drop: others, another baseline.")
    model_digest: str | None = nullable("The policy; null: a base without a digest.")
    model_id: str = ""
    sequence: int = required("Newest session that counted, by the sequence of its first trajectory.")
    total: float = Field(default=0.0, description="Sum of the values of the baseline.")
    collected: int = Field(default=0, description="Sessions of the baseline.")
    baseline: float | None = nullable("Mean of the baseline's sessions; null while they are collected.")
    frozen_at: str | None = nullable("Time at which the baseline was frozen.")
    sessions: int = Field(default=0, description="Sessions since then.")
    logs: list[float] = Field(default_factory=list, description="Log capital of each bet.")
    trailing: list[float] = Field(default_factory=list, description="Newest values, oldest first.")
    degraded_since: str | None = nullable("Time of the alarm; null: no degradation is shown.")

    def own_key(self) -> str:
        return self.KEY + self.watch_id

    def may_stand_in(self) -> bool:
        return False


ENDED_JOBS = frozenset({"completed", "failed", "cancelled"})
"""States of a job that never change again."""

# rl_jobs: the part of ``JobRecord`` that other roles read.


class JobCommit(Piece):
    """Checkpoint that a completed job committed."""

    epoch: int
    adapter_digest: str
    object_prefix: str
    manifest_sha256: str | None = optional("SHA-256 of the checkpoint's manifest.")


class JobEntry(Document):
    """A training job as coordinator and releaser read it: ``job.<id>``. Its states and their transitions are
    in ``onward.training.role.job_table``. An unreadable job is left out, unless it had ended before: an older
    state of a job that is open could run an attempt twice."""

    BUCKET, KEY = "rl_jobs", "job."

    job_id: str | None = optional("Its id.")
    state: str | None = optional("A JobState.")
    number: Loose[int | None] = optional("Number of the job, from 1 on.")
    request: Annotated[dict[str, Any], EmptyObject] = Field(
        default_factory=dict, description="The training request."
    )
    progress: Annotated[dict[str, Any], EmptyObject] = Field(
        default_factory=dict, description="Newest progress; metrics inside."
    )
    start_digest: str | None = optional("Adapter that training started from.")
    samples: Loose[int | None] = optional("Trajectories used in training.")
    commit: JobCommit | None = optional("Present once it is completed.")
    skip_validation: Truth = False
    updated_at: str | None = optional("ISO 8601.")

    def own_key(self) -> str | None:
        return None if self.job_id is None else self.KEY + self.job_id

    def may_stand_in(self) -> bool:
        return self.state in ENDED_JOBS


class JobNumber(Document):
    """Last number given to a job: ``number``. An older value never counts: the numbers in the jobs do."""

    BUCKET, KEY = "rl_jobs", "number"

    last: int
    job_id: str = required("Job that holds it.")

    def may_stand_in(self) -> bool:
        return False


# rl_models: the part of ``Model`` that other roles read.


class ModelEntry(Document):
    """Location of a model's files, for gateways and trainers: ``<model_key(model_id)>``. Without it the model
    cannot be loaded anew; one that serves serves on, since the releaser then takes it from its release."""

    BUCKET = "rl_models"

    adapter_digest: str | None = nullable("Null: the base model alone.")
    object_prefix: str = Field(
        default="", description="Folder in the object store; empty for the base model."
    )
    manifest_sha256: str | None = nullable("Hash of the committed manifest; null if no job made it.")


# rl_releases: the desired routes, and the part of ``ReleaseRecord`` that other roles read.


class ReleaseEntry(Document):
    """A release as the coordinator reads it: ``release.<id>``. Its states and their transitions are in
    ``onward.release.plan``. Without its record a release under way ends: the current model serves alone."""

    BUCKET, KEY = "rl_releases", "release."

    release_id: str | None = optional("Its id.")
    job_id: str | None = optional("Job that made the candidate.")
    state: str | None = optional("A State of the plan.")
    closed_at: Loose[str | None] = optional("ISO 8601; null while it is open.")

    def own_key(self) -> str | None:
        return None if self.release_id is None else self.KEY + self.release_id


class DesiredArm(Piece):
    """One arm of the routes. A gateway refuses an arm without a name, a model or a weight."""

    arm: str = Field(default="", description="current or candidate.")
    model_id: str = ""
    adapter_digest: str | None = nullable("Null: the base model alone.")
    model_digest: str | None = nullable(
        "Digest in the generation records of this arm; absent in gateways' reports."
    )
    weight: float = Field(default=0.0, description="Share of new sessions, in [0, 1].")


class PreviousModel(Piece):
    """Model that served before."""

    model_id: str
    adapter_digest: str | None = nullable("Null: the base model alone.")


class DesiredRoutes(Document):
    """Models that should serve, and the share of each, as every role reads it. Without it gateways serve what
    they serve, no job is requested, and the releaser writes it anew."""

    BUCKET, KEY = "rl_releases", "desired"

    release_id: str | None = nullable("Release under way; null while one model serves alone.")
    step: int | None = nullable("Step of the release; null counts as 0.")
    arms: Annotated[list[DesiredArm], EmptyList] = Field(
        default_factory=list, description="One arm, or current and candidate in this order."
    )
    previous: PreviousModel | None = nullable("Model before, for people.")


class Desired(DesiredRoutes):
    """The same with what identifies it: the releaser writes it, gateways follow it."""

    revision: int = required("Rises by one with each change of the routes.")
    epoch: int | None = optional("Lease epoch of the releaser that wrote it; an older releaser is refused.")

    def check(self) -> None:
        names = [arm.arm for arm in self.arms]
        if sorted(names) not in (["current"], ["candidate", "current"]):
            raise ValueError("arms needs one arm 'current' and at most one 'candidate'")
        for arm in self.arms:
            if not (arm.model_id and 0 <= arm.weight <= 1 and "weight" in arm.model_fields_set):
                raise ValueError("each of arms needs a model_id and a weight in [0, 1]")


# rl_gateways, rl_sessions, rl_closes: what gateways serve, and what they ask each other.


GATEWAY_LEASE_SECONDS = 15.0
"""A gateway that could not read the desired routes for this long serves the current model alone. A releaser
counts a gateway without a new report for this long as gone. The two must agree."""


class GatewayReport(Document):
    """Routes that one gateway really serves: ``<gateway id>``, written every five seconds. While it is
    unreadable the gateway counts as one that does not follow."""

    BUCKET = "rl_gateways"

    gateway_id: Loose[str | None] = optional("Its own key.")
    revision: int = Field(default=-1, description="Revision of the desired routes; -1 before the first ones.")
    release_id: Loose[str | None] = nullable("Release under way.")
    step: Loose[int] = 0
    arms: list[DesiredArm] = Field(default_factory=list)
    served: list[str | None] = Field(
        default_factory=list, description="Digests of adapters that the engine holds for these arms."
    )
    probes: Loose[dict[str, float]] = Field(
        default_factory=dict, description="Adapter digest → mean log-probability of its probe."
    )
    paused: Loose[bool] = False
    in_flight: Loose[int] = Field(default=0, description="Calls that run now.")
    error: Loose[str | None] = nullable("Why newer routes are not served yet.")
    providers: Loose[dict[str, str]] = Field(
        default_factory=dict, description="Provider → state of its circuit: closed, open or half-open."
    )
    updated_at: Loose[str | None] = optional("By the gateway's own clock.")


class AskedClose(Document):
    """Close of a session whose tasks another gateway may hold. Key: ``ask.<id>``."""

    BUCKET, KEY = "rl_closes", "ask."

    gateway_id: str = required("Gateway that asks.")
    name: str = required("Session or trajectory to be closed.")
    owner: str | None = nullable("Hash of the client's key; null: an administrator, for any client.")
    outcome: dict[str, Any] | None = nullable("Outcome of the tasks.")


class ClosedTask(Part):
    """A task that was closed and recorded."""

    trajectory_id: str
    session_id: str
    turns: int
    silent: bool = required(
        "True: no feedback is published about it. Its user opted out, or it is a choice that was not used."
    )


class AnsweredClose(Document):
    """Answer of one gateway to a close. Key: ``answer.<id>.<gateway id>``."""

    BUCKET, KEY = "rl_closes", "answer."

    closed: list[ClosedTask] = Field(default_factory=list, description="What it closed and recorded.")
    status: int = Field(default=200, description="HTTP status; another than 200 if it could not close.")
    error: str = Field(default="", description="Sentence for the client, if it could not close.")


ArmName = Literal["candidate", "current"]


class Assignment(Document):
    """Arm of one session, unchanged for the life of a release. Key: ``session_key`` of the session id.
    Without it the session is assigned again, by the same hash."""

    BUCKET = "rl_sessions"

    session_id: str
    release_id: str
    arm: ArmName
    weight: float = required("The candidate's share when the session was assigned.")
    assigned_at: Moment
    model_id: str
    earlier: tuple[str, ...] = Field(
        default=(),
        description="Releases it was assigned under before; their late rewards do not count for this one.",
    )
    answered: bool = Field(
        default=False, description="A task of it ended with an answer that was not judged: it is not lost."
    )


# rl_recovery: checks of the warehouse.


class RecoveryRequest(Document):
    """Newest request of ``onward warehouse verify|rebuild``."""

    BUCKET, KEY = "rl_control", "recovery"

    run_id: str
    restore: bool = required("Store missing rows again; otherwise only count them.")
    accept: bool = Field(default=False, description="Stop listing what was lost by now.")
    asked: bool = Field(default=False, description="Asked by an operator, who waits for the report.")
    requested_at: str


class RecoveryReport(Document):
    """Report of the newest check of the warehouse, also while it runs."""

    BUCKET, KEY = "rl_recovery", "report"

    run_id: str
    at: str
    restore: bool
    finished: bool
    answered: str = Field(default="", description="Newest request that was answered.")
    table: str = Field(default="", description="Table under way.")
    done: int = 0
    total: int = Field(default=0, description="Messages to read for this table.")
    tables: Loose[dict[str, Any]] = Field(default_factory=dict, description="Results of each table.")
    without_reward: int = 0
    detached: Loose[dict[str, list[str]]] = Field(
        default_factory=dict, description="Table → parts that were set aside."
    )


class CheckedUntil(Document):
    """Position up to which a table was checked: ``until.<table>``. A message after it that the stream does
    not hold, and that made no row, is lost."""

    BUCKET, KEY = "rl_recovery", "until."

    stream_created: str
    sequence: int


# rl_readers, rl_capture, rl_leases.


class ReaderPosition(Document):
    """Position of one durable consumer: ``<stream>.<durable>``. It begins there when it is created again."""

    BUCKET = "rl_readers"

    stream_created: str = required("Creation time of the stream; another one has other sequences.")
    sequence: int = required("Every message up to this one is settled.")
    stored_at: str = required(
        "Server's time of that message, by which a replaced one is recognised; or empty."
    )


class OptOutCount(Document):
    """Count of trajectories that were dropped by an opt-out. Without it the count begins at 0."""

    BUCKET, KEY = "rl_capture", "opted_out"

    count: int = 0
    recent: list[int | str] = Field(
        default_factory=list, description="Newest counted messages, by sequence or name: each counts once."
    )


class LeaseHolder(Document):
    """Owner of a piece of work: ``<name of the lease>``. The revision is the epoch. An unreadable one counts
    as held until it has not changed for the reader's own TTL."""

    BUCKET = "rl_leases"

    owner: Loose[str | None] = optional("Process that holds it.")
    ttl: float = required("Seconds without a renewal after which another process may take it.")
    released: Truth = required("Given up by its owner: free at once.")


# rl_roles, rl_set_aside: for operators.


class RoleFailure(Document):
    """Failures of a role since it last ran quietly for a minute: ``<role>``. Deleted when it recovered."""

    BUCKET = "rl_roles"

    role: str
    error: str = required("Its last failure in one sentence.")
    restarts: int = required("Times that it was started again.")
    failed_at: str = required("ISO 8601 time of its last failure.")


class SetAside(Document):
    """Copy of a value that could not be read: ``<bucket>.<key>.<revision>``. No role reads it."""

    BUCKET = "rl_set_aside"

    bucket: str
    key: str
    revision: int
    reason: str = required("Why it could not be read, in one sentence.")
    found_at: str = required("ISO 8601 time at which a reader found it.")
    value: str = required("The value, in base64.")
