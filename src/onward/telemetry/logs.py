"""Structured logs on standard error: one event name, then facts. A line to read on a terminal, else JSON.

Libraries log through ``logging`` and appear in the same form. Without ``setup``, as in an agent that embeds
the recorder, a line goes to the ``logging`` of that program, as ``onward.<name>``, and structlog is not even
loaded.

Invariants: a payload is never logged, because trajectories may hold secrets that are not redacted yet,
and an address loses its login and its query.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from functools import partialmethod
from typing import Any

from onward.errors import ConfigError, hide_login

PART = 11
"""Columns of a part's name: that of the longest role."""
LEVELS = ("debug", "info", "warning", "error", "critical")


def setup(level: str = "info", *, json: bool | None = None) -> None:
    """Configures logging of this process. ``json`` None: JSON unless standard error is a terminal. Raises
    ConfigError for an unknown level."""
    import structlog

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
        else Lines(colours=sys.stderr.isatty() and not os.environ.get("NO_COLOR"))
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
    final: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,  # prints no local variables
        renderer,
        lambda _, __, line: hide_login(line),  # also in an exception of a library
    ]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=final))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for noisy in ("httpx", "httpcore", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(max(number, logging.WARNING))


class Lines:
    """Writes an event as one line for a person: time (UTC), part, event, facts, as in ``00:15:44  gateway
    serves: url http://127.0.0.1:3000``. Only a level from warning on is named."""

    def __init__(self, *, colours: bool = False) -> None:
        self._colours = colours

    def __call__(self, _: Any, __: str, event: MutableMapping[str, Any]) -> str:
        facts = dict(event)
        time, part = str(facts.pop("timestamp", ""))[11:19], str(facts.pop("logger", ""))
        level, what = str(facts.pop("level", "info")), _words(facts.pop("event", ""))
        trace = facts.pop("exception", "")
        if what == "alert":  # its sentence is what counts
            what = f"{_words(facts.pop('message', ''))} ({_words(facts.pop('kind', 'alert'))})"
            facts.pop("severity", None)
        shown = ", ".join(f"{name} {_words(value)}" for name, value in facts.items() if value is not None)
        loud = "" if level in ("info", "debug") else f"{level.upper()}: "
        line = f"{time}  {part:<{PART}}  {loud}{what}{': ' if shown else ''}{shown}"
        if self._colours and loud:
            line = f"\x1b[{33 if level == 'warning' else 31}m{line}\x1b[0m"
        return f"{line}\n{trace}" if trace else line


def _words(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if text.isprintable() else repr(text)


class Logger:
    """``debug``, ``info``, ``warning``, ``error``, ``critical`` and ``exception``: an event and its facts."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._structured: Any = None
        self._plain = logging.getLogger(f"onward.{name}")

    def _write(self, level: str, event: str, /, **facts: Any) -> None:
        structlog = sys.modules.get("structlog")
        is_configured = getattr(structlog, "is_configured", None)  # another thread may import it right now
        if structlog is not None and is_configured is not None and is_configured():
            if self._structured is None:
                self._structured = structlog.stdlib.get_logger(self._name)
            getattr(self._structured, level)(event, **facts)
            return
        text = " ".join([event, *(f"{key}={value}" for key, value in facts.items())])
        getattr(self._plain, level)("%s", hide_login(text))

    debug = partialmethod(_write, "debug")
    info = partialmethod(_write, "info")
    warning = partialmethod(_write, "warning")
    error = partialmethod(_write, "error")
    critical = partialmethod(_write, "critical")
    exception = partialmethod(_write, "exception")


def get(name: str) -> Logger:
    """Returns a logger: ``get("collector").info("stored", rows=12)``. Usable before ``setup``."""
    return Logger(name)
