"""What the models take, refuse and write: types as JSON Schema means them, nulls, times, ids."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import ValidationError

from onward.contracts import (
    Action,
    DatasetSpec,
    Feedback,
    Hyperparameters,
    ModelDeployed,
    Progress,
    RampStep,
    ReleaseTag,
    RequestMetadata,
    Result,
    Reward,
    Sampling,
    SessionOutcome,
    TrainingRequest,
    Trajectory,
    canonical_json,
    decode,
    encode,
    examples,
    to_document,
    validate,
)
from onward.errors import ContractError


def trajectory(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(examples.TRAJECTORY), **changes}


def test_the_seeds_manual_training_trigger_is_accepted() -> None:
    document = {
        "training_job_id": "manual-3f2b8c1e-6d0a-4f7c-9b1e-2a5d7c9e0f11",
        "timestamp": "2025-12-08T13:00:00Z",
        "requester": "admin-manual",
        "trigger_reason": "manual",
        "training_config": {
            "algorithm": "ppo",
            "base_model": "qwen2.5-32b-instruct",
            "dataset": {"source": "nats_stream", "stream_name": "RL_TRAJECTORIES", "sample_size": 5000},
            "hyperparameters": {"learning_rate": 1e-5, "batch_size": 32, "epochs": 3},
        },
    }
    request = decode(json.dumps(document).encode(), TrainingRequest)
    assert request.training_config.dataset.sample_size == 5000
    assert request.training_config.hyperparameters.learning_rate == 1e-5
    assert request.timestamp == datetime(2025, 12, 8, 13, tzinfo=UTC)
    assert json.loads(encode(request)) == {**document, "timestamp": "2025-12-08T13:00:00.000Z"}


def test_an_environment_job_travels_in_the_open_dataset() -> None:
    dataset = DatasetSpec(source="local", sample_size=64, environment={"name": "desk", "seed": 1})
    assert json.loads(canonical_json(dataset)) == {
        "source": "local",
        "sample_size": 64,
        "environment": {"name": "desk", "seed": 1},
    }


@pytest.mark.parametrize("value", [True, "1", 1.5, [1], -1])
def test_what_json_schema_calls_no_count_is_refused(value: Any) -> None:
    with pytest.raises(ContractError, match=r"^Progress.current_epoch should be "):
        validate({"current_epoch": value}, Progress)


def test_an_integer_written_as_1_0_is_an_integer() -> None:
    progress = validate({"current_epoch": 3.0, "percent_complete": 50}, Progress)
    assert canonical_json(progress) == b'{"current_epoch":3,"percent_complete":50.0}'


@pytest.mark.parametrize("value", [True, "0.5", [0.5], float("nan"), float("inf"), 10**400])
def test_what_json_schema_calls_no_number_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        Progress(eta_seconds=value)


def test_a_learning_rate_of_zero_is_refused_as_the_published_schema_means_it() -> None:
    with pytest.raises(ValidationError):
        Hyperparameters(learning_rate=0)


def test_a_field_may_be_none_in_python_and_is_left_out_of_the_json() -> None:
    action = Action(type="response", tool_name=None, raw_response="hello")
    assert canonical_json(action) == b'{"raw_response":"hello","type":"response"}'


def test_null_is_written_where_the_schema_has_it_and_somebody_gave_it() -> None:
    assert canonical_json(Result(success=True)) == b'{"success":true}'
    assert canonical_json(Result(success=True, output=None)) == b'{"output":null,"success":true}'
    assert canonical_json(RequestMetadata(previous_training_job=None)) == b'{"previous_training_job":null}'


def test_null_from_a_careless_publisher_counts_as_absent() -> None:
    action = validate({"type": "response", "tool_name": None}, Action)
    assert canonical_json(action) == b'{"type":"response"}'


def test_null_inside_open_parts_stays() -> None:
    document = trajectory()
    document["metadata"]["note"] = None
    document["turns"][0]["action"]["tool_args"] = {"limit": None}
    assert to_document(decode(canonical_json(document), Trajectory)) == document


def test_a_strangers_value_in_one_of_our_fields_is_kept_and_read_as_none() -> None:
    document = trajectory()
    document["metadata"]["outcome"] = "ok"
    document["metadata"]["release"] = "2025.1"
    document["turns"][0]["action"]["sampling"] = {"seed": 7}
    document["turns"][0]["result"]["checks"] = [1, 2]
    document["task_context"]["group_id"] = None
    message = decode(canonical_json(document), Trajectory)
    assert message.metadata.outcome is None
    assert message.metadata.release is None
    assert message.turns[0].action.sampling is None
    assert message.turns[0].result.checks is None
    assert message.task_context.group_id is None
    assert message.task_context.task_type == "arithmetic"
    assert encode(message) == canonical_json(document)
    assert encode(message.model_copy()) == canonical_json(document)


def test_a_mistake_of_our_own_in_one_of_our_fields_is_an_error() -> None:
    with pytest.raises(ValidationError):
        Action(type="response", sampling={"seed": 7})  # pyright: ignore[reportArgumentType]


def test_a_strangers_value_does_not_hide_a_mistake_beside_it() -> None:
    document = trajectory()
    document["metadata"]["outcome"] = "ok"
    document["metadata"]["temperature"] = 3
    with pytest.raises(ContractError, match=r"^Trajectory\.metadata\..*temperature"):
        decode(canonical_json(document), Trajectory)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-05T09:00:00Z", datetime(2026, 1, 5, 9, tzinfo=UTC)),
        ("2026-01-05t09:00:00z", datetime(2026, 1, 5, 9, tzinfo=UTC)),
        ("2026-01-05T11:30:00+02:30", datetime(2026, 1, 5, 9, tzinfo=UTC)),
        ("2026-01-05T09:00:00.1239999999999Z", datetime(2026, 1, 5, 9, 0, 0, 123000, tzinfo=UTC)),
    ],
)
def test_times_are_read_as_utc_in_milliseconds(text: str, moment: datetime) -> None:
    step = RampStep(timestamp=text, percentage=1)  # pyright: ignore[reportArgumentType]
    assert step.timestamp == moment
    assert step.timestamp.tzinfo is UTC


def test_a_time_of_another_zone_is_written_in_utc() -> None:
    eastern = datetime(2026, 1, 5, 4, 0, 0, 999999, tzinfo=timezone(timedelta(hours=-5)))
    data = canonical_json(RampStep(timestamp=eastern, percentage=1))
    assert data == b'{"percentage":1.0,"timestamp":"2026-01-05T09:00:00.999Z"}'


@pytest.mark.parametrize(
    "value",
    [
        "2026-01-05T09:00:00",
        "2026-01-05 09:00:00Z",
        "2026-01-05",
        "2026-02-30T00:00:00Z",
        "2026-01-05T24:00:01Z",
        "20260105T090000Z",
        "1767603600",
        1767603600,
        datetime(2026, 1, 5, 9),
        "0001-01-01T00:00:00+23:00",
        "２０２６-01-05T09:00:00Z",
        None,
    ],
)
def test_what_is_no_rfc_3339_time_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        RampStep(timestamp=value, percentage=1)


@pytest.mark.parametrize("bad", ["", "a.b", "a/b", "a>", "*", "ä", "a" * 129, "a\n", 5])
def test_ids_that_become_keys_follow_the_id_rule(bad: Any) -> None:
    for model, example, name in (
        (Trajectory, examples.TRAJECTORY, "trajectory_id"),
        (Reward, examples.REWARD, "reward_id"),
        (TrainingRequest, examples.TRAINING_REQUEST, "training_job_id"),
        (ModelDeployed, examples.MODEL_DEPLOYED, "deployment_id"),
        (Feedback, examples.FEEDBACK, "feedback_id"),
        (SessionOutcome, examples.OUTCOME, "outcome_id"),
    ):
        with pytest.raises(ContractError, match=rf"^{model.__name__}\.{name} should be"):
            validate({**example, name: bad}, model)


def test_a_session_id_is_any_text_of_1_to_512_characters() -> None:
    for good in ("x", "chat/7 of user@host", "é" * 512):
        assert validate(trajectory(session_id=good), Trajectory).session_id == good
    for bad in ("", "x" * 513, 7, None):
        with pytest.raises(ContractError, match=r"^Trajectory\.session_id should"):
            validate(trajectory(session_id=bad), Trajectory)


def test_top_level_is_closed_and_parts_are_open() -> None:
    with pytest.raises(ContractError, match=r"^Trajectory has 1 unknown field"):
        validate(trajectory(comment="x"), Trajectory)
    document = trajectory()
    document["turns"][0]["observation"]["context"]["screen"] = [1920, 1080]
    assert to_document(validate(document, Trajectory)) == document


def test_assignment_is_checked() -> None:
    message = validate(trajectory(), Trajectory)
    message.agent_id = "other"
    with pytest.raises(ValidationError):
        message.agent_id = 5  # pyright: ignore[reportAttributeAccessIssue]


def test_a_rating_needs_a_value() -> None:
    without = {key: value for key, value in examples.FEEDBACK.items() if key != "value"}
    with pytest.raises(ContractError, match="rating"):
        validate(without, Feedback)
    assert validate({**without, "signal": "thumbs_up"}, Feedback).value is None


def test_a_sampling_record_survives_the_trip_exactly() -> None:
    record = Sampling(
        generation_id="g-1",
        continues=None,
        prompt_ids=[5, 6],
        token_ids=[7],
        logprobs=[-0.1],
        temperature=0.7,
        top_p=1.0,
        top_k=None,
        finish_reason="stop",
        model_digest="d",
    )
    data = canonical_json(record)
    assert data == (
        b'{"continues":null,"finish_reason":"stop","generation_id":"g-1","logprobs":[-0.1],"model_digest":"d",'
        b'"prompt_ids":[5,6],"temperature":0.7,"token_ids":[7],"top_k":null,"top_p":1.0}'
    )
    assert decode(data, Sampling) == record


def test_outside_of_a_release_the_tag_has_a_null_id() -> None:
    assert (
        canonical_json(ReleaseTag(release_id=None, arm="current")) == b'{"arm":"current","release_id":null}'
    )


def test_no_error_of_a_model_shows_the_input() -> None:
    secret = "sk-" + "a" * 40
    with pytest.raises(ValidationError) as caught:
        Progress(eta_seconds=secret)  # pyright: ignore[reportArgumentType]
    assert secret[:6] not in str(caught.value)


def test_importing_the_contracts_loads_nothing_heavy() -> None:
    code = (
        "import sys, onward.contracts; "
        "print([m for m in ('torch', 'numpy', 'nats', 'fastapi', 'starlette', 'uvicorn', 'httpx', 'chdb', "
        "'orjson', 'obstore', 're2', 'pydantic_settings') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
