"""The pictures in docs/images are what docs/images/make.py draws from the figures beside them."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from onward import plotting
from onward.demo.result import Result

IMAGES = Path(__file__).parents[2] / "docs" / "images"


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_images_make", IMAGES / "make.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def figures() -> Result:
    return Result.model_validate_json((IMAGES / "demo.json").read_text(encoding="utf-8"))


def test_the_terminal_pictures_show_the_figures_beside_them(make: ModuleType, figures: Result) -> None:
    for path, style in make.terminals():
        assert path.read_text(encoding="utf-8") == make.terminal(figures, style), "run docs/images/make.py"


def test_the_terminal_picture_has_few_lines_ends_in_the_finding_and_fetches_nothing(
    make: ModuleType, figures: Result
) -> None:
    drawn = make.terminal(figures, plotting.LIGHT)
    rows: dict[float, str] = {}
    for element in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text"):
        y = float(element.get("y", 0))
        rows[y] = rows.get(y, "") + "".join(element.itertext()).replace("\xa0", " ")
    lines = [rows[y].rstrip() for y in sorted(rows) if rows[y].strip()]
    assert len(lines) <= 24
    finding = " ".join(lines[-2:])
    assert finding.startswith("Success on held-out tasks") or "Nothing was learned" in finding
    assert finding.endswith(".")
    addresses = set(re.findall(r"https?://[^\s\"')>]*", drawn))
    assert addresses == {"http://www.w3.org/2000/svg", "https://www.textualize.io"}  # a name, a comment


def test_every_picture_has_a_dark_version(make: ModuleType) -> None:
    light = [IMAGES / "curves.png", *(path for path, style in make.terminals() if style is plotting.LIGHT)]
    for path in light:
        assert plotting.dark_version(path).is_file()
        assert plotting.dark_version(path).read_bytes() != path.read_bytes()


def test_pictures_are_made_of_the_figures_that_are_there(
    make: ModuleType, figures: Result, tmp_path: Path
) -> None:
    (tmp_path / "demo-smollm2.json").write_text(figures.model_dump_json())
    assert [path.name for path in make.make(tmp_path)] == ["curves-smollm2.png", "curves-smollm2-dark.png"]
