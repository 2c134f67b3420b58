"""Checks of files: a named yes-or-no question about one file, and the smallest fault that turns it to no.

``holds`` judges, ``spoil`` makes the fault. A worker that misses a requirement writes a good file and then
spoils it, so what a run satisfies is known exactly: ``checks(run(requirements)) == requirements``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onward.errors import MissingExtraError
from onward.rubrics.gym.files.formats import Files
from onward.rubrics.gym.graph import suggestion
from onward.rubrics.gym.parts import WorkflowError

DIMENSIONS: tuple[str, ...] = (
    "accuracy", "completeness", "form", "brevity", "compliance", "traceability", "actionability",
)  # fmt: skip
"""Sides of quality: the topics that a stakeholder answers questions about."""

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class FileCheck:
    """A kind of check. Faults of a small ``order`` are made first: later ones leave them alone."""

    name: str
    dimension: str
    sentence: str
    """For people; ``{argument}`` is filled in."""
    arguments: tuple[str, ...]
    holds: Callable[[bytes, Arguments, Files], bool]
    spoil: Callable[[bytes, Arguments, Files], bytes]
    order: int = 0


CHECKS: dict[str, FileCheck] = {}
"""Name → kind of check. The modules ``tables`` and ``documents`` fill it."""


def declare(
    name: str,
    dimension: str,
    sentence: str,
    holds: Callable[[bytes, Arguments, Files], bool],
    spoil: Callable[[bytes, Arguments, Files], bytes],
    *arguments: str,
    order: int = 0,
) -> None:
    """Adds a kind of check to ``CHECKS``."""
    CHECKS[name] = FileCheck(name, dimension, sentence, arguments, holds, spoil, order)


@dataclass(frozen=True)
class Requirement:
    """A check of one file with its arguments (JSON text, so that it can be compared and hashed)."""

    file: str
    check: str
    arguments: str = "{}"

    @classmethod
    def of(cls, file: str, check: str, **arguments: Any) -> Requirement:
        """Returns a requirement. Raises WorkflowError for an unknown check or wrong arguments."""
        if check not in CHECKS:
            raise WorkflowError(f"There is no check {check!r}{suggestion(check, CHECKS)}: use one of CHECKS.")
        expected = CHECKS[check].arguments
        if set(arguments) != set(expected):
            raise WorkflowError(
                f"The check {check} of {file!r} has arguments {sorted(arguments)}: give {sorted(expected)}."
            )
        return cls(file, check, json.dumps(arguments, sort_keys=True))

    @property
    def given(self) -> dict[str, Any]:
        """Arguments as a dictionary."""
        return json.loads(self.arguments)

    @property
    def kind(self) -> FileCheck:
        """Kind of the check."""
        return CHECKS[self.check]

    @property
    def id(self) -> str:
        """Short unique name: ``unique(lots.csv, lot)``."""
        given = [str(value) for value in self.given.values() if value not in ("", None)]
        return f"{self.check}({', '.join([self.file, *given])})"

    @property
    def sentence(self) -> str:
        """Requirement in words."""
        return f"{self.file}: {self.kind.sentence.format(**self.given)}"

    def holds(self, files: Files) -> bool:
        """Returns whether the file satisfies it. A file that is missing or cannot be read does not."""
        try:
            return self.kind.holds(files.read(self.file), self.given, files)
        except MissingExtraError:
            raise
        except (WorkflowError, KeyError, IndexError, ValueError, TypeError, AttributeError):
            return False  # the content comes from a worker, and may be anything

    def spoil(self, content: bytes, files: Files) -> bytes:
        """Returns ``content`` with the fault that this check finds."""
        return self.kind.spoil(content, self.given, files)

    def chance(self, *seed: object) -> float:
        """Returns a number from 0 to 1 that depends on the requirement and ``seed`` alone."""
        text = "/".join(map(str, (*seed, self.file, self.check, self.arguments)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48
