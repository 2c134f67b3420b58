"""Shared by all tests: one thread per test process, no stray settings from the caller's environment."""

import functools
import gc
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
    "test_loop_demo.py", "test_cli_control.py", "test_train_command.py", "test_serving_vllm_server.py",
    "test_agent_zero_plugin.py", "test_loop_killed.py", "test_recovery.py", "test_docs.py",
    "test_gateway_killed.py", "test_capture_collector.py", "test_training.py", "test_reward_code.py",
    "test_redaction_recall.py", "test_feedback_widget.py", "test_unreadable_records.py",
    "test_agent_zero_hang.py", "test_hung_children.py", "test_agent_zero_check.py", "test_closed_model.py",
    "test_release_silence.py", "test_control_a3c.py", "test_control_resume.py", "test_docs_service.py",
    "test_control_ppo.py", "test_base.py", "test_control_api.py", "test_capture_claims.py",
    "test_onpolicy.py", "test_capture_quarantine.py", "test_host.py", "test_object_store_faults.py",
    "test_control_ddpg.py", "test_serving_gateway.py", "test_writer_process.py",
    "test_answers_while_parts_hang.py", "test_serving_engine_vllm.py", "test_serving_outcomes.py",
    "test_recorder_crashes.py", "test_warehouse_command.py", "test_evidence.py", "test_training_rubrics.py",
    "test_crash_points.py", "test_control_streams.py", "test_serving_engine.py", "test_privacy.py",
    "test_environment_jobs.py", "test_released_writer.py", "test_bus_consumer.py", "test_families.py",
    "test_admin_api.py", "test_frameworks.py", "test_roles_twice.py", "test_agent_zero_training.py",
    "test_contracts_schemas.py", "test_placement.py",
)  # fmt: skip
"""Files that take a quarter of a minute, the longest first: begun last, one process would work on them
alone."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collects without the search for cycles: it walks all tests again and again, a sixth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


SHARED_LOGGERS = ("httpx", "httpcore", "uvicorn", "uvicorn.access", "uvicorn.asgi", "uvicorn.error")
"""Loggers that our commands and uvicorn's servers set up."""


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
    level = root.level
    before = [
        (one, one.level, one.propagate, one.handlers[:]) for one in map(logging.getLogger, SHARED_LOGGERS)
    ]
    yield
    if root.level != level:
        root.setLevel(level)
    for one, its_level, propagates, handlers in before:
        if one.level != its_level:
            one.setLevel(its_level)  # it takes a while, since it walks all loggers
        one.propagate, one.handlers[:] = propagates, handlers
    structlog = sys.modules.get("structlog")
    if structlog is not None and structlog.is_configured():
        structlog.reset_defaults()
        for handler in root.handlers[:]:
            if isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter):
                root.removeHandler(handler)
