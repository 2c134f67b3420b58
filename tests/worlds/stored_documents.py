"""One stored value of each type of document in a bucket."""

from __future__ import annotations

import json
from typing import Any

from onward.contracts.buckets import (
    AdminRequest,
    AnsweredClose,
    AskedClose,
    Assignment,
    CheckedUntil,
    Desired,
    DesiredRoutes,
    Document,
    GatewayReport,
    JobEntry,
    JobNumber,
    LastRequest,
    Learning,
    LeaseHolder,
    ModelEntry,
    OptOutCount,
    Pin,
    PolicyWatch,
    ReaderPosition,
    RecoveryReport,
    RecoveryRequest,
    ReleaseCommand,
    ReleasedWriter,
    ReleaseEntry,
    ReportMark,
    RescoreProgress,
    RescoreRequest,
    RewarderState,
    RoleFailure,
    ScheduleMark,
    SetAside,
    Traffic,
    WriterVersion,
)
from onward.release.record import Model, ReleaseRecord
from onward.training.role.job_table import JobRecord

STORED: dict[type[Document], str] = {
    WriterVersion: '{"version": "rubric-writer-v2", "number": 2, "job_id": "j1", "attempt": 1, "made_at": '
    '"2026-01-05T09:00:00.000Z", "object_prefix": "rubrics/j1/1", "manifest_sha256": "m", "digest": "d", '
    '"passed": true, "why": "w", "evidence": {"skill": 0.25}}',
    ReleasedWriter: '{"version": "rubric-writer-v2", "digest": "d", "object_prefix": "rubrics/j1/1", '
    '"manifest_sha256": "m", "back": ["rubric-writer-v1"], "changes": [{"at": "2026-01-05T09:00:00.000Z", '
    '"kind": "rolled back", "version": "rubric-writer-v2", "before": "rubric-writer-v3", "by": "ada", '
    '"why": "w"}]}',
    Learning: '{"paused": true}',
    Traffic: '{"paused": true, "until": "2026-01-05T10:00:00+00:00"}',
    Pin: '{"model_id": null}',
    AdminRequest: '{"asked_at":"2026-01-05T09:00:00.000Z","body":{"traffic":{"candidate":0.5}},"by":"ops",'
    '"kind":"traffic","request_id":"q1","result":null}',
    ReleaseCommand: '{"command": "hold", "release_id": null}',
    RescoreRequest: '{"run_id": "r1", "since": "1970-01-01T00:00:00.000Z", "component": null, "limit": 20, '
    '"dry_run": false, "requested_at": "2026-01-05T09:00:00.000Z", "stop": false}',
    RescoreProgress: '{"run_id": "r1", "total": 20, "seen": 5, "start_ts": "2026-01-04T09:00:00.000Z", '
    '"trajectory_id": "t5", "counts": {"changed": 4, "unchanged": 1}, "finished": false, "stopped": false}',
    RewarderState: '{"baselines":[["general",{"turns":[4,2.5,0.25]}]],"recent":["","no_outcome"],'
    '"stream_seq":17,"version":1,"windows":{"accuracy":[1.0,0.5],"raw_total":[0.75]}}',
    LastRequest: '{"job_id": "j1", "model_digest": null, "phase": "published", '
    '"published_at": "2026-01-05T09:00:00.000Z", "request": "{\\"priority\\":\\"low\\"}", "snapshot": 600}',
    ScheduleMark: '{"expression": "0 2 * * *", "since": "2026-01-05T02:00:00.000Z", "left_out": "3 of 64"}',
    ReportMark: '{"since": "2026-01-05T08:00:00.000Z", "jobs": ["j1"]}',
    PolicyWatch: '{"watch_id": "w1", "model_digest": "d1", "model_id": "agent-zero-rl-v1", "sequence": 700, '
    '"total": 114.0, "collected": 190, "baseline": 0.6, "frozen_at": "2026-01-05T09:00:00.000Z", '
    '"sessions": 2, "logs": [-0.7, -0.6], "trailing": [0.5, 0.75], "degraded_since": null}',
    JobEntry: '{"job_id":"j1","state":"completed","request":{"training_config":{"base_model":"smollm2"}},'
    '"request_sha256":"0","attempt":1,"handed_back":0,"owner":"n:1","start_digest":"d0","dataset_sha256":"e",'
    '"samples":256,"commit":{"job_id":"j1","epoch":1,"manifest_sha256":"m","object_prefix":"checkpoints/j1/1",'
    '"adapter_digest":"d1"},"error":null,"skip_validation":false,"announced":true,"heartbeat":9,'
    '"created_at":"2026-01-05T09:00:00.000Z","updated_at":"2026-01-05T09:10:00.000Z",'
    '"progress":{"metrics":{"reward_mean":0.5}}}',
    JobNumber: '{"job_id": "j1", "last": 47}',
    ModelEntry: '{"adapter_digest":"d1","base_digest":null,"info":{},"manifest_sha256":"m",'
    '"model_id":"agent-zero-rl-v1","object_prefix":"checkpoints/j1/1","parent":"agent-zero-rl-v0",'
    '"state":"current","training_job_id":"j1","validation":{}}',
    ReleaseEntry: '{"candidate":{"model_id":"agent-zero-rl-v1"},"epoch":1,"job_id":"j1","release_id":"r1",'
    '"state":"ramping"}',
    DesiredRoutes: '{"arms":[{"adapter_digest":null,"arm":"current","model_digest":"b","model_id":"smollm2",'
    '"weight":1.0}],"epoch":3,"previous":null,"release_id":null,"revision":1,"step":0}',
    Desired: '{"arms":[{"adapter_digest":"d0","arm":"current","model_digest":"d0",'
    '"model_id":"agent-zero-rl-v0","weight":0.9},{"adapter_digest":"d1","arm":"candidate",'
    '"model_digest":"d1","model_id":"agent-zero-rl-v1","weight":0.1}],"epoch":3,'
    '"previous":{"adapter_digest":"d0","model_id":"agent-zero-rl-v0"},"release_id":"r1","revision":7,"step":1}',
    GatewayReport: '{"arms":[{"adapter_digest":"d0","arm":"current","model_id":"agent-zero-rl-v0",'
    '"weight":1.0}],"error":null,"gateway_id":"gw-1","in_flight":2,"paused":false,"probes":{"d0":-1.25},'
    '"providers":{"openai":"open"},'
    '"release_id":null,"revision":6,"served":["d0"],"step":0,"updated_at":"2026-01-05T09:00:00.000Z"}',
    Assignment: '{"answered":true,"arm":"candidate","assigned_at":"2026-01-05T09:00:00.000Z",'
    '"earlier":["r0"],"model_id":"agent-zero-rl-v1","release_id":"r1","session_id":"s","weight":0.1}',
    AskedClose: '{"gateway_id":"gw-1","name":"s","outcome":{"status":"failed"},"owner":"0a1b"}',
    AnsweredClose: '{"closed":[{"session_id":"s","silent":false,"trajectory_id":"t","turns":2}],'
    '"error":"A call is under way.","status":409}',
    CheckedUntil: '{"sequence": 17, "stream_created": "2026-01-01 00:00:00+00:00"}',
    RecoveryRequest: '{"accept": false, "asked": true, "requested_at": "2026-01-05T09:00:00.000Z", '
    '"restore": true, "run_id": "c1"}',
    RecoveryReport: '{"answered": "c1", "at": "2026-01-05T09:00:00.000Z", "detached": {"rewards": ["p"]}, '
    '"done": 3, "finished": true, "restore": true, "run_id": "c1", "table": "rewards", '
    '"tables": {"rewards": {"missing": 3}}, "total": 3, "without_reward": 1}',
    ReaderPosition: '{"sequence": 17, "stored_at": "2026-01-05T09:00:00.000123+00:00", '
    '"stream_created": "2026-01-01 00:00:00+00:00"}',
    OptOutCount: '{"count": 3, "recent": [4, "held-5", 6]}',
    RoleFailure: '{"error": "KeyError: arms", "failed_at": "2026-01-05T09:00:00.000Z", "restarts": 2, '
    '"role": "collector"}',
    SetAside: '{"bucket": "rl_jobs", "found_at": "2026-01-05T09:00:00.000Z", "key": "job.j1", '
    '"reason": "not JSON", "revision": 7, "value": "bm90IGpzb24="}',
    LeaseHolder: '{"owner": "p1", "ttl": 15.0, "released": false}',
}
"""One value per type, byte by byte as the program wrote it before it had types."""

