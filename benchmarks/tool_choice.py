"""Whether the tools' schemas alone decide which tool a request is for: a scripted chooser, or a real model.

The scripted chooser knows no tool: it ranks the texts of the schemas by BM25 (Robertson and Zaragoza, 2009),
over word stems and, at a lower weight, over parts of words, which cognates of other languages share. A
sentence that begins with "Not" says what a tool is not for and counts against it. Below a limit no tool is
chosen.

    python benchmarks/tool_choice.py
    python benchmarks/tool_choice.py --base-url http://127.0.0.1:3000/v1 --model current
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from onward.tools import mcp_tools
from onward.tools.choice import Case, ask_all, figures, judged, load_cases
from onward.tools.tool import SCOPES

RESULTS = Path(__file__).parent / "results" / "tool_choice.md"
K1, B = 1.2, 0.5
LEAST = 2.6
"""Least score of a choice: below it no tool is chosen."""
PARTS_WEIGHT = 0.12
AGAINST = 0.35
_STOP = frozenset(
    word
    for line in (
        "a an the of to in on for and or is are be was were it its this that these those with by from as at",
        "if not no so than then which what who how why when where do does did has have had i me my we",
        "you your he she they them there here can will would should could may one any all each",
    )
    for word in line.split()
)
_ENDINGS = ("ations", "ation", "ings", "ing", "ments", "ment", "ies", "ers", "ed", "es", "er", "s", "e")


def stem(word: str) -> str:
    """Removes one ending, where at least four letters stay."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word[: -len(ending)]
    return word


def words_of(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKD", text.lower().replace("_", " "))
    plain = "".join(one for one in plain if not unicodedata.combining(one))
    return [stem(word) for word in re.findall(r"[a-z0-9]+", plain) if word not in _STOP and len(word) > 1]


def parts_of(words: Iterable[str]) -> list[str]:
    """Runs of five letters of the longer words."""
    return [word[at : at + 5] for word in words if len(word) > 5 for at in range(len(word) - 4)]


class Bm25:
    """BM25 over a few documents."""

    def __init__(self, documents: list[list[str]]) -> None:
        self.counts = [Counter(document) for document in documents]
        self.lengths = [len(document) for document in documents]
        self.mean = sum(self.lengths) / len(documents) or 1.0
        found = Counter(term for counts in self.counts for term in counts)
        number = len(documents)
        self.idf = {term: math.log(1 + (number - n + 0.5) / (n + 0.5)) for term, n in found.items()}

    def scores(self, query: Iterable[str]) -> list[float]:
        return [
            sum(self._of(term, counts, length) for term in set(query))
            for counts, length in zip(self.counts, self.lengths, strict=True)
        ]

    def _of(self, term: str, counts: Counter[str], length: int) -> float:
        n = counts[term]
        return self.idf.get(term, 0.0) * n * (K1 + 1) / (n + K1 * (1 - B + B * length / self.mean))


class Chooser:
    """Chooses by the texts of MCP tools alone."""

    def __init__(self, tools: list[dict[str, Any]]) -> None:
        self.names = [tool["name"] for tool in tools]
        positive, negative = zip(*(texts_of(tool) for tool in tools), strict=True)
        self.words = Bm25([words_of(text) for text in positive])
        self.parts = Bm25([parts_of(words_of(text)) for text in positive])
        self.against = Bm25([words_of(text) for text in negative])

    def choose(self, request: str) -> str | None:
        words = words_of(request)
        scores = zip(
            self.words.scores(words), self.parts.scores(parts_of(words)), self.against.scores(words),
            strict=True,
        )  # fmt: skip
        total = [own + PARTS_WEIGHT * part - AGAINST * against for own, part, against in scores]
        best = max(range(len(total)), key=total.__getitem__)
        return self.names[best] if total[best] >= LEAST else None


def texts_of(tool: dict[str, Any]) -> tuple[str, str]:
    """Returns what the schema says for a tool (name, description, arguments) and what it says against it."""
    sentences = re.split(r"(?<=\.)\s+", tool["description"])
    against = [one for one in sentences if one.startswith("Not ")]
    text = [f"{tool['name']} {tool['name']}", *(one for one in sentences if one not in against)]
    for name, part in tool["inputSchema"]["properties"].items():
        text.append(f"{name} {part.get('description', '')}")
    return " ".join(text), " ".join(against)


def scripted(cases: list[Case]) -> list[dict[str, Any]]:
    chooser = Chooser(mcp_tools(SCOPES))
    return [judged(case, chooser.choose(case.request)) for case in cases]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base-url", help="an OpenAI-compatible server, with /v1")
    parser.add_argument("--model", default="current")
    parser.add_argument("--show", action="store_true", help="print the wrong choices")
    parser.add_argument("--quick", action="store_true", help="every sixth request; the page stays as it is")
    parser.add_argument("--json", type=Path, help="write every choice to this file")
    given = parser.parse_args()
    cases = load_cases()[:: 6 if given.quick else 1]
    runs = {"BM25 over the schemas' texts": scripted(cases)}
    if given.base_url:
        key = os.environ.get("OPENAI_API_KEY")
        runs[given.model] = asyncio.run(ask_all(cases, given.base_url, given.model, key))
    print(page(runs, len(cases)))
    if not given.quick:
        RESULTS.write_text(page(runs, len(cases)))
    if given.json:
        given.json.write_text(json.dumps(runs, indent=1, ensure_ascii=False))
    if given.show:
        for one in (one for found in runs.values() for one in found if not one["right"]):
            print(one["request"], "->", one["chosen"], "not", one["tools"])


def page(runs: dict[str, list[dict[str, Any]]], number: int) -> str:
    """Returns the results as a page."""
    groups = list(figures(next(iter(runs.values()))))
    lines = [
        "# Tool choice",
        "",
        f"{number} requests in five languages, each with the tool that it is for, or none. The chooser sees "
        "the schemas alone.",
        "",
        "| chooser | " + " | ".join(groups) + " |",
        "|---|" + "--:|" * len(groups),
    ]
    for name, found in runs.items():
        cells = [f"{right}/{of} ({right / of:.0%})" for right, of in figures(found).values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "Made by `python benchmarks/tool_choice.py`; `onward tools choose` asks a model.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
