"""Code of the user's own by its name: also from the current folder, and each mistake in one sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from onward import own_code
from onward.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return tmp_path


def test_a_file_of_the_current_folder_is_found_after_everything_else(folder: Path) -> None:
    (folder / "judge_of_mine.py").write_text("class Box:\n    limit = 7\n")
    (folder / "colorsys.py").write_text("hls_to_rgb = 'hidden'\n")
    sys.modules.pop("colorsys", None)
    assert own_code.load("judge_of_mine:Box.limit") == 7
    assert callable(own_code.load("colorsys:hls_to_rgb"))
    assert sys.path[-1] == str(folder)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (
            "no_module_of_mine:f",
            "needs the module 'no_module_of_mine', which is neither",
        ),
        ("colorsys:no_name", r"'colorsys' \(.*colorsys.py\) has no 'no_name': give a name that it defines."),
        ("colorsys", "'colorsys' names no object: give module:name."),
        ("./mine.py:f", "'./mine.py' is a path: start in its folder and give mine:f."),
        (
            "wants_more:f",
            "cannot be imported, ModuleNotFoundError: No module named 'missing_part'",
        ),
        (
            "fails_at_once:f",
            r"ZeroDivisionError: division by zero \(fails_at_once.py, line 2\)",
        ),
        ("ends_at_once:f", r"cannot be imported, SystemExit: 3 \(ends_at_once.py, line 2\)"),
    ],
)
def test_each_mistake_is_one_sentence(folder: Path, place: str, message: str) -> None:
    (folder / "wants_more.py").write_text("import missing_part\n")
    (folder / "fails_at_once.py").write_text("\n1 / 0\n")
    (folder / "ends_at_once.py").write_text("\nraise SystemExit(3)\n")
    with pytest.raises(ConfigError, match=message) as caught:
        own_code.load(place)
    assert "\n" not in str(caught.value)


def test_a_text_that_may_hold_secrets_is_left_out_on_request() -> None:
    try:
        int("my secret")
    except ValueError as error:
        line = error.__traceback__.tb_lineno if error.__traceback__ else 0
        assert own_code.sentence(error, text=False) == f"ValueError (test_own_code.py, line {line})"
        assert "my secret" in own_code.sentence(error)
