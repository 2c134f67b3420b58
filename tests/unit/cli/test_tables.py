"""Tables at 80, 100 and 160 columns: nothing is cut, nothing exceeds the terminal, nothing is obeyed."""

import ast
import io
import json
import os
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from onward.cli import output
from onward.cli.output import Table, cell, console, facts, ident, number, plain, print_json, print_text, say

LONG_ID = "traj-0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
SENTENCE = "The loss is not finite after step 12 of 40: give a smaller learning rate"


def drawn(table: Table, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    lines = out.getvalue().rstrip("\n").split("\n")
    assert max(map(cell_len, lines)) <= width
    return [line.rstrip() for line in lines]


def jobs() -> Table:
    table = Table(ident("job"), "state", number("rows"), "why", title="Jobs")
    table.add_row(LONG_ID, "failed", 7, SENTENCE)
    table.add_row("b", "done", 1234, None)
    return table


def test_a_wide_terminal_gets_one_line_a_row_with_numbers_at_the_right() -> None:
    assert drawn(jobs(), 160) == [
        "Jobs",
        f"{'job':41}  {'state':6}  rows  why",
        "─" * (41 + 2 + 6 + 2 + 4 + 2 + len(SENTENCE)),
        f"{LONG_ID}  failed     7  {SENTENCE}",
        f"{'b':41}  done    1234  -",
    ]


def test_at_100_columns_the_sentence_wraps_between_words_and_the_id_stays_whole() -> None:
    lines = drawn(jobs(), 100)
    assert lines[3] == f"{LONG_ID}  failed     7  The loss is not finite after step 12 of 40:"
    assert lines[4].strip() == "give a smaller learning rate"


def test_at_80_columns_rows_become_blocks_where_a_table_does_not_fit() -> None:
    table = Table(ident("job"), ident("adapter"), number("rows"), "why", title="Jobs")
    table.add_row(LONG_ID, "lora-" + LONG_ID, 7, SENTENCE)
    table.add_row("b", "c", 1, "fine")
    assert drawn(table, 80) == [
        "Jobs",
        f"job      {LONG_ID}",
        f"adapter  lora-{LONG_ID}",
        "rows     7",
        "why      The loss is not finite after step 12 of 40: give a smaller learning",
        "         rate",
        "",
        "job      b",
        "adapter  c",
        "rows     1",
        "why      fine",
    ]


def test_a_digest_that_does_not_fit_beside_its_name_has_a_line_of_its_own_and_can_be_copied() -> None:
    digest = "0123abcd" * 8
    values = {"model_id": "v1", "a_name_of_some_length": digest, "state": "current", "why": SENTENCE}
    assert drawn(facts(values), 80) == [
        "model_id               v1",
        "a_name_of_some_length",
        f"  {digest}",
        "state                  current",
        "why                    The loss is not finite after step 12 of 40: give a",
        "                       smaller learning rate",
    ]
    assert f"a_name_of_some_length  {digest}" in drawn(facts(values), 100)
    assert digest in "".join("".join(drawn(facts(values), 40)).split())


def test_piped_output_has_80_columns_whatever_the_terminal_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((200, 50)))
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert console().width == 80
    monkeypatch.setenv("COLUMNS", "120")
    assert console().width == 120


@pytest.mark.parametrize("width", [30, 80, 100, 160])
def test_no_character_of_an_id_is_lost_at_any_width(width: int) -> None:
    text = "".join("".join(drawn(jobs(), width)).split())
    assert LONG_ID in text
    assert "…" not in text


def test_stored_text_is_neither_markup_nor_obeyed_by_the_terminal() -> None:
    table = Table("what")
    table.add_row("[red]x[/red] \x1b[2J\r\n\u202eevil\u00a0\x9b")
    assert drawn(table, 80)[2] == r"[red]x[/red] \x1b[2J\r\n\u202eevil \x9b"


def test_a_cell_may_bring_its_own_style() -> None:
    table = Table("state")
    table.add_row(Text("rejected", style="red"))
    assert drawn(table, 80)[2] == "rejected"


