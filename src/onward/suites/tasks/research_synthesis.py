"""The task ``research_synthesis``: answers from two or three documents of a shipped corpus, with sources.

All facts of the corpus are invented, so that no model knows them. A program checks that the facts stand in
the answer, that no fact of another document does, and that the answer names the documents it rests on, and
no other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from onward.suites.tasks.task import Complete, Item, Judgement, Messages, ask, digest_of, rows

_SYSTEM = (
    "Answer the question from the documents only. After each fact, name its document in square brackets, "
    "such as [D99]."
)
_CITATION = re.compile(r"\[\s*(D\d+(?:\s*,\s*D\d+)*)\s*\]", re.IGNORECASE)
_UNSOURCED = 0.5
"""Score of an answer whose facts are right and whose sources are not."""


class ResearchSynthesis:
    """Questions of two kinds: ``one source`` and ``two sources``."""

    name = "research_synthesis"
    max_tokens = 128

    def items(self) -> Sequence[Item]:
        corpus = {row["id"]: row["text"] for row in rows("research_corpus")}
        return [_item(row, corpus) for row in rows(self.name)]

    async def check(self) -> None:
        """Needs nothing."""

    def digest(self) -> str:
        return digest_of("research_synthesis", data=["research_corpus", "research_synthesis"])


def judge(answer: str, row: Mapping[str, Any]) -> Judgement:
    """Judges an answer: 1 with facts and sources, 0.5 with the facts alone, else 0."""
    cited = {one.upper() for group in _CITATION.findall(answer) for one in re.split(r"\s*,\s*", group)}
    text = _CITATION.sub(" ", answer)
    missing = [ways[0] for ways in row["facts"] if not any(_has(text, way) for way in ways)]
    if missing:
        return Judgement(0.0, f"The answer lacks {', '.join(missing)}.")
    foreign = [one for one in row["refused"] if _has(text, one)]
    if foreign:
        return Judgement(0.0, f"The answer has {', '.join(foreign)}, which does not belong to it.")
    if cited != set(row["sources"]):
        return Judgement(_UNSOURCED, f"The sources are {', '.join(row['sources'])}, not {_listed(cited)}.")
    return Judgement(1.0, "Facts and sources are right.")


def _listed(cited: set[str]) -> str:
    return ", ".join(sorted(cited)) or "none"


def _has(text: str, phrase: str) -> bool:
    """Returns True if a phrase stands in the text: a number as a whole one, a word also with an ending."""
    end = r"(?![\d])(?![.,]\d)" if phrase[-1].isdigit() else ""
    return re.search(rf"(?<![\w.,]){re.escape(phrase)}{end}", text, re.IGNORECASE) is not None


def _item(row: dict[str, Any], corpus: Mapping[str, str]) -> Item:
    documents = "\n".join(f"[{one}] {corpus[one]}" for one in row["shown"])
    return Item(
        row["id"],
        row["kind"],
        (
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": f"{documents}\n\nQuestion: {row['question']}"},
        ),
        (row["reference"],),
        (f"The documents {' '.join(f'[{one}]' for one in row['sources'])} do not say it.",),
        partial(_play, row=row),
    )


async def _play(messages: Messages, complete: Complete, *, row: Mapping[str, Any]) -> Judgement:
    return judge(await ask(messages, complete), row)
