"""``onward pause|resume|pin|unpin``: an operator's commands to a running service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onward import host
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.output import print_text, say
from onward.clock import SystemClock
from onward.contracts.buckets import Learning, Pin
from onward.errors import ConfigError, NotFoundError
from onward.ids import model_key
from onward.telemetry import audit

Part = Annotated[str, typer.Argument(help="learning: no new job starts; what runs goes on.")]
PartAgain = Annotated[str, typer.Argument(help="learning: new jobs may start again.")]


async def _write(file: Path | None, data_dir: Path | None, switch: Learning | Pin) -> None:
    settings = load_settings(file, data_dir)
    async with host.attached(settings) as (bus, _):
        if isinstance(switch, Pin) and switch.model_id:
            known = await bus.bucket("rl_models").keys()
            if model_key(switch.model_id) not in known:
                raise NotFoundError(
                    f"There is no model {switch.model_id!r}: known are {', '.join(sorted(known)) or 'none'}."
                )
        event, facts = _audited(switch)
        await audit.record(bus, SystemClock(), event, **facts)
        await bus.bucket(switch.BUCKET).put(switch.KEY, switch.dump())


def _audited(switch: Learning | Pin) -> tuple[str, dict[str, str]]:
    """Returns the event of a switch and its facts, for the audit stream."""
    if isinstance(switch, Pin):
        return ("models.pin", {"model_id": switch.model_id}) if switch.model_id else ("models.unpin", {})
    return "learning.pause" if switch.paused else "learning.resume", {}


@app.command()
def pause(part: Part = "learning", file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """Stop learning until 'onward resume': trajectories are still stored and scored.

    onward pause
    """
    _only_learning(part)
    run_async(_write(file, data_dir, Learning(paused=True)))
    say("Learning is paused. Trajectories are still collected and scored.")


@app.command()
def resume(part: PartAgain = "learning", file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """Resume learning.

    onward resume
    """
    _only_learning(part)
    run_async(_write(file, data_dir, Learning(paused=False)))
    say("Learning goes on.")


@app.command()
def pin(
    model_id: Annotated[str, typer.Argument(help="A released model, for example agent-zero-rl-v3.")],
    file: ConfigFile = None,
    data_dir: DataDir = None,
) -> None:
    """Serve one model and release nothing until 'onward unpin'.

    onward pin agent-zero-rl-v3
    """
    run_async(_write(file, data_dir, Pin(model_id=model_id)))
    print_text(f"{model_id} is pinned; nothing is released until 'onward unpin'.")


@app.command()
def unpin(file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """Allow releases again.

    onward unpin
    """
    run_async(_write(file, data_dir, Pin(model_id=None)))
    say("No model is pinned.")


def _only_learning(part: str) -> None:
    if part != "learning":
        raise ConfigError(f"{part!r} cannot be paused: expected 'learning'.")
