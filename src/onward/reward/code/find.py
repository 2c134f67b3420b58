"""Finds the code that an agent wrote: in tool arguments, here-documents and answers.

A later version of a file replaces the earlier one, and cells run in one interpreter are one session. Code
that is only shown in an answer counts when none was written or run: otherwise clean quotations would dilute
bad work. Arguments are untrusted: one pass, no recursion, RE2 expressions.
Only Python is rated; other languages are recognised so that the reasoning can name them.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import re2

from onward.contracts import Action, Trajectory
from onward.reward.code.lint import How
from onward.reward.code.shell import split_heredocs

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
_NOT_CODE = {"text", "txt", "plaintext", "output", "log", "json", "yaml", "yml", "toml", "ini", "md",
             "markdown"}  # fmt: skip
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
    """Returns the language of a fence's label, a runtime or a kernel (``Nodejs``); None if unknown."""
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


PATH_KEYS = ("path", "file_path", "filepath", "filename", "file_name", "file", "target_file")
CONTENT_KEYS = ("content", "contents", "file_text", "text", "code", "body", "source", "data")
OLD_KEYS, NEW_KEYS = ("old_str", "old_string"), ("new_str", "new_string")
RUNTIME_KEYS = ("runtime", "language", "lang", "kernel", "interpreter")
CODE_KEYS = ("code", "source", "script", "input", "program", "cell")
SHELL_KEYS = ("command", "cmd", "commands")
MAX_PIECES = 16
"""Maximum number of files, beside the session; the longest are used."""
MAX_CHARACTERS = 131_072
"""Maximum characters of one piece; a longer one makes the trajectory unscored."""
MOST_READ = 64_000_000
"""Maximum characters that all edits together may read; later edits are ignored."""
_PYTHON_TOOLS: Any = re2.compile(r"(?i)(?:^|[_.:-])(?:i?python3?|jupyter|notebook|repl)(?:$|[_.:-])")
_FENCE: Any = re2.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^\s`{]*)[ \t]*(.*)$")
_FENCE_NAME: Any = re2.compile(r"(?:title|filename|file|name)=[\"']?([^\s\"']+)")
_NAME_LINE: Any = re2.compile(r"^\s*(?:#|//)\s*(?:file(?:name)?:\s*)?([\w./-]+\.[a-z+#]{1,5})\s*$")


@dataclass(frozen=True)
class CodePiece:
    how: How
    name: str
    """File name; empty for a session or a quotation."""
    cells: tuple[str, ...]

    @property
    def characters(self) -> int:
        return sum(map(len, self.cells))


@dataclass(frozen=True)
class Found:
    pieces: tuple[CodePiece, ...]
    """Python only."""
    languages: Mapping[str, int]
    """Number of pieces seen of each language, repeats included; a shell command is no piece of code."""
    left_out: int = 0
    """Files beyond ``MAX_PIECES``."""


@dataclass
class _Finder:
    files: dict[str, str] = field(default_factory=dict)
    session: list[str] = field(default_factory=list)
    quoted: dict[str, None] = field(default_factory=dict)
    languages: Counter[str] = field(default_factory=Counter)
    read_by_edits: int = 0

    def file(self, name: str, text: str, *, append: bool = False) -> None:
        name = posixpath.normpath(name)
        language = by_name(name) or (by_text(text) if "." not in posixpath.basename(name) else None)
        if language is None:
            return
        self.languages[language] += 1
        if language == PYTHON:
            old = self.files.get(name, "") if append else ""
            self.files[name] = old if len(old) > MAX_CHARACTERS else old + text

    def edit(self, name: str, old: str, new: str) -> None:
        """Applies a replacement to a file whose text is known. Edits of other files are ignored."""
        name = posixpath.normpath(name)
        text = self.files.get(name, "")
        if not old or self.read_by_edits > MOST_READ:
            return
        self.read_by_edits += len(text)
        if text.count(old) == 1:
            self.files[name] = text.replace(old, new)

    def executed(self, language: str, text: str) -> None:
        if language == SHELL:
            return self.shell(text)
        self.languages[language] += 1
        if language == PYTHON:
            self.session.append(text)

    def shell(self, text: str) -> None:
        for document in split_heredocs(text)[1]:
            if document.file is not None:
                self.file(document.file, document.body, append=document.appended)
            elif document.python:
                self.executed(PYTHON, document.body)

    def shown(self, language: str, text: str) -> None:
        self.languages[language] += 1
        if language == PYTHON and text.strip():
            self.quoted[text] = None

    def arguments(self, tool: str, part: Mapping[str, Any]) -> None:
        """Reads one object of the arguments, without the objects inside it."""
        path, content = _first(part, PATH_KEYS), _first(part, CONTENT_KEYS)
        old, new = _first(part, OLD_KEYS), _first(part, NEW_KEYS)
        code, command = _first(part, CODE_KEYS), _first(part, SHELL_KEYS)
        if path and old is not None and new is not None:
            self.edit(path, old, new)
        elif path and content is not None:
            self.file(path, content)
        elif code is not None:
            language = by_label(_first(part, RUNTIME_KEYS) or "")
            if language is None and _PYTHON_TOOLS.search(tool) is not None:
                language = PYTHON
            if language is not None:
                self.executed(language, code)
            elif (looks := by_text(code)) is not None:
                self.shown(looks, code)
                if looks == SHELL:
                    self.shell(code)
        elif command is not None:
            self.executed(SHELL, command)

    def answer(self, text: str) -> None:
        for label, name, body in fences(text):
            language = by_label(label) or (None if is_plain(label) else by_text(body))
            if name and by_name(name) is not None:
                self.file(name, body)
            elif language is not None:
                self.shown(language, body)


def find_code(trajectory: Trajectory) -> Found:
    """Returns all Python that counts, and the other languages seen."""
    finder = _Finder()
    for turn in trajectory.turns:
        action = turn.action
        if action.type == "response":
            for text in _answers(action, turn.result.output):
                finder.answer(text)
        elif action.type == "tool_call":
            for part in objects(action.tool_args):
                finder.arguments(action.tool_name or "", part)
    files = [CodePiece("file", name, (text,)) for name, text in finder.files.items() if text.strip()]
    largest = sorted(files, key=lambda piece: -piece.characters)[:MAX_PIECES]
    pieces = [piece for piece in files if piece in largest]
    if any(cell.strip() for cell in finder.session):
        pieces.append(CodePiece("session", "", tuple(finder.session)))
    if not pieces:
        quoted = [CodePiece("quoted", "", (text,)) for text in finder.quoted]
        pieces = sorted(quoted, key=lambda piece: -piece.characters)[:MAX_PIECES]
    return Found(tuple(pieces), dict(finder.languages), len(files) - len(largest))


def fences(text: str) -> Iterator[tuple[str, str, str]]:
    """Yields label, file name ("" for none) and body of each fenced block; an unclosed fence is ignored."""
    lines = iter(text.split("\n"))
    for line in lines:
        if line.lstrip(" ")[:3] not in ("```", "~~~"):
            continue
        begin = _FENCE.search(line.rstrip("\r"))
        if begin is None:
            continue
        mark, label, rest = begin.group(1), begin.group(2), begin.group(3)
        body: list[str] = []
        for inner in lines:
            bare = inner.strip()
            if len(bare) >= len(mark) and not bare.strip(mark[0]):
                label, colon, name = label.partition(":")
                yield label, (name if colon else _block_name(rest, body)), "\n".join(body) + "\n"
                break
            body.append(inner)


