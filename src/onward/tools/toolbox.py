"""``Toolbox``: the tools of one agent, with its scopes, against one running service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from onward.config import Settings, load
from onward.errors import OnwardError
from onward.redaction import Redactor
from onward.spelling import closest_name
from onward.tools.background import Background
from onward.tools.catalogue import TOOLS
from onward.tools.results import render
from onward.tools.service import Service
from onward.tools.tool import DEFAULT_SCOPES, SCOPES, Scope, Tool

DOWNLOADS = Path("/tmp/checkpoints")
"""Folder of ``download_checkpoint``; nothing is written outside of it."""
MOST_CALLS = 64
"""Calls at a time: each may have a connection to NATS, and its messages in memory."""
_log = logging.getLogger("onward.tools")


@dataclass(frozen=True)
class Answer:
    """Result of a call. ``text`` is compact JSON, or one sentence if ``is_error``."""

    text: str
    is_error: bool = False


class UnknownToolError(OnwardError):
    """There is no tool of this name."""


class Toolbox:
    """Calls tools by name. Use it in ``async with``, which ends the background work of its tools.

    Tools whose scope is missing are not listed: a model chooses among what it sees, and a listed tool that
    always refuses would be chosen. A call by name is answered with the scope that it lacks.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        scopes: Collection[Scope] = DEFAULT_SCOPES,
        downloads: Path = DOWNLOADS,
        config_file: Path | None = None,
    ) -> None:
        """``settings``: None reads ``./onward.toml`` and the environment. ``config_file``: the file that they
        came from, for commands that run beside. Raises ConfigError."""
        self.settings = settings or load(config_file)
        self.scopes = frozenset(scopes)
        self.downloads = downloads
        self.config_file = config_file
        self.service = Service(self.settings)
        self.background = Background()
        self._calls = 0

    async def __aenter__(self) -> Toolbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.background.close()

    @cached_property
    def redactor(self) -> Redactor:
        """The redactor of the service's settings. It compiles its rules at the first use."""
        from onward.capture.make_redactor import redactor_of

        return redactor_of(self.settings)

    def tools(self, scopes: Collection[Scope] | None = None) -> list[Tool]:
        """Returns the tools within the scopes, in the order of the catalogue."""
        allowed = self.scopes if scopes is None else self.scopes.intersection(scopes)
        return [tool for tool in TOOLS.values() if tool.scope in allowed]

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        scopes: Collection[Scope] | None = None,
    ) -> Answer:
        """Calls one tool. ``scopes`` narrows those of the toolbox for one caller. An argument that is null
        counts as absent. Raises UnknownToolError; every other failure is an answer."""
        tool = TOOLS.get(name)
        if tool is None:
            known = [tool.name for tool in self.tools(scopes)]
            near = closest_name(name, known)
            hint = f"did you mean {near!r}?" if near else f"there are {', '.join(known)}."
            raise UnknownToolError(f"There is no tool {name[:80]!r}: {hint}")
        if tool not in self.tools(scopes):
            wanted = ",".join(one for one in SCOPES if one in self.scopes or one == tool.scope)
            return Answer(
                f"{name} needs the scope {tool.scope!r}, which this server or key was not given: ask the "
                f"operator to run it with --scope {wanted}.",
                is_error=True,
            )
        if self._calls >= MOST_CALLS:
            return Answer(f"{MOST_CALLS} calls run already: try again when one has ended.", is_error=True)
        self._calls += 1
        try:
            given = {key: value for key, value in (arguments or {}).items() if value is not None}
            checked = tool.arguments.model_validate(given)
            async with asyncio.timeout(tool.seconds):
                document = await tool.run(self, checked)
            text = await asyncio.to_thread(render, document, self.redactor, getattr(checked, "offset", 0))
            return Answer(text)
        except ValidationError as error:
            return self._refused(wrong_arguments(tool, error))
        except TimeoutError:
            return self._refused(
                f"{name} had no answer within {tool.seconds:g} seconds: look at status, then try again."
            )
        except OnwardError as error:
            return self._refused(str(error))
        except Exception as error:  # a defect must not end the server, and its text may hold a secret
            _log.error("tool %s stopped on a defect: %s", name, type(error).__name__, exc_info=error)
            return self._refused(f"{name} stopped on a defect ({type(error).__name__}): the log has more.")
        finally:
            self._calls -= 1

    def _refused(self, sentence: str) -> Answer:
        text = self.redactor.document({"sentence": sentence}).document["sentence"]
        return Answer(" ".join(str(text).split())[:1000], is_error=True)


def wrong_arguments(tool: Tool, error: ValidationError) -> str:
    """Returns one sentence about wrong arguments, without any of their values."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("dict[", "list[")))
    schema = tool.arguments.model_json_schema()
    if first["type"] == "extra_forbidden":
        return f"{tool.name} has no argument {where[:80]!r}: it has {', '.join(schema['properties'])}."
    if first["type"] == "missing":
        needed = ", ".join(schema.get("required", ()))
        return f"{tool.name} lacks the argument {where!r}: it needs {needed}."
    return (
        f"Argument {where[:80]!r} of {tool.name} is not usable: {first['msg'].removeprefix('Value error, ')}."
    )
