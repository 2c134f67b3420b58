"""Reach on sample sets of other scanners, false positives on ordinary text, and speed.

Nobody's samples are kept here: a set is a folder that is given. Either it contains ``samples.jsonl`` with
lines ``{"text": …, "secret": …}``, or it contains another scanner's tests in Python, and after a colon the
scanner's own rules that label them: a list of compiled expressions, or a function from a text to the secrets
in it. Each text constant of the tests, joined where the source joins it, is scanned by those rules; each
secret that they find in it is a sample. A sample counts as reached if redaction leaves nothing of it.

False positives are the changed places in ``.py``, ``.md``, ``.rst`` and ``.txt`` files of given folders, by
100 KB, with the kinds (a mail address of an author is a right one: read the list that ``--show`` prints).
Speed is bytes of those texts by processor time.

    pip download --no-deps --no-binary :all: SCANNER; tar xf SCANNER*.tar.gz
    PYTHONPATH=SCANNER/src python benchmarks/redaction_outside.py \\
        SCANNER/tests:scanner.rules.RULES [--clean FOLDER] [--show] [--peer langsmith]
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

from onward.redaction import redact
from redaction_peers import PEERS, Clean

Label = Callable[[str], Iterator[str]]
_PATTERN_NAMES = ("pattern", "regex", "regexp", "expression")
_LONGEST = 20_000
_SHORTEST = 5
_PART = 4000
_TEXTS = 50
"""Size of a piece of ordinary text, and pieces of a document: an agent reads files in pages."""


class Sample(NamedTuple):
    text: str
    secret: str


def samples(folder: str) -> list[Sample]:
    """Reads the samples of ``FOLDER`` or ``FOLDER:MODULE.ATTRIBUTE``, each once."""
    path, _, scanner = folder.partition(":")
    found: dict[Sample, None] = {}
    if not scanner:
        for line in (Path(path) / "samples.jsonl").read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            found[Sample(entry["text"], entry["secret"])] = None
        return list(found)
    label = _label(scanner)
    for file in sorted(Path(path).rglob("*.py")) if Path(path).is_dir() else [Path(path)]:
        for text in constants(ast.parse(file.read_text(encoding="utf-8"))):
            for secret in label(text):
                if len(secret) >= _SHORTEST:
                    found[Sample(text, secret)] = None
    return list(found)


def constants(tree: ast.AST) -> Iterator[str]:
    """Yields the texts of a module: literals, and sums, repetitions and f-strings of them and of names."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            text = _constant(node.value, names)
            if text is not None:
                names[node.targets[0].id] = text
    within: set[int] = set()
    for node in ast.walk(tree):
        if id(node) in within or not isinstance(node, (ast.Constant, ast.BinOp, ast.JoinedStr)):
            continue
        text = _constant(node, names)
        if text is not None:
            within.update(id(part) for part in ast.walk(node))
            if _SHORTEST <= len(text) <= _LONGEST:
                yield text


def _constant(node: ast.AST, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bytes):
            return node.value.decode("utf-8", "replace")
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.JoinedStr):
        parts = [_constant(part, names) for part in node.values]
        return None if None in parts else "".join(part for part in parts if part)
    if isinstance(node, ast.FormattedValue):
        return _constant(node.value, names)
    if isinstance(node, ast.BinOp):
        left = _constant(node.left, names)
        if isinstance(node.op, ast.Mult) and left is not None and isinstance(node.right, ast.Constant):
            return left * node.right.value if isinstance(node.right.value, int) else None
        right = _constant(node.right, names)
        joined = isinstance(node.op, ast.Add) and left is not None and right is not None
        return f"{left}{right}" if joined else None
    return None


def _label(scanner: str) -> Label:
    """Returns a function that yields the secrets in a text, by the rules of another scanner."""
    module, _, name = scanner.rpartition(".")
    rules: Any = getattr(importlib.import_module(module), name)
    if callable(rules):
        return cast(Label, rules)
    patterns = list(_patterns(rules))
    if not patterns:
        raise SystemExit(f"{scanner} has no compiled expressions: give a list of them or a function.")

    def label(text: str) -> Iterator[str]:
        for pattern in patterns:
            for match in pattern.finditer(text):
                yield next((group for group in reversed(match.groups()) if group), match.group())

    return label


