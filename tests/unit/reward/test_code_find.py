"""Where code is found, which language it is in, and which version of a file counts."""

from __future__ import annotations

from typing import Any

import pytest
from code_documents import answer, call, made_of

from onward.reward.code.find import MAX_PIECES, Found, by_label, by_name, by_text, fences, find_code
from onward.reward.code.shell import commands, split_heredocs


def pieces(*turns: dict[str, Any]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(piece.how, piece.name, piece.cells) for piece in found(*turns).pieces]


def found(*turns: dict[str, Any]) -> Found:
    return find_code(made_of(*turns))


def test_a_heredoc_is_a_file() -> None:
    shell = "mkdir -p a && cat > ./a/x.py <<'EOF'\nx = 1\nif x:\n    print(x)\nEOF\npython a/x.py"
    expected = [("file", "a/x.py", ("x = 1\nif x:\n    print(x)\n",))]
    assert pieces(call(1, "code_execution_tool", runtime="terminal", code=shell)) == expected
    assert pieces(call(1, "bash", command=shell)) == expected


@pytest.mark.parametrize(
    "line",
    [
        "cat <<EOF > x.py",
        "tee x.py <<EOF",
        'cat > "x.py" << "EOF"',
        "cat <<-EOF > x.py",
        "sudo tee x.py <<'EOF' >/dev/null",
    ],
)
def test_the_forms_of_a_heredoc(line: str) -> None:
    assert pieces(call(1, "bash", command=f"{line}\nx = 1\nEOF")) == [("file", "x.py", ("x = 1\n",))]


def test_a_heredoc_that_is_appended_continues_the_file() -> None:
    turns = (
        call(1, "bash", command="cat > x.py <<A\nx = 1\nA"),
        call(2, "bash", command="cat >> x.py <<A\ny = 2\nA"),
    )
    assert pieces(*turns) == [("file", "x.py", ("x = 1\ny = 2\n",))]


def test_a_heredoc_into_python_is_run() -> None:
    assert pieces(call(1, "bash", command="python3 - <<'E'\nprint(1)\nE")) == [
        ("session", "", ("print(1)\n",))
    ]


@pytest.mark.parametrize(
    "args",
    [
        {"path": "x.py", "content": "x = 1\n"},
        {"file_path": "x.py", "content": "x = 1\n"},
        {"command": "create", "path": "./x.py", "file_text": "x = 1\n"},
        {"filename": "x.py", "code": "x = 1\n"},
        {"files": [{"path": "x.py", "content": "x = 1\n"}]},
        {"path": "x.py", "content": ["x = 1", ""]},
    ],
)
def test_a_file_in_arguments(args: dict[str, Any]) -> None:
    assert pieces(call(1, "write", **args)) == [("file", "x.py", ("x = 1\n",))]


def test_a_later_version_of_a_file_replaces_the_earlier_one() -> None:
    turns = (
        call(1, "write", path="x.py", content="x = (\n"),
        call(2, "write", path="y.py", content="y = 1\n"),
        call(3, "bash", command="cat > x.py <<E\nx = 2\nE"),
    )
    assert pieces(*turns) == [("file", "x.py", ("x = 2\n",)), ("file", "y.py", ("y = 1\n",))]


def test_an_edit_changes_a_known_file_and_says_nothing_about_another() -> None:
    turns = (
        call(1, "write", path="x.py", content="x = 1\ny = 1\n"),
        call(2, "edit", command="str_replace", path="x.py", old_str="x = 1", new_str="x = 3"),
        call(3, "edit", command="str_replace", path="x.py", old_str=" = ", new_str="?"),
        call(4, "edit", command="str_replace", path="other.py", old_str="a", new_str="b"),
    )
    assert pieces(*turns) == [("file", "x.py", ("x = 3\ny = 1\n",))]


def test_cells_of_one_interpreter_are_one_session() -> None:
    turns = (
        call(1, "code_execution_tool", runtime="python", code="import os"),
        call(2, "save_snippet", code="print(1)"),
        call(3, "run.ipython", code="print(os.name)"),
    )
    assert pieces(*turns) == [("session", "", ("import os", "print(os.name)"))]
    assert found(turns[1]).pieces[0].how == "quoted", "nobody said that this was run as Python"


def test_code_in_an_answer_counts_when_nothing_was_written_or_run() -> None:
    text = "Here:\n```python\ndef f():\n    return 1\n```\nand\n~~~js\nlet a = 1;\n~~~\n"
    assert pieces(answer(1, text)) == [("quoted", "", ("def f():\n    return 1\n",))]
    assert found(answer(1, text)).languages == {"python": 1, "javascript": 1}
    both = (call(1, "write", path="x.py", content="x = 1\n"), answer(2, text))
    assert pieces(*both) == [("file", "x.py", ("x = 1\n",))]


@pytest.mark.parametrize(
    "block",
    [
        '```python title="a/x.py"\nx = 1\n```',
        "```python:a/x.py\nx = 1\n```",
        "```py filename=a/x.py\nx = 1\n```",
    ],
)
def test_a_block_with_a_file_name_is_a_file(block: str) -> None:
    assert pieces(answer(1, block)) == [("file", "a/x.py", ("x = 1\n",))]


def test_a_block_that_begins_with_its_file_name_is_a_file() -> None:
    assert pieces(answer(1, "```python\n# a/x.py\nx = 1\n```"))[0][:2] == ("file", "a/x.py")


def test_fences() -> None:
    text = "````md\n```py\nx\n```\n````\n```\nplain\n```\n``` sh\nls\n"
    assert list(fences(text)) == [("md", "", "```py\nx\n```\n"), ("", "", "plain\n")]


