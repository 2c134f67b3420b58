"""Shared by all tests: one thread per test process, no stray settings from the caller's environment."""

import functools
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

# As in an activated environment: messages name commands by what a shell would find.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# No test asks a server of the internet: Hugging Face's libraries would, about a name that is a local folder.
os.environ["HF_HUB_OFFLINE"] = "1"
# Compiled modules are stored, whatever the caller's shell says. Otherwise each test process rewrites the
# assertions of every file for itself (20 s of CPU each), and each child process compiles the package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import httpx._transports.default
import httpx2._transports.default
import pytest

from onward.config import SEED_VARIABLES

sys.dont_write_bytecode = False

# Clients with the same settings share one TLS context: reading the certificates of authorities takes 40 ms,
# and tests make thousands.
for _module in (httpx._transports.default, httpx2._transports.default):
    vars(_module)["create_ssl_context"] = functools.cache(_module.create_ssl_context)

LONGEST = (
    "test_loop_demo.py", "test_docs.py", "test_train_command.py", "test_serving_vllm_server.py",
    "test_cli_control.py", "test_agent_zero_plugin.py", "test_loop_killed.py", "test_closed_model.py",
    "test_warmup.py", "test_recovery.py", "test_redaction_recall.py", "test_host.py", "test_control_a3c.py",
    "test_control_api.py", "test_crash_points.py", "test_worker.py", "test_estimate.py",
    "test_unreadable_records.py", "test_trainer.py", "test_reward_code.py", "test_hung_children.py",
    "test_placement.py", "test_onpolicy.py", "test_training.py", "test_control_resume.py",
    "test_feedback_widget.py", "test_environment_jobs.py", "test_control_ppo.py", "test_base.py",
    "test_gateway_killed.py", "test_control_streams.py", "test_out_of_memory.py",
    "test_capture_collector.py", "test_training_rubrics.py", "test_redaction_limits.py",
    "test_frameworks.py", "test_release_silence.py", "test_held_out_evaluation.py", "test_control_ddpg.py",
    "test_rubrics_job.py", "test_warehouse_command.py", "test_privacy.py", "test_full_disk.py",
    "test_environments.py", "test_agent_zero_training.py", "test_tools_mcp.py", "test_gateway_clients.py",
    "test_evidence.py",
)  # fmt: skip
"""Files that take half a minute beside others, the longest first: begun last, one process would work on them
alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


LEVELLED = ("httpx", "httpcore", "uvicorn", "uvicorn.access", "uvicorn.asgi", "uvicorn.error")
"""Loggers whose level our commands and uvicorn's servers set."""


@pytest.fixture(autouse=True)
def _global_generators_begin_anew() -> None:
    """Draws without a generator of their own do not depend on the tests before. Python's own ``random`` is
    left alone: names and waits that must differ between processes come from it."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and hasattr(torch, "default_generator"):
        torch.default_generator.manual_seed(0)
    if numpy is not None and hasattr(numpy, "random"):
        numpy.random.seed(0)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*SEED_VARIABLES, "CANARY_INITIAL_TRAFFIC", "ROLLBACK_REWARD_THRESHOLD"]:
        monkeypatch.delenv(name, raising=False)
    for name in list(os.environ):
        if name.startswith("ONWARD_") and name != "ONWARD_CACHE":
            monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _umask_and_signals_as_before() -> Iterator[None]:
    """Restores what a command or a job sets for its whole process."""
    before = os.umask(0o022)
    os.umask(before)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    os.umask(before)
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Removes what a command set up for logging: its stream is closed once its output was read, and its
    levels would hide the lines that later tests look for."""
    root = logging.getLogger()
    levels = [(logger, logger.level) for logger in (root, *map(logging.getLogger, LEVELLED))]
    yield
    for logger, level in levels:
        if logger.level != level:
            logger.setLevel(level)
    structlog = sys.modules.get("structlog")
    if structlog is not None and structlog.is_configured():
        structlog.reset_defaults()
        for handler in root.handlers[:]:
            if isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter):
                root.removeHandler(handler)
