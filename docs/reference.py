"""Writes the tables of the docs that come from the code: ``python docs/reference.py``.

A table stands between ``<!-- made: NAME -->`` and ``<!-- end -->`` and is never edited by hand. A test
fails when a page differs from what this file makes, when a setting has no words, or when words name a
setting that is gone.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel, SecretStr
from typer.core import TyperGroup

from onward import cli, config
from onward.bus.streams import DAY, HOUR, MIB, STREAMS
from onward.cli.renamed import RENAMED
from onward.config import SEED_VARIABLES, Settings
from onward.contracts.subjects import TOPICS
from onward.lm.families.table import FAMILIES
from onward.redaction import RULES
from onward.redaction.rule import LAYERS
from onward.release.plan import TRANSITIONS as RELEASE_STATES
from onward.rubrics.gym.files import CHECKS as FILE_CHECKS
from onward.rubrics.gym.loading import load_workflow, workflow_names
from onward.rubrics.gym.truth_files import truth_of
from onward.rubrics.gym.workers import requirements
from onward.rubrics.tasks import CHECKS
from onward.serving.protocol.parameters import TABLES as PARAMETERS
from onward.serving.protocol.parameters import Answered, Refused
from onward.training.role.job_table import TRANSITIONS as JOB_STATES

DOCS = Path(__file__).parent

WORDS: dict[str, str] = {
    "data_dir": "The data folder; everything that Onward keeps on this machine is in it.",
    "agentzero_jetstream": "Accepted, without effect: there is no way without JetStream.",
    "warehouse.user": "User of the ClickHouse server.",
    "warehouse.password": "Password of that user.",
    "warehouse.database": "Database with the tables; made at the first start.",
    "http.host": "Address to listen on. Beyond this machine only with `http.keys` or `http.auth`.",
    "model.max_batch": "Answers that the engine computes at the same time.",
    "model.max_context": "Tokens of prompt and answer together.",
    "reward.task_completion": "Weight of task completion. All weights together sum to 1.",
    "reward.efficiency": "Weight of efficiency.",
    "reward.code_quality": "Weight of code quality; shared out among the others where no code was written.",
    "reward.user_feedback": "Weight of user feedback.",
    "reward.normalization": "How `total_reward` is normalised: `z-score`, `min-max` or `none`.",
    "reward.window": "Scores that normalisation looks back on.",
    "training.learning_rate": "Only when set; else the model's recipe decides.",
    "training.batch_size": "Token rows per optimiser step. Only when set; else the recipe.",
    "training.epochs": "Passes over the dataset. Only when set; else the recipe.",
    "training.clip_epsilon": "Clip range of the ratio. Only when set; else the recipe.",
    "training.sample_size": "Trajectories of a job at most, newest first.",
    "training.lease_seconds": "A running job whose record stands still for so long is taken over.",
    "training.return_from": "What is learned from: `outcome` or `raw_total`.",
    "release.bake_minutes": "Least time at 100 % before the release closes.",
    "release.error_ceiling": "Error rate that the error gate tolerates.",
    "release.error_maturity_seconds": "A session's error verdict is judged so long after its assignment.",
    "release.reward_maturity_seconds": "The same for its outcome; feedback waits 7.5 times as long.",
    "release.on_inconclusive": "At the end of a step without proof: `promote`, `hold` or `ask`.",
}
"""Settings without a docstring of their own in ``config/``."""


def docstrings() -> dict[str, dict[str, str]]:
    """Class → field → its docstring, from the sources of ``config/``."""
    sources = sorted(Path(config.__file__).parent.glob("*.py"))
    nodes = [node for source in sources for node in ast.parse(source.read_text(encoding="utf-8")).body]
    found: dict[str, dict[str, str]] = {}
    for node in nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        for field, after in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = after.value if isinstance(after, ast.Expr) else None
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    words = " ".join(text.value.replace("``", "`").split())
                    found.setdefault(node.name, {})[field.target.id] = words
    return found


def keys() -> dict[str, tuple[Any, str]]:
    """Dotted key → (default, docstring or empty text), in the order of ``Settings``."""
    texts = docstrings()
    settings = Settings.model_validate({})
    found: dict[str, tuple[Any, str]] = {}
    for name in Settings.model_fields:
        value = getattr(settings, name)
        if not isinstance(value, BaseModel):
            found[name] = (value, texts.get("Settings", {}).get(name, ""))
            continue
        for field in type(value).model_fields:
            words = texts.get(type(value).__name__, {}).get(field, "")
            found[f"{name}.{field}"] = (getattr(value, field), words)
    return found


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head)]
    lines += [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def settings_table() -> str:
    rows = [(f"`{key}`", _default(value), words or WORDS[key]) for key, (value, words) in keys().items()]
    return table(("key", "default", "what it does"), rows)


def variables_table() -> str:
    rows = [(f"`{name}`", f"`{'.'.join(path)}`") for name, path in SEED_VARIABLES.items()]
    rows.append(("`CANARY_INITIAL_TRAFFIC`", "the first number of `release.steps`"))
    rows.append(("`ROLLBACK_REWARD_THRESHOLD`", "`release.reward_margin`, the sign dropped"))
    return table(("variable", "setting"), rows)


def streams_table() -> str:
    rows = []
    for spec in STREAMS.values():
        age = f"{spec.max_age / DAY:g} days" if spec.max_age else "forever"
        window = f"{spec.duplicate_window / HOUR:g} h" if spec.duplicate_window >= HOUR else "2 min"
        names = "<br>".join(f"`{subject}`" for subject in spec.subjects)
        rows.append((f"`{spec.name}`", names, age, f"{spec.max_bytes // MIB} MiB", window, spec.what))
    return table(("stream", "subjects", "kept", "at most", "dedupe window", "what"), rows)


def subjects_table() -> str:
    rows = [
        (
            f"`{topic.subject}`",
            ", ".join(topic.publishers),
            ", ".join(topic.subscribers),
            f"`{topic.stream}`" if topic.stream else "none",
            topic.description,
        )
        for topic in TOPICS
    ]
    return table(("subject", "published by", "read by", "stream", "what"), rows)


def jobs_table() -> str:
    return _states(JOB_STATES)


def releases_table() -> str:
    return _states(RELEASE_STATES)


def rules_table() -> str:
    kinds: dict[int, dict[str, None]] = {}
    for rule in RULES:
        kinds.setdefault(rule.layer, {})[rule.kind] = None
    rows = [(LAYERS[layer], ", ".join(f"`{kind}`" for kind in kinds[layer])) for layer in sorted(kinds)]
    return table(("recognised by", "kinds"), rows)


def nouns_table() -> str:
    """Every group of commands with its verbs."""
    rows = [
        (
            f"`{name}`",
            ", ".join(f"`{verb}`" for verb in command.commands if verb in _shown(command)),
            _first(command),
        )
        for name, command in _commands().items()
        if isinstance(command, TyperGroup)
    ]
    return table(("noun", "verbs", "what"), rows)


def commands_table() -> str:
    """Every command that is no group."""
    rows = [
        (f"`onward {name}`", _first(command))
        for name, command in _commands().items()
        if not isinstance(command, TyperGroup)
    ]
    return table(("command", "what it does"), rows)


def renamed_table() -> str:
    rows = [(f"`onward {old}`", f"`onward {new}`") for old, new in RENAMED.items()]
    return table(("old", "now"), rows)


def families_table() -> str:
    """Families of networks, with the class of transformers that their tests compare with."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    rows = [
        (one.title, f"`{one.model_type}`", one.special, f"`{CLASSES[one.model_type]}`")
        for one in FAMILIES.values()
    ]
    return table(("models", "`model_type`", "beside plain Llama", "compared with"), rows)


