"""The tool-choice suite: schemas alone decide, each description beats its neighbours."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from docs_blocks import ROOT

import tool_choice
from onward.errors import ConfigError
from onward.tools import SCOPES, TOOLS, mcp_tools
from onward.tools.choice import figures, judged, load_cases

CASES = load_cases()
FOUND = tool_choice.scripted(CASES)


def test_the_suite_has_requests_for_every_tool_in_several_languages_and_some_for_none() -> None:
    assert len(CASES) >= 40
    wanted = Counter(case.tools[0] for case in CASES)
    assert set(wanted) == {*TOOLS, None}
    assert min(wanted.values()) >= 2 and wanted[None] >= 6
    assert len({case.language for case in CASES}) >= 4
    assert len({case.request for case in CASES}) == len(CASES)
    names = [name for name in TOOLS if "_" in name]  # a request that says the name decides nothing
    assert not [case.request for case in CASES if any(name in case.request for name in names)]


def test_a_scripted_chooser_picks_the_measured_share_and_the_page_says_so() -> None:
    """Measured 2026-11-30: 64 of 71; pairs of neighbours 17 of 17. A worse description shows here."""
    counted = figures(FOUND)
    assert counted["all"][0] >= 64 and counted["all"][1] == 71
    assert counted["pair"] == (17, 17)
    shown = tool_choice.page({"BM25 over the schemas' texts": FOUND}, len(CASES))
    stored = (ROOT / "benchmarks" / "results" / "tool_choice.md").read_text()
    assert shown.splitlines()[6] in stored.splitlines()


def test_without_its_description_a_tool_is_chosen_less() -> None:
    """The words decide, not the chooser: with descriptions of one sentence fewer requests find their tool."""
    short = [{**tool, "description": tool["description"].partition(". ")[0]} for tool in mcp_tools(SCOPES)]
    chooser = tool_choice.Chooser(short)
    found = [judged(case, chooser.choose(case.request)) for case in CASES]
    assert figures(found)["all"][0] <= figures(FOUND)["all"][0] - 5


def test_bm25_is_the_published_formula() -> None:
    """Two documents, by hand: idf = ln(1 + (2 - 1 + .5) / 1.5) = ln 2; lengths 2 and 4, mean 3."""
    ranked = tool_choice.Bm25([["train", "job"], ["job", "job", "run", "end"]])
    first, second = ranked.scores(["train"])
    assert second == 0.0
    assert first == pytest.approx(0.693147 * 2.2 / (1 + 1.2 * (0.5 + 0.5 * 2 / 3)), rel=1e-5)


def test_a_file_of_cases_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    case: dict[str, Any] = {"request": "a", "tools": ["status"], "language": "en", "kind": "plain"}
    path.write_text(json.dumps(case) + "\n" + json.dumps({**case, "tools": ["rm"]}) + "\n")
    with pytest.raises(ConfigError, match="Line 2 of the requests names a tool that does not exist"):
        load_cases(path)
    path.write_text("{}\n")
    with pytest.raises(ConfigError, match="Line 1 of the requests is no case"):
        load_cases(path)