def test_the_same_block_twice_is_one() -> None:
    assert len(pieces(answer(1, "```py\nx = 1\n```\n"), answer(2, "```py\nx = 1\n```\n"))) == 1


def test_data_and_prose_are_no_code() -> None:
    text = '```json\n{"a": 1}\n```\n```text\nimport os\n```\n```\nhello world\n```\n'
    assert found(answer(1, text)) == Found((), {})
    assert found(call(1, "write", path="notes.md", content="import os\n")) == Found((), {})


def test_other_languages_are_named_and_not_rated() -> None:
    turns = (
        call(1, "write", path="a.ts", content="let x: number = 1"),
        call(2, "write", path="b.go", content="package main"),
        call(3, "code_execution_tool", runtime="nodejs", code="console.log(1)"),
        call(4, "write", path="run", content="#!/usr/bin/env bash\nls"),
    )
    assert found(*turns) == Found((), {"typescript": 1, "go": 1, "javascript": 1, "shell": 1})


def test_commands_are_no_code() -> None:
    assert found(call(1, "bash", command="ls -la; pip install x")) == Found((), {})


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("#!/usr/bin/env python3\n", "python"),
        ("#!/usr/bin/env -S python3 -u\n", "python"),
        ("#!/bin/bash -e\n", "shell"),
        ("def f(a, b=1):\n    return a\n", "python"),
        ("async def f(x: int) -> None:\n    pass\n", "python"),
        ("from a.b import c\n", "python"),
        ("for i in range(3):\n    print(i)\n", "python"),
        ("const a = () => { return 1; }\n", "javascript"),
        ("package main\n\nfunc main() {\n}\n", "go"),
        ("fn main() {\n    println!(\"x\");\n}\n", "rust"),
        ("SELECT a FROM b WHERE c = 1;", "sql"),
        ("#include <stdio.h>\nint main(void) { return 0; }\n", "c"),
        ("#include <iostream>\nint main() { std::cout << 1; }\n", "c++"),
        ("public class A { public static void main(String[] a) {} }", "java"),
        ("<!DOCTYPE html>\n<html></html>", "html"),
        ("<?php\n$x = 1;", "php"),
        ("The weather is fine.", None),
        ("", None),
    ],
)  # fmt: skip
def test_language_by_its_looks(text: str, language: str | None) -> None:
    assert by_text(text) == language


def test_language_by_label_and_name() -> None:
    assert [by_label(x) for x in ("Python3", " py", "JS", "bash", "nonsense", "")] == [
        "python",
        "python",
        "javascript",
        "shell",
        None,
        None,
    ]
    assert [by_name(x) for x in ("a/b.PY", "x.pyi", "y.tsx", "z.cpp", "noext", "dir.py/noext")] == [
        "python",
        "python",
        "typescript",
        "c++",
        None,
        None,
    ]


def test_the_longest_files_are_kept() -> None:
    turns = [
        call(i + 1, "write", path=f"f{i}.py", content="x = 1\n" * (i + 1)) for i in range(MAX_PIECES + 4)
    ]
    result = found(*turns)
    assert [piece.name for piece in result.pieces] == [f"f{i}.py" for i in range(4, MAX_PIECES + 4)]
    assert result.left_out == 4


def test_commands_of_shell_text() -> None:
    text = "cd /x && A=1 pytest -q 'a b' 2>&1 | tail -5; echo \"a; b\" > f.txt\npylint x.py || true # no"
    assert [(c.words, c.hidden, c.filtered) for c in commands(text)][:5] == [
        (("cd", "/x"), False, False),
        (("A=1", "pytest", "-q", "a b"), False, False),
        (("tail", "-5"), False, True),
        (("echo", "a; b"), True, False),
        (("pylint", "x.py"), False, False),
    ]
    assert commands("a\\\n b 'c'd")[0].words == ("a", "b", "cd")
    assert commands("'not closed")[0].words == ("'not", "closed")


def test_a_heredoc_that_never_ends_takes_the_rest() -> None:
    rest, documents = split_heredocs("cat > x.py <<EOF\na\nb")
    assert (rest, [d.body for d in documents]) == ("cat > x.py <<EOF", ["a\nb\n"])


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "text",
    [
        "<<EOF\n" * 200_000,
        "<<A " * 200_000,
        "```py\n" * 200_000,
        "'" + "a'b\"" * 200_000,
        "def " * 300_000,
        "\\" * 1_000_000,
        "~" * 1_000_000,
        "\u2028" * 300_000,
        "x = 1\n" * 200_000,
    ],
    ids=[
        "heredocs",
        "heredocs of a line",
        "fences",
        "quotes",
        "defs",
        "backslashes",
        "tildes",
        "separators",
        "lines",
    ],
)
def test_a_megabyte_of_anything_is_read_in_one_pass(text: str) -> None:
    """Quadratic work on a megabyte would take hours."""
    find_code(made_of(call(1, "bash", command=text), answer(2, text)))
    commands(text)


def test_edits_read_only_so_much_and_the_first_ones_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.reward.code.find.MOST_READ", 30)
    whole = call(1, "write", path="x.py", content="a = 1\nb = 2\n")
    edits = [{"path": "x.py", "old_str": f" {n}\n", "new_str": f" {n + 2}\n"} for n in (1, 2, 3, 4)]
    assert pieces(whole, call(2, "edit", edits=edits)) == [("file", "x.py", ("a = 5\nb = 4\n",))]


def test_arguments_nested_deeply_are_walked_without_recursion() -> None:
    args: Any = {"path": "x.py", "content": "x = 1\n"}
    for _ in range(150):
        args = {"a": [args]}
    assert pieces(call(1, "write", **args)) == [("file", "x.py", ("x = 1\n",))]
