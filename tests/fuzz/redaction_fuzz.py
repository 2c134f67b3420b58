"""Coverage-guided fuzzing of ``redact``, for as long as one likes: needs atheris (extra ``bench``).

    python tests/fuzz/redaction_fuzz.py -max_total_time=3600 [-seed=1] [FOLDER OF FOUND INPUTS]

The bytes decide a document: its nesting, its texts (raw, secrets, escapes, halves of both), its numbers. The
same rules as in the tests are then held against the output; a broken one ends the run and prints the input.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "fuzz")]

import atheris  # noqa: E402

with atheris.instrument_imports(include=["onward.redaction"]):
    from onward import redaction  # noqa: F401

from redaction_rules import FRAGMENTS, PLANTED, check  # noqa: E402


class Reader:
    """A document out of bytes; when they run out, everything is empty."""

    def __init__(self, data: bytes) -> None:
        self._data = atheris.FuzzedDataProvider(data)

    def document(self, depth: int = 0) -> Any:
        choice = self._data.ConsumeIntInRange(0, 9 if depth < 8 else 6)
        if choice < 5:
            return self.text()
        if choice == 5:
            return self._data.ConsumeInt(16)
        if choice == 6:
            return self._data.PickValueInList([None, True, 1e308, float("nan"), -(10**30), 0])
        size = self._data.ConsumeIntInRange(0, 4)
        if choice == 7:
            return [self.document(depth + 1) for _ in range(size)]
        return {self.text(): self.document(depth + 1) for _ in range(size)}

    def text(self) -> str:
        parts = []
        for _ in range(self._data.ConsumeIntInRange(0, 5)):
            if self._data.ConsumeBool():
                parts.append(self._data.PickValueInList(FRAGMENTS))
            else:
                parts.append(self._data.ConsumeUnicode(self._data.ConsumeIntInRange(0, 24)))
        return "".join(parts)

    def planted(self) -> tuple[str, str]:
        return self._data.PickValueInList(PLANTED)


def one_input(data: bytes) -> None:
    reader = Reader(data)
    text, secret = reader.planted()
    check(reader.document(), f"aside {text} onward", secret)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
