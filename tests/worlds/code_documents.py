"""Turns that write code or run tools, for the tests of code quality."""

from __future__ import annotations

from typing import Any

from reward_documents import trajectory, turn

from onward.contracts import Trajectory


def call(number: int, tool: str, /, output: Any = "ok", success: bool = True, **args: Any) -> dict[str, Any]:
    """A turn that calls ``tool`` with ``args``."""
    made = turn(number, tool=tool, args=args, success=success)
    made["result"]["output"] = output
    return made


def run(number: int, command: str, output: Any, *, success: bool = True) -> dict[str, Any]:
    """A turn that runs a command in a shell."""
    return call(number, "bash", output, success, command=command)


def answer(number: int, text: str) -> dict[str, Any]:
    """A turn that answers."""
    made = turn(number, output="")
    made["action"]["raw_response"] = text
    made["result"]["output"] = None
    return made


def made_of(*turns: dict[str, Any]) -> Trajectory:
    return trajectory(turns=list(turns))
