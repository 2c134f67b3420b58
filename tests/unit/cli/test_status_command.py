"""``onward status``: sentences about counts. (With a service: tests/integration/test_docs_service.py.)"""

import pytest

from onward.api.status import next_sentence, release_in_short, release_sentence, serving_sentence
from onward.cli.status import show
from onward.contracts.buckets import DesiredArm, DesiredRoutes
from onward.release.record import ReleaseRecord
from onward.training.role.job_table import JobRecord

SENTENCES = {
    "serving": "agent-zero-rl-v1 serves.",
    "next": "Next training job: 120 of 5,000 rewarded trajectories of this policy.",
    "last_release": "Last release: v2 was rejected: 12 of 20 requests answered in the right form, "
    "current 19 of 20, p 0.008.",
}


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


def shown(capsys: pytest.CaptureFixture[str], held: int | None, count: int, **more: object) -> str:
    names = ("trajectories", "rewarded", "unscored", "outcomes", "deployments", "status_events")
    found = {
        "sentences": SENTENCES,
        "no_answer": [],
        "disk": None,
        "streams": [],
        "counts": dict.fromkeys(names, count),
        "held": held,
        "opted_out": 0,
        "jobs": [],
        "releases": [],
        "learning_paused": False,
        "pinned": None,
        "unscored": {},
        "unscored_share": {"n": 0, "unscored": 0},
        "rescore": None,
        "failing_roles": [],
        "set_aside": 0,
        "triggers": None,
        **more,
    }
    show(found, {})
    return capsys.readouterr().out


