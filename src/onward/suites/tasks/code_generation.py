"""The task ``code_generation``: Python functions, run in the sandbox against cases.

The expected values stay in this process: the program gets the arguments alone and returns what it computed.
So a hostile program can do no better than answer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from onward.reward.sandbox import Sandbox
from onward.suites.tasks.task import Complete, Item, Judgement, Messages, ask, digest_of, rows

_SYSTEM = "You write Python functions. Answer with the code of the function only."
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_CALLING = """
import json, sys
_results = [{function}(*arguments) for arguments in json.loads(sys.stdin.read())]
sys.stdout.write("\\n" + json.dumps(_results))
"""
_TOLERANCE = 1e-9


class CodeGeneration:
    """Functions to write, of four kinds: arithmetic, text, lists, algorithms."""

    name = "code_generation"
    max_tokens = 256

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self._sandbox = sandbox or Sandbox()

    def items(self) -> Sequence[Item]:
        return [self._item(row) for row in rows(self.name)]

    async def check(self) -> None:
        await self._sandbox.check()

    def digest(self) -> str:
        return _digest()

    def _item(self, row: dict[str, Any]) -> Item:
        function = row["signature"].partition("(")[0]
        request = f"Write a Python function {row['signature']} that {row['request']}."
        return Item(
            row["id"],
            row["kind"],
            ({"role": "system", "content": _SYSTEM}, {"role": "user", "content": request}),
            (row["reference"],),
            (f"def {function}(*arguments):\n    return None",),
            partial(self._play, function=function, cases=row["cases"]),
        )

    async def _play(
        self, messages: Messages, complete: Complete, *, function: str, cases: list[list[Any]]
    ) -> Judgement:
        code = program(await ask(messages, complete))
        arguments = json.dumps([case[0] for case in cases])
        outcome = await self._sandbox.run(code + _CALLING.format(function=function), arguments)
        if outcome.status != "finished":
            last = outcome.errors.splitlines()[-1:] or [""]
            return Judgement(0.0, f"The program ended with {outcome.status}: {last[0][:200]}")
        try:
            found = json.loads(outcome.output.rpartition("\n")[2])
        except ValueError:
            found = None
        if not isinstance(found, list) or len(found) != len(cases):
            return Judgement(0.0, "The program did not return its results.")
        right = sum(same(value, case[1]) for value, case in zip(found, cases, strict=True))
        note = f"{right} of {len(cases)} cases are right."
        return Judgement(float(right == len(cases)), note)


def program(answer: str) -> str:
    """Returns the code of an answer: its fenced blocks, or all of it if it has none."""
    return "\n".join(_FENCE.findall(answer)) or answer


def same(value: Any, expected: Any) -> bool:
    """Returns True if two JSON values are equal. True is not 1; numbers may differ by rounding."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, int | float) and isinstance(expected, int | float):
        return math.isclose(value, expected, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    return type(value) is type(expected) and value == expected


@cache
def _digest() -> str:
    return digest_of("code_generation", data=["code_generation"])
