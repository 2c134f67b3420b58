"""One agent's attempt at one desk task: parses its answer, runs the tool, judges the result.

An answer that is not one JSON object of the required form ends the episode. Such an answer is an error of the
policy, and the release gates count it as one. A tool that refuses its arguments only costs a step.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from onward.envs.desk.tasks import Stage, Task
from onward.envs.desk.tools import ATTRIBUTES, DAYS, EVENTS, ITEMS, PEOPLE, SYSTEM_PROMPT, ToolError, use

MAX_STEPS = 4
MAX_ANSWER_CHARACTERS = 2000

_WORD = re.compile(r"[a-z]+|-?\d+(?:\.\d+)?")
_VALUES = frozenset(word.lower() for word in PEOPLE + ATTRIBUTES + ITEMS + DAYS + EVENTS)


class Message(TypedDict):
    """One chat message."""

    role: str
    content: str


Status = Literal["completed_successfully", "partial_completion", "failed", "abandoned"]


@dataclass(frozen=True)
class Step:
    """Result of one answer. ``observation`` is the next user message, None when done."""

    observation: str | None
    done: bool
    tool_name: str | None
    tool_args: dict[str, object]
    error: str | None


@dataclass(frozen=True)
class DeskOutcome:
    """Verdict on an attempt. ``success`` is binary; ``completion`` is 1 with success, else half the share of
    steps reached.

    It is half because policies learn from completion: a nearly finished task must score far below a finished
    one.
    """

    success: bool
    completion: float
    status: Status


@dataclass(frozen=True)
class _Unparsable(Exception):
    reason: str


@dataclass
class Episode:
    """The state of one attempt at ``task``; the task itself never changes."""

    task: Task
    steps: int = 0
    done: bool = False
    unparsable: bool = False
    answered: bool = False
    _stages_reached: int = 0
    _tool_calls: int = 0
    _seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._office = self.task.office.copy()
        self._seen |= _words(self.task.instructions)

    def messages(self) -> list[Message]:
        """Returns the messages that start the conversation."""
        return [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": self.task.instructions},
        ]

    def step(self, answer: str) -> Step:
        """Plays one answer of the agent. Raises ValueError after ``done``."""
        if self.done:
            raise ValueError("This episode is done: start a new Episode for another attempt.")
        self.steps += 1
        try:
            tool_name, tool_args = parse(answer)
        except _Unparsable as error:
            self.done = self.unparsable = True
            return Step(None, True, None, {}, f"unparsable: {error.reason}")
        if tool_name == "response":
            return self._finish(tool_args)
        self._tool_calls += 1
        error_text = None
        try:
            result = use(self._office, tool_name, tool_args)
        except ToolError as error:
            error_text = result = f"error: {error}"
        else:
            self._advance(tool_name, result)
        self._seen |= _words(result)
        self.done = self.steps >= MAX_STEPS
        return Step(None if self.done else f"Result: {result}", self.done, tool_name, tool_args, error_text)

    def outcome(self) -> DeskOutcome:
        """Returns the verdict so far; final once ``done``."""
        needed = len(self.task.stages)
        enough = self._stages_reached == needed and (needed > 0 or self._tool_calls == 0)
        success = self.answered and enough
        completion = 1.0 if success else 0.5 * self._stages_reached / (needed + 1)
        status: Status
        if success:
            status = "completed_successfully"
        elif not self.done or (self.steps >= MAX_STEPS and not self.answered and not self.unparsable):
            status = "abandoned"
        else:
            status = "partial_completion" if completion > 0 else "failed"
        return DeskOutcome(success, completion, status)

    def _advance(self, tool_name: str, result: str) -> None:
        if self._stages_reached == len(self.task.stages):
            return
        stage = self.task.stages[self._stages_reached]
        if tool_name == stage.tool_name and result == stage.result and self._note_is_left(stage):
            self._stages_reached += 1

    def _note_is_left(self, stage: Stage) -> bool:
        if stage.leaves_note is None:
            return True
        name, text = stage.leaves_note
        return self._office.notes.get(name, "").strip().lower() == text

    def _finish(self, tool_args: dict[str, object]) -> Step:
        self.done = True
        text = tool_args.get("text")
        if set(tool_args) != {"text"} or not isinstance(text, str):
            return Step(None, True, "response", tool_args, "error: response takes text: text")
        self.answered = self._is_right(text)
        return Step(None, True, "response", tool_args, None)

    def _is_right(self, text: str) -> bool:
        """Checks that the answer contains the value and no other that the agent has not seen (no guesses)."""
        words = _words(text)
        guesses = {w for w in words if w in _VALUES or w[-1].isdigit()} - self._seen
        return self.task.answer.lower() in words and guesses <= {self.task.answer.lower()}


def parse(answer: str) -> tuple[str, dict[str, object]]:
    """Returns tool name and arguments of an answer, which must be one JSON object and nothing else."""
    if len(answer) > MAX_ANSWER_CHARACTERS:
        raise _Unparsable("longer than 2000 characters")
    try:
        document = json.loads(answer, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise _Unparsable("not one JSON object") from None
    if not isinstance(document, dict):
        raise _Unparsable("not one JSON object")
    tool_name, tool_args = document.get("tool_name"), document.get("tool_args")
    if not isinstance(tool_name, str) or not isinstance(tool_args, dict):
        raise _Unparsable("tool_name (text) and tool_args (object) are needed")
    if set(document) - {"tool_name", "tool_args", "thoughts"}:
        raise _Unparsable("only tool_name, tool_args and thoughts are allowed")
    return tool_name, tool_args


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))
