"""Code rules: Python text that scores an artefact, run in the sandbox of ``reward.sandbox`` alone.

A rule defines ``evaluate(artefact)``, which returns a number, a bool or ``(score, reason)``. The artefact is
a JSON value. Invariant: the text of a rule never runs in this process.
"""

from __future__ import annotations

import ast
import json
from typing import Any

from onward.reward.sandbox import Limits, Sandbox
from onward.rubrics.language.criteria import InvalidRubric
from onward.rubrics.language.outcomes import Outcome, failed, not_applicable, outcome_of

FUNCTION = "evaluate"
MOST_CHARACTERS = 20_000
"""Length of one rule."""
RULE_LIMITS = Limits(cpu_seconds=2, wall_seconds=10.0)

_PROGRAM = """\
import json, sys
request = json.load(sys.stdin)
out, sys.stdout = sys.stdout, sys.stderr
class NotApplicable(Exception):
    pass
def plain(value):
    if isinstance(value, (tuple, list)):
        return [plain(one) for one in value[:3]]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return plain(value.score) if hasattr(value, "score") else float(value)
def one(artefact):
    space = {"__name__": "rule", "NotApplicable": NotApplicable}
    try:
        exec(compile(request["code"], "rule", "exec"), space)
        return ["value", plain(space["evaluate"](artefact))]
    except NotApplicable as error:
        return ["not_applicable", str(error)]
    except Exception as error:
        return ["error", type(error).__name__ + ": " + str(error)]
out.write(json.dumps(one(request["artefact"])))
"""
"""Each artefact has a process of its own, so a rule keeps nothing from one to the next."""


def check_code(code: str, where: str) -> None:
    """Checks that a rule compiles and defines ``evaluate`` with one argument. Raises InvalidRubric."""
    if len(code) > MOST_CHARACTERS:
        raise InvalidRubric(f"{where} has {len(code)} characters: write at most {MOST_CHARACTERS}.")
    try:
        tree = ast.parse(code)
        compile(tree, "rule", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        advice = ": its line breaks are escaped twice" if "\n" not in code and "\\n" in code else ""
        reason = error.msg if isinstance(error, SyntaxError) else "it is not Python"
        raise InvalidRubric(f"{where} does not compile{line} ({reason}){advice}.") from None
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == FUNCTION]
    if not found or not _takes_one(found[-1].args):
        raise InvalidRubric(f"{where} defines no function {FUNCTION}(artefact): define it.")


def _takes_one(arguments: ast.arguments) -> bool:
    named = len(arguments.posonlyargs) + len(arguments.args)
    required = named - len(arguments.defaults)
    keywords = sum(default is None for default in arguments.kw_defaults)
    return required <= 1 and (named >= 1 or arguments.vararg is not None) and not keywords


async def code_outcome(
    sandbox: Sandbox, code: str, artefact: Any, max_score: float, *, clamp: bool = False
) -> Outcome:
    """Returns the outcome of a rule. Raises ConfigError where the machine cannot confine it."""
    ended = await sandbox.run(_PROGRAM, json.dumps({"code": code, "artefact": artefact}))
    if ended.status != "finished":
        last = (ended.errors.splitlines() or ["it gave no reason"])[-1]
        reasons = {"time": "The rule exceeded its time.", "output": "The rule wrote too much."}
        return failed(reasons.get(ended.status, f"The rule ended its process: {last}"), max_score)
    answer = _answer(ended.output)
    if answer is None:
        return failed("The rule replaced the answer of its process.", max_score)
    kind, value = answer
    if kind == "not_applicable":
        return not_applicable(str(value), max_score)
    return outcome_of(value, max_score, clamp=clamp) if kind == "value" else failed(str(value), max_score)


def _answer(output: str) -> tuple[str, Any] | None:
    try:
        answer = json.loads(output)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, list) or len(answer) != 2 or not isinstance(answer[0], str):
        return None
    return answer[0], answer[1]