def _patterns(rules: Any) -> Iterator[re.Pattern[str]]:
    """Yields the expressions in lists, dicts and objects of rules; text counts if it is in ``pattern``."""
    if isinstance(rules, re.Pattern):
        yield rules
    elif isinstance(rules, dict):
        for name, rule in rules.items():
            yield from (
                _compiled(rule) if name in _PATTERN_NAMES and isinstance(rule, str) else _patterns(rule)
            )
    elif isinstance(rules, (list, tuple)):
        for rule in rules:
            yield from _patterns(rule)
    elif hasattr(rules, "__dict__") and not isinstance(rules, type):
        yield from _patterns(vars(rules))


def _compiled(pattern: str) -> Iterator[re.Pattern[str]]:
    with contextlib.suppress(re.error):
        yield re.compile(pattern)


def missed(clean: Clean, given: list[Sample]) -> list[Sample]:
    return [sample for sample in given if sample.secret in clean(sample.text)]


def ordinary(folders: list[str], most: int) -> list[str]:
    """Returns the texts of source and documentation files, in pieces, at most ``most`` bytes."""
    pieces: list[str] = []
    size = 0
    for folder in folders:
        for file in sorted(Path(folder).rglob("*")):
            if file.suffix not in (".py", ".md", ".rst", ".txt") or not file.is_file() or size > most:
                continue
            text = file.read_text(encoding="utf-8", errors="replace")
            size += len(text)
            pieces += [text[i : i + _PART] for i in range(0, len(text), _PART)]
    return pieces


def measure_clean(texts: list[str], show: bool) -> dict[str, Any]:
    """Returns bytes, false positives per 100 KB with their kinds, and MB per second of processor time, in
    documents of fifty texts."""
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    kinds: Counter[str] = Counter()
    documents = [texts[i : i + _TEXTS] for i in range(0, len(texts), _TEXTS)]
    start = time.process_time()
    results = [redact(document) for document in documents]
    spent = time.process_time() - start
    for document, result in zip(documents, results, strict=True):
        kinds.update(result.counts)
        for text, new in zip(document, result.document, strict=True) if show else ():
            for before, after in zip(text.splitlines(), new.splitlines(), strict=False):
                if before != after:
                    print(f"  - {before.strip()[:160]}\n  + {after.strip()[:160]}")
    return {
        "bytes": size,
        "changes_per_100_kb": sum(kinds.values()) / max(1e-9, size / 100_000),
        "kinds": dict(kinds.most_common()),
        "mb_per_second": size / 1e6 / max(1e-9, spent),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("sets", nargs="*", metavar="FOLDER[:MODULE.ATTRIBUTE]")
    parser.add_argument("--clean", action="append", default=[], metavar="FOLDER")
    parser.add_argument("--most", type=int, default=10_000_000, help="bytes of ordinary text")
    parser.add_argument("--peer", action="append", default=[], choices=list(PEERS), help="measured beside")
    parser.add_argument("--show", action="store_true", help="print what was missed or changed")
    parser.add_argument("--quick", action="store_true", help="a megabyte of ordinary text at most")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    told: dict[str, Any] = {"sets": []}
    for folder in given.sets:
        found = samples(folder)
        for name in ["onward", *given.peer]:
            left = missed(PEERS[name].make(), found)
            share = 1 - len(left) / max(1, len(found))
            told["sets"].append({"set": folder, "what": name, "samples": len(found), "reach": share})
            print(f"{folder}: {name} reaches {share:.1%} of {len(found)}")
            for sample in left if given.show and name == "onward" else ():
                print(f"  left {sample.secret!r} in {sample.text[:200]!r}")
    if given.clean:
        most = min(given.most, 1_000_000) if given.quick else given.most
        told["clean"] = clean = measure_clean(ordinary(given.clean, most), given.show)
        named = ", ".join(f"{kind} {count}" for kind, count in clean["kinds"].items())
        print(
            f"{clean['bytes'] / 1e6:.1f} MB of text: {clean['changes_per_100_kb']:.2f} changes per 100 KB "
            f"({named}); {clean['mb_per_second']:.1f} MB/s"
        )
    if given.json:
        given.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
