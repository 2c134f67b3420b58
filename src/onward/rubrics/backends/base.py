"""The interface of every backend, and the errors and the reading of its answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from onward.errors import OnwardError

AnswerT = TypeVar("AnswerT", bound=BaseModel)
MAX_TOKENS = 1024
MOST_PROBLEM = 300
"""Characters of a problem in the request that repeats it to the model."""


class ModelAnswerError(OnwardError):
    """A model's answer that is not of the requested type."""

    problem = ""
    """The fault of the answer in words for the model; empty if it has none that it could mend."""


class RefusedAnswerError(ModelAnswerError):
    """A model declined to answer. The same request would be declined again, so it is not repeated."""


class TruncatedAnswerError(ModelAnswerError):
    """A model's answer reached the limit of tokens before its end."""


@dataclass
class Usage:
    """Work of a backend since its start."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def dollars(self, price: tuple[float, float] | None) -> float | None:
        """Returns the cost at a price of a million tokens of prompts, and of answers; None without one."""
        if price is None:
            return None
        return (self.prompt_tokens * price[0] + self.completion_tokens * price[1]) / 1e6


class Backend(Protocol):
    """A language model that answers in a pydantic type."""

    name: str
    usage: Usage

    async def generate_structured(
        self,
        system_prompt: str,
        user_prompt: str,
        response_type: type[AnswerT],
        temperature: float = 1.0,
        seed: int = 0,
    ) -> AnswerT:
        """Returns an answer of ``response_type``. Raises ModelAnswerError if the model gives none, and
        EngineError if it cannot be reached."""
        ...


def extract_json(text: str) -> str:
    """Returns the text from the first brace to the last; the whole text without braces."""
    start, end = text.find("{"), text.rfind("}") + 1
    return text[start:end] if start != -1 and end > start else text


def read_answer(text: str, response_type: type[AnswerT]) -> AnswerT:
    """Returns the answer that a text states, whatever is around its JSON. Raises ModelAnswerError."""
    try:
        return response_type.model_validate_json(extract_json(text))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the top"
        problem = ModelAnswerError(
            f"The model's answer is no {response_type.__name__} ({where}: {first['msg']}): "
            "ask again with another seed, or use a model that follows a schema."
        )
        problem.problem = f"{response_type.__name__}: {where}: {first['msg']}"[:MOST_PROBLEM]
        raise problem from None