def _block_name(rest: str, body: list[str]) -> str:
    found = _FENCE_NAME.search(rest) or (_NAME_LINE.search(body[0]) if body else None)
    return found.group(1) if found is not None else ""


def _answers(action: Action, output: Any) -> list[str]:
    """Returns the texts of an answer; the raw response only when there is no more exact text."""
    texts = [value for part in objects(action.tool_args) for value in part.values() if isinstance(value, str)]
    if isinstance(output, str):
        texts.append(output)
    if not texts and action.raw_response is not None:
        texts.append(action.raw_response)
    return list(dict.fromkeys(map(_clean, texts)))


def objects(args: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the object and all objects inside it, in the order of their text."""
    stack = [args]
    while stack:
        value = stack.pop()
        if isinstance(value, Mapping):
            yield value
            stack.extend(reversed([inner for inner in value.values() if isinstance(inner, Mapping | list)]))
        elif isinstance(value, list):
            stack.extend(reversed(value))


def strings(value: Any) -> Iterator[str]:
    """Yields every text in a value, keys excluded, in the order of their text."""
    if isinstance(value, str):
        yield _clean(value)
    else:
        for part in objects([value]):
            for inner in part.values():
                if isinstance(inner, str):
                    yield _clean(inner)
                elif isinstance(inner, list):
                    yield from (_clean(word) for word in inner if isinstance(word, str))


def shell_texts(action: Action) -> list[str]:
    """Returns the texts that a call passed to a shell."""
    found: list[str] = []
    for part in objects(action.tool_args):
        code, runtime = _first(part, CODE_KEYS), _first(part, RUNTIME_KEYS)
        if code is not None and by_label(runtime or "") == SHELL:
            found.append(code)
        elif runtime is None and (command := _first(part, SHELL_KEYS)) is not None:
            found.append(command)
    return found


def _first(part: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    for name in names:
        value = part.get(name)
        if isinstance(value, str):
            return _clean(value)
        if isinstance(value, list) and value and all(isinstance(line, str) for line in value):
            return _clean("\n".join(value))
    return None


def _clean(text: str) -> str:
    """Replaces halves of surrogate pairs: JSON can contain them, and no encoding can."""
    return text.encode("utf-8", "replace").decode("utf-8")
