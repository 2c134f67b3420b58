"""The docs say what is so: their examples run, their tables are the code's, their links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import runpy
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from docs_blocks import PAGES, ROOT, blocks, run_blocks, run_command

from onward import config
from onward.config import SEED_VARIABLES

pytestmark = pytest.mark.slow

README = ROOT / "README.md"
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_reference", ROOT / "docs" / "reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_that_need_no_service_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    run_blocks(blocks(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_has_an_example_that_runs_and_is_short(page: Path) -> None:
    assert blocks(page) or blocks(page, "service")
    by_hand = re.sub(r"<!-- made: .*?<!-- end -->", "", page.read_text(encoding="utf-8"), flags=re.S)
    assert len(by_hand.splitlines()) <= 160


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tables_are_what_the_code_says(page: Path, reference: ModuleType) -> None:
    text = page.read_text(encoding="utf-8")
    assert reference.filled(text) == text, "run: python docs/reference.py"


def test_every_table_that_can_be_made_is_on_a_page(reference: ModuleType) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert all(f"<!-- made: {name} -->" in text for name in reference.TABLES)


def test_every_setting_has_words_once(reference: ModuleType) -> None:
    keys = reference.keys()
    documented = {key for key, (_, words) in keys.items() if words}
    assert documented | set(reference.WORDS) == set(keys)
    assert not documented & set(reference.WORDS)


def test_settings_page_names_every_key_and_variable() -> None:
    text = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in SEED_VARIABLES)
    assert "| `release.alpha` | `0.045` |" in text
    assert "| `training.threshold` | `5000` |" in text


def test_example_settings_are_valid(tmp_path: Path) -> None:
    found = [block for page in PAGES for block in blocks(page, languages=("toml",))]
    assert found
    for block in found:
        file = tmp_path / "onward.toml"
        file.write_text(block.text)
        settings = config.load(file, environ={})
        assert _holds(settings, tomllib.loads(block.text)), block.text


def _holds(held: object, given: object) -> bool:
    """Whether settings hold what a file gives. Tables with names of the user's own are dictionaries."""
    if isinstance(given, dict):
        return all(
            _holds(held[key] if isinstance(held, dict) else getattr(held, key), value)
            for key, value in given.items()
        )
    return held == (Path(str(given)) if isinstance(held, Path) else given)


LINKED = [README, ROOT / "CONTRIBUTING.md", *PAGES, *sorted((ROOT / "docs" / "decisions").glob("*.md"))]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in _LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_the_readme_is_short_and_leads_on_within_a_screen() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 130
    assert lines.index("## See it work: two commands") < 30
    assert lines.index("## Use it with your agent") < 55


_PICTURE = re.compile(r"<(img|source) (.*?)>|!\[(.*?)\]\((.*?)\)", re.S)


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.stem)
def test_every_picture_exists_is_small_and_is_described(page: Path) -> None:
    for tag, attributes, words, target in _PICTURE.findall(page.read_text(encoding="utf-8")):
        named = dict(re.findall(r'([\w-]+)="(.*?)"', attributes))
        path = page.parent / (target or named.get("src") or named["srcset"])
        assert path.stat().st_size < 150_000, path
        assert tag == "source" or len(words or named["alt"]) > 20


def test_index_names_every_page_and_every_example() -> None:
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    names = [page.name for page in PAGES if page.name != "README.md"]
    names += [program.name for program in (ROOT / "examples").glob("*.py")]
    assert [name for name in names if name not in text] == []


def test_an_unknown_key_is_one_sentence_at_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("onward.toml").write_text("[release]\nerror_cieling = 0.1\n")
    code, output = run_command("onward status")
    assert code == 2
    assert output.startswith("Unknown setting 'release.error_cieling' (in onward.toml or the environment)")
    assert len(output.splitlines()) == 1


# examples/score_gates.py: the two others need a service (tests/integration/test_docs_service.py).


def _score_gates(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["score_gates.py", *words])
    runpy.run_path(str(ROOT / "examples" / "score_gates.py"), run_name="__main__")
    return capsys.readouterr().out


def test_score_gates_leaves_an_equal_candidate_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = _score_gates(capsys, monkeypatch)
    assert output.splitlines()[-1] == "not taken back"
    assert len(output.splitlines()) == 12


def test_score_gates_takes_a_worse_candidate_back_and_names_the_gate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "leading gate: reward" in _score_gates(capsys, monkeypatch, "--success", "0.4")
    assert "leading gate: error" in _score_gates(capsys, monkeypatch, "--errors", "0.9", "--seed", "1")


def test_score_gates_counts_whole_releases_that_are_taken_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = _score_gates(capsys, monkeypatch, "--success", "0.25", "--releases", "3")
    assert lost == "3 of 3 releases were taken back before the bake\n"
    equal = _score_gates(capsys, monkeypatch, "--releases", "2")
    assert equal == "0 of 2 releases were taken back before the bake\n"


@pytest.mark.parametrize("program", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_every_example_explains_itself(
    program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [program.name, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(program), run_name="__main__")
    assert end.value.code == 0
    assert "usage" in capsys.readouterr().out
    assert f"python examples/{program.name}" in program.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["faults", "logins"])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / f"{page}.md").read_text()))
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert named - set(re.findall(r"def (test_\w+)\(", sources)) == set()
    assert len(named) > 6
