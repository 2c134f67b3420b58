"""Writes the JSON Schema files and topics.json from the models: ``python -m onward.contracts.generate``.

With ``--check`` nothing is written and the exit code is 1 when a file differs. The files are checked in,
so that publishers in other languages can use them, and a test compares them with the models.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from onward.contracts.base import Message
from onward.contracts.deployment import ModelDeployed
from onward.contracts.feedback import Feedback
from onward.contracts.outcome import SessionOutcome
from onward.contracts.reward import Reward
from onward.contracts.subjects import (
    FEEDBACK,
    MODEL_DEPLOYED,
    OUTCOME,
    REWARD,
    TOPICS,
    TRAINING_REQUEST,
    TRAINING_STATUS,
    TRAJECTORY,
)
from onward.contracts.training import TrainingRequest, TrainingStatus
from onward.contracts.trajectory import Trajectory
from onward.files import make_folder

SCHEMAS = Path(__file__).parent / "schemas"

MODELS: dict[str, type[Message]] = {
    TRAJECTORY: Trajectory,
    REWARD: Reward,
    FEEDBACK: Feedback,
    OUTCOME: SessionOutcome,
    TRAINING_REQUEST: TrainingRequest,
    TRAINING_STATUS: TrainingStatus,
    MODEL_DEPLOYED: ModelDeployed,
}
"""Subject → model, for every subject with a published schema."""


def schema_of(model: type[Message]) -> dict[str, Any]:
    """Returns the JSON Schema (2020-12) of a message in its form on the wire."""
    schema = model.model_json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        if "description" in part:
            part["description"] = " ".join(part["description"].replace("``", "`").split())
        for declared in part.get("properties", {}).values():
            declared.pop("title", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def topics(prefix: str) -> dict[str, Any]:
    """Returns the registry of subjects; ``prefix`` is the path from topics.json to the schema files."""
    registry = {}
    for topic in TOPICS:
        entry: dict[str, Any] = {"schema": prefix + topic.schema} if topic.schema else {}
        entry["description"] = topic.description
        entry["publisher"] = list(topic.publishers)
        entry["subscriber"] = list(topic.subscribers)
        entry["stream"] = topic.stream
        registry[topic.subject] = entry
    return {"v": 1, "topics": registry}


def files() -> dict[str, str]:
    """Returns file name → text of everything in ``schemas/``."""
    schemas = {topic.schema: MODELS[topic.subject] for topic in TOPICS if topic.schema}
    texts = {name: _text(schema_of(model)) for name, model in schemas.items()}
    return {**texts, "topics.json": _text(topics(""))}


def export(target: Path) -> list[Path]:
    """Writes the tree of the published contracts under ``target``; returns the files written, sorted.

    ``pmoves/contracts/topics.json`` and ``pmoves/contracts/schemas/agent-rl/*.schema.json``. Existing files
    of these names are replaced. Raises ConfigError if the folder cannot be created.
    """
    contracts = target / "pmoves" / "contracts"
    make_folder(target)
    written = []
    for name, text in files().items():
        if name == "topics.json":
            path, text = contracts / name, _text(topics("schemas/agent-rl/"))
        else:
            path = contracts / "schemas" / "agent-rl" / name
        make_folder(path.parent)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return sorted(written)


def differences(folder: Path = SCHEMAS) -> list[str]:
    """Returns the names of files in ``folder`` that are missing, changed or left over."""
    expected = files()
    found = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.json"))}
    return sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python -m onward.contracts.generate [--check]\n")
        return 2
    different = differences()
    if arguments == ["--check"]:
        for name in different:
            sys.stderr.write(f"{name} differs from the models: run python -m onward.contracts.generate\n")
        return 1 if different else 0
    SCHEMAS.mkdir(exist_ok=True)
    expected = files()
    for name in different:
        if name in expected:
            (SCHEMAS / name).write_text(expected[name], encoding="utf-8")
        else:
            (SCHEMAS / name).unlink()
    return 0


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
