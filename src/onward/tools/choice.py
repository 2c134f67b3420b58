"""The tool-choice suite: requests in plain language, and the tool that each one is for.

A request may need no tool (null), and an ambiguous one names every tool that is right. ``ask_all`` has a
model choose from the OpenAI schemas alone; ``benchmarks/tool_choice.py`` has a scripted chooser do so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from onward.errors import ConfigError
from onward.http.client import Address
from onward.tools.catalogue import TOOLS
from onward.tools.schemas import openai_tools
from onward.tools.tool import SCOPES

SYSTEM = (
    "You work with a service that trains agents. Call the one tool that does what the user asks. If none "
    "does, answer in words and call no tool."
)
ASK_SECONDS = 120.0


@dataclass(frozen=True)
class Case:
    """One request. ``tools`` are the right choices; None among them: no tool is called."""

    request: str
    tools: tuple[str | None, ...]
    language: str
    kind: str
    """plain, pair (a neighbour is near), none (no tool)."""


def load_cases(file: Path | None = None) -> list[Case]:
    """Reads the suite: JSON lines. Raises ConfigError for a line that is no case."""
    place = resources.files("onward.tools") / "choice.jsonl" if file is None else file
    cases = []
    try:
        lines = place.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}): give JSON lines of requests.") from None
    for number, line in enumerate(lines, 1):
        try:
            found = json.loads(line)
            case = Case(found["request"], tuple(found["tools"]), found["language"], found["kind"])
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                f"Line {number} of the requests is no case: give request, tools, language and kind."
            ) from None
        if not case.tools or set(case.tools) - {*TOOLS, None}:
            raise ConfigError(f"Line {number} of the requests names a tool that does not exist.")
        cases.append(case)
    return cases


async def ask_all(cases: list[Case], base_url: str, model: str, key: str | None) -> list[dict[str, Any]]:
    """Has a model choose for each request. Raises OnwardError if the server does not answer."""
    server = Address(base_url.rstrip("/") + "/", key, "--base-url")
    tools = openai_tools(SCOPES)
    return [judged(case, await _ask(server, model, tools, case)) for case in cases]


async def _ask(server: Address, model: str, tools: list[dict[str, Any]], case: Case) -> str | None:
    body = {
        "model": model,
        "temperature": 0,
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": case.request}],
        "tools": tools,
    }
    answer = await server.call("POST", "chat/completions", body, seconds=ASK_SECONDS)
    try:
        calls = answer["choices"][0]["message"].get("tool_calls") or []
        return str(calls[0]["function"]["name"]) if calls else None
    except (KeyError, IndexError, TypeError):
        raise ConfigError(f"{server.url} is no chat server: its answer has no choices.") from None


def judged(case: Case, chosen: str | None) -> dict[str, Any]:
    return {
        "request": case.request,
        "language": case.language,
        "kind": case.kind,
        "tools": list(case.tools),
        "chosen": chosen,
        "right": chosen in case.tools,
    }


def figures(found: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Returns (right, all) for all requests, for each kind, and for English and other languages."""
    groups = {
        "all": found,
        **{kind: [one for one in found if one["kind"] == kind] for kind in ("plain", "pair", "none")},
        "English": [one for one in found if one["language"] == "en"],
        "other languages": [one for one in found if one["language"] != "en"],
    }
    return {name: (sum(one["right"] for one in group), len(group)) for name, group in groups.items() if group}
