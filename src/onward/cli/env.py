"""``onward env``: lists environments, serves one over HTTP, or plays one in the terminal or by a policy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from onward.cli import ConfigFile, app, load_settings, run_async
from onward.cli.help import Commands
from onward.cli.output import AsJson, Column, Table, ident, number, print_json, print_text, say
from onward.envs import registry
from onward.envs.environment import Environment, LocalSource
from onward.envs.policies import random_policy, reference_policy, success_rate
from onward.envs.rollouts import Action, Conversation, Episode, Policy, Source, rollouts
from onward.envs.server import TTL_SECONDS, environment_server
from onward.envs.sources import open_source
from onward.envs.tasks import TaskRef
from onward.errors import ConfigError

env_app = Commands(
    help="""Environments: tasks with a verdict by program. List, serve or play them.

    onward env list
    onward env play maze --policy reference
    """
)
app.add_typer(env_app, name="env")

MEASURED_EPISODES = 100
POLICIES = ("reference", "random")

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A built-in name, or your own: package.module:object.")
]


@env_app.command("list")
def list_environments(
    measure: Annotated[
        bool, typer.Option(help="Play the held-out panels by chance and by the reference (some seconds).")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Show the built-in environments, and the share of held-out tasks solved without any model.

    onward env list --no-measure
    """
    rows = [run_async(_facts(registry.find(name), measure)) for name in registry.BUILT_IN]
    if as_json:
        print_json(rows)
        return
    measured = ("random", "reference") if measure else ()
    columns: list[Column | str] = ["name", "tasks", number("horizon"), "reward", ident("panel hash")]
    table = Table(*columns, *map(number, measured))
    for row in rows:
        cells = [
            row["name"],
            ", ".join(f"{split} {size}" for split, size in row["tasks"].items()),
            row["horizon"],
            f"{row['reward_range'][0]:g} to {row['reward_range'][1]:g}",
            row["panel_hash"][:12],
        ]
        table.add_row(*cells, *(f"{row[name]:.2f}" for name in measured))
    print_text(table)


@env_app.command()
def serve(
    name: Name,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8110,
    host: Annotated[
        str, typer.Option(help="Beyond 127.0.0.1 only with http.keys in the settings.")
    ] = "127.0.0.1",
    split: Annotated[str, typer.Option(help="Split of requests that name none. Default: train.")] = "",
    ttl: Annotated[
        float, typer.Option(min=1, help="Seconds after which an idle instance closes.")
    ] = TTL_SECONDS,
    file: ConfigFile = None,
) -> None:
    """Serve NAME over HTTP with AgentGym's protocol, until Ctrl-C.

    onward env serve crafting --port 8110
    onward env play crafting --url http://127.0.0.1:8110
    """
    environment = registry.find(name)
    is_local = host in ("127.0.0.1", "localhost", "::1")
    keys = {} if is_local else load_settings(file, None).http.keys

    async def work() -> None:
        server = environment_server(
            environment, host=host, port=port, keys=keys, split=split, ttl_seconds=ttl
        )
        await server.start()
        say(f"{environment.name} at {server.url} (GET /meta tells what it serves). Ctrl-C stops it.")
        try:
            await asyncio.Event().wait()
        finally:
            await server.stop()

    try:
        run_async(work())
    except KeyboardInterrupt:
        say("Stopped.")


@env_app.command()
def play(
    name: Name,
    task: Annotated[
        int | None, typer.Option(min=0, help="Number of one task. Default: 0; a policy: all.")
    ] = None,
    split: Annotated[str, typer.Option(help="Default: the held-out split.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Another panel of the split.")] = 0,
    url: Annotated[str | None, typer.Option(help="Play on this server instead of in this process.")] = None,
    dialect: Annotated[str | None, typer.Option(help="Of a server that does not tell what it is.")] = None,
    policy: Annotated[str | None, typer.Option(help="reference or random; default: you play.")] = None,
) -> None:
    """Play NAME: you in the terminal, or a policy that needs no model.

    onward env play wordle
    onward env play maze --policy random --seed 3
    """
    if policy is not None and policy not in POLICIES:
        raise ConfigError(
            f"--policy is {policy[:40]!r}: give reference or random, or leave it out to play yourself."
        )
    run_async(_play(name, task, split, seed, url, dialect, policy))


