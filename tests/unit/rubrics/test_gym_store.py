"""Store of a workflow's files: one content once, digests that are checked, files that a person can open."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from onward.rubrics.gym.files.formats import (
    read_table,
    read_workbook,
    sections,
    table_of,
    words,
    write_table,
    write_workbook,
)
from onward.rubrics.gym.inputs import generate
from onward.rubrics.gym.parts import WorkflowError
from onward.rubrics.gym.store import ResourceStore


def test_a_resource_has_digest_type_and_size(tmp_path: Path) -> None:
    resource = ResourceStore(tmp_path).put("a.md", b"hello", made_by="t")
    assert resource.digest == hashlib.sha256(b"hello").hexdigest()
    assert (resource.mime_type, resource.size, resource.made_by) == ("text/markdown", 5, "t")


def test_equal_contents_are_stored_once_and_survive_the_process(tmp_path: Path) -> None:
    store = ResourceStore(tmp_path)
    one, two = store.put("a.csv", b"x\n1\n"), store.put("b.csv", b"x\n1\n")
    assert one.digest == two.digest
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1
    assert ResourceStore(tmp_path).get(two) == b"x\n1\n"


def test_a_changed_or_missing_content_is_refused(tmp_path: Path) -> None:
    store = ResourceStore(tmp_path)
    resource = store.put("a.json", b"{}")
    path = tmp_path / "objects" / resource.digest[:2] / resource.digest
    path.write_bytes(b"[]")
    with pytest.raises(WorkflowError, match="was changed after it was written"):
        store.get(resource)
    path.unlink()
    with pytest.raises(WorkflowError, match=r"has no content for the file 'a.json'"):
        store.get(resource)


def test_unknown_endings_and_names_with_folders_are_refused(tmp_path: Path) -> None:
    store = ResourceStore()
    with pytest.raises(WorkflowError, match=r"unknown ending: use one of .csv, .xlsx, .md, .json, .py"):
        store.put("a.exe", b"")
    for name in ("../a.md", "b/c.md", ".hidden.md"):
        with pytest.raises(WorkflowError, match="not a plain name"):
            store.export({name: store.put(name, b"x")}, tmp_path)
    store.export({"a.md": store.put("a.md", b"x")}, tmp_path / "out")
    assert (tmp_path / "out" / "a.md").read_bytes() == b"x"


def test_tables_come_back_as_written_and_a_ragged_one_is_refused() -> None:
    rows = [{"a": "1", "b": 'x, "y"'}, {"a": "2", "b": "é"}]
    assert read_table(write_table(rows)) == rows
    with pytest.raises(WorkflowError, match="as many cells as the header"):
        read_table(b"a,b\n1\n")
    with pytest.raises(WorkflowError, match="UTF-8"):
        read_table(b"a\n\xff\n")


def test_workbooks_are_the_same_bytes_each_time_and_hold_types() -> None:
    sheets = {"One": [["name", "value"], ["x", 1.5]], "Two": [["a"], [3]]}
    assert write_workbook(sheets) == write_workbook(sheets)
    assert read_workbook(write_workbook(sheets)) == sheets
    with pytest.raises(WorkflowError, match="cannot be read"):
        read_workbook(b"no zip")


def test_an_input_follows_its_description_and_its_seed() -> None:
    spec = {"rows": 9, "columns": {"id": "id K", "day": "date 2026-01-30 5", "who": "email",
            "kind": "each a|b"}, "repeats": 2, "mixed": ["day"]}  # fmt: skip
    rows = read_table(generate("t.csv", spec, 1))
    assert generate("t.csv", spec, 1) == generate("t.csv", spec, 1) != generate("t.csv", spec, 2)
    assert len(rows) == 11
    assert {row["id"] for row in rows} == {f"K-{number:03d}" for number in range(1, 10)}
    assert sum("/" in row["day"] for row in rows) >= 3  # rows 1, 4, 7, and perhaps a repeated one
    assert {row["id"]: row["kind"] for row in rows}["K-002"] == "b"
    with pytest.raises(WorkflowError, match="column 'colour red' is unknown"):
        generate("t.csv", {"rows": 1, "columns": {"x": "colour red"}}, 1)


class One:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def read(self, name: str) -> bytes:
        return self.content


def test_the_first_sheet_of_a_workbook_is_a_table_of_text() -> None:
    spec = {"rows": 2, "columns": {"id": "id K", "n": "whole 3 3"}}
    expected = [{"id": "K-001", "n": "3"}, {"id": "K-002", "n": "3"}]
    assert table_of(One(generate("t.xlsx", spec, 1)), "t.xlsx") == expected


def test_sections_and_words_are_counted_as_a_reader_would() -> None:
    assert sections("# T\nintro\n## A\none two\n## B\n") == {"T": "intro", "A": "one two", "B": ""}
    assert words("It costs 1,234.50 — not 12/05, that's all.") == 7