def test_it_begins_with_what_serves_what_comes_next_and_the_last_release(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert shown(capsys, held=1, count=0).splitlines()[:3] == list(SENTENCES.values())


def test_what_may_start_the_next_job_follows(capsys: pytest.CaptureFixture[str]) -> None:
    run = "Schedule: 0 2 * * * (UTC), the next run is at 2026-01-06T02:00:00.000Z."
    assert shown(capsys, held=1, count=0, triggers={"sentences": [run]}).splitlines()[3] == run


def job(state: str, **progress: float) -> JobRecord:
    now = "2026-01-05T18:00:00.000Z"
    return JobRecord.model_validate(
        {"job_id": "job-7", "state": state, "request": {}, "request_sha256": "0", "created_at": now,
         "updated_at": now, "progress": progress}
    )  # fmt: skip


def test_the_three_sentences_in_every_state() -> None:
    two = [
        DesiredArm(model_id="agent-zero-rl-v1", arm="current", weight=0.9),
        DesiredArm(model_id="agent-zero-rl-v2", arm="candidate", weight=0.1),
    ]
    assert serving_sentence(None) == "No model was released yet: the base model serves."
    assert serving_sentence(DesiredRoutes(arms=two[:1])) == "agent-zero-rl-v1 serves."
    assert serving_sentence(DesiredRoutes(arms=two)) == (
        "agent-zero-rl-v1 (current) serves 90% of new sessions, agent-zero-rl-v2 (candidate) serves 10%."
    )
    waits = {"rewarded": 120, "threshold": 5000}
    assert next_sentence(waits, [job("completed")], False) == SENTENCES["next"]
    assert next_sentence(waits, [job("running", percent_complete=42.0)], False) == (
        "Training job job-7 is running, 42 % done."
    )
    assert next_sentence(waits, [], True) == (
        "No next training job: learning is paused ('onward resume'); "
        "there are 120 of 5,000 rewarded trajectories."
    )
    assert release_sentence([]) == "Last release: none yet."


JOB = "9b1f6f5e-4a57-4c33-9d3e-6e4ad9a1c006"


def test_no_table_cuts_an_id_at_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rates = {"candidate": {"sessions": 40, "errors": 3}, "current": {"sessions": 160, "errors": 1}}
    output = shown(
        capsys,
        0,
        0,
        jobs=[{"job_id": JOB, "state": "failed", "attempt": 3, "samples": 512, "percent": 12.0,
               "error": "The child ended with code 3."}],
        releases=[{"model_id": "agent-zero-rl-v2-with-a-long-name", "state": "rolled_back", "rates": rates,
                   "e_values": {"all": 0.4}, "reason": "-", "validation": "not validated",
                   "evidence_needed": 22.222}],
    )  # fmt: skip
    tables = [line for line in output.splitlines() if not line.endswith(".")]  # a terminal wraps sentences
    assert max(map(len, tables)) <= 80 and "…" not in output
    assert f"{JOB}  failed" in output and f"Job {JOB} (failed): The child ended with code 3." in output
    assert "agent-zero-rl-v2-with-a-long-name  rolled_back" in output
    words = " ".join(output.split())
    assert "not validated; errors 3 of 40 (7.5 %), current 1 of 160 (0.6 %), evidence against 0.4" in words
    assert "evidence against 0.4 of 22.2 needed" in words and "at the needed number" in words


def test_a_release_that_was_not_validated_says_so_wherever_it_is_named() -> None:
    now = "2026-01-05T18:00:00.000Z"
    model = {"adapter_digest": "d", "object_prefix": "p", "training_job_id": "j"}
    record = ReleaseRecord.model_validate(
        {"release_id": "r1", "created_at": now, "updated_at": now, "state": "rejected", "job_id": "j",
         "epoch": 1, "candidate": {**model, "model_id": "v2"}, "current": {**model, "model_id": "v1"},
         "reason": "/secret/path is gone", "validation": {"verdict": "not validated"}}
    )  # fmt: skip
    assert (
        release_sentence([record]) == "Last release: v2 was rejected: /secret/path is gone. (not validated)"
    )
    assert release_in_short([record]) == "v2: rejected, not validated"
    passed = record.model_copy(update={"validation": {"verdict": "passed"}})
    assert release_in_short([passed]) == "v2: rejected, validation passed"
    assert release_in_short([record.model_copy(update={"validation": None})]) == "v2: rejected"
    assert release_in_short([]) == "none yet"


def test_one_is_singular_and_the_quarantine_claims_no_cause(capsys: pytest.CaptureFixture[str]) -> None:
    output = shown(capsys, held=2, count=1)
    assert (
        "1 trajectory stored, 1 rewarded, 1 unscored; 1 session outcome in releases, 1 deployment, "
        "1 training status event." in output
    )
    assert "2 held in quarantine ('onward quarantine list' says why)." in output


def test_none_and_several_are_plural_and_an_empty_quarantine_is_not_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = shown(capsys, held=0, count=0)
    assert "0 trajectories stored" in output and "0 deployments, 0 training status events." in output
    assert "quarantine" not in output


def test_silence_is_told_by_cause_and_a_run_of_rescore_by_how_far_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = {"run_id": "r1", "seen": 50, "total": 120, "finished": False}
    causes = {"no_outcome": 30, "contract": 2}
    output = shown(capsys, 0, 0, unscored=causes, unscored_share={"n": 200, "unscored": 25}, rescore=run)
    assert "Unscored: contract 2, no_outcome 30; 25 of the last 200." in output
    assert "Scoring again: 50 of 120 (run r1)." in output


def test_it_names_silent_parts_full_disks_and_streams_near_their_limit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    streams = [
        {"name": "RL_TRAJECTORIES", "messages": 9, "bytes": 920, "limit": 1000, "lag": {"collector": 0}},
        {"name": "RL_REWARDS", "messages": 9, "bytes": 690, "limit": 1000, "lag": {}},
        {"name": "RL_AUDIT", "messages": 9, "bytes": 690, "limit": -1, "lag": {}},
        {"name": "RL_DLQ", "missing": True},
    ]
    disk = {"free": 10, "total": 100, "used": 0.9}
    output = shown(capsys, None, 0, streams=streams, disk=disk, no_answer=["warehouse"], counts=None)
    assert "No answer from the warehouse" in output
    assert "The disk of the data folder is 90% full." in output
    assert "RL_TRAJECTORIES has used 92% of its byte limit" in output
    assert "RL_REWARDS has used" not in output and "RL_AUDIT has used" not in output
    assert "stored," not in output, "counts are not known"
