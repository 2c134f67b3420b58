"""Writers of rubrics by the name that a user gives: a run, a language model, or a reference point."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onward.errors import ConfigError
from onward.rubrics.backend_player import BackendPlayer, BaselinePlayer
from onward.rubrics.backends import DIALECTS, Usage, open_backend
from onward.rubrics.backends.local import engine_of
from onward.rubrics.language import InvalidRubric, Rubric
from onward.rubrics.policy.evaluation import Plays
from onward.rubrics.policy.plan import WRITER_FILE
from onward.rubrics.tasks import RubricTask
from onward.spelling import closest_name

FORMS = "RUN, released, a version, openai:NAME, vllm:NAME@URL, sglang:NAME@URL, local:FOLDER or baseline:NAME"
RELEASED = "released"
"""Name of the released writer in the settings and in commands."""


@dataclass(frozen=True)
class NamedWriter:
    """A writer, with its name and what it has used so far."""

    name: str
    player: Plays
    usage: Usage | None = None
    """Requests and tokens of a language model; None for a trained policy and a reference point."""


def open_writer(name: str) -> NamedWriter:
    """Returns the writer of ``name``, one of ``FORMS``. Raises ConfigError for a name of none."""
    kind, _, rest = name.partition(":")
    trained = _trained(_path_of(name)) if loads_model(name) else None
    if trained is not None:
        from onward.rubrics.policy.writer import load_player  # loads torch

        return NamedWriter(name, load_player(trained))
    if kind == "baseline":
        return NamedWriter(name, BaselinePlayer(rest))
    backend = open_backend(name)
    return NamedWriter(name, BackendPlayer(backend), backend.usage)


def loads_model(name: str) -> bool:
    """Returns whether ``open_writer`` loads a model into its own process: a trained writer, or
    ``local:FOLDER``. Loads nothing. Raises ConfigError for a name of no writer."""
    kind, colon, rest = name.partition(":")
    if colon and (kind == "baseline" or kind in DIALECTS):
        return False
    path = _path_of(name)
    if _trained(path) is not None:
        return True
    if kind == "local" and colon:
        engine_of(rest)
        return True
    if path.exists():
        raise ConfigError(
            f"{path} has no trained writer: give the folder of a run that has ended (onward rubrics train), "
            f"or local:{path} for a model that has not learnt to write rubrics."
        )
    near = closest_name(kind, ("baseline", "local", *DIALECTS)) if colon else None
    raise ConfigError(
        f"There is no rubric writer {name!r}: {f'did you mean {near}:?' if near else f'give {FORMS}.'}"
    )


def rubric_by(player: Plays, task: RubricTask) -> Rubric:
    """Returns the rubric of a writer for a task that is scored: its likeliest text, and it asks nothing.
    Raises InvalidRubric if the text is none."""
    (attempt,) = player.play([task], temperature=0.0, stakeholder=no_stakeholder)
    if attempt.rubric is None:
        raise InvalidRubric(f"The writer's text is no rubric: {attempt.problem}")
    return attempt.rubric


def no_stakeholder(task: RubricTask) -> None:
    """Finds the stakeholder of a task that is scored: there is none to ask."""


def _path_of(name: str) -> Path:
    return Path(name.removeprefix("local:"))


def _trained(path: Path) -> Path | None:
    """Returns the folder of the trained writer of a run, or of the run's own parts; None if it has none.
    Raises ConfigError for a folder that cannot be read."""
    try:
        return next((one for one in (path, path / "writer") if (one / WRITER_FILE).is_file()), None)
    except OSError as error:
        raise ConfigError(
            f"The writer {path} cannot be read ({error.strerror}): give a folder that may be read."
        ) from error
