"""Statements that work in a test and fail in a service, found in the tree without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import source_packages

import onward

SRC = Path(onward.__file__).parent


def narrows(test: ast.expr) -> bool:
    """Whether an assertion tells a type checker what is known already: ``x is not None``, ``isinstance``."""
    match test:
        case ast.BoolOp(op=ast.And()):
            return all(map(narrows, test.values))
        case ast.UnaryOp(op=ast.Not()):
            return narrows(test.operand)
        case ast.Call(func=ast.Name(id="isinstance")):
            return True
        case ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
    return False


def swallows(body: list[ast.stmt]) -> bool:
    return all(isinstance(one, ast.Pass) or is_text(one) for one in body)


def is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_any_error(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Name) and node.id in ("Exception", "BaseException"))


def faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Assert(test=test, msg=message) if message is not None or not narrows(test):
                yield node.lineno, "assert decides something, and python -O leaves it out"
            case ast.ExceptHandler(type=kind, body=body) if is_any_error(kind) and swallows(body):
                yield node.lineno, "every error is swallowed"
            case ast.Call(func=ast.Attribute(attr="suppress") | ast.Name(id="suppress"), args=kinds) if any(
                map(is_any_error, kinds)
            ):
                yield node.lineno, "every error is swallowed"
            case ast.Call(func=ast.Attribute(attr="add_done_callback"), args=[ast.Lambda(body=body)]) if (
                isinstance(body, (ast.Constant, ast.BoolOp))
            ):
                yield node.lineno, "a task's error is swallowed"
            case ast.keyword(arg="preexec_fn"):
                yield node.value.lineno, "preexec_fn may deadlock where there are threads"


@pytest.mark.parametrize("package", source_packages.NAMES)
def test_nothing_is_decided_by_an_assertion_and_no_error_is_swallowed(package: str) -> None:
    found = [
        f"{path.relative_to(SRC)}:{line} {fault}"
        for path in source_packages.files(SRC, package)
        if path.name != "samples.py"  # code that the linter reads, never run
        for line, fault in faults(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("assert x is not None and isinstance(y, int)\nassert not isinstance(x, dict)", 0),
        ("assert x in y", 1),
        ("assert x is not None, 'start() comes first'", 1),
        ("try: f()\nexcept Exception: pass", 1),
        ("try: f()\nexcept OSError: pass", 0),
        ("with contextlib.suppress(Exception): f()", 1),
        ("task.add_done_callback(lambda done: done.cancelled() or done.exception())", 1),
        ("task.add_done_callback(tasks.discard)", 0),
        ("run(command, preexec_fn=f)", 1),
    ],
)
def test_each_kind_is_seen(text: str, count: int) -> None:
    assert len(list(faults(ast.parse(text)))) == count


def test_every_file_is_read_once() -> None:
    read = [path for name in source_packages.NAMES for path in source_packages.files(SRC, name)]
    assert sorted(read) == sorted(SRC.rglob("*.py"))
