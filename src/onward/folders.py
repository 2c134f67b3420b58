"""Folders and files that a person names on the command line: made or refused before any work is spent.

The one thing to know: what cannot be made is bad input, so it is one sentence, never an OSError.
"""

from __future__ import annotations

from pathlib import Path

from onward.errors import ConfigError


def make_folder(path: Path, mode: int = 0o777) -> None:
    """With all above it; ``mode`` is that of the last one, less the umask. Raises ConfigError where that
    cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=mode)
    except OSError as error:
        raise ConfigError(
            f"The folder {path} cannot be made ({error.strerror}): give one that may be written to."
        ) from error


def check_file(path: Path) -> None:
    """Make the folder of a file that is written later, and try whether it can be: nothing is left of the try.

    Raises ConfigError where it cannot be."""
    make_folder(path.parent)
    new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise ConfigError(
            f"The file {path} cannot be written ({error.strerror}): give one that may be."
        ) from error
    if new:
        path.unlink()
