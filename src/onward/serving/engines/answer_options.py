"""Options of a call, as fields of a sampling request and of its generation record.

Runs in the engine child, which knows the tokenizer and how the model writes calls.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, Protocol

from onward.errors import EngineError
from onward.lm.answer_form import AnswerForm
from onward.lm.chat import Chat
from onward.lm.constrained import Grammar, GrammarError
from onward.lm.request import Alternatives
from onward.lm.token_bytes import TokenBytes
from onward.serving.engines import AnswerOptions, RequestRefusedError, context_exceeded

COMPILE_SECONDS = 10.0
"""Seconds after which a grammar that is not compiled is refused."""
MOST_COMPILING = 32
"""Grammars that may wait for the thread that compiles them."""


class CanConstrain(Protocol):
    """The side of a sampler that compiles its grammars."""

    json_only: bool
    """True if it knows JSON schemas and no other grammar."""

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        ...

    def compiled(self, grammar: Grammar, stop_ids: Sequence[int]) -> Grammar:
        """Returns a grammar in the form that a request carries. May take long. Raises GrammarError for one
        that cannot be enforced."""
        ...


class OptionReader:
    def __init__(self, sampling: CanConstrain, chat: Chat) -> None:
        self._sampling, self._chat = sampling, chat
        # A thread of its own, as a grammar that takes long cannot be stopped and must not hold up other work.
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._compiling: set[Future[Grammar]] = set()

    def begin(self) -> None:
        """Builds the compiler of grammars in its thread, so that the first call with one need not wait."""
        any_object = Grammar("json_object", '{"type": "object"}')
        self._compiler.submit(self._sampling.compiled, any_object, self._chat.stop_ids)

    async def read(
        self, options: AnswerOptions, tools: Sequence[dict[str, Any]]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns fields of a ``SampleRequest``, and those of the record that say what changed the
        distribution. Raises RequestRefusedError that names the parameter."""
        bias = {int(token): value for token, value in options.logit_bias.items()}
        if any(token >= self._sampling.vocab for token in bias):
            raise RequestRefusedError(
                f"'logit_bias' has the token {max(bias)}, but the model's ids are 0 to "
                f"{self._sampling.vocab - 1}.",
                "logit_bias",
            )
        grammar = await self._grammar(options, tools)
        fields: dict[str, Any] = {
            "presence_penalty": options.presence_penalty,
            "frequency_penalty": options.frequency_penalty,
            "logit_bias": bias,
            "grammar": grammar,
            "stop_texts": options.stop,
            "alternatives": options.top_logprobs or 0,
        }
        record: dict[str, Any] = {
            name: value
            for name in ("presence_penalty", "frequency_penalty", "logit_bias")
            if (value := getattr(options, name))
        }
        if grammar is not None:
            record["constraint"] = grammar.record
        return fields, record

    async def _grammar(self, options: AnswerOptions, tools: Sequence[dict[str, Any]]) -> Grammar | None:
        names = options.callable
        form = AnswerForm(
            [tool for tool in tools if names is None or tool["function"]["name"] in names],
            options.must_call,
            options.parallel,
            options.schema,
            "json_object" if options.any_object else "json_schema",
        )
        if not form.constrains:
            return None
        sampling, stop_ids = self._sampling, self._chat.stop_ids

        def compiled() -> Grammar:
            grammar = form.grammar(
                self._chat.call_style,
                lambda grammar: sampling.compiled(grammar, stop_ids),
                json_only=sampling.json_only,
            )
            try:
                return sampling.compiled(grammar, stop_ids)
            except GrammarError as error:
                part = "tools" if grammar.kind == "tool_calls" else "response_format"
                raise GrammarError(f"The form of the answer cannot be enforced: {error}", part) from None

        wanted = "response_format" if options.schema is not None else "tools"
        if len(self._compiling) >= MOST_COMPILING:
            raise EngineError(f"{MOST_COMPILING} grammars wait to be compiled already: ask again later.")
        compiling = self._compiler.submit(compiled)
        self._compiling.add(compiling)
        compiling.add_done_callback(self._compiling.discard)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(compiling), COMPILE_SECONDS)
        except TimeoutError:
            raise RequestRefusedError(
                f"The form of the answer was not compiled within {COMPILE_SECONDS:g} s: make the schemas of "
                f"'{wanted}' simpler.",
                wanted,
            ) from None
        except GrammarError as error:
            raise RequestRefusedError(f"{error}.", error.part) from None

    def prompt_ids(self, prompt: str | Sequence[int], max_context: int) -> list[int]:
        """Returns the ids of a raw prompt. Control strings in a text are ordinary characters. A prompt that
        cannot fit is refused unread."""
        fewest = self._chat.fewest_tokens_of(prompt) if isinstance(prompt, str) else len(prompt)
        if fewest > max_context:
            raise context_exceeded(max_context, fewest, at_least=True, param="prompt")
        ids = self._chat.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not ids or max(ids) >= self._sampling.vocab:
            raise RequestRefusedError(
                f"'prompt' has no tokens, or ids outside 0 to {self._sampling.vocab - 1}.", "prompt"
            )
        return ids

    @cached_property
    def token_bytes(self) -> TokenBytes:
        return TokenBytes(self._chat.tokenizer)


def state_once(record: dict[str, Any], stated: frozenset[str]) -> frozenset[str]:
    """Leaves the source of a grammar out of ``record`` if a generation that it continues has it in its own.
    ``stated`` are the hashes of the grammars that these have. Returns them with that of ``record``."""
    constraint = record.get("constraint") or {}
    if "source" not in constraint:
        return stated
    if constraint["hash"] in stated:
        record["constraint"] = {
            name: value for name, value in constraint.items() if name not in ("form", "source")
        }
    return stated | {constraint["hash"]}


class LogprobEntries:
    """Log-probs of one answer's tokens, in the form of the chat API."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at = 0
        """Characters of the answer's text before the next token."""
        self._begun = False

    def append(
        self, ids: Sequence[int], logprobs: Sequence[float], alternatives: Sequence[Alternatives]
    ) -> list[dict[str, Any]]:
        """Returns the entries of further tokens. Control tokens have none: they are no part of the text."""
        made = []
        for place, (token, value) in enumerate(zip(ids, logprobs, strict=True)):
            entry = self._entry(token, value)
            if not entry["bytes"]:
                continue
            best = alternatives[place] if alternatives else []
            entry["top_logprobs"] = [self._entry(other, logprob) for other, logprob in best]
            entry["at"] = self._at
            self._at += len(self._decoder.decode(bytes(entry["bytes"])))
            if not self._begun:
                self._begun = True
                self._at -= self._bytes.dropped_at_start(token)
            made.append(entry)
        return made

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        data = self._bytes.of(token)
        return {"token": data.decode("utf-8", "replace"), "logprob": float(logprob), "bytes": list(data)}
