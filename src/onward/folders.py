"""Creates or refuses the folders and files that a user names on the command line, before any work is spent.

A path that cannot be created is bad input: it gives a ConfigError of one sentence, never an OSError.
"""

from __future__ import annotations

from pathlib import Path

from onward.errors import ConfigError


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Creates ``path`` and its parents; ``mode`` is that of the last folder, less the umask. Raises
    ConfigError if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=mode)
    except OSError as error:
        raise ConfigError(
            f"The folder {path} cannot be made ({error.strerror}): give one that may be written to."
        ) from error


def check_file(path: Path) -> None:
    """Creates the folder of a file that is written later, and checks that it can be written.

    Leaves no file behind. Raises ConfigError if it cannot be written.
    """
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
