"""``onward datasets``: a changed row is found and named, and exports are the rows themselves."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import pytest
from docs_blocks import run_command
from snapshot_folder import stored_dataset

from onward.errors import TamperedError
from onward.export import snapshots as exporting
from onward.training.data import snapshots
from onward.warehouse import Objects


@pytest.fixture
def data(tmp_path: Path) -> tuple[Path, str]:
    return tmp_path / "data", stored_dataset(tmp_path / "data")


def rows_file(folder: Path) -> Path:
    (found,) = (folder / "objects" / "datasets" / "rows").iterdir()
    return found


def test_list_and_show_say_where_a_dataset_came_from(data: tuple[Path, str]) -> None:
    folder, name = data
    code, out = run_command(f"onward datasets list --dir {folder} --json")
    (one,) = json.loads(out)
    assert code == 0 and one["id"] == name and (one["rows"], one["source"]) == (3, "clickhouse")
    _, out = run_command(f"onward datasets show {name[:8]} --dir {folder} --json")
    shown = json.loads(out)
    assert shown["source"] == {"first": 1, "last": 9}
    assert shown["redaction"] == {"rules": "v1", "rows": ["v1"]} and shown["excluded"] == {"too_long": 2}
    assert [one["trajectory_id"] for one in shown["members"]] == ["t0", "t1", "t2"]
    assert shown["id"] == name


def test_the_id_is_the_hash_of_what_is_stored(data: tuple[Path, str]) -> None:
    folder, name = data
    body = (folder / "objects" / "datasets" / f"{name}.json").read_bytes()
    assert hashlib.sha256(body).hexdigest() == name
    assert hashlib.sha256(rows_file(folder).read_bytes()).hexdigest() == json.loads(body)["rows_sha256"]


def test_a_changed_row_is_found_and_named(data: tuple[Path, str]) -> None:
    folder, name = data
    assert run_command(f"onward datasets verify {name[:8]} --dir {folder}") == (
        0, f"All 3 rows of {name[:12]} are as they were stored.\n",
    )  # fmt: skip
    rows = rows_file(folder)
    whole = rows.read_bytes()
    rows.write_bytes(whole.replace(b'"outcome":0.0', b'"outcome":1.0'))
    code, out = run_command(f"onward datasets verify {name[:8]} --dir {folder}")
    assert (code, out) == (1, "Row 2, trajectory t1, was changed.\n")
    rows.write_bytes(whole.replace(b'"t1"', b'"tX"', 1))
    code, out = run_command(f"onward datasets verify {name[:8]} --dir {folder} --json")
    assert code == 1 and json.loads(out)["faults"] == [
        "Row 2 was added: trajectory tX is no row of this dataset.",
        "Row 2, trajectory t1, is lost.",
    ]
    first, second, third = whole.splitlines(keepends=True)
    rows.write_bytes(second + first + third)
    _, out = run_command(f"onward datasets verify {name[:8]} --dir {folder}")
    assert out == "The rows are as stored, and their order is not.\n"
    rows.write_bytes(whole + second)
    _, out = run_command(f"onward datasets verify {name[:8]} --dir {folder}")
    assert out == "Row 4, trajectory t1, is a repetition.\n"
    rows.write_bytes(first + second[:40] + b"\n" + third)
    _, out = run_command(f"onward datasets verify {name[:8]} --dir {folder}")
    assert out == "Row 2, trajectory t1, was damaged: it is no JSON object any more.\n"
    rows.unlink()
    code, out = run_command(f"onward datasets verify {name[:8]} --dir {folder}")
    assert (code, out) == (1, "All 3 rows are lost: their file does not exist.\n")


async def test_rows_that_change_between_check_and_export_are_not_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await asyncio.to_thread(stored_dataset, tmp_path / "data")
    objects = Objects.open(tmp_path / "data" / "objects")

    async def whole(*_: object) -> list[str]:
        rows_file(tmp_path / "data").write_bytes(b"{}\n")
        return []

    monkeypatch.setattr(snapshots, "verify", whole)
    with pytest.raises(TamperedError, match="was changed while it was exported"):
        await exporting.export(objects, name, "jsonl", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_a_changed_description_is_refused_and_never_used(data: tuple[Path, str]) -> None:
    folder, name = data
    path = folder / "objects" / "datasets" / f"{name}.json"
    path.write_bytes(path.read_bytes().replace(b'"last":9', b'"last":8'))
    for command in ("verify", "show", f"export --out {folder / 'x.jsonl'}"):
        code, out = run_command(f"onward datasets {command} {name[:8]} --dir {folder}")
        assert code == 2 and "was changed after it was stored" in out and out.count("\n") == 1
    assert run_command(f"onward datasets list --dir {folder}")[0] == 0


def test_an_export_as_json_lines_is_the_rows_byte_for_byte(data: tuple[Path, str], tmp_path: Path) -> None:
    folder, name = data
    out = tmp_path / "rows.jsonl"
    code, said = run_command(f"onward datasets export {name[:8]} --dir {folder} --out {out}")
    assert (
        code == 0 and said.startswith("Wrote 3 rows") and out.read_bytes() == rows_file(folder).read_bytes()
    )
    code, said = run_command(f"onward datasets export {name[:8]} --dir {folder} --out {out}")
    assert code == 2 and "exists already" in said
    rows_file(folder).write_bytes(b"{}\n")
    code, said = run_command(f"onward datasets export {name[:8]} --dir {folder} --out {tmp_path / 'b'}")
    assert code == 2 and "is not as it was stored" in said and not (tmp_path / "b").exists()


@pytest.mark.parametrize("form", ["parquet", "datasets"])
def test_other_libraries_read_the_same_rows(data: tuple[Path, str], tmp_path: Path, form: str) -> None:
    pytest.importorskip("pyarrow" if form == "parquet" else "datasets")
    folder, name = data
    out = tmp_path / "rows"
    code, said = run_command(f"onward datasets export {name[:8]} --dir {folder} --format {form} --out {out}")
    assert code == 0, said
    if form == "parquet":
        import pyarrow.parquet

        found = pyarrow.parquet.read_table(out).to_pylist()
    else:
        import datasets

        found = list(datasets.load_from_disk(str(out)))
    assert [(row["trajectory_id"], row["outcome"], row["success"]) for row in found] == [
        ("t0", 1.0, True), ("t1", 0.0, False), ("t2", 1.0, True),
    ]  # fmt: skip
    assert [(row["answers"], row["sampled_tokens"]) for row in found] == [(2, 4)] * 3
    assert [row["row"] for row in found] == rows_file(folder).read_text().splitlines()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("show abc", "begins no id of a dataset"),
        ("show ''", "begins no id of a dataset"),
        ("verify ../../etc", "begins no id of a dataset"),
        ("export {name} --out x --format csv", "There is no format 'csv'"),
    ],
)
def test_a_wrong_argument_is_one_sentence(
    data: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out = run_command(f"onward datasets {command.format(name=data[1])} --dir {data[0]}")
    assert code == 2 and words in out and out.count("\n") == 1


def test_an_empty_folder_has_no_datasets(tmp_path: Path) -> None:
    assert "No job has frozen a dataset yet" in run_command(f"onward datasets list --dir {tmp_path}")[1]
    code, out = run_command(f"onward datasets list --dir {tmp_path / 'none'}")
    assert code == 2 and "There is no data folder" in out and not (tmp_path / "none").exists()
