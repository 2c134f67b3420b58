"""Masks of recorded answers, computed again from the grammars that their records state.

The grammar is compiled for the model of this job, and its fingerprint must be that of the record: only then
are the masks those under which the answer was sampled, and its log-probs those that the learner computes. An
answer whose masks cannot be computed is context, as one with a penalty is, and it is counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onward.lm.constrained import CompiledGrammar, Constraint, Grammar, GrammarCompiler, GrammarError
from onward.lru import Lru
from onward.training.data import admission
from onward.training.data.grammars import FIELDS
from onward.training.data.report import DataReport

if TYPE_CHECKING:
    from onward.lm.masks import AllowedTokens
    from onward.lm.model import LanguageModel

REASON = "other_grammar"
"""Reason for which a trajectory without another answer is left out."""
_FORMS = ("json", "lark")
_SHOWN = 200
_REMEMBERED = 64
"""Grammars that are remembered, compiled or refused: each record may bring one of its own."""
Line = dict[str, Any]
_Compiled = tuple[CompiledGrammar, Constraint]


def _go_on() -> None:
    """Never ends the work."""


class MaskReplay:
    """Puts the masks of recorded answers into the lines of a dataset."""

    def __init__(
        self, compile_grammar: Callable[[Grammar], CompiledGrammar], stop: Callable[[], None] = _go_on
    ) -> None:
        """``stop`` may raise; it is called before each line."""
        self._compile, self._stop = compile_grammar, stop
        self._known: Lru[tuple[str, ...], _Compiled | GrammarError] = Lru(_REMEMBERED)
        self.replayed = 0
        """Answers that got their masks."""
        self.failed = 0
        """Answers that got none, and are context."""
        self.first_problem = ""

    @classmethod
    def of_model(cls, policy: LanguageModel, stop: Callable[[], None] = _go_on) -> MaskReplay:
        """Compiles for the tokenizer and the vocabulary of ``policy``, with the gateway's engine."""
        made: list[GrammarCompiler] = []

        def compiled(grammar: Grammar) -> CompiledGrammar:
            from onward.lm.chat import Chat

            if not made:  # reading the tokenizer takes a while, and most datasets have no grammar
                stop_ids = Chat(policy.tokenizer).stop_ids
                made.append(GrammarCompiler(policy.tokenizer, policy.shape.vocab, stop_ids))
            return made[0](grammar)

        return cls(compiled, stop)

    def lines(self, lines: Iterable[Line], report: DataReport) -> list[Line]:
        """Returns the lines, with ``allowed`` in the calls whose masks were computed. A line that has no
        other call left to train on is left out, and counted as ``other_grammar``."""
        kept: list[Line] = []
        for line in lines:
            self._stop()
            if self._has_work(line):
                kept.append(line)
            else:
                report.leave_out(REASON, str(line.get("place") or line["trajectory_id"]))
        return kept

    @property
    def warning(self) -> str:
        """A sentence about the answers that became context; empty if there are none."""
        if not self.failed:
            return ""
        return (
            f"{self.failed} of {self.failed + self.replayed} answers under a grammar are context alone: "
            f"their masks cannot be computed here. The grammar of the first: {self.first_problem}."
        )

    def _has_work(self, line: Line) -> bool:
        """Adds the masks to the calls of a line; returns whether a call is left to train on."""
        calls: list[dict[str, Any]] = line.get("calls", [])
        before = admission.masked(calls)
        for call in calls:
            call.pop("allowed", None)  # a field of this process alone: files cannot give it
            if "grammar" in call and call["generation_id"] not in before:
                self._replay(call, line.get("grammars"))
        after = admission.masked(calls)
        told = [call["generation_id"] for call in calls if call["generation_id"] not in before]
        rewards = line.get("turn_rewards")
        if rewards is not None and after != before and len(rewards) == len(told):
            turns = zip(rewards, told, strict=True)
            line["turn_rewards"] = admission.moved_rewards((one, name not in after) for one, name in turns)
        return len(after) < len(calls) or len(before) == len(calls)

    def _replay(self, call: dict[str, Any], grammars: Any) -> None:
        name = call["grammar"]
        stated = grammars.get(name) if isinstance(grammars, dict) and isinstance(name, str) else None
        try:
            call["allowed"] = self._masks(stated, call["token_ids"])
        except GrammarError as error:
            self.failed += 1
            self.first_problem = self.first_problem or str(error)[:_SHOWN]
            call["trains"] = False
        else:
            self.replayed += 1

    def _masks(self, stated: Any, token_ids: Sequence[int]) -> list[AllowedTokens]:
        grammar, constraint = self._compiled(stated)
        try:
            return grammar.replay(token_ids, constraint)
        except GrammarError:  # or the work of all answers so far is beyond the engine's limit for one
            return grammar.replay(token_ids)

    def _compiled(self, stated: Any) -> _Compiled:
        """Returns a stated grammar, compiled, with the constraint that replays its answers. Raises
        GrammarError, also for another fingerprint."""
        if not isinstance(stated, dict) or not all(isinstance(stated.get(name), str) for name in FIELDS):
            raise GrammarError("the row does not state it", "grammar")
        key = tuple(stated[name] for name in FIELDS)
        known = self._known.get(key)
        if known is None:
            try:
                made = self._checked(stated)
                known = made, made.begin()
            except GrammarError as error:
                known = error
            self._known[key] = known
        if isinstance(known, GrammarError):
            raise known
        return known

    def _checked(self, stated: Mapping[str, Any]) -> CompiledGrammar:
        if stated["form"] not in _FORMS:
            raise GrammarError(f"its form is {stated['form'][:20]!r}, not json or lark", "grammar")
        if stated["form"] == "json" and not _is_json(stated["source"]):
            raise GrammarError("its source is no JSON", "grammar")
        kind: Any = stated["kind"]
        form: Any = stated["form"]
        made = self._compile(Grammar(kind, stated["source"], form))
        if made.fingerprint != stated["fingerprint"]:
            raise GrammarError(
                f"its fingerprint is {stated['fingerprint'][:12]} and here it is {made.fingerprint[:12]}: "
                f"the tokenizer, the engine ({stated['engine'][:60]}; here {made.engine}) or the source is "
                f"another",
                "grammar",
            )
        return made


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
