"""The models against the published schemas, both ways, and the generated files against the models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schema_documents import FOLDER, documents, published, validator

from onward.contracts import canonical_json, decode, encode, examples
from onward.contracts.generate import MODELS, SCHEMAS, differences, export, schema_of
from onward.contracts.subjects import TOPICS
from onward.errors import ContractError

FILES = {topic.schema: MODELS[topic.subject] for topic in TOPICS if topic.schema}
PUBLISHED = [
    "trajectory.v1.schema.json",
    "reward.v1.schema.json",
    "training.request.v1.schema.json",
    "training.status.v1.schema.json",
    "model.deployed.v1.schema.json",
]
EXAMPLES = {
    "trajectory.v1.schema.json": examples.TRAJECTORY,
    "reward.v1.schema.json": examples.REWARD,
    "feedback.v1.schema.json": examples.FEEDBACK,
    "outcome.v1.schema.json": examples.OUTCOME,
    "training.request.v1.schema.json": examples.TRAINING_REQUEST,
    "training.status.v1.schema.json": examples.TRAINING_STATUS,
    "model.deployed.v1.schema.json": examples.MODEL_DEPLOYED,
}
needs_published = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the published schemas are not beside the repo"
)
quick = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@needs_published
@pytest.mark.parametrize("name", PUBLISHED)
def test_what_the_published_schema_allows_is_accepted_and_written_back_valid_there(name: str) -> None:
    schema = published(name)
    check = validator(schema)

    @quick
    @given(documents(schema))
    def run(document: dict[str, Any]) -> None:
        assert check.is_valid(document)
        written = json.loads(encode(decode(canonical_json(document), FILES[name])))
        check.validate(written)

    run()


@needs_published
@pytest.mark.parametrize("name", PUBLISHED)
def test_nothing_of_a_published_document_is_lost(name: str) -> None:
    @quick
    @given(documents(published(name), canonical_times=True))
    def run(document: dict[str, Any]) -> None:
        assert json.loads(encode(decode(canonical_json(document), FILES[name]))) == document

    run()


@pytest.mark.parametrize("name", sorted(FILES))
def test_what_our_schema_allows_is_accepted_and_is_valid_under_the_published_one(name: str) -> None:
    schema = schema_of(FILES[name])
    ours = validator(schema)
    theirs = validator(published(name)) if FOLDER.is_dir() and name in PUBLISHED else ours

    @quick
    @given(documents(schema))
    def run(document: dict[str, Any]) -> None:
        if not ours.is_valid(document):
            assert document.get("signal") == "rating"
            return
        written = encode(decode(canonical_json(document), FILES[name]))
        ours.validate(json.loads(written))
        theirs.validate(json.loads(written))
        assert encode(decode(written, FILES[name])) == written

    run()


@needs_published
@pytest.mark.parametrize("name", PUBLISHED)
def test_our_schema_allows_what_the_published_one_allows(name: str) -> None:
    ours = validator(schema_of(FILES[name]))

    @quick
    @given(documents(published(name)))
    def run(document: dict[str, Any]) -> None:
        ours.validate(document)

    run()


@needs_published
@pytest.mark.parametrize("name", PUBLISHED)
def test_what_both_schemas_refuse_the_model_refuses(name: str) -> None:
    """One value of a valid document is replaced by any JSON: model and generated schema agree on it."""
    ours = validator(schema_of(FILES[name]))
    model = FILES[name]

    @quick
    @given(documents(published(name), canonical_times=True), st.data())
    def run(document: dict[str, Any], data: st.DataObject) -> None:
        places = list(_places(document))
        holder, key = data.draw(st.sampled_from(places))
        holder[key] = data.draw(st.sampled_from(["1", "x", True, 2.5, -1, [], {}, [1], {"a": 1}]))
        try:
            decode(canonical_json(document), model)
            accepted = True
        except ContractError:
            accepted = False
        assert accepted == ours.is_valid(document)

    run()


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    for key, inner in items:
        yield value, key
        yield from _places(inner)


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_property_has_a_description(name: str) -> None:
    schema = schema_of(FILES[name])
    for part in (schema, *schema.get("$defs", {}).values()):
        for property_name, declared in part["properties"].items():
            assert declared.get("description"), f"{part['title']}.{property_name}"


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_schema_has_an_example_that_is_valid(name: str) -> None:
    schema = schema_of(FILES[name])
    assert schema["examples"] == [EXAMPLES[name]]
    validator(schema).validate(EXAMPLES[name])
    data = canonical_json(EXAMPLES[name])
    assert encode(decode(data, FILES[name])) == data
    if FOLDER.is_dir() and name in PUBLISHED:
        validator(published(name)).validate(EXAMPLES[name])


@needs_published
@pytest.mark.parametrize("name", PUBLISHED)
def test_fields_required_and_closed_are_the_published_ones(name: str) -> None:
    ours, theirs = schema_of(FILES[name]), published(name)
    assert sorted(ours["properties"]) == sorted(theirs["properties"])
    assert sorted(ours["required"]) == sorted(theirs["required"])
    assert ours["additionalProperties"] is False


def test_generated_files_are_those_of_the_models() -> None:
    assert differences() == [], "run python -m onward.contracts.generate"


def test_check_names_a_changed_a_missing_and_a_leftover_file(tmp_path: Path) -> None:
    for path in SCHEMAS.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert differences(tmp_path) == []
    (tmp_path / "reward.v1.schema.json").write_text("{}")
    (tmp_path / "topics.json").unlink()
    (tmp_path / "old.v1.schema.json").write_text("{}")
    assert differences(tmp_path) == ["old.v1.schema.json", "reward.v1.schema.json", "topics.json"]


def test_the_generator_answers_check_and_bad_usage_with_its_exit_code() -> None:
    command = [sys.executable, "-m", "onward.contracts.generate"]
    good = subprocess.run([*command, "--check"], capture_output=True, text=True, check=False)
    assert (good.returncode, good.stdout, good.stderr) == (0, "", "")
    bad = subprocess.run([*command, "--what"], capture_output=True, text=True, check=False)
    assert bad.returncode == 2
    assert bad.stderr.startswith("usage:")


def test_topics_name_files_that_exist_and_the_status_request_is_in_no_stream() -> None:
    topics = json.loads((SCHEMAS / "topics.json").read_text())["topics"]
    assert {entry["schema"] for entry in topics.values() if "schema" in entry} == set(FILES)
    assert topics["agent.rl.training.status.request"]["stream"] is None
    assert topics["agent.rl.training.request.v1"] == {
        "schema": "training.request.v1.schema.json",
        "description": "Request for one training job.",
        "publisher": ["coordinator", "operator"],
        "subscriber": ["trainer"],
        "stream": "RL_TRAINING",
    }


def test_export_writes_the_tree_that_pmoves_expects(tmp_path: Path) -> None:
    written = export(tmp_path)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in written) == [
        "pmoves/contracts/schemas/agent-rl/feedback.v1.schema.json",
        "pmoves/contracts/schemas/agent-rl/model.deployed.v1.schema.json",
        "pmoves/contracts/schemas/agent-rl/outcome.v1.schema.json",
        "pmoves/contracts/schemas/agent-rl/reward.v1.schema.json",
        "pmoves/contracts/schemas/agent-rl/training.request.v1.schema.json",
        "pmoves/contracts/schemas/agent-rl/training.status.v1.schema.json",
        "pmoves/contracts/schemas/agent-rl/trajectory.v1.schema.json",
        "pmoves/contracts/topics.json",
    ]
    topics = json.loads((tmp_path / "pmoves/contracts/topics.json").read_text())
    assert topics["v"] == 1
    for entry in topics["topics"].values():
        if "schema" in entry:
            assert (tmp_path / "pmoves/contracts" / entry["schema"]).is_file()
