"""The six tools of the desk and the small office that they work in.

A tool takes text arguments and returns text. A wrong call raises a ToolError, and the agent reads its text.
The corpus lists fixed subjects, but every value in it is drawn per task (``Office``). So no answer can be
memorised: it has to be read from a tool.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass, field

PEOPLE = ("Adam", "Clara", "Emil", "Greta", "Ivan", "Mara")
ATTRIBUTES = ("badge", "phone", "room")
ITEMS = ("chair", "clock", "desk", "lamp", "mug", "shelf")
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday")
EVENTS = ("audit", "budget", "dentist", "lunch", "review", "training", "workshop")
NOTES = ("garden", "hiring", "party", "project", "sales", "travel")
SMALL = (2, 3, 4, 5, 6)
"""Operands and prices: few, so that every number of the desk occurs often."""
NUMBERS = tuple(sorted({a + b for a in SMALL for b in SMALL} | {a * b for a in SMALL for b in SMALL}))
"""Sums and products of two operands; rooms, phones and badges also have these numbers."""

SYSTEM_PROMPT = (
    "You are an office assistant. Each turn, answer with one JSON object only: "
    '{"tool_name": "...", "tool_args": {...}}. Tools: calculator(expression), search(query), '
    "notes_save(name, text), notes_read(name), calendar(day), response(text). "
    "Tool results come back as messages. Give the final answer with response."
)

TOOLS: dict[str, tuple[str, ...]] = {
    "calculator": ("expression",),
    "search": ("query",),
    "notes_save": ("name", "text"),
    "notes_read": ("name",),
    "calendar": ("day",),
    "response": ("text",),
}

_MAX_EXPRESSION = 64
_MAX_MAGNITUDE = 10**9
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class ToolError(Exception):
    """Raised when a tool refuses its arguments; the agent receives the text as the tool's result."""


@dataclass
class Office:
    """Data of the tools in one task. ``notes`` changes while the agent works."""

    documents: dict[str, str]
    calendar: dict[str, str]
    notes: dict[str, str] = field(default_factory=dict)

    def copy(self) -> Office:
        return Office(dict(self.documents), dict(self.calendar), dict(self.notes))


def subjects() -> list[str]:
    """Returns the titles of the documents in the corpus, in a fixed order."""
    facts = [f"{person} {attribute}" for person in PEOPLE for attribute in ATTRIBUTES]
    return facts + [f"{item} price" for item in ITEMS]


def calculate(expression: str) -> str:
    """Evaluates an expression of numbers, + - * / and brackets; returns text without a needless '.0'."""
    if len(expression) > _MAX_EXPRESSION:
        raise ToolError(f"expression longer than {_MAX_EXPRESSION} characters")
    try:
        value = _evaluate(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ToolError("not an expression") from error
    return str(int(value)) if value == int(value) else f"{value:.4f}".rstrip("0")


def _evaluate(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        value = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = -_evaluate(node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _evaluate(node.left), _evaluate(node.right)
        if isinstance(node.op, ast.Div) and right == 0:
            raise ToolError("division by zero")
        value = _OPERATORS[type(node.op)](left, right)
    else:
        raise ToolError("not an expression")
    assert isinstance(value, (int, float))
    if abs(value) > _MAX_MAGNITUDE:
        raise ToolError("number too large")
    return value


def search(office: Office, query: str) -> str:
    """Returns the document whose title shares most words with the query; the first one in a tie."""
    words = set(query.lower().split())
    best, best_score = "", 0
    for title in office.documents:
        score = len(words & set(title.lower().split()))
        if score > best_score:
            best, best_score = title, score
    if not best:
        raise ToolError("nothing found")
    return f"{best} {office.documents[best]}"


def use(office: Office, tool_name: str, tool_args: dict[str, object]) -> str:
    """Runs one tool (not ``response``) and returns its result as text. Raises ToolError."""
    if tool_name not in TOOLS or tool_name == "response":
        raise ToolError(f"no tool {tool_name[:20]}")
    names = TOOLS[tool_name]
    if set(tool_args) != set(names) or not all(isinstance(tool_args[name], str) for name in names):
        raise ToolError(f"{tool_name} takes text: {', '.join(names)}")
    values = [str(tool_args[name]).strip() for name in names]
    if tool_name == "calculator":
        return calculate(values[0])
    if tool_name == "search":
        return search(office, values[0])
    if tool_name == "calendar":
        return _entry(office.calendar, values[0], "day")
    if tool_name == "notes_read":
        return _entry(office.notes, values[0], "note")
    office.notes[values[0].lower()] = values[1]
    return "saved"


def _entry(table: dict[str, str], key: str, what: str) -> str:
    value = table.get(key.lower())
    if value is None:
        raise ToolError(f"no {what} {key[:20]}")
    return value
