"""Writers of rubrics by the name that a user gives: a run, a language model, or a reference point."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onward.errors import ConfigError
from onward.rubrics.backend_player import BackendPlayer, BaselinePlayer
from onward.rubrics.backends import DIALECTS, Usage, open_backend
from onward.rubrics.policy.evaluation import Plays
from onward.spelling import closest_name

FORMS = "RUN, released, a version, openai:NAME, vllm:NAME@URL, sglang:NAME@URL, local:FOLDER or baseline:NAME"
WRITER_FILE = "writer.json"


@dataclass(frozen=True)
class NamedWriter:
    """A writer, with its name and what it has used so far."""

    name: str
    player: Plays
    usage: Usage | None = None
    """Requests and tokens of a language model; None for a trained policy and a reference point."""


def open_writer(name: str) -> NamedWriter:
    """Returns the writer of ``name``, one of ``FORMS``. Raises ConfigError for a name of none."""
    kind, colon, rest = name.partition(":")
    if kind == "baseline" and colon:
        return NamedWriter(name, BaselinePlayer(rest))
    if kind in DIALECTS and colon:
        backend = open_backend(name)
        return NamedWriter(name, BackendPlayer(backend), backend.usage)
    path = Path(rest if kind == "local" and colon else name)
    folder = _trained(path)
    if folder is not None:
        from onward.rubrics.policy.writer import load_player  # loads torch

        return NamedWriter(name, load_player(folder))
    if kind == "local" and colon:
        backend = open_backend(name)
        return NamedWriter(name, BackendPlayer(backend), backend.usage)
    if path.exists():
        raise ConfigError(
            f"{path} has no trained writer: give the folder of a run that has ended (onward rubrics train), "
            f"or local:{path} for a model that has not learnt to write rubrics."
        )
    near = closest_name(kind, ("baseline", "local", *DIALECTS)) if colon else None
    raise ConfigError(
        f"There is no rubric writer {name!r}: {f'did you mean {near}:?' if near else f'give {FORMS}.'}"
    )


def _trained(path: Path) -> Path | None:
    """Returns the folder of the trained writer of a run, or of the run's own parts; None if it has none."""
    return next((one for one in (path, path / "writer") if (one / WRITER_FILE).is_file()), None)
