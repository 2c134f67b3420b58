"""Tools on documents: they need no service."""

from __future__ import annotations

import asyncio
import copy
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from onward.config import Settings
from onward.contracts.examples import TRAJECTORY
from onward.errors import OnwardError
from onward.http.client import Address
from onward.tools import Tool, Toolbox
from onward.tools.toolbox import MOST_CALLS

WEIGHTS = {"task_completion": 0.40, "efficiency": 0.20, "code_quality": 0.15, "user_feedback": 0.25}
"""REWARD_WEIGHTS of the seed."""


@pytest.fixture
def box(tmp_path: Path) -> Toolbox:
    return Toolbox(Settings(data_dir=tmp_path))


async def found(box: Toolbox, name: str, **arguments: Any) -> dict[str, Any]:
    answer = await box.call(name, arguments)
    assert not answer.is_error, answer.text
    return json.loads(answer.text)


async def refused(box: Toolbox, name: str, **arguments: Any) -> str:
    answer = await box.call(name, arguments)
    assert answer.is_error, answer.text
    return answer.text


async def test_an_invalid_trajectory_is_a_result_that_names_the_field_and_no_value(box: Toolbox) -> None:
    broken = copy.deepcopy(TRAJECTORY)
    broken["turns"][0]["turn_id"] = "a secret word"
    shown = await found(box, "validate_trajectory", trajectory_data=broken)
    assert (shown["valid"], shown["reason"]) == (False, "schema")
    assert "turn_id" in shown["error"] and "a secret word" not in shown["error"]
    other = await found(box, "validate_trajectory", trajectory_data="{}", schema="reward.v1.schema.json")
    assert other["valid"] is False and other["schema"] == "reward.v1.schema.json"
    words = await refused(box, "validate_trajectory", trajectory_data=TRAJECTORY, schema="../x.json")
    assert words.startswith("Argument 'schema' of validate_trajectory is not usable")
    text = await refused(box, "validate_trajectory", trajectory_data="{not json")
    assert text.endswith("is not usable: the text is not JSON; give a JSON object, or its text.")


async def test_every_wrong_field_is_named_with_its_path(box: Toolbox) -> None:
    broken = copy.deepcopy(TRAJECTORY)
    del broken["session_id"], broken["turns"][1]["result"]
    shown = await found(box, "validate_trajectory", trajectory_data=broken)
    assert shown["error"] == "Trajectory.session_id is required; also wrong: .turns[1].result."
    assert shown["faults"] == ["session_id is required", "turns[1].result is required"]
    words = await refused(box, "compute_reward", trajectory=broken)
    assert words == f"{shown['error']} validate_trajectory lists each of the 2."
    shown = await found(box, "validate_trajectory", trajectory_data={"turns": []})
    assert "trajectory_id" in shown["error"] and len(shown["faults"]) == 8
    assert {fault.partition(" ")[0] for fault in shown["faults"]} == {
        "trajectory_id", "session_id", "agent_id", "start_timestamp", "end_timestamp", "turns",
        "task_context", "metadata",
    }  # fmt: skip


async def test_plain_text_is_redacted_as_it_is(box: Toolbox) -> None:
    mail = "ann.lee@wollmilch" + ".de"
    shown = await found(box, "redact_sensitive_info", trajectory_data=f"[1] write to {mail}")
    assert shown["replaced"] == {"EMAIL": 1}
    assert shown["untrusted"].startswith("[1] write to <EMAIL") and mail not in json.dumps(shown)
    words = await refused(box, "redact_sensitive_info", trajectory_data='{"to": ')
    assert "the text is not JSON" in words and "message" not in words


async def test_redaction_counts_the_kinds_that_were_asked_for_and_removes_all(box: Toolbox) -> None:
    secret, mail = "ghp_" + "Zk3Qv9Lm2Xr8" * 3, "ann.lee@wollmilch" + ".de"
    document = {"note": f"token {secret}", "to": mail, "password": "correct horse 77!"}
    asked = {"trajectory_data": document, "patterns": ["api_key", "password", "email", "iban"]}
    shown = await found(box, "redact_sensitive_info", **asked)
    assert shown["replaced"] == {"api_key": 1, "password": 1, "email": 1, "iban": 0}
    clean = json.loads(shown["untrusted"])
    assert set(clean) == {"note", "to", "password"} and shown["characters"] == len(shown["untrusted"])
    for value in (secret, mail, "correct horse"):
        assert value not in json.dumps(shown)
    assert "No kind is called 'shoe size'" in await refused(
        box, "redact_sensitive_info", trajectory_data=document, patterns=["shoe size"]
    )


