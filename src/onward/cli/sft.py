"""``onward sft export``: exports well-scored trajectories as demonstrations for an open model."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from onward.cli import ConfigFile, DataDir, app, load_settings
from onward.cli.command_options import with_options
from onward.cli.exporting import Force, Out, check_format, run_export
from onward.cli.help import Commands
from onward.cli.output import AsJson
from onward.cli.trajectory_options import Filters, Limit, filter_options, plural
from onward.export.demonstrations import MIN_REWARD, Demonstrations, Form
from onward.export.run import Export

FORMATS: dict[Form, str] = {
    "openai": "messages and tools as the chat API takes them, which 'onward train' reads too",
    "text": "roles and texts alone, tools and calls told in words",
}
sft_app = Commands(
    help="""Demonstrations: what scored well, to imitate.

    onward sft export --out demonstrations.jsonl
    onward train --algorithm sft --model smollm2 --data demonstrations.jsonl
    """
)
app.add_typer(sft_app, name="sft")


@sft_app.callback()
def _group() -> None:
    """Keeps ``export`` a subcommand."""


@sft_app.command()
@with_options("filters", filter_options("outcome", "min_reward"), build=Filters)
def export(
    *,
    out: Out,
    min_reward: Annotated[float, typer.Option(help="Reward (raw_total) of at least this.")] = MIN_REWARD,
    format: Annotated[
        str, typer.Option(help="; ".join(f"{name}: {words}" for name, words in FORMATS.items()) + ".")
    ] = "openai",
    filters: Filters,
    limit: Limit = None,
    force: Force = False,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Export trajectories that succeeded and scored well as conversations to imitate, each once.

    Left out, and counted: trajectories without success, with a lower score, with an answer that could not be
    read, or with a text that was cut. Any model may have acted: this is the way from a closed model to an
    open one (docs/closed-models.md).

    onward sft export --min-reward 0.8 --model gpt-4.1 --out demonstrations.jsonl
    """
    made = Demonstrations(check_format(format, FORMATS))
    which = replace(filters, outcome="success", min_reward=min_reward).selection()

    def work(job: Export) -> Any:
        return job.demonstrations(made)

    run_export(
        load_settings(file, data_dir), which, limit, out, work,
        lambda report: f"{plural(report.written, 'demonstration')} from {report.stored:,} trajectories",
        force=force, as_json=as_json,
    )  # fmt: skip
