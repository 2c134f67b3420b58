"""``onward feedback token|rotate``: tokens that let the users of a chat page vote."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from onward import warehouse
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.help import Commands
from onward.cli.output import say
from onward.clock import SystemClock
from onward.config import Settings
from onward.errors import ConfigError, NotFoundError
from onward.feedback.tokens import MAX_DAYS, Subject, TokenKeys
from onward.warehouse import queries

feedback_app = Commands(
    help="""Votes from chat pages: tokens and their keys.

    onward feedback token --session chat-42 --days 1
    onward feedback rotate
    """
)
app.add_typer(feedback_app, name="feedback")


@feedback_app.command()
def token(
    session: Annotated[str | None, typer.Option(help="The session that may be voted on.")] = None,
    trajectory: Annotated[str | None, typer.Option(help="One trajectory of it, and nothing else.")] = None,
    days: Annotated[
        float | None, typer.Option(help="How long it may be used. Default: feedback.token_days (7).")
    ] = None,
    file: ConfigFile = None,
    data_dir: DataDir = None,
) -> None:
    """Print a feedback token: a browser that has it may vote on that one conversation.

    With --trajectory alone the session is looked up, which needs a running service.

    onward feedback token --session chat-42 --days 1
    """
    settings = load_settings(file, data_dir)
    if session is None and trajectory is None:
        raise ConfigError("A feedback token is for something: give --session, --trajectory, or both.")
    subject = Subject(
        session if session is not None else run_async(_session_of(settings, trajectory)), trajectory
    )
    keys = TokenKeys(settings.run_dir)
    say(keys.issue(subject, SystemClock().now(), timedelta(days=_checked(days, settings))))


@feedback_app.command()
def rotate(
    forget: Annotated[
        bool, typer.Option("--forget", help="Accept no token that was handed out before.")
    ] = False,
    file: ConfigFile = None,
    data_dir: DataDir = None,
) -> None:
    """Sign feedback tokens with a new key. The seven keys before it are still accepted.

    A running service uses the new key without a restart.

    onward feedback rotate
    onward feedback rotate --forget
    """
    accepted = TokenKeys(load_settings(file, data_dir).run_dir).rotate(forget=forget)
    say(f"Feedback tokens are signed with a new key; {accepted} accepted in all.")


def _checked(days: float | None, settings: Settings) -> float:
    if days is None:
        return settings.feedback.token_days
    if not 0 < days <= MAX_DAYS:
        raise ConfigError(f"--days is {days:g}: expected more than 0 and at most {MAX_DAYS}.")
    return days


async def _session_of(settings: Settings, trajectory: str | None) -> str:
    view = await warehouse.connect(settings)
    try:
        row = await queries.trajectory(view, trajectory or "")
    finally:
        await view.close()
    if row is None:
        raise NotFoundError(f"No trajectory {str(trajectory)[:128]!r} is stored: give --session too.")
    return row["session_id"]
