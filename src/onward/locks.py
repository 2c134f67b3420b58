"""Locks on a data folder: work that allows one process runs in one process at a time.

The kernel frees a lock however its holder ends, so a lock that can be acquired proves that the previous run
is dead.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from onward.errors import ConfigError
from onward.folders import make_folder


@contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Holds the lock file ``path`` for the block. Raises ConfigError: with the sentence ``busy`` if another
    process holds it, and if the file cannot be created."""
    make_folder(path.parent, 0o700)
    with ExitStack() as held:
        try:
            file = held.enter_context(open(path, "w"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(busy) from None
        except OSError as error:
            raise ConfigError(
                f"The lock file {path} cannot be had ({error.strerror}): give a folder that may be written."
            ) from error
        yield