def test_wide_characters_are_counted_as_two_columns() -> None:
    table = Table(ident("name"), "next")
    table.add_row("模型", "x")
    assert drawn(table, 80)[2] == "模型  x"


def test_a_section_draws_a_line_before_the_total() -> None:
    table = Table("part", number("n"))
    table.add_row("a", 1)
    table.section()
    table.add_row("total", 1)
    assert drawn(table, 80)[2:] == ["a      1", "─" * 8, "total  1"]


def test_a_table_without_rows_says_so_in_a_sentence() -> None:
    assert drawn(Table("a", title="Jobs"), 80) == ["Jobs: none yet."]
    assert drawn(Table("a", empty="nothing is held"), 80) == ["Nothing is held."]
    assert drawn(Table("a", empty="no A/B test yet"), 80) == ["No A/B test yet."]


def test_a_row_of_the_wrong_length_is_a_defect() -> None:
    with pytest.raises(ValueError, match="2 cells for 1 columns"):
        Table("a").add_row(1, 2)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        ("", "-"),
        (True, "yes"),
        (False, "no"),
        (0, "0"),
        (0.123456, "0.1235"),
        ([], "-"),
        (["a", 2.0], "a, 2"),
        ({"error": 1.5, "x": None}, "error 1.5, x -"),
        (datetime(2026, 1, 31, 14, 5, 9, 123456, timezone(timedelta(hours=2))), "2026-01-31 12:05:09Z"),
    ],
)
def test_values_in_words(value: object, shown: str) -> None:
    assert cell(value) == shown


def test_plain_leaves_ordinary_text_alone() -> None:
    assert plain("Zürich → 模型 ½ é") == "Zürich → 模型 ½ é"


def test_json_is_ascii_and_has_null_for_what_json_cannot_say(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(
        {
            "e": float("nan"),
            "inner": [float("inf"), 1.5],
            "é": "\x1b",
            "at": datetime(2026, 1, 31, tzinfo=UTC),
        }
    )
    out = capsys.readouterr().out
    assert out.isascii()
    assert "\x1b" not in out
    assert json.loads(out) == {
        "e": None,
        "inner": [None, 1.5],
        "é": "\x1b",
        "at": "2026-01-31T00:00:00+00:00",
    }


def test_a_sentence_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_text("two [b]lines[/b]\nof \x1b[31mtext", jobs())
    out = capsys.readouterr().out
    assert out.startswith("two [b]lines[/b]\nof \\x1b[31mtext\nJobs\n")


OUTSIDE = "[/no][bold]\x1b[31mred\x1b]0;title\x07\u202eback\r\b\x9b2J"


def test_no_output_obeys_text_from_outside(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(number("number"), "reason", title=OUTSIDE)
    table.add_row(1, OUTSIDE)
    print_text(table, OUTSIDE, facts({OUTSIDE: OUTSIDE}))
    say(f"{OUTSIDE}\nsecond line")
    shown = capsys.readouterr().out
    assert shown.count("[/no][bold]\\x1b[31mred") >= 5 and "second line" in shown
    assert not {character for character in shown if not character.isprintable()} - {"\n"}


def test_every_command_prints_through_one_place() -> None:
    """Other ways read text as markup or obey its control characters: ``[/no]`` ended 'onward dlq list'."""
    folder = Path(output.__file__).parent
    wrong = []
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Attribute, ast.Name)):
                continue
            called = ast.unparse(node.func)
            first = node.args[0] if node.args else None
            is_text = isinstance(first, (ast.JoinedStr, ast.BinOp))
            if called == "typer.echo" and path.name not in ("output.py", "__init__.py", "renamed.py"):
                wrong.append(f"{path.name}:{node.lineno} {called}")
            if called.endswith(".print") and is_text and not any(k.arg == "markup" for k in node.keywords):
                wrong.append(f"{path.name}:{node.lineno} {called} of a text")
    assert wrong == []
