"""Shared by all tests: one thread per test process, no stray settings from the caller's environment."""

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# As in an activated environment: messages name commands by what a shell would find.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

from onward.config import SEED_VARIABLES


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*SEED_VARIABLES, "CANARY_INITIAL_TRAFFIC", "ROLLBACK_REWARD_THRESHOLD"]:
        monkeypatch.delenv(name, raising=False)
    for name in list(os.environ):
        if name.startswith("ONWARD_") and name != "ONWARD_CACHE":
            monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _umask_as_before() -> Iterator[None]:
    """Restores the umask, which every command sets for its whole process."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Removes what a command set up for logging: its stream is closed once its output was read, and its level
    would hide the lines that later tests look for."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
    structlog = sys.modules.get("structlog")
    if structlog is not None and structlog.is_configured():
        structlog.reset_defaults()
        for handler in root.handlers[:]:
            if isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter):
                root.removeHandler(handler)
