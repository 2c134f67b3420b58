"""The profiles: every tool has a file and a prompt that agree with Onward's tools, and the seed's rules are
there."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onward.integrations.agent_zero import install
from onward.integrations.agent_zero.plugin.helpers import onward_approvals, onward_tools
from onward.tools import TOOLS

AGENTS = install.SOURCE / "agents"
PROFILES = {
    "rl-trainer": set(TOOLS),
    "reinforcement-learning-trainer": {"status", "control_train", "job_status", "cancel_job", "rl_solution"},
}


def prompt(profile: str, name: str) -> str:
    return (AGENTS / profile / "prompts" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("profile", PROFILES)
def test_each_tool_has_a_file_and_a_prompt_with_its_arguments_and_one_valid_example(profile: str) -> None:
    tools = {path.stem for path in (AGENTS / profile / "tools").glob("*.py")}
    assert tools == PROFILES[profile]
    prompts = {path.name for path in (AGENTS / profile / "prompts").glob("agent.system.tool.*.md")}
    assert prompts == {f"agent.system.tool.{name}.md" for name in tools}
    for name in sorted(tools & set(TOOLS)):
        text = prompt(profile, f"agent.system.tool.{name}.md")
        arguments = TOOLS[name].arguments
        assert set(re.findall(r"^- `(\w+)`", text, re.M)) == set(
            arguments.model_json_schema()["properties"]
        ), name
        (example,) = re.findall(r"~~~json\n(.*?)~~~", text, re.S)
        asked = json.loads(example)
        assert asked["tool_name"] == name and asked["thoughts"]
        arguments.model_validate(asked["tool_args"])


def test_the_tools_of_the_seed_are_there_by_name() -> None:
    seed = {
        "subscribe_nats", "publish_nats", "validate_trajectory", "redact_sensitive_info", "compute_reward",
        "download_checkpoint", "run_benchmarks", "deploy_to_tensorzero",
    }  # fmt: skip
    assert seed <= PROFILES["rl-trainer"]


def test_the_rules_of_the_seed_are_there_but_for_the_one_without_refusal() -> None:
    text = prompt("rl-trainer", "agent.system.main.role.md") + prompt(
        "rl-trainer", "agent.system.main.specifics.md"
    )
    for rule in (
        "5,000", "02:00 UTC", "performance_degradation", "threshold_reached", "blue_green", "15 %", "5 %",
        "OOM", "CONVERGENCE", "INFRA", "0.40", "0.25", "08:00 UTC",
        "Initiating RL training job #47 with 10K samples",
        "Model v2.4 deployed, +4% performance improvement, canary rollout in progress",
        "URGENT: Model v2.4 rolled back due to high error rate (8%). Investigating root cause.",
    ):  # fmt: skip
        assert rule in text, rule
    assert "You may refuse" in text and "that rule does not apply here" in text
    assert "without refusal based on safety" not in text
    assert "approval_needed" in text


def test_a_step_waits_once_expires_and_belongs_to_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onward_approvals, "STORE", "_approvals_of_this_test")
    clock = [0.0]
    monkeypatch.setattr(onward_approvals.time, "monotonic", lambda: clock[0])
    gate = onward_approvals.gate
    given = {"model_id": "m"}
    for free in (("status", {}), ("release", {"action": "rollback"}), ("start_training", {"days": 3})):
        assert gate(*free, None, "release") is None
    assert gate("start_training", {"days": 3}, None, "train, release") is not None
    first = gate("deploy_to_tensorzero", given, None, "release")
    assert first is not None and onward_approvals.decide(first["approval_needed"], True)
    other = gate("deploy_to_tensorzero", {"model_id": "n"}, None, "release")
    assert other is not None and other["approval_needed"] != first["approval_needed"]
    assert gate("deploy_to_tensorzero", given, None, "release") is None  # used up here
    again = gate("deploy_to_tensorzero", given, None, "release")
    assert again is not None and onward_approvals.decide(again["approval_needed"], True)
    clock[0] = onward_approvals.SECONDS + 1
    assert gate("deploy_to_tensorzero", given, None, "release") is not None  # expired
    assert not onward_approvals.decide(again["approval_needed"], True)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(onward_approvals, "STORE", "_approvals_of_this_test")
    yield onward_approvals.gate
    sys.modules.pop("_approvals_of_this_test", None)


def test_an_approval_for_one_chat_is_none_for_another(gate: Any) -> None:
    first, second = SimpleNamespace(id="chat0001"), SimpleNamespace(id="chat0002")
    given = {"action": "start", "model_id": "m"}
    asked = gate("release", given, first, "release")
    assert onward_approvals.decide(asked["approval_needed"], True)
    assert gate("release", given, second, "release") is not None
    assert gate("release", given, first, "release") is None


def test_a_person_sees_the_arguments_whole_and_no_character_hides_or_turns_them(gate: Any) -> None:
    padded = {"action": "start", "a_reason": "x" * 1500, "model_id": "the-real-one"}
    padded |= {"z": "\u202eno\u200b\u2028"}
    assert "approval_needed" in gate("release", padded, None, "release")
    (step,) = onward_approvals.waiting()
    assert "the-real-one" in step["arguments"] and r"\u202eno\u200b\u2028" in step["arguments"]
    assert json.loads(step["arguments"]) == padded
    answer = gate("release", {**padded, "a_reason": "x" * 5000}, None, "release")
    assert answer.keys() == {"refused"} and "at most 4000" in answer["refused"]
    assert len(onward_approvals.waiting()) == 1


def test_an_agent_cannot_flood_the_page_or_push_out_the_steps_of_another_chat(gate: Any) -> None:
    other, flood = SimpleNamespace(id="chat0001"), SimpleNamespace(id="chat0002")
    asked = gate("release", {"action": "start", "model_id": "m"}, other, "release")
    answers = [gate("release", {"action": "start", "model_id": f"m{n}"}, flood, "release") for n in range(60)]
    assert ["refused" in one for one in answers] == [False] * 10 + [True] * 50
    assert onward_approvals.decide(asked["approval_needed"], True)


def test_the_command_of_the_tools_has_only_the_scopes_that_are_allowed() -> None:
    def scopes(allow: object) -> str:
        command = onward_tools.command_of({"allow": allow}, "/opt/python")
        return command[command.index("--scope") + 1]

    assert scopes("") == scopes(None) == scopes("admin root") == "read"
    assert scopes("train") == "read,train" and scopes("release, train") == "read,train,release"


def test_keys_of_the_tools_come_from_secrets_and_not_from_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NATS_URL", raising=False)
    word = "of-the-" + "store"
    found = onward_tools.environment_of(
        {"nats_url": "nats://n:4222", "nats_token": "x", "training_url": ""}, {"ONWARD_NATS_TOKEN": word}
    )
    assert (found["NATS_URL"], found["NATS_TOKEN"]) == ("nats://n:4222", word)
    assert "AGENTGYM_RL_URL" not in found
    address = {"ONWARD_NATS_URL": f"nats://agent:{word}@n:4222"}
    assert onward_tools.environment_of({}, address)["NATS_URL"] == address["ONWARD_NATS_URL"]
    assert onward_tools.environment_of({"nats_url": "nats://n:1"}, address)["NATS_URL"] == "nats://n:1"
    assert "NATS_URL" not in onward_tools.environment_of(
        {"data_dir": "/srv"}, address
    )  # it has its own login


def test_a_server_that_cannot_start_or_ends_is_one_sentence(tmp_path: Path) -> None:
    program = tmp_path / "ends.py"
    program.write_text("import sys; sys.stdin.readline()\n")
    with pytest.raises(OSError):
        onward_tools.Server(["/nowhere/python"], {})
    with pytest.raises(RuntimeError, match="it ended at its start"):
        onward_tools.Server([sys.executable, str(program)], {})
