"""Documents in buckets: read as they were always written, dumped with the same keys, tolerant where readers
always were."""

import json
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from pydantic import ValidationError
from stored_documents import STORED

from onward.bus import BUCKETS, Entry, read_document
from onward.contracts import buckets
from onward.contracts.buckets import (
    REQUEST_TRANSITIONS,
    Assignment,
    Desired,
    DesiredRoutes,
    Document,
    GatewayReport,
    JobEntry,
    LastRequest,
    Learning,
    LeaseHolder,
    Pin,
    ReleaseCommand,
    ReleaseEntry,
    RequestPhase,
    RescoreRequest,
    RewarderState,
    Traffic,
)
from onward.errors import IllegalTransitionError
from onward.reward.scoring.state import State

KINDS = sorted(STORED, key=lambda kind: kind.__name__)


def load(kind: type[Any], document: Any) -> Any:
    return kind.load(json.dumps(document).encode())


def test_every_document_has_a_type_and_every_bucket_a_document() -> None:
    declared = {
        kind
        for kind in vars(buckets).values()
        if isinstance(kind, type) and issubclass(kind, Document) and hasattr(kind, "BUCKET")
    }
    assert declared == set(STORED)
    assert {kind.BUCKET for kind in declared} == set(BUCKETS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_document_is_read_and_written_with_the_same_keys_and_values(kind: type[Document]) -> None:
    stored = json.loads(STORED[kind])
    assert json.loads(kind.load(STORED[kind].encode()).dump()) == stored


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not RescoreRequest])
def test_a_key_of_another_version_is_tolerated_and_stays(kind: type[Document]) -> None:
    stored = json.loads(STORED[kind]) | {"from_a_newer_version": [1, None]}
    assert json.loads(load(kind, stored).dump()) == stored


def test_an_unknown_key_of_a_rescore_request_is_refused_since_it_could_narrow_the_work() -> None:
    with pytest.raises(ValueError, match="domain"):
        load(RescoreRequest, json.loads(STORED[RescoreRequest]) | {"domain": "coding"})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("data", [b"not json", b"[]"])
def test_a_value_that_is_no_object_is_a_value_error(kind: type[Document], data: bytes) -> None:
    with pytest.raises((ValueError, TypeError)):
        kind.load(data)


async def test_a_document_is_read_from_its_own_bucket_and_key() -> None:
    stored = {("rl_control", "learning"): b'{"paused": true}', ("rl_jobs", "job.j1"): b'{"state": "queued"}'}

    class OneBucket:
        def __init__(self, name: str) -> None:
            self.name = name

        async def get(self, key: str) -> Entry | None:
            value = stored.get((self.name, key))
            return None if value is None else Entry(key, value, 1)

    bus: Any = SimpleNamespace(bucket=OneBucket)
    assert await read_document(bus, Learning) == Learning(paused=True)
    assert await read_document(bus, JobEntry, "j1") == JobEntry(state="queued")
    assert await read_document(bus, JobEntry, "j2") is None
    assert await read_document(bus, Pin) is None


def test_keys_that_were_never_set_are_not_written() -> None:
    first = LastRequest(phase="planned", snapshot=5, model_digest=None, job_id="j", request="{}")
    assert json.loads(first.dump()) == {
        "phase": "planned", "snapshot": 5, "model_digest": None, "job_id": "j", "request": "{}"
    }  # fmt: skip
    arm = json.loads(STORED[GatewayReport])["arms"][0]
    assert "model_digest" not in arm
    assert json.loads(load(GatewayReport, {"arms": [arm]}).dump())["arms"] == [arm]


# Values that readers tolerate.


@pytest.mark.parametrize(
    ("value", "paused"), [(True, True), (1, True), ("no", True), (False, False), (None, False), ([], False)]
)
def test_any_true_value_pauses_learning(value: object, paused: bool) -> None:
    assert load(Learning, {"paused": value}).paused is paused
    assert not load(Learning, {}).paused


@pytest.mark.parametrize("value", [1, "true", None, [True]])
def test_only_true_pauses_traffic_and_until_is_not_looked_at_before(value: object) -> None:
    assert not load(Traffic, {"paused": value, "until": 5}).paused
    assert load(Traffic, {"paused": True}).paused


def test_a_pin_names_a_model_or_none() -> None:
    with pytest.raises(ValidationError):
        load(Pin, {"model_id": 5})
    assert load(Pin, {}).model_id is None


