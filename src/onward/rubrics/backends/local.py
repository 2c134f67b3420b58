"""Structured answers of a local model: vLLM where it is installed, else Onward's own sampler on a folder.

The sampler's answer follows the JSON schema by construction: tokens that would leave it are not drawn.

Invariant: one answer at a time, whatever is asked together, since no engine is made for several threads.
"""

from __future__ import annotations

import asyncio
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from onward.errors import ConfigError, install_command
from onward.rubrics.backends.base import (
    MAX_TOKENS,
    AnswerT,
    ModelAnswerError,
    TruncatedAnswerError,
    Usage,
    extract_json,
    read_answer,
)

MAX_CONTEXT = 8192


class _Engine(Protocol):
    """Draws one text that follows a JSON schema."""

    def generate(
        self, system: str, user: str, schema: dict[str, Any], temperature: float, seed: int, usage: Usage
    ) -> str: ...


class VLLMInterface:
    """Asks a local model for an answer of a pydantic type.

    ``model_path``: a folder, or with vLLM the name of a model. Raises ConfigError, with what to install, if
    there is no engine for it.
    """

    def __init__(self, model_path: str | Path, *, max_tokens: int = MAX_TOKENS) -> None:
        self.model_path, self.max_tokens = str(model_path), max_tokens
        self.name, self.usage = f"local:{model_path}", Usage()
        self._engine: _Engine = engine_of(self.model_path)(self.model_path, max_tokens)
        self._one_at_a_time = threading.Lock()

    async def generate_structured(
        self,
        system_prompt: str,
        user_prompt: str,
        response_type: type[AnswerT],
        temperature: float = 1.0,
        seed: int = 0,
    ) -> AnswerT:
        """Returns an answer of ``response_type``. Raises ModelAnswerError if the model gives none."""
        schema = response_type.model_json_schema()

        def generate() -> str:
            with self._one_at_a_time:
                return self._engine.generate(
                    system_prompt, user_prompt, schema, temperature, seed, self.usage
                )

        return read_answer(await asyncio.to_thread(generate), response_type)

    _extract_json = staticmethod(extract_json)


def _messages(system: str, user: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def _count(usage: Usage, prompt: int, completion: int) -> None:
    usage.requests += 1
    usage.prompt_tokens += prompt
    usage.completion_tokens += completion


def _cut_off(reason: str, tokens: int) -> TruncatedAnswerError:
    return TruncatedAnswerError(
        f"The model's answer ended early ({reason} after {tokens} tokens): allow more with max_tokens or a "
        "longer context."
    )


class _Vllm:
    def __init__(self, model_path: str, max_tokens: int) -> None:
        from vllm import LLM  # pyright: ignore[reportMissingImports]

        self._model = LLM(model=model_path, dtype="auto")
        self._max_tokens = max_tokens

    def generate(
        self, system: str, user: str, schema: dict[str, Any], temperature: float, seed: int, usage: Usage
    ) -> str:
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
        from vllm.sampling_params import StructuredOutputsParams  # pyright: ignore[reportMissingImports]

        sampling = SamplingParams(
            temperature=temperature, max_tokens=self._max_tokens, seed=seed,
            structured_outputs=StructuredOutputsParams(json=schema),
        )  # fmt: skip
        answer = self._model.chat(_messages(system, user), sampling)[0]
        _count(usage, len(answer.prompt_token_ids or ()), len(answer.outputs[0].token_ids))
        if answer.outputs[0].finish_reason == "length":
            raise _cut_off("length", len(answer.outputs[0].token_ids))
        return answer.outputs[0].text


class _Own:
    """Onward's sampler on the CPU, under the grammar of the schema."""

    def __init__(self, folder: str, max_tokens: int) -> None:
        from onward.lm.chat import Chat
        from onward.lm.constrained import GrammarCompiler
        from onward.lm.paths import load, sampler

        policy = load(Path(folder))
        self._chat = Chat(policy.tokenizer)
        self._sampler = sampler(policy, max_batch=1, max_context=MAX_CONTEXT)
        self._compile = GrammarCompiler(policy.tokenizer, policy.shape.vocab, self._chat.stop_ids)
        self._max_tokens = max_tokens

    def generate(
        self, system: str, user: str, schema: dict[str, Any], temperature: float, seed: int, usage: Usage
    ) -> str:
        from onward.lm.constrained import Grammar, schema_source
        from onward.lm.request import SampleRequest

        source = schema_source(schema, "The type of the answer", "response_type")
        prompt = self._chat.render(_messages(system, user))
        room = self._sampler.max_context - len(prompt)
        if room < 1:
            raise ModelAnswerError(
                f"The prompt has {len(prompt)} tokens, and the model reads {self._sampler.max_context}: "
                "use a model with a longer context."
            )
        self._sampler.submit(SampleRequest(
            "structured", prompt, min(self._max_tokens, room), temperature=temperature, seed=seed,
            stop_ids=self._chat.stop_ids, grammar=self._compile(Grammar("json_schema", source)),
        ))  # fmt: skip
        while self._sampler.busy:
            for sample in self._sampler.step():
                _count(usage, len(prompt), len(sample.token_ids))
                if sample.finish_reason != "stop":
                    raise _cut_off(sample.error or sample.finish_reason, len(sample.token_ids))
                return self._chat.text(sample.token_ids)
        raise ModelAnswerError("The sampler gave no answer: load the model again.")


def engine_of(model_path: str) -> type[_Vllm] | type[_Own]:
    """Returns the engine for a model, and loads nothing. Raises ConfigError, with what to install, if there
    is none."""
    if find_spec("vllm") is not None:
        return _Vllm
    if (Path(model_path) / "config.json").is_file():
        return _Own
    raise ConfigError(
        f"The model {model_path!r} needs vLLM, which is not installed, and is no folder with a config.json: "
        f"run {install_command('vllm')}, or give the folder of a small model."
    )