MODEL: dict[str, Any] = {
    "model_id": "agent-zero-rl-v1", "adapter_digest": "d1", "object_prefix": "checkpoints/j1/1",
    "training_job_id": "j1", "manifest_sha256": "m", "base_digest": None, "parent": "agent-zero-rl-v0",
    "state": "candidate", "info": {"training_samples": 256}, "validation": {},
}  # fmt: skip
RATES = {
    "sessions": 3, "errors": 1, "error_rate": 0.25, "outcomes": 2, "mean_outcome": 0.5, "feedback": 1,
    "negative": 0, "lost": 1,
}  # fmt: skip
RELEASE: dict[str, Any] = {
    "release_id": "r1", "job_id": "j1", "epoch": 1, "kind": "candidate", "asked_by": None, "asked_why": None,
    "state": "ramping", "created_at": "2026-01-05T09:00:00.000Z", "updated_at": "2026-01-05T09:00:00.000Z",
    "candidate": MODEL, "current": {**MODEL, "model_id": "agent-zero-rl-v0", "state": "current"},
    "start_digest": "d0", "skip_validation": False, "validation": {"passed": True},
    "plan": {
        "strategy": "canary", "steps": [{"share": 0.1, "seconds": 60.0, "sessions": 5}],
        "deadline_seconds": 3600.0, "on_inconclusive": "hold",
    },
    "step": 0, "step_served": 1.5, "step_total": 2.5, "step_rates": {"candidate": RATES},
    "silent_from": None, "silent_seconds": 0.0,
    "held_since": None, "held_from": None, "held_why": None,
    "evidence": {"release_id": "r1"}, "started_at": "2026-01-05T09:00:00.000Z", "closed_at": None,
    "decision": None, "reason": None, "reason_code": None, "shown": None, "sessions": {"candidate": 3},
    "e_values": {"all": 1.0}, "rates": {"candidate": RATES}, "crossed_at": None, "verified_zero_at": None,
    "desired_revision": 2, "verified_revision": 2, "overdue": False, "settled": False, "command_revision": 0,
    "outbox": [{"type": "alert", "kind": "k", "message": "m", "severity": "warning", "facts": {}}],
    "history": [{"at": "2026-01-05T09:00:00.000Z", "state": "proposed", "step": 0, "why": "w"}],
}  # fmt: skip
JOB: dict[str, Any] = {
    "job_id": "j1", "number": 47, "state": "failed",
    "request": {"training_config": {"base_model": "smollm2"}},
    "request_sha256": "0", "attempt": 1, "handed_back": 0, "owner": "n:1", "start_digest": "d0",
    "dataset_sha256": "e", "samples": 256,
    "commit": {
        "job_id": "j1", "epoch": 1, "manifest_sha256": "m", "object_prefix": "checkpoints/j1/1",
        "adapter_digest": "d1",
    },
    "error": {"code": "DATA", "message": "too few"}, "changes": ["c"], "cancel_requested": False,
    "cancelled_by": None, "skip_validation": False, "announced": True,
    "killed": 1, "interruptions": 2, "not_before": "2026-01-05T09:10:05.000Z",
    "heartbeat": 9, "created_at": "2026-01-05T09:00:00.000Z", "updated_at": "2026-01-05T09:10:00.000Z",
    "progress": {"metrics": {"reward_mean": 0.5}},
}  # fmt: skip
RECORDS: dict[type[Document], str] = {
    **STORED,
    Model: json.dumps(MODEL),
    ReleaseRecord: json.dumps(RELEASE),
    JobRecord: json.dumps(JOB),
}
"""The same with the full records of jobs, releases and models."""
