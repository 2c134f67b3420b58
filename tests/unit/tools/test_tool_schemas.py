"""The schemas that other systems get: the seed's names and arguments, and strict mode."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import jsonschema
import pytest

from onward.config import Settings
from onward.contracts.examples import TRAJECTORY
from onward.tools import SCOPES, TOOLS, Toolbox, mcp_tools, openai_tools
from onward.tools.tool import parse_scopes
from onward.tools.toolbox import UnknownToolError

SEED: dict[str, list[str]] = {
    "subscribe_nats": ["subject", "queue_group"],
    "publish_nats": ["subject", "payload", "schema_validate"],
    "validate_trajectory": ["trajectory_data", "schema"],
    "redact_sensitive_info": ["trajectory_data", "patterns"],
    "compute_reward": ["trajectory", "historical_data", "weights"],
    "download_checkpoint": ["s3_path", "local_path"],
    "run_benchmarks": ["model_path", "tasks"],
    "deploy_to_tensorzero": ["model_id", "checkpoint_path", "rollout_strategy"],
}
"""Tool → arguments, as the profile of the seed writes its calls."""
SEED_CALLS: dict[str, dict[str, Any]] = {
    "subscribe_nats": {"subject": "agent.rl.trajectory.v1", "queue_group": "rl-trainers"},
    "publish_nats": {"subject": "agent.rl.reward.v1", "payload": {"a": 1}, "schema_validate": True},
    "validate_trajectory": {"trajectory_data": TRAJECTORY, "schema": "trajectory.v1.schema.json"},
    "redact_sensitive_info": {"trajectory_data": TRAJECTORY, "patterns": ["api_key", "password", "email"]},
    "compute_reward": {
        "trajectory": TRAJECTORY,
        "historical_data": [TRAJECTORY],
        "weights": {"efficiency": 1},
    },
    "download_checkpoint": {"s3_path": "s3://pmoves-models/x", "local_path": "/tmp/checkpoints/"},
    "run_benchmarks": {"model_path": "m", "tasks": ["code_gen", "data_analysis", "research"]},
    "deploy_to_tensorzero": {
        "model_id": "agent-zero-rl-v2.3",
        "checkpoint_path": "s3://pmoves-models/x",
        "rollout_strategy": "canary",
    },
}
STRICT_KEYWORDS = {
    "type", "description", "enum", "const", "anyOf", "properties", "required", "additionalProperties",
    "items", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems",
    "pattern", "format",
}  # fmt: skip
"""Keywords that strict mode documents."""


def test_the_seeds_tools_have_its_arguments_first_and_take_its_calls() -> None:
    shown = {tool["name"]: tool["inputSchema"] for tool in mcp_tools(SCOPES)}
    for name, arguments in SEED.items():
        assert list(shown[name]["properties"])[: len(arguments)] == arguments
        jsonschema.Draft202012Validator(shown[name]).validate(SEED_CALLS[name])
        TOOLS[name].arguments.model_validate(SEED_CALLS[name])
        assert set(shown[name].get("required", ())) <= set(arguments)


@pytest.mark.parametrize("tool", openai_tools(SCOPES), ids=lambda tool: tool["function"]["name"])
def test_each_function_is_valid_under_strict_mode(tool: dict[str, Any]) -> None:
    function = tool["function"]
    assert function["strict"] is True and len(function["name"]) <= 64
    assert 60 < len(function["description"]) <= 1024
    jsonschema.Draft202012Validator.check_schema(function["parameters"])
    assert function["parameters"]["type"] == "object"
    for schema in every_schema(function["parameters"]):
        assert set(schema) <= STRICT_KEYWORDS, set(schema) - STRICT_KEYWORDS
        assert "type" in schema or "anyOf" in schema or "enum" in schema
        kinds = schema.get("type", ())
        if "object" in ([kinds] if isinstance(kinds, str) else kinds):
            assert schema["additionalProperties"] is False
            assert schema["required"] == list(schema["properties"])


def every_schema(schema: dict[str, Any]) -> list[dict[str, Any]]:
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    inner += [schema["items"]] if "items" in schema else []
    return [schema, *(found for one in inner for found in every_schema(one))]


def test_a_strict_call_with_nulls_and_json_text_is_the_same_call() -> None:
    """Strict mode makes every argument required: what is not meant comes as null, a document as its text."""
    functions = {tool["function"]["name"]: tool["function"]["parameters"] for tool in openai_tools(SCOPES)}
    given = {"trajectory": json.dumps(TRAJECTORY), "historical_data": None, "weights": '{"efficiency": 1.0}'}
    jsonschema.Draft202012Validator(functions["compute_reward"]).validate(given)
    present = {name: value for name, value in given.items() if value is not None}
    read = TOOLS["compute_reward"].arguments.model_validate(present)
    assert read.model_dump() == {
        "trajectory": TRAJECTORY, "historical_data": None, "weights": {"efficiency": 1.0},
    }  # fmt: skip
    nothing = dict.fromkeys(functions["start_training"]["properties"])
    jsonschema.Draft202012Validator(functions["start_training"]).validate(nothing)


def test_the_scopes_decide_what_is_listed_and_only_read_is_given_without_asking() -> None:
    assert {TOOLS[tool["name"]].scope for tool in mcp_tools()} == {"read"}
    assert [tool["function"]["name"] for tool in openai_tools()] == [tool["name"] for tool in mcp_tools()]
    assert [tool["name"] for tool in mcp_tools(SCOPES)] == list(TOOLS)
    assert len(mcp_tools({"release"})) == 2
    assert parse_scopes("train, read") == {"read", "train"}


async def test_a_call_that_is_not_possible_is_answered_with_the_next_step() -> None:
    box = Toolbox(Settings(), scopes={"read"})
    refused = await box.call("start_training")
    assert refused.is_error and refused.text.endswith("ask the operator to run it with --scope read,train.")
    with pytest.raises(UnknownToolError, match=r"^There is no tool 'statu': did you mean 'status'\?$"):
        await box.call("statu")
    with pytest.raises(UnknownToolError, match=r"^There is no tool 'zzz': there are status, report, "):
        await box.call("zzz")


def test_hints_say_which_call_changes_something() -> None:
    hints = {tool["name"]: tool["annotations"] for tool in mcp_tools(SCOPES)}
    assert all(hints[name]["readOnlyHint"] == (tool.scope == "read") for name, tool in TOOLS.items())
    destructive = {name for name, hint in hints.items() if hint["destructiveHint"]}
    assert destructive == {"cancel_job", "deploy_to_tensorzero", "release"}


def test_an_agents_process_that_imports_the_tools_loads_no_server_and_no_model() -> None:
    code = (
        "import asyncio, sys\n"
        "from onward.config import Settings\n"
        "from onward.tools import Toolbox\n"
        "box = Toolbox(Settings(data_dir='nowhere'), scopes={'read', 'train', 'release'})\n"
        "for name, given in (('status', {}), ('release', {'action': 'list'}), ('report', {}),\n"
        "                    ('start_training', {}), ('validate_trajectory', {'trajectory_data': {}})):\n"
        "    answer = asyncio.run(box.call(name, given))\n"
        "    assert answer.is_error == (name != 'validate_trajectory'), answer\n"
        "heavy = {'torch', 'fastapi', 'uvicorn', 'starlette', 'chdb', 'transformers', 'mcp', 'structlog'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (ran.stdout.strip(), ran.returncode) == ("[]", 0), ran.stderr
