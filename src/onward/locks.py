"""Locks on a data folder: one process at a time does what only one may do there.

The kernel frees a lock however its holder ends, so a lock that can be had says that the run before is dead.
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
    """Hold the lock file ``path``. Raises ConfigError with the sentence ``busy`` when another holds it, and
    where there can be no such file."""
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
