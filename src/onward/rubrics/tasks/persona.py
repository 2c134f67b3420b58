"""A language-model persona of the stakeholder: it says the table's answer in words of its own.

The model sees the question and the table's phrase, nothing else. So it cannot give away what it does not
have; and words that name a check or a number are refused, and the table's phrase stays.
"""

from __future__ import annotations

import re
from dataclasses import replace
from types import TracebackType

import httpx

from onward.errors import EngineError
from onward.rubrics.backends.posting import key_header, post
from onward.rubrics.tasks.artefacts import words
from onward.rubrics.tasks.checks import CHECKS
from onward.rubrics.tasks.stakeholder import Reply, question

SECONDS = 30.0
MOST_WORDS = 40
PROMPT = (
    "You are the person who ordered a piece of work. Say the given answer in your own words, in one short "
    "sentence. Add nothing: no numbers, no further wishes."
)
_FORBIDDEN = re.compile(
    r"\d|" + "|".join(rf"\b{name.replace('_', '[ _]')}\b" for name in CHECKS), re.IGNORECASE
)


class Persona:
    """Rephrases replies through an OpenAI-compatible endpoint: ``async with Persona(url, model) as persona``.

    ``kept`` counts the replies whose new words were refused.
    """

    def __init__(
        self, base_url: str, model: str, key: str = "", *, least_pause: float = 0.5, most_pause: float = 8.0
    ) -> None:
        self.kept = 0
        self._model, self._pauses = model, (least_pause, most_pause)
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        headers = key_header(self._url, key)
        self._http = httpx.AsyncClient(headers=headers, timeout=SECONDS, trust_env=False)

    async def __aenter__(self) -> Persona:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def rephrase(self, reply: Reply, *, seed: int = 0) -> Reply:
        """Returns ``reply`` in other words; its topic, level and cost stay.

        Raises EngineError if the endpoint does not answer, or answers with an error, three times.
        """
        content = f"Question: {question(reply.topic)}\nAnswer: {reply.text}"
        body = {
            "model": self._model,
            "messages": [{"role": "system", "content": PROMPT}, {"role": "user", "content": content}],
            "temperature": 1.0,
            "seed": seed,
            "max_tokens": 80,
        }
        said = await self._asked(body)
        if not said or len(words(said)) > MOST_WORDS or _FORBIDDEN.search(said):
            self.kept += 1
            return reply
        return replace(reply, text=said)

    async def _asked(self, body: dict[str, object]) -> str:
        try:
            response = await post(lambda: self._http.post(self._url, json=body), self._pauses)
            return " ".join(str(response.json()["choices"][0]["message"]["content"] or "").split())
        except httpx.HTTPStatusError as error:
            reason = f"with status {error.response.status_code}"
        except httpx.RequestError as error:
            reason = f"with {type(error).__name__}"
        except (ValueError, LookupError, TypeError):
            reason = "without a message"
        raise EngineError(
            f"The model of the stakeholder at {self._url} answered {reason}: "
            "check its address, key and model."
        )
