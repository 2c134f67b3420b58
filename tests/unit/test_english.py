"""Docstrings and documentation pages in plain English: the words that an engineer of the field expects."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import source_packages

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "onward"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

QUESTION = frozenset((
    "what", "which", "how", "who", "whose", "whom", "whether", "where", "when", "why",
))  # fmt: skip
"""No docstring begins with one of these: a clause without a head has to be decoded."""
PREPOSITION = frozenset((
    "of", "from", "until", "between", "behind", "towards",
))  # fmt: skip
IMPERATIVE = frozenset((
    "return", "put", "make", "write", "read", "give", "take", "ask", "tell", "keep", "let", "say",
    "begin", "go", "get", "bring", "hold", "wait", "raise",
))  # fmt: skip
"""A docstring says what a function does, in the third person: 'Returns', not 'Return'."""
WORDS = re.compile(
    r"\b(?:for ever|told|tells|said|says nothing|buried|bury|know before changing|the one thing to know|"
    r"that there is not|somebody|nobody|everybody|by and by|a belt)\b",
    re.IGNORECASE,
)
"""The field says report, discard, forever, Invariants, a user, no one."""
QUOTED = re.compile(r"``.*?``|`[^`]*`|\"[^\"\n]*\"|“[^”]*”|'[^'\n]*'", re.DOTALL)
FENCED = re.compile(r"^```.*?^```|^~~~.*?^~~~|<!--.*?-->", re.DOTALL | re.MULTILINE)


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of each docstring in a file, those of attributes included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield node.lineno, value.value


def first_word(text: str) -> str:
    found = re.match(r"\s*([A-Za-z]+)\b", text)
    return found[1].lower() if found else ""


def faults(text: str) -> list[str]:
    """Returns what a docstring would have to change."""
    word = first_word(text)
    found = [f"begins with {word!r}"] if word in QUESTION | PREPOSITION | IMPERATIVE else []
    return found + [f"has {match[0]!r}" for match in WORDS.finditer(QUOTED.sub("", text))]


@pytest.mark.parametrize("package", source_packages.NAMES)
def test_docstrings_are_plain(package: str) -> None:
    found = [
        f"{path.relative_to(SRC)}:{line} {fault}"
        for path in source_packages.files(SRC, package)
        for line, text in docstrings(path)
        for fault in faults(text)
    ]
    assert found == []


def test_pages_are_plain() -> None:
    found = []
    for path in PAGES:
        text = QUOTED.sub("", FENCED.sub("", path.read_text(encoding="utf-8")))
        found += [f"{path.relative_to(ROOT)} {match[0]}" for match in WORDS.finditer(text)]
    assert found == []


def test_the_check_sees_each_kind_of_fault() -> None:
    assert faults("What becomes of a message: it is buried.") == ["begins with 'what'", "has 'buried'"]
    assert faults("Return the sum.") == ["begins with 'return'"]
    assert faults("Of payloads; a bus that is told.") == ["begins with 'of'", "has 'told'"]
    assert faults("Returns ``told`` and 'said'.") == []
