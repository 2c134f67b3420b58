"""Structured answers of a local model: vLLM where it is installed, else Onward's own sampler on a folder.

The sampler's answer follows the JSON schema by construction: tokens that would leave it are not drawn.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from onward.errors import ConfigError, OnwardError, install_command

AnswerT = TypeVar("AnswerT", bound=BaseModel)
MAX_TOKENS = 1024
MAX_CONTEXT = 8192


class ModelAnswerError(OnwardError):
    """A model's answer that is not of the requested type."""


class _Engine(Protocol):
    """Draws one text that follows a JSON schema."""

    def generate(
        self, system: str, user: str, schema: dict[str, Any], temperature: float, seed: int
    ) -> str: ...


class VLLMInterface:
    """Asks a local model for an answer of a pydantic type.

    ``model_path``: a folder, or with vLLM the name of a model. Raises ConfigError, with what to install, if
    there is no engine for it.
    """

    def __init__(self, model_path: str | Path, *, max_tokens: int = MAX_TOKENS) -> None:
        self.model_path, self.max_tokens = str(model_path), max_tokens
        folder = Path(model_path)
        if find_spec("vllm") is not None:
            self._engine: _Engine = _Vllm(self.model_path, max_tokens)
        elif (folder / "config.json").is_file():
            self._engine = _Own(folder, max_tokens)
        else:
            raise ConfigError(
                f"The model {self.model_path!r} needs vLLM, which is not installed, and is no folder with a "
                f"config.json: run {install_command('vllm')}, or give the folder of a small model."
            )

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
        text = await asyncio.to_thread(
            self._engine.generate, system_prompt, user_prompt, schema, temperature, seed
        )
        try:
            return response_type.model_validate_json(self._extract_json(text))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the top"
            raise ModelAnswerError(
                f"The model's answer is no {response_type.__name__} ({where}: {first['msg']}): "
                "ask again with another seed, or use a model that follows a schema."
            ) from None

    @staticmethod
    def _extract_json(text: str) -> str:
        """Returns the text from the first brace to the last."""
        start, end = text.find("{"), text.rfind("}") + 1
        return text[start:end] if start != -1 and end > start else text


def _messages(system: str, user: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


class _Vllm:
    def __init__(self, model_path: str, max_tokens: int) -> None:
        from vllm import LLM  # pyright: ignore[reportMissingImports]

        self._model = LLM(model=model_path, dtype="auto")
        self._max_tokens = max_tokens

    def generate(self, system: str, user: str, schema: dict[str, Any], temperature: float, seed: int) -> str:
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
        from vllm.sampling_params import StructuredOutputsParams  # pyright: ignore[reportMissingImports]

        sampling = SamplingParams(
            temperature=temperature, max_tokens=self._max_tokens, seed=seed,
            structured_outputs=StructuredOutputsParams(json=schema),
        )  # fmt: skip
        return self._model.chat(_messages(system, user), sampling)[0].outputs[0].text


class _Own:
    """Onward's sampler on the CPU, under the grammar of the schema."""

    def __init__(self, folder: Path, max_tokens: int) -> None:
        from onward.lm.chat import Chat
        from onward.lm.constrained import GrammarCompiler
        from onward.lm.paths import load, sampler

        policy = load(folder)
        self._chat = Chat(policy.tokenizer)
        self._sampler = sampler(policy, max_batch=1, max_context=MAX_CONTEXT)
        self._compile = GrammarCompiler(policy.tokenizer, policy.shape.vocab, self._chat.stop_ids)
        self._max_tokens = max_tokens

    def generate(self, system: str, user: str, schema: dict[str, Any], temperature: float, seed: int) -> str:
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
                if sample.finish_reason != "stop":
                    raise ModelAnswerError(
                        f"The model's answer ended early ({sample.error or sample.finish_reason} after "
                        f"{len(sample.token_ids)} tokens): allow more with max_tokens or a longer context."
                    )
                return self._chat.text(sample.token_ids)
        raise ModelAnswerError("The sampler gave no answer: load the model again.")
