"""Structured logs on standard error: one event name, then facts. JSON unless a person is watching.

Libraries log through ``logging`` and come out in the same form. Never log a payload: trajectories
may hold what redaction has not seen yet.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from onward.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error", "critical")


def setup(level: str = "info", *, json: bool | None = None) -> None:
    """Configure logging of this process. ``json`` None: JSON unless standard error is a terminal.

    Raises ConfigError for an unknown level.
    """
    if level.lower() not in LEVELS:
        raise ConfigError(f"Log level {level!r} is unknown: expected one of {', '.join(LEVELS)}.")
    number = getattr(logging, level.upper())
    as_json = (not sys.stderr.isatty()) if json is None else json
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            exception_formatter=structlog.dev.plain_traceback,  # the default one prints local variables
        )
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    final: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if as_json:
        final.append(structlog.processors.format_exc_info)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[*final, renderer])
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for noisy in ("httpx", "httpcore", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(max(number, logging.WARNING))


def get(name: str) -> Any:
    """A logger: ``get("collector").info("stored", rows=12)``. Usable before ``setup``."""
    return structlog.stdlib.get_logger(name)
