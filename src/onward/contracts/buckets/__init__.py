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

from onward.contracts.buckets.control import (
    COMMANDS,
    SHARE,
    AdminRequest,
    AdminResult,
    Learning,
    Pin,
    ReleaseCommand,
    RescoreRequest,
    Traffic,
)
from onward.contracts.buckets.coordinator import (
    REQUEST_TRANSITIONS,
    LastRequest,
    PolicyWatch,
    ReportMark,
    RequestPhase,
    ScheduleMark,
)
from onward.contracts.buckets.document import (
    BEGINNING,
    Document,
    EmptyList,
    EmptyObject,
    Loose,
    Moment,
    NotNegative,
    Piece,
    Record,
    Truth,
)
from onward.contracts.buckets.gateways import (
    GATEWAY_LEASE_SECONDS,
    AnsweredClose,
    ArmName,
    AskedClose,
    Assignment,
    ClosedTask,
    GatewayReport,
)
from onward.contracts.buckets.jobs import ENDED_JOBS, JobCommit, JobEntry, JobNumber, ModelEntry
from onward.contracts.buckets.operators import RoleFailure, SetAside
from onward.contracts.buckets.readers import LeaseHolder, OptOutCount, ReaderPosition
from onward.contracts.buckets.recovery import CheckedUntil, RecoveryReport, RecoveryRequest
from onward.contracts.buckets.releases import Desired, DesiredArm, DesiredRoutes, PreviousModel, ReleaseEntry
from onward.contracts.buckets.rewarder import RescoreProgress, RewarderState
from onward.contracts.buckets.writers import MOST_CHANGES, ReleasedWriter, WriterChange, WriterVersion

__all__ = [
    "BEGINNING",
    "COMMANDS",
    "ENDED_JOBS",
    "GATEWAY_LEASE_SECONDS",
    "MOST_CHANGES",
    "REQUEST_TRANSITIONS",
    "SHARE",
    "AdminRequest",
    "AdminResult",
    "AnsweredClose",
    "ArmName",
    "AskedClose",
    "Assignment",
    "CheckedUntil",
    "ClosedTask",
    "Desired",
    "DesiredArm",
    "DesiredRoutes",
    "Document",
    "EmptyList",
    "EmptyObject",
    "GatewayReport",
    "JobCommit",
    "JobEntry",
    "JobNumber",
    "LastRequest",
    "Learning",
    "LeaseHolder",
    "Loose",
    "ModelEntry",
    "Moment",
    "NotNegative",
    "OptOutCount",
    "Piece",
    "Pin",
    "PolicyWatch",
    "PreviousModel",
    "ReaderPosition",
    "Record",
    "RecoveryReport",
    "RecoveryRequest",
    "ReleaseCommand",
    "ReleaseEntry",
    "ReleasedWriter",
    "ReportMark",
    "RequestPhase",
    "RescoreProgress",
    "RescoreRequest",
    "RewarderState",
    "RoleFailure",
    "ScheduleMark",
    "SetAside",
    "Traffic",
    "Truth",
    "WriterChange",
    "WriterVersion",
]