async def _play(
    name: str,
    task: int | None,
    split: str,
    seed: int,
    url: str | None,
    dialect: str | None,
    policy: str | None,
) -> None:
    if url is not None and "://" not in url:
        raise ConfigError(f"--url is {url[:60]!r}: give the address of a server, http://HOST:PORT.")
    player: Policy = _Person()
    environment = registry.find(name) if policy or url is None or ":" in name else None
    expected = environment.name if environment else name
    async with open_source(url or name, dialect=dialect) as source:
        if source.name != expected:
            raise ConfigError(
                f"The server at {url} serves {source.name}, not {expected[:60]}: give its name."
            )
        if policy and environment:
            if source.panel_hash != environment.panel_hash():
                raise ConfigError(
                    f"The server at {url} serves other tasks of {name} than the ones here, and the policies "
                    f"reference and random know only these: play it yourself."
                )
            player = (
                reference_policy(environment) if policy == "reference" else random_policy(environment, seed)
            )
        panel = source.panel(split or None, seed, None if policy else (task or 0) + 1)
        await _run(source, _chosen(panel, task, policy), player)


def _chosen(panel: Sequence[TaskRef], task: int | None, policy: str | None) -> Sequence[TaskRef]:
    if task is None:
        return panel if policy else panel[:1]
    if task >= len(panel):
        raise ConfigError(
            f"--task is {task}, but the panel has {len(panel)} tasks: give 0 to {len(panel) - 1}."
        )
    return panel[task : task + 1]


async def _run(source: Source, tasks: Sequence[TaskRef], policy: Policy) -> None:
    episodes = await rollouts(source, policy, tasks)
    if len(episodes) == 1:
        _tell_one(episodes[0], show=not isinstance(policy, _Person))
        return
    scored = [episode for episode in episodes if episode.reward is not None]
    rate = success_rate(episodes)
    say(
        f"{source.name}: {len(episodes)} episodes, {len(episodes) - len(scored)} unscored; "
        + (f"success {rate:.3f}, " if rate is not None else "")
        + f"turns {sum(len(episode.turns) for episode in episodes) / len(episodes):.1f}; "
        f"panel {source.panel_hash[:12] or 'unknown'}."
    )


def _tell_one(episode: Episode, show: bool) -> None:
    if show:
        for message in episode.messages:
            say(f"[{message['role']}] {message['content']}")
    if episode.ended in ("done", "horizon"):
        say(episode.turns[-1].observation)
    if episode.reward is None:
        raise ConfigError(f"{episode.task.task_id} is unscored ({episode.failure}): {episode.message}")
    word = "solved" if episode.success else "not solved"
    turns = f"{len(episode.turns)} turns ({episode.ended})"
    say(f"{episode.task.task_id}: {word}, reward {episode.reward:g} after {turns}.")


class _Person:
    """A policy that asks the user at the terminal."""

    async def act(self, conversations: Sequence[Conversation]) -> list[Action]:
        return [await asyncio.to_thread(self._ask, conversation) for conversation in conversations]

    def _ask(self, conversation: Conversation) -> Action:
        shown = conversation.messages if conversation.turn == 0 else conversation.messages[-1:]
        for message in shown:
            say(message["content"])
        try:
            return Action(input(f"({conversation.turns_left} left) > "))
        except EOFError:
            return Action("", stopped="gave_up")


async def _facts(environment: Environment, measure: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": environment.name,
        "version": environment.version,
        "tasks": dict(environment.panels),
        "horizon": environment.horizon,
        "reward_range": list(environment.reward_range),
        "panel_hash": environment.panel_hash(),
    }
    if measure:
        panel = environment.panel(environment.held_out, n=MEASURED_EPISODES)
        for word, policy in (
            ("random", random_policy(environment)),
            ("reference", reference_policy(environment)),
        ):
            facts[word] = success_rate(await rollouts(LocalSource(environment), policy, panel))
    return facts
