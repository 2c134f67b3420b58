"""Episodes of a rubric writer: questions to the stakeholder, notes, then a rubric, each under its grammar.

Many episodes run in one batch of a sampler. Each is one token row: what the policy drew is sampled, the brief
and the stakeholder's answers are context. So are the notes: they are always the likeliest ones, and learned
from demonstrations alone, since a reward that comes after them unlearns reading. The same arguments give the
same episodes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from onward.errors import OnwardError
from onward.lm.constrained import CompiledGrammar, Grammar, GrammarCompiler
from onward.lm.request import Sample, SampleRequest
from onward.lm.tokens import TokenRow
from onward.lru import Lru
from onward.rubrics.language import InvalidRubric, Rubric, parse, schema_of
from onward.rubrics.language.ordered import ordered_grammar
from onward.rubrics.policy import prompts
from onward.rubrics.policy.ordered import OrderedRubrics
from onward.rubrics.policy.prompts import Message
from onward.rubrics.tasks import TOPICS, RubricTask, TaskStakeholder

if TYPE_CHECKING:  # loads torch
    from onward.lm.model import LanguageModel

QUESTIONS = 3
"""Most questions of an episode."""
ANSWER_TOKENS = 600
"""Room for an answer whose grammar does not bound it."""

_REMEMBERED = 4096
"""Texts whose tokens and masks are remembered."""

_COMPILED = 1024
"""Grammars that are remembered: one for each list of checks."""

Stage = Literal["ask", "note", "write"]
Ask = Callable[[str], str]
"""A stakeholder: the answer to a question about a topic."""
StakeholderOf = Callable[["RubricTask"], Ask | None]
"""Finds the stakeholder of a task; None if no one can be asked, and then no question is."""


@dataclass
class Attempt:
    """One episode. ``rubric`` None: it was not valid, for the reason ``problem``."""

    task: RubricTask
    row: TokenRow
    questions: tuple[str, ...]
    text: str
    rubric: Rubric | None
    problem: str = ""
    notes: str = ""
    """The notes of the policy; empty for a writer without notes."""
    finished: bool = True
    """False: the sampler could not complete an answer, which is no fault of the policy."""
    drawn: int = 0
    """Tokens that the policy drew, those of its notes among them."""


@dataclass
class _Running:
    task: RubricTask
    ask: Ask
    messages: list[Message]
    row: TokenRow
    context: list[int]
    asked: list[str] = field(default_factory=list)
    turns: int = 0
    drawn: int = 0
    stage: Stage = "ask"
    """Kind of the next answer."""
    notes: str = ""
    done: Attempt | None = None


class Player:
    """Plays episodes of ``policy`` under ``adapter`` (None: its own weights).

    Renderings of prompts and compiled grammars are remembered between calls.
    """

    def __init__(
        self,
        policy: LanguageModel,
        adapter: str | None = None,
        *,
        questions: int = QUESTIONS,
        notes: bool = True,
        ordered: bool = True,
        batch: int = 256,
    ) -> None:
        """``notes``: before the rubric the policy notes how much each dimension matters. ``ordered``: rubrics
        are written in canonical order, by the automaton of ``ordered`` if the vocabulary is closed; otherwise
        in any order that ``schema_of`` allows."""
        from onward.lm import paths  # loads torch
        from onward.lm.chat import Chat

        self.policy, self.adapter = policy, adapter
        self.questions, self.notes, self.ordered = questions, notes, ordered
        self.chat = Chat(policy.tokenizer)
        self._encoded = lru_cache(_REMEMBERED)(self.chat.encode)
        self._replayed = lru_cache(_REMEMBERED)(self._replay)
        self._compile = GrammarCompiler(policy.tokenizer, policy.shape.vocab, self.chat.stop_ids)
        self._sampler = paths.sampler(policy, max_batch=batch)
        self._grammars: Lru[Any, CompiledGrammar] = Lru(_COMPILED)
        self._rendered: Lru[str, list[int]] = Lru(_REMEMBERED)

    def play(
        self,
        tasks: Sequence[RubricTask],
        *,
        seed: int = 0,
        temperature: float = 1.0,
        stakeholder: StakeholderOf = lambda task: answers_of(task),
        for_training: bool = False,
    ) -> list[Attempt]:
        """Runs one episode for each entry of ``tasks`` (repeat a task for a group) and returns them in that
        order. ``temperature`` 0 takes the likeliest tokens. An episode without a stakeholder goes on as
        after a question about ``nothing``."""
        running = [self._begin(task, stakeholder(task), temperature) for task in tasks]

        def submit(index: int) -> None:
            one = running[index]
            digest = hashlib.sha256(f"{seed}/{index}/{one.turns}".encode()).digest()
            grammar, notes = self._grammar_of(one), one.stage == "note"
            self._sampler.submit(
                SampleRequest(
                    request_id=str(index),
                    prompt_ids=one.row.ids + one.context,
                    max_new_tokens=grammar.max_tokens or ANSWER_TOKENS,
                    temperature=0.0 if notes else temperature,
                    stop_ids=self.chat.stop_ids,
                    adapter=self.adapter,
                    seed=int.from_bytes(digest[:6], "big"),
                    grammar=grammar,
                    for_training=for_training and not notes,
                )
            )

        for index in range(len(running)):
            submit(index)
        while self._sampler.busy:
            for sample in self._sampler.step():
                index = int(sample.request_id)
                if self._advance(running[index], sample):
                    submit(index)
        return [_ended(one) for one in running]

    # --- grammars and prompts ------------------------------------------------------------------------

    def rubric_grammar(self, task: RubricTask) -> CompiledGrammar:
        found = self._grammars.get(task.active)
        if found is None and self.ordered:
            vocab, end = self.policy.shape.vocab, self.chat.end_of_turn
            found = OrderedRubrics.grammar(task.active, self._encoded, vocab, end)
            found = self._grammars[task.active] = found or self._compile(ordered_grammar(task.active))
        return found or self._grammar(task.active, lambda: schema_of(task.active))

    def _grammar_of(self, one: _Running) -> CompiledGrammar:
        if one.stage == "write":
            return self.rubric_grammar(one.task)
        return self.question_grammar() if one.stage == "ask" else self.notes_grammar()

    def notes_grammar(self) -> CompiledGrammar:
        return self._grammar("notes", prompts.notes_schema)

    def question_grammar(self) -> CompiledGrammar:
        return self._grammar(TOPICS, lambda: prompts.question_schema(TOPICS))

    def _grammar(self, key: Any, schema: Callable[[], dict[str, Any]]) -> CompiledGrammar:
        if key not in self._grammars:
            source = json.dumps(schema(), ensure_ascii=False)
            self._grammars[key] = self._compile(Grammar("json_schema", source))
        return self._grammars[key]

    def row_of(
        self, task: RubricTask, turns: Sequence[tuple[str, str]], notes: Mapping[str, int | None], rubric: str
    ) -> TokenRow:
        """Returns the row of an episode that was not drawn: ``turns`` are pairs of topic and answer.
        Raises GrammarError for text outside of the grammars."""
        one = self._asked(task, turns, as_context=False)
        if self.notes:
            text = prompts.notes(notes)
            self._append(one, text, self.notes_grammar())
            one.context = self._extended(one, text, prompts.NOW)
        self._append(one, rubric, self.rubric_grammar(task))
        return one.row

    def reading_of(
        self, task: RubricTask, turns: Sequence[tuple[str, str]], notes: Mapping[str, int | None]
    ) -> TokenRow:
        """Returns the row of an episode that ends with the notes. They alone are trained."""
        one = self._asked(task, turns, as_context=True)
        self._append(one, prompts.notes(notes), self.notes_grammar())
        return one.row

    def _asked(
        self,
        task: RubricTask,
        turns: Sequence[tuple[str, str]],
        *,
        as_context: bool,
        temperature: float = 1.0,
    ) -> _Running:
        """Returns the beginning of an episode, with its questions and answers."""
        one = self._start(task, _silent, temperature)
        said = [prompts.question(topic) for topic, _ in turns]
        replies: list[str | None] = [prompts.answered(topic, answer) for topic, answer in turns]
        if len(turns) < self.questions:
            said.append(prompts.question(None))
            replies.append(None)
        for number, (text, answer) in enumerate(zip(said, replies, strict=True), 1):
            self._append(one, text, self.question_grammar(), as_context=as_context)
            then = self._after_questions if number == len(said) else None
            one.context = self._extended(one, text, prompts.reply(answer, then))
        return one

    @property
    def _after_questions(self) -> str:
        return prompts.NOTE if self.notes else prompts.NOW

    @property
    def _stage_after_questions(self) -> Stage:
        return "note" if self.notes else "write"

    def _append(
        self, one: _Running, text: str, grammar: CompiledGrammar, *, as_context: bool = False
    ) -> None:
        if as_context:
            one.row.extend([*one.context, *self._encoded(text), self.chat.end_of_turn], [])
        else:
            ids, allowed = self._replayed(text, grammar)
            one.row.extend(one.context, ids, allowed=allowed)

    def _replay(self, text: str, grammar: CompiledGrammar) -> tuple[list[int], Any]:
        ids = [*self._encoded(text), self.chat.end_of_turn]
        return ids, grammar.replay(ids)

    def _begin(self, task: RubricTask, ask: Ask | None, temperature: float) -> _Running:
        """Returns an episode before its first answer. Without a stakeholder its questions are over."""
        if ask is not None or not self.questions:
            return self._start(task, ask or _silent, temperature)
        one = self._asked(task, (), as_context=True, temperature=temperature)
        one.stage = self._stage_after_questions
        return one

    def _start(self, task: RubricTask, ask: Ask, temperature: float) -> _Running:
        messages = prompts.opening(task)
        key = messages[-1]["content"]
        if key not in self._rendered:
            self._rendered[key] = self.chat.render(messages)
        row = TokenRow([], [], [], temperature)
        stage: Stage = "ask" if self.questions else self._stage_after_questions
        return _Running(task, ask, messages, row, self._rendered[key], stage=stage)

    def _extended(self, one: _Running, answer: str, reply: str) -> list[int]:
        """Returns the context that follows ``answer``, and adds both messages to the conversation."""
        before = list(one.messages)
        one.messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": reply}]
        key = json.dumps([message["content"] for message in one.messages])
        if key not in self._rendered:
            found = self.chat.extend(one.row.ids, before, one.messages, True)
            if found is None:  # a template that rewrites history: what follows is all that can be used of it
                found = self.chat.render(one.messages)[len(one.row.ids) :]
            self._rendered[key] = found
        return self._rendered[key]

    # --- answers -------------------------------------------------------------------------------------

    def _advance(self, one: _Running, sample: Sample) -> bool:
        """Takes an answer; returns True when another one is needed."""
        if one.stage == "note":
            one.row.extend([*one.context, *sample.token_ids], [])
        else:
            one.row.extend(one.context, sample.token_ids, sample.logprobs, sample.allowed)
        one.turns += 1
        one.drawn += len(sample.token_ids)
        text = self.chat.text(sample.token_ids)
        if sample.finish_reason != "stop":
            ended = sample.finish_reason != "error"
            problem = sample.error or "the answer was cut off"
            one.done = _attempt(one, text, None, problem, finished=ended)
            return False
        if one.stage == "write":
            one.done = _judged(one, text)
            return False
        if one.stage == "note":
            one.notes, one.stage = text, "write"
            one.context = self._extended(one, text, prompts.NOW)
            return True
        topic = prompts.topic_of(text)
        answer = None
        if topic is not None:
            one.asked.append(topic)
            answer = prompts.answered(topic, one.ask(topic))
        then = None
        if topic is None or len(one.asked) >= self.questions:
            one.stage, then = self._stage_after_questions, self._after_questions
        one.context = self._extended(one, text, prompts.reply(answer, then))
        return True


def answers_of(task: RubricTask) -> Ask:
    """Returns the stakeholder of a task, at the beginning of a conversation."""
    stakeholder = TaskStakeholder(task)
    return lambda topic: stakeholder.ask(topic).text


def _silent(topic: str) -> str:
    return ""


def _judged(one: _Running, text: str) -> Attempt:
    try:
        rubric, problem = parse(text, one.task.active), ""
    except InvalidRubric as error:
        rubric, problem = None, str(error)
    return _attempt(one, text, rubric, problem)


def _attempt(
    one: _Running, text: str, rubric: Rubric | None, problem: str, *, finished: bool = True
) -> Attempt:
    asked = tuple(one.asked)
    return Attempt(one.task, one.row, asked, text, rubric, problem, one.notes, finished, one.drawn)


def _ended(one: _Running) -> Attempt:
    if one.done is None:
        raise OnwardError("The sampler ended without an answer of every episode: load the writer again.")
    return one.done
