"""Imports of the tree, read without running it: no module and no room of a package imports in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import onward

SRC = Path(onward.__file__).parents[1]
Graph = Mapping[str, set[str]]


def modules_of(root: Path) -> dict[str, Path]:
    """Returns the dotted name of every module below ``root``."""
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(body: list[ast.stmt]) -> Iterator[str]:
    """Yields what is imported while a module is loaded: not within functions, not for types alone."""
    for node in body:
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            case ast.If() if "TYPE_CHECKING" in ast.unparse(node.test):
                yield from imported(node.orelse)
            case ast.If() | ast.Try():
                yield from imported([*node.body, *node.orelse])


def graph_of(root: Path) -> dict[str, set[str]]:
    """Returns module → modules of the tree that it imports while it is loaded."""
    modules, graph = modules_of(root), {}
    for name, path in modules.items():
        graph[name] = set()
        for one in imported(ast.parse(path.read_text(encoding="utf-8")).body):
            while one and one not in modules:
                one = one.rpartition(".")[0]
            if one and one != name:
                graph[name].add(one)
    return graph


def room(module: str, package: str) -> str:
    """Returns the sub-package of ``package`` that has ``module``; its own files are no room."""
    parts = module.removeprefix(package + ".").split(".")
    return parts[0] if module.startswith(package + ".") and len(parts) > 1 else ""


def rooms_of(graph: Graph, package: str) -> dict[str, set[str]]:
    """Returns sub-package → sub-packages of the same package that it imports."""
    rooms: dict[str, set[str]] = {}
    for module, others in graph.items():
        if mine := room(module, package):
            found = {room(other, package) for other in others}
            rooms.setdefault(mine, set()).update(found - {mine, ""})
    return rooms


def circle(graph: Graph) -> list[str]:
    """Returns one circle of ``graph``, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


PACKAGES = sorted({name.rsplit(".", 2)[0] for name in modules_of(SRC) if name.count(".") >= 3})


@pytest.fixture(scope="module")
def tree() -> Graph:
    return graph_of(SRC)


def test_no_module_imports_itself_through_others(tree: Graph) -> None:
    assert circle(tree) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_the_rooms_of_a_package_import_one_way(tree: Graph, package: str) -> None:
    assert circle(rooms_of(tree, package)) == []


def test_a_circle_is_found(tmp_path: Path) -> None:
    """Rooms p.a and p.b import each other; modules do not, and imports for types or in functions are fine."""
    files = {
        "p/__init__.py": "",
        "p/a/__init__.py": "",
        "p/a/one.py": "from p.b import two",
        "p/a/leaf.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.a.one",
        "p/b/__init__.py": "",
        "p/b/two.py": "from p.a.leaf import X\n\ndef f():\n    import p.a.one",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    graph = graph_of(tmp_path)
    assert graph["p.b.two"] == {"p.a.leaf"} and graph["p.a.leaf"] == set()
    assert circle(graph) == []
    assert set(circle(rooms_of(graph, "p"))) == {"a", "b"}
    (tmp_path / "p/a/leaf.py").write_text("import p.a.one")
    assert set(circle(graph_of(tmp_path))) == {"p.a.one", "p.b.two", "p.a.leaf"}
