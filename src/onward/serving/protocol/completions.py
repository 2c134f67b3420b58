"""The legacy completions API: a raw prompt in, its continuation out. Pure."""

from __future__ import annotations

from typing import Any

from onward.serving.protocol.events import DONE, Chunks, event
from onward.serving.protocol.openai import ROUTED, ChatRequest
from onward.serving.protocol.options import choices, read_options, usage_in_stream
from onward.serving.protocol.parameters import COMPLETIONS, bad, flag, number, refuse, whole

DEFAULT_TOKENS = 16
MAX_PROMPT_IDS = 1 << 20


def parse(document: dict[str, Any]) -> ChatRequest:
    """Parses a request, as a chat of one message that shows no template. Raises HttpError 400."""
    refuse(document, COMPLETIONS)
    prompt = document.get("prompt")
    if not (isinstance(prompt, str) and prompt) and not _is_ids(prompt):
        problem = "'prompt' must be one text or one list of token ids; several prompts are several calls"
        raise bad(f"{problem}.", "prompt")
    stream = flag(document, "stream", False)
    likeliest = whole("logprobs", document.get("logprobs"), 0, 5)
    model, user = document.get("model") or ROUTED, document.get("user")
    if not isinstance(model, str) or not (user is None or isinstance(user, str)):
        raise bad("'model' and 'user' must be text.", "model" if not isinstance(model, str) else "user")
    return ChatRequest(
        model=model,
        messages=[{"role": "user", "content": prompt if isinstance(prompt, str) else str(prompt)}],
        temperature=number(document, "temperature", 1.0, 0.0, 2.0),
        top_p=number(document, "top_p", 1.0, 1e-6, 1.0),
        top_k=None if document.get("top_k") == -1 else whole("top_k", document.get("top_k"), 1),
        max_tokens=whole("max_tokens", document.get("max_tokens"), 1) or DEFAULT_TOKENS,
        seed=whole("seed", document.get("seed"), 0),
        stream=stream,
        user=user or None,
        tools=[],
        callable=frozenset(),
        parallel=True,
        include_usage=usage_in_stream(document),
        n=choices(document, stream),
        options=read_options(document, top_logprobs=likeliest, prompt=prompt),
    )


def _is_ids(prompt: Any) -> bool:
    return (
        isinstance(prompt, list)
        and 0 < len(prompt) <= MAX_PROMPT_IDS
        and all(type(token) is int and 0 <= token < 2**31 for token in prompt)
    )


def completion(answer: dict[str, Any]) -> dict[str, Any]:
    """Returns a chat completion in the form of the legacy API."""
    return {
        **answer,
        "id": answer["id"].replace("chatcmpl-", "cmpl-"),
        "object": "text_completion",
        "choices": [
            {
                "index": choice["index"],
                "text": choice["message"]["content"] or "",
                "finish_reason": choice["finish_reason"],
                "logprobs": _logprobs(choice["logprobs"]),
            }
            for choice in answer["choices"]
        ],
    }


def _logprobs(given: dict[str, Any] | None) -> dict[str, Any] | None:
    if given is None:
        return None
    entries = given["content"]
    return {
        "tokens": [one["token"] for one in entries],
        "token_logprobs": [one["logprob"] for one in entries],
        "top_logprobs": [
            {other["token"]: other["logprob"] for other in one["top_logprobs"]} for one in entries
        ],
        "text_offset": [one["at"] for one in entries],
    }


class CompletionChunks(Chunks):
    """The events of a completion: pieces of text, then the reason and Onward's part."""

    def role(self) -> bytes:
        return b""

    def content(self, text: str, logprobs: dict[str, Any] | None = None) -> bytes:
        return self._piece(text, None, logprobs)

    def calls(self, calls: list[dict[str, Any]]) -> bytes:
        return b""

    def end(self, answer: dict[str, Any]) -> bytes:
        reason = answer["choices"][0]["finish_reason"]
        events = self._piece("", reason, None, onward=answer["onward"])
        if self._include_usage:
            events += event({**self._named(), "choices": [], "usage": answer["usage"]})
        return events + DONE

    def _piece(self, text: str, reason: str | None, logprobs: dict[str, Any] | None, **more: Any) -> bytes:
        choice = {"index": 0, "text": text, "finish_reason": reason, "logprobs": _logprobs(logprobs)}
        usage = {"usage": None} if self._include_usage else {}
        return event({**self._named(), "choices": [choice], **usage, **more})

    def _named(self) -> dict[str, Any]:
        head = self._head
        return {**head, "id": head["id"].replace("chatcmpl-", "cmpl-"), "object": "text_completion"}