async def test_a_long_redacted_document_comes_in_pages_that_join_to_it(box: Toolbox) -> None:
    document = {"log": [f"line {number} of a long log" for number in range(600)]}
    parts, offset = [], 0
    while True:
        shown = await found(box, "redact_sensitive_info", trajectory_data=document, offset=offset)
        parts.append(shown["untrusted"])
        if "next_offset" not in shown:
            break
        offset = shown["next_offset"]
    assert json.loads("".join(parts)) == document and len(parts) > 3


async def test_a_reward_is_the_weighted_sum_of_its_components(box: Toolbox) -> None:
    shown = await found(box, "compute_reward", trajectory=TRAJECTORY, weights=WEIGHTS)
    parts = shown["components"]
    total = sum(parts[name]["score"] * parts[name]["weight"] for name in parts)
    assert shown["total_reward"] == pytest.approx(total)
    assert sum(one["weight"] for one in parts.values()) == pytest.approx(1.0)
    alone = await found(box, "compute_reward", trajectory=TRAJECTORY, weights={"user_feedback": 1.0})
    assert alone["total_reward"] == parts["user_feedback"]["score"] == 0.5  # no feedback: neutral
    assert alone["stored"] is False
    for weights, words in (
        ({"task_completion": 0.5}, "sum to 0.5"),
        ({"speed": 1.0}, "weights names 'speed': the components are task_completion"),
    ):
        assert words in await refused(box, "compute_reward", trajectory=TRAJECTORY, weights=weights)


async def test_history_normalises_the_total_by_the_seeds_formula(box: Toolbox) -> None:
    """z = (score - mean) / std over the history, then (z + 2) / 4, computed here from the raw scores. The
    deviation of task completion counts as 0.25 at least (docs/reward.md)."""
    alone = {"task_completion": 1.0}
    history, scores = [], []
    for number in range(40):
        one = copy.deepcopy(TRAJECTORY)
        one["trajectory_id"] = f"3f0c3ce4-0000-4000-8000-{number:012d}"
        if number % 2 == 0:
            outcome = {"status": "partial_completion", "completion_percentage": number / 100}
            one["metadata"] = {**one.get("metadata", {}), "outcome": outcome}
        shown = await found(box, "compute_reward", trajectory=one, weights=alone)
        scores.append(shown["total_reward"])
        history.append(one)
    asked = {"trajectory": TRAJECTORY, "historical_data": history, "weights": alone}
    shown = await found(box, "compute_reward", **asked)
    z = (shown["total_reward"] - statistics.mean(scores)) / max(statistics.pstdev(scores), 0.25)
    assert len(set(scores)) > 5 and 0 < z < 2
    assert shown["normalized_reward"] == pytest.approx((z + 2) / 4, abs=1e-9)
    assert shown["history"] == 40
    assert "normalized_reward" not in await found(box, "compute_reward", trajectory=TRAJECTORY)


async def test_a_defect_of_a_tool_is_one_sentence_without_its_text(
    box: Toolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("the password is hunter2")

    monkeypatch.setattr("onward.tools.data.validate", broken)
    words = await refused(box, "validate_trajectory", trajectory_data=TRAJECTORY)
    assert words == "validate_trajectory stopped on a defect (ValueError): the log has more."


async def test_calls_at_a_time_are_bounded_and_the_next_is_answered_when_one_has_ended(
    box: Toolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()

    async def wait(tool: Tool, box: Toolbox, arguments: Any) -> dict[str, Any]:
        await gate.wait()
        return {"ok": True}

    monkeypatch.setattr(Tool, "run", wait)
    running = [asyncio.create_task(box.call("status")) for _ in range(MOST_CALLS)]
    await asyncio.sleep(0)
    refused = await box.call("status")
    assert refused.is_error and refused.text.startswith(f"{MOST_CALLS} calls run already")
    gate.set()
    assert {answer.text for answer in await asyncio.gather(*running)} == {'{"ok":true}'}
    assert not (await box.call("status")).is_error


async def test_an_address_that_does_not_answer_is_named_without_its_login() -> None:
    password = "correct" + "-horse"
    address = Address(f"http://ann:{password}@127.0.0.1:9/x", None, "AGENTGYM_RL_URL")
    with pytest.raises(OnwardError, match=r"127\.0\.0\.1:9/x/? does not answer") as raised:
        await address.call("GET", "/status")
    assert password not in str(raised.value) and "ann" not in str(raised.value)
