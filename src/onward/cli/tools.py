"""``onward tools list|schema|call|choose``: the tools of an agent, from a shell."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.help import Commands
from onward.cli.mcp import ScopeList
from onward.cli.output import AsJson, Table, number, print_json, print_text, say
from onward.contracts import decode_document
from onward.errors import ConfigError, ContractError
from onward.tools import TOOLS, Toolbox, mcp_tools, openai_tools
from onward.tools.tool import SCOPES, parse_scopes
from onward.tools.toolbox import Answer

tools_app = Commands(
    help="""Tools by which an agent works with the loop: list them, print their schemas, call one.

    onward tools list
    onward tools schema --format openai --scope read,train
    onward tools call status
    """
)
app.add_typer(tools_app, name="tools")


@tools_app.command(name="list")
def list_tools(scope: ScopeList = ",".join(SCOPES), as_json: AsJson = False) -> None:
    """List the tools, each with the scope that it needs and its arguments.

    onward tools list
    onward tools list --scope read
    """
    scopes = parse_scopes(scope)
    rows = [
        {
            "tool": tool.name,
            "scope": tool.scope,
            "arguments": list(tool.arguments.model_json_schema()["properties"]),
            "what": tool.summary,
        }
        for tool in TOOLS.values()
        if tool.scope in scopes
    ]
    if as_json:
        print_json(rows)
        return
    table = Table("tool", "scope", "arguments", "what it does")
    for row in rows:
        table.add_row(row["tool"], row["scope"], ", ".join(row["arguments"]), row["what"])
    print_text(table)


@tools_app.command()
def schema(
    form: Annotated[
        Literal["openai", "mcp"], typer.Option("--format", help="openai: functions under strict mode.")
    ] = "openai",
    scope: ScopeList = ",".join(SCOPES),
) -> None:
    """Print the tools as JSON, to be given to a model or a client.

    onward tools schema --format openai --scope read,train
    onward tools schema --format mcp
    """
    scopes = parse_scopes(scope)
    print_json(openai_tools(scopes) if form == "openai" else mcp_tools(scopes))


@tools_app.command()
def call(
    name: Annotated[str, typer.Argument(help="Name of the tool: see 'onward tools list'.")],
    arguments: Annotated[str, typer.Argument(help="Its arguments, one JSON object.")] = "{}",
    scope: ScopeList = ",".join(SCOPES),
    file: ConfigFile = None,
    data_dir: DataDir = None,
) -> None:
    """Call one tool against the running service, and print the answer that an agent would get.

    Exit code 2: the answer is an error.

    onward tools call status
    onward tools call start_training '{"sample_size": 10000, "days": 30}'
    """
    try:
        given = decode_document(arguments.encode())
    except ContractError:
        given = None
    if not isinstance(given, dict):
        raise ConfigError(
            f"The arguments are {arguments[:60]!r}: give one JSON object in quotes, such as "
            "'{\"limit\": 5}'."
        )
    settings = load_settings(file, data_dir)

    async def work() -> Answer:
        async with Toolbox(settings, scopes=parse_scopes(scope), config_file=file) as box:
            return await box.call(name, given)

    answer = run_async(work())
    say(answer.text, err=answer.is_error)
    if answer.is_error:
        raise typer.Exit(2)


@tools_app.command()
def choose(
    base_url: Annotated[str, typer.Option(help="Address of an OpenAI-compatible server, with /v1.")],
    model: Annotated[str, typer.Option(help="Model that shall choose.")],
    cases: Annotated[
        Path | None, typer.Option(help="JSON lines of your own; default: the suite that Onward ships.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how often a model picks the right tool, from the schemas alone.

    The key is read from the variable OPENAI_API_KEY.

    onward tools choose --base-url http://127.0.0.1:3000/v1 --model current
    """
    from onward.tools.choice import ask_all, figures, load_cases

    key = os.environ.get("OPENAI_API_KEY")
    found: list[dict[str, Any]] = run_async(ask_all(load_cases(cases), base_url, model, key))
    counted = figures(found)
    if as_json:
        print_json({"figures": counted, "answers": found})
        return
    table = Table("requests", number("right"), number("of"), number("share"))
    for name, (right, of) in counted.items():
        table.add_row(name, right, of, f"{right / of:.0%}")
    print_text(table)
    for one in found:
        if not one["right"]:
            wanted = " or ".join(name or "no tool" for name in one["tools"])
            asked = json.dumps(one["request"], ensure_ascii=False)
            say(f"{asked}: {one['chosen'] or 'no tool'}, not {wanted}")