def checks_table() -> str:
    rows = [
        (
            f"`{name}`",
            kind.dimension,
            ", ".join(f"`{arg}`" for arg in kind.args if arg) or "none",
            kind.question.format(arg="…"),
        )
        for name, kind in CHECKS.items()
    ]
    return table(("check", "dimension", "arguments", "question"), rows)


def workflows_table() -> str:
    rows = []
    for name in workflow_names():
        workflow, truth = load_workflow(name), truth_of(name)
        files = f"{len(workflow.leaves())} / {len(requirements(workflow))}"
        rows.append((f"`{name}`", workflow.title, files, f"{truth.title} ({truth.level})"))
    return table(("workflow", "subject", "tasks / checks", "ground truth (level)"), rows)


def file_checks_table() -> str:
    rows = [
        (f"`{name}`", one.dimension, one.sentence.replace("{", "*").replace("}", "*"))
        for name, one in FILE_CHECKS.items()
    ]
    return table(("check", "topic", "it holds if"), rows)


def _commands() -> dict[str, Any]:
    for module in cli.COMMANDS:
        importlib.import_module(f"onward.cli.{module}")
    root = typer.main.get_group(cli.app)
    return {name: root.commands[name] for name in _shown(root)}


def _shown(group: Any) -> list[str]:
    names = group.list_commands(None)
    return [name for name in names if not group.commands[name].hidden]


def _first(command: Any) -> str:
    return (command.help or "").split("\n\n")[0]


def parameters_table(path: str) -> str:
    """Answered parameters in the order of the code; then those that are refused, by what to do instead."""
    listed = PARAMETERS[path]
    rows = [(f"`{name}`", entry.words) for name, entry in listed.items() if isinstance(entry, Answered)]
    refused: dict[str, list[str]] = {}
    for name, entry in listed.items():
        if isinstance(entry, Refused):
            passes = ", ".join(f"`{json.dumps(value)}`" for value in entry.passes if value != "")
            words = "refused" + (f" unless {passes}" if passes else "")
            words += f": {entry.instead}" if entry.instead else ""
            refused.setdefault(words, []).append(f"`{name}`")
    merged: dict[str, list[str]] = {}
    for name, words in rows:
        merged.setdefault(words, []).append(name)
    rows = [(", ".join(names), words) for words, names in [*merged.items(), *refused.items()]]
    return table(("parameter", "what happens"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "settings": settings_table,
    "variables": variables_table,
    "streams": streams_table,
    "subjects": subjects_table,
    "jobs": jobs_table,
    "releases": releases_table,
    "rules": rules_table,
    "nouns": nouns_table,
    "commands": commands_table,
    "renamed": renamed_table,
    "families": families_table,
    "checks": checks_table,
    "workflows": workflows_table,
    "file_checks": file_checks_table,
    "chat": lambda: parameters_table("/v1/chat/completions"),
    "completions": lambda: parameters_table("/v1/completions"),
    "responses": lambda: parameters_table("/v1/responses"),
}
_PLACE = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.S)


def filled(text: str) -> str:
    """``text`` with every table as it should be."""
    return _PLACE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", text)


def _states(table_of: Any) -> str:
    rows = [
        (f"`{state}`", ", ".join(f"`{after}`" for after in sorted(after_it)) or "the end")
        for state, after_it in table_of.items()
    ]
    return table(("state", "may become"), rows)


def _default(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, SecretStr):
        return "empty"
    return f"`{json.dumps(str(value) if isinstance(value, Path) else value)}`"


def main() -> None:
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if filled(text) != text:
            page.write_text(filled(text), encoding="utf-8")
            sys.stdout.write(f"{page.name} was brought up to date\n")


if __name__ == "__main__":
    main()
