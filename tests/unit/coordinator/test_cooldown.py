"""The pause after what came to nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from onward.contracts.buckets import JobEntry, ReleaseEntry
from onward.coordinator.cooldown import cooldown

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


def ago(minutes: float) -> str:
    return (NOW - timedelta(minutes=minutes)).isoformat()


def job(state: str, minutes: float) -> JobEntry:
    return JobEntry(job_id="j", state=state, updated_at=ago(minutes))


def release(state: str, minutes: float) -> ReleaseEntry:
    return ReleaseEntry(release_id="r", job_id="k", state=state, closed_at=ago(minutes))


@pytest.mark.parametrize(
    ("jobs", "releases", "why"),
    [
        ([], [], None),
        ([job("failed", 59)], [], "job j failed"),
        ([job("failed", 60)], [], None),
        ([job("cancelled", 1)], [], "job j was cancelled"),
        ([job("completed", 1), job("running", 1)], [], None),
        ([], [release("rejected", 10)], "the candidate of job k was rejected"),
        ([], [release("rolled_back", 10)], "the candidate of job k was rolled back"),
        ([job("failed", 30)], [release("promoted", 10)], None),
        ([job("failed", 10)], [release("promoted", 30)], "job j failed"),
    ],
)
def test_the_newest_end_decides(jobs, releases, why):
    found = cooldown(jobs, releases, 60, NOW)
    assert (None if found is None else found.why) == why


def test_a_pause_begins_at_once_also_if_the_clock_of_the_trainer_is_ahead():
    found = cooldown([job("failed", -0.5), job("failed", 70)], [], 60, NOW)
    assert found is not None and found.until == NOW + timedelta(minutes=60.5)


def test_the_words_name_the_end_of_the_pause():
    assert str(cooldown([job("failed", 15)], [], 60, NOW)) == (
        "job j failed: cool-down until 2026-01-05T12:45:00.000Z"
    )


def test_a_clock_that_was_set_back_or_a_damaged_time_makes_no_endless_pause():
    assert cooldown([job("failed", -600)], [], 60, NOW) is None
    damaged = JobEntry.model_validate({"job_id": "j", "state": "failed", "updated_at": "yesterday"})
    nothing = ReleaseEntry.model_validate({"release_id": "r", "state": "rejected", "closed_at": 5})
    assert cooldown([damaged, JobEntry(state="failed")], [nothing], 60, NOW) is None


@pytest.mark.parametrize("request_", [{"kind": "rubrics"}, {"environment": "CartPole-v1"}])
def test_only_jobs_of_the_language_model_make_a_pause(request_):
    other = JobEntry(job_id="o", state="failed", updated_at=ago(1), request=request_)
    assert cooldown([other], [], 60, NOW) is None
    found = cooldown([other, job("failed", 30)], [], 60, NOW)
    assert found is not None and (found.why, found.until) == ("job j failed", NOW + timedelta(minutes=30))


def test_no_minutes_switch_it_off():
    assert cooldown([job("failed", 0)], [], 0, NOW) is None
