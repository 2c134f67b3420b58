"""Detects the language of a piece of code: by label, file name, first line, and last by its text.

Only Python is rated; the others are recognised so that the reasoning can name them. Expressions are RE2's:
they take linear time on text from any source.
"""

from __future__ import annotations

from typing import Any

import re2

PYTHON, SHELL = "python", "shell"
_LABELS = {
    **dict.fromkeys(("python", "py", "python3", "py3", "ipython", "pycon", "jupyter"), PYTHON),
    **dict.fromkeys(("sh", "bash", "shell", "zsh", "terminal", "console", "shell-session"), SHELL),
    **dict.fromkeys(("javascript", "js", "node", "nodejs", "jsx", "mjs"), "javascript"),
    **dict.fromkeys(("typescript", "ts", "tsx"), "typescript"),
    **dict.fromkeys(("c++", "cpp", "cc", "cxx", "hpp"), "c++"),
    **dict.fromkeys(("c", "h"), "c"),
    **dict.fromkeys(("c#", "cs", "csharp"), "c#"),
    **dict.fromkeys(("go", "golang"), "go"),
    **dict.fromkeys(("rust", "rs"), "rust"),
    **dict.fromkeys(("ruby", "rb"), "ruby"),
    **dict.fromkeys(("kotlin", "kt"), "kotlin"),
    **dict.fromkeys(("powershell", "ps1", "pwsh"), "powershell"),
    **{name: name for name in ("java", "php", "sql", "swift", "scala", "r", "lua", "perl", "html", "css")},
}
_NOT_CODE = {
    "text",
    "txt",
    "plaintext",
    "output",
    "log",
    "json",
    "yaml",
    "yml",
    "toml",
    "ini",
    "md",
    "markdown",
}
_SUFFIXES = {"pyi": PYTHON, "pyw": PYTHON, "pl": "perl", "htm": "html"}
_SHEBANG: Any = re2.compile(r"^#!\s*/\S*?/?(?:env\s+(?:-S\s+)?)?([a-z]+)[0-9.]*(?:\s|$)")
_LOOKS: tuple[tuple[str, Any], ...] = tuple(
    (language, re2.compile("(?m)" + "|".join(f"(?:{form})" for form in forms)))
    for language, forms in (
        (
            PYTHON,
            (
                r"^\s*(?:async\s+)?def \w+\([^)]*\)[^{]*:\s*(?:#.*)?$",
                r"^\s*class \w+(?:\([^)]*\))?:\s*$",
                r"^\s*(?:from [\w.]+ import |import [\w.]+(?: as \w+)?(?:, [\w.]+)*\s*$)",
                r"^\s*(?:if|elif|for|while|with|try|except|else)\b[^{}();]*:\s*$",
                r"^\s*print\(",
            ),
        ),
        (
            "javascript",
            (r"^\s*(?:const|let|var) \w+ ?=", r"\bfunction\b ?\w*\(", r"=>\s*[{(]", r"console\.log"),
        ),
        ("java", (r"\bpublic (?:static |final )*(?:class|void|int|String)\b", r"System\.out\.print")),
        ("c++", (r"^\s*#include <\w+>", r"\bstd::", r"^\s*using namespace ")),
        ("c", (r"^\s*#include <\w+\.h>", r"\bint main\(")),
        ("go", (r"^package \w+\s*$", r"^func (?:\(\w+ \*?\w+\) )?\w+\(", r"\bfmt\.Print")),
        ("rust", (r"\bfn \w+(?:<[^>]*>)?\(", r"\blet mut ", r"println!\(")),
        ("ruby", (r"^\s*def \w+[^:]*$", r"^\s*end\s*$", r"^\s*puts ")),
        ("php", (r"<\?php", r"^\s*\$\w+ = ")),
        ("sql", (r"(?i)^\s*(?:select\b.*\bfrom|insert into|create table|update \w+ set)\b",)),
        (SHELL, (r"^\s*(?:\$ |sudo |apt(?:-get)? |pip3? install|git |cd |echo |export \w+=)", r"^\s*fi\s*$")),
        ("html", (r"(?i)<(?:!doctype html|html|div|body)\b",)),
    )
)
_LOOKED_AT = 20_000
"""Characters examined: enough to decide, and few enough for any text."""


def by_label(label: str) -> str | None:
    """Returns the language of a fence's label, a runtime or a kernel (``python3``, ``Nodejs``); None if
    unknown."""
    return _LABELS.get(label.strip().lower())


def is_plain(label: str) -> bool:
    """Checks whether a label stands for data or prose and not for code."""
    return label.strip().lower() in _NOT_CODE


def by_name(name: str) -> str | None:
    """Returns the language of a file name, by its suffix."""
    _, dot, suffix = name.rpartition("/")[2].rpartition(".")
    return (_SUFFIXES.get(suffix.lower()) or _LABELS.get(suffix.lower())) if dot else None


def by_text(text: str) -> str | None:
    """Returns the language of a text: by its ``#!`` line, else the language with the most matching lines."""
    first = _SHEBANG.search(text[:200])
    if first is not None and (language := by_label(first.group(1))) is not None:
        return language
    part = text[:_LOOKED_AT]
    hits = {language: sum(1 for _ in form.finditer(part)) for language, form in _LOOKS}
    best = max(hits, key=lambda language: hits[language])
    return best if hits[best] else None
