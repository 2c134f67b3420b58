"""What the collector adds, by hand-worked values."""

import copy
import math
from datetime import UTC, datetime

import pytest

from onward.capture.collecting import trajectory_row
from onward.contracts import canonical_json, sha256_hex
from onward.contracts.examples import TRAJECTORY
from onward.redaction import POLICY_VERSION

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def test_the_identity_is_the_hash_before_enrichment_with_the_policy(trajectory):
    plain = trajectory_row.identity(trajectory, POLICY_VERSION)
    assert plain == f"{POLICY_VERSION}:{sha256_hex(canonical_json(trajectory))}"
    assert trajectory_row.identity(trajectory_row.enrich(trajectory), POLICY_VERSION) != plain


def test_identities_conflict_only_under_one_policy():
    assert trajectory_row.same("p1:a", "p1:a")
    assert not trajectory_row.same("p1:a", "p1:b")
    assert trajectory_row.same("p1:a", "p2:b")


@pytest.mark.parametrize(
    "instructions,domain",
    [
        ("Fix the traceback in this failing test", "debugging"),
        ("Write a Python function that sorts", "coding"),
        ("Plot the mean of this CSV column", "data_analysis"),
        ("Draft a short email to the team", "writing"),
        ("Hello there", "general"),
    ],
)
def test_domains_are_guessed_from_words(trajectory, instructions, domain):
    trajectory["task_context"]["instructions"] = instructions
    for turn in trajectory["turns"]:
        turn["action"]["tool_name"] = "x"
    assert trajectory_row.guess_domain(trajectory) == domain


def test_given_values_stay_and_the_task_type_defaults_to_the_domain(trajectory):
    trajectory["task_context"] |= {"domain": "writing", "complexity_score": 0.9}
    context = trajectory_row.enrich(trajectory)["task_context"]
    assert (context["domain"], context["task_type"], context["complexity_score"]) == (
        "writing",
        "writing",
        0.9,
    )
    trajectory["task_context"]["task_type"] = "calc"
    assert trajectory_row.enrich(trajectory)["task_context"]["task_type"] == "calc"


def test_complexity_by_hand(trajectory):
    trajectory["turns"][1]["result"]["success"] = False
    trajectory["turns"][2]["action"] = {"type": "subordinate_call"}
    expected = 0.4 * (1 - math.exp(-0.5)) + 0.2 / 5 + 0.15 / 4 + 0.15 * 13 / 2000 + 0.1
    assert trajectory_row.complexity(trajectory) == round(expected, 4)


def test_the_row(trajectory):
    trajectory["metadata"] |= {
        "release": {"release_id": "r1", "arm": "candidate"},
        "outcome": {"status": "partial_completion", "completion_percentage": 0.25},
    }
    trajectory["task_context"]["group_id"] = "group"
    document = trajectory_row.enrich(trajectory)
    row = trajectory_row.row(document, identity="p:x", stream_seq=7, ingested_at=NOW)
    assert row | {"payload": ""} == {
        "trajectory_id": trajectory["trajectory_id"], "session_id": "session-1", "agent_id": "agent",
        "model_digest": "digest-a", "model_version": "tiny", "release_id": "r1", "arm": "candidate",
        "task_id": "t1", "task_type": document["task_context"]["domain"], "group_key": "group",
        "domain": document["task_context"]["domain"], "start_ts": "2026-01-01T00:00:00.000Z",
        "end_ts": "2026-01-01T00:01:00.000Z", "n_turns": 4, "success": 0, "completion": 0.25,
        "tokens": 4 * 5, "stream_seq": 7, "ingested_at": NOW, "payload_sha256": "p:x", "payload": "",
    }  # fmt: skip
    assert row["payload"] == canonical_json(document).decode()


def test_mixed_and_missing_policies(trajectory):
    trajectory["turns"][0]["action"]["sampling"]["model_digest"] = "digest-b"
    assert trajectory_row.model_digest(trajectory) == trajectory_row.MIXED
    for turn in trajectory["turns"]:
        del turn["action"]["sampling"]
    assert trajectory_row.model_digest(trajectory) == ""


@pytest.mark.parametrize(
    "outcome,expected",
    [
        ({"status": "completed_successfully"}, (1, 1.0)),
        ({"status": "failed", "completion_percentage": 0.5}, (0, 0.5)),
        (None, (0, 0.0)),
    ],
)
def test_success_and_completion(trajectory, outcome, expected):
    if outcome:
        trajectory["metadata"]["outcome"] = outcome
    row = trajectory_row.row(trajectory_row.enrich(trajectory), identity="", stream_seq=1, ingested_at=NOW)
    assert (row["success"], row["completion"]) == expected


def test_an_answer_that_nobody_judged_is_no_success():
    """The rewarder leaves it unscored (``no_outcome``); the column must not count it as solved."""
    unjudged = copy.deepcopy(TRAJECTORY)
    unjudged["metadata"].pop("outcome", None)
    told = {"identity": "p:1", "stream_seq": 1, "ingested_at": datetime(2026, 5, 4, tzinfo=UTC)}
    derived = trajectory_row.row(trajectory_row.enrich(unjudged), **told)
    assert (derived["success"], derived["completion"]) == (1, 1.0)  # a recorder's turns say how they went
    unjudged["metadata"]["capture"] = {"source": "gateway", "closed": "answer"}
    row = trajectory_row.row(trajectory_row.enrich(unjudged), **told)
    assert (row["success"], row["completion"]) == (0, 0.0)
    unjudged["metadata"]["outcome"] = {"status": "completed_successfully"}
    assert trajectory_row.row(trajectory_row.enrich(unjudged), **told)["success"] == 1
