"""``onward models check``: says whether a base model can be used here, and what it needs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, get_args

import typer

from onward.cli import ConfigFile, DataDir, load_settings
from onward.cli.models import models_app
from onward.cli.output import AsJson, Table, facts, number, print_json, print_text, say
from onward.config import ModelSettings
from onward.errors import ConfigError, OnwardError
from onward.lm.devices import Dtype
from onward.lm.model_folder import ModelFolder, inspect
from onward.lm.model_path import path_of
from onward.memory import free_memory
from onward.serving import base_models
from onward.serving.engines.capabilities import ENGINES
from onward.training.job.model_needs import gigabytes, needs

_FORMATS = get_args(Dtype)
_PURPOSES = {"serving": "to be served", "lora": "to train an adapter", "full": "to train all of its weights"}


@models_app.command()
def check(
    model: Annotated[str, typer.Argument(metavar="FOLDER|NAME", help="A folder, alias, tiny or smollm2.")],
    dtype: Annotated[
        str | None,
        typer.Option(help=f"Number format to run in: {', '.join(_FORMATS)}. Default: model.dtype."),
    ] = None,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Check whether a base model can be used here: family, size, memory, tokenizer, chat template.

    Reads no weights and needs no torch, so it takes a second. Exit code 2: it cannot be served here.

    onward models check /models/qwen
    onward models check /models/qwen --dtype bfloat16
    onward models check smollm2 --json
    """
    settings = load_settings(file, data_dir)
    chosen = settings.model.dtype if dtype is None else dtype
    if chosen not in _FORMATS:
        raise ConfigError(f"--dtype is {chosen[:40]!r}: give one of {', '.join(_FORMATS)}.")
    try:
        folder = base_models.resolve(model, settings.data_dir / "models", settings.models)
        found = described(inspect(folder), settings.model.model_copy(update={"dtype": chosen}))
    except OnwardError as error:
        if not as_json:
            raise
        print_json({"model": model, "servable": False, "why": str(error)})
        raise typer.Exit(2) from None
    if as_json:
        print_json({"model": model, **found})
    else:
        _show(found)
    if not found["servable"]:
        raise typer.Exit(2)


def described(model: ModelFolder, settings: ModelSettings) -> dict[str, Any]:
    """Returns the facts about a model that passed the check, what its engine offers, and whether it fits into
    free memory now."""
    free = free_memory()
    memory = {
        purpose: {"bytes": int(need.total), "fits": need.total <= free}
        for purpose, need in needs(
            model, dtype=settings.dtype, path=settings.path, max_context=settings.max_context
        ).items()
    }
    fits, offered = memory["serving"]["fits"], ENGINES[settings.engine]
    path = path_of(model.config, settings.path)
    return {
        "folder": str(model.folder),
        "family": model.family,
        "path": path.name,
        "path_reason": path.reason,
        "parameters": model.parameters,
        "dtype": model.dtype,
        "disk_bytes": model.disk_bytes,
        "context": model.config.get("max_position_embeddings"),
        "vocabulary": model.chat.vocabulary,
        "template_shows_tools": model.chat.shows_tools,
        "template_opens_answer": model.chat.opens_answer,
        "end_of_turn": list(model.chat.end_of_turn),
        "engine": {"name": settings.engine, **asdict(offered), "trains": offered.trains},
        "memory": memory,
        "memory_dtype": "float32" if settings.dtype == "auto" else settings.dtype,
        "free_bytes": free,
        "servable": fits,
        "why": None if fits else f"serving needs more memory than the {gigabytes(free)} that are free",
    }


def _offers(engine: dict[str, Any]) -> str:
    adapters = "loads adapters" if engine["adapters"] else "loads no adapters"
    if not engine["trains"]:
        answers = "answers are not trained on"
    elif engine["truncated_logprobs"]:
        answers = "all answers can be trained on"
    else:
        answers = "answers can be trained on without top-p, top-k or a grammar"
    return f"{engine['name']}: {adapters}; {answers}; {'streams' if engine['streams'] else 'does not stream'}"


def _show(found: dict[str, Any]) -> None:
    weights = f"{found['parameters']:,}, {found['dtype']}, {gigabytes(found['disk_bytes'])} on disk"
    tools = "shows tools" if found["template_shows_tools"] else "has no tools: they are shown in words"
    opens = "opens the answer" if found["template_opens_answer"] else "does not open the answer"
    print_text(
        facts(
            {
                "folder": found["folder"],
                "family": found["family"],
                "path": f"{found['path']}: {found['path_reason']}",
                "weights": weights,
                "context": f"{found['context']:,} tokens" if found["context"] else "not stated",
                "tokenizer": f"{found['vocabulary']:,} tokens",
                "template": f"{tools}; {opens}",
                "answers end with": ", ".join(found["end_of_turn"]),
                "engine": _offers(found["engine"]),
            }
        ),
        "",
    )
    table = Table(
        "what for", number("memory"), "fits here", title=f"Memory in {found['memory_dtype']}, estimated"
    )
    for purpose, need in found["memory"].items():
        table.add_row(_PURPOSES[purpose], gigabytes(need["bytes"]), "yes" if need["fits"] else "no")
    print_text(table, f"{gigabytes(found['free_bytes'])} are free now.")
    if not found["servable"]:
        say(f"It cannot be served here: {found['why']}.", err=True)