def test_an_unknown_command_is_read_and_a_release_of_another_type_is_refused() -> None:
    assert load(ReleaseCommand, {"command": "explode"}).command == "explode"
    with pytest.raises(ValidationError):
        load(ReleaseCommand, {"command": "abort", "release_id": 5})


def test_the_coordinator_reads_routes_jobs_and_releases_with_less_in_them() -> None:
    assert load(DesiredRoutes, {}).arms == [] and load(DesiredRoutes, {"arms": None}).arms == []
    (arm,) = load(DesiredRoutes, {"arms": [{"model_digest": "b"}]}).arms
    assert (arm.arm, arm.weight, arm.adapter_digest, arm.model_digest) == ("", 0.0, None, "b")
    job = load(JobEntry, {"state": "on_hold", "request": None, "progress": None, "samples": "many"})
    assert (job.job_id, job.state, job.request, job.progress, job.commit) == (None, "on_hold", {}, {}, None)
    assert load(ReleaseEntry, {"state": "unheard_of"}).job_id is None
    assert load(LastRequest, {}).snapshot == 0


def test_desired_routes_without_a_revision_are_no_desired_state() -> None:
    with pytest.raises(ValidationError):
        load(Desired, {"arms": []})


def test_a_report_with_less_in_it_serves_nothing() -> None:
    report = load(GatewayReport, {})
    assert (report.revision, report.arms, report.served, report.error) == (-1, [], [], None)


@pytest.mark.parametrize("missing", ["session_id", "release_id", "arm", "weight", "assigned_at", "model_id"])
def test_an_assignment_is_read_whole_but_for_its_earlier_releases(missing: str) -> None:
    stored = json.loads(STORED[Assignment])
    with pytest.raises(ValidationError):
        load(Assignment, {name: value for name, value in stored.items() if name != missing})
    assert load(Assignment, {k: v for k, v in stored.items() if k != "earlier"}).earlier == ()


@pytest.mark.parametrize("document", [{}, {"ttl": "soon", "released": False}, {"ttl": 5}, {"released": True}])
def test_an_unreadable_lease_is_a_value_error(document: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        load(LeaseHolder, document)


def test_a_lease_is_released_by_any_true_value() -> None:
    assert load(LeaseHolder, {"ttl": 5, "released": "yes"}).released
    assert not load(LeaseHolder, {"ttl": 5, "released": None}).released


def test_a_rewarders_record_of_another_version_is_refused_whatever_else_is_in_it() -> None:
    with pytest.raises(ValidationError, match="another version than 1"):
        RewarderState.load(b'{"version": 2}')
    with pytest.raises(ValidationError):
        RewarderState.load(b'{"version": 1, "stream_seq": 3}')
    state = State.load(RewarderState.load(STORED[RewarderState].encode()), 10)
    assert state.stream_seq == 17 and state.dump() == STORED[RewarderState].encode()


# Transitions.


def test_a_request_is_planned_then_published_then_the_next_one_is_planned() -> None:
    phases: tuple[RequestPhase, ...] = get_args(RequestPhase)
    assert set(REQUEST_TRANSITIONS) == {None, *phases}
    assert {(a, b) for a in REQUEST_TRANSITIONS for b in REQUEST_TRANSITIONS[a]} == {
        (None, "planned"), (None, "published"), ("planned", "published"), ("published", "planned"),
        ("published", "published"),
    }  # fmt: skip
    for before, after in REQUEST_TRANSITIONS.items():
        for to in phases:
            if to in after:
                assert LastRequest(phase=before).checked_phase(to) == to
            else:
                with pytest.raises(IllegalTransitionError):
                    LastRequest(phase=before).checked_phase(to)


@pytest.mark.parametrize("to", ["planned", "published"])
def test_an_unknown_phase_is_like_none(to: RequestPhase) -> None:
    assert load(LastRequest, {"phase": "acknowledged"}).checked_phase(to) == to


def test_times_without_an_offset_are_utc_and_other_text_is_refused():
    stored = json.loads(STORED[RescoreRequest])
    naive = RescoreRequest.load(json.dumps({**stored, "since": "2026-01-05T09:00:00"}).encode())
    assert naive.since == "2026-01-05T09:00:00.000Z"
    kept = RescoreRequest.load(json.dumps({**stored, "since": "2026-01-05T10:00:00+01:00"}).encode())
    assert kept.since == "2026-01-05T10:00:00+01:00"
    for wrong in ("yesterday", "", "0001-01-01T00:00:00+10:00"):
        with pytest.raises(ValidationError):
            RescoreRequest.load(json.dumps({**stored, "requested_at": wrong}).encode())
