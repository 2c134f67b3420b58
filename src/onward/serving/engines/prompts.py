"""Tokens of prompts. Those that continue a conversation are extended and never rendered again.

The choices of one request (``n``) arrive as calls of their own with the same text, which is encoded once for
all of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from onward.errors import OnwardError
from onward.lm.chat import Chat
from onward.lru import Lru
from onward.serving.engines import AnswerOptions, Messages, RequestRefusedError, context_exceeded
from onward.serving.engines.answer_options import OptionReader
from onward.serving.engines.session_memory import FinishedGeneration, SessionMemory

LONG_TEXT = 8192
"""Characters from which on a prompt is encoded in a thread of its own."""
_REMEMBERED = 8
"""Prompts whose tokens are remembered: enough for the requests that arrive between the choices of one."""
Prompt = tuple[FinishedGeneration | None, list[int]]
"""The generation that a prompt continues, or None, and the ids that come after it."""


class PromptReader:
    def __init__(self, chat: Chat, memory: SessionMemory, options: OptionReader, max_context: int) -> None:
        self._chat, self._memory, self._options = chat, memory, options
        self._max_context = max_context
        self._recent: Lru[str, asyncio.Future[Prompt]] = Lru(_REMEMBERED)

    async def read(self, request: dict[str, Any], options: AnswerOptions | None) -> Prompt:
        """Returns the prompt of a request. A long text is encoded in a thread, and not at all if it cannot
        fit: other calls go on meanwhile. Raises RequestRefusedError."""
        if options is not None and options.prompt is not None:
            return await self._once([options.prompt], partial(self._raw, options.prompt))
        messages, tools = request["messages"], request.get("tools") or []
        fewest = self._chat.fewest_tokens(messages, tools)
        if fewest > self._max_context:
            raise context_exceeded(self._max_context, fewest, at_least=True)
        before = self._memory.find(request["session_id"], request["adapter"], messages, tools)
        key = [before.generation_id if before else None, tools, list(messages)]
        return await self._once(key, partial(self._chat_prompt, before, messages, tools))

    async def _once(self, parts: Any, work: Callable[[], Awaitable[Prompt]]) -> Prompt:
        """Returns the result of ``work``, which runs once for calls with the same ``parts``. The end of one
        call does not end it for the others. A failure is not remembered: it may pass."""
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        found = self._recent.get(key)
        if found is None:
            found = self._recent[key] = asyncio.ensure_future(work())
        try:
            return await asyncio.shield(found)
        except Exception:
            if self._recent.get(key) is found:
                del self._recent[key]
            raise

    async def _raw(self, prompt: str | Sequence[int]) -> Prompt:
        return None, await asyncio.to_thread(self._options.prompt_ids, prompt, self._max_context)

    async def _chat_prompt(
        self, before: FinishedGeneration | None, messages: Messages, tools: Sequence[dict[str, Any]]
    ) -> Prompt:
        calls = [message["tool_calls"] for message in messages if message.get("tool_calls")]
        length = sum(len(str(message.get("content"))) for message in messages)
        length += len(json.dumps([tools, calls])) if tools or calls else 0
        if length < LONG_TEXT:
            return self._encoded(before, messages, tools)
        return await asyncio.to_thread(self._encoded, before, messages, tools)

    def _encoded(
        self, before: FinishedGeneration | None, messages: Messages, tools: Sequence[dict[str, Any]]
    ) -> Prompt:
        try:
            if before is not None:
                delta = self._chat.extend(before.ids, before.messages, messages, before.finished, tools)
                if delta is not None:
                    return before, delta
            return None, self._chat.render(messages, tools)
        except OnwardError:
            raise
        except Exception as error:  # a template that refuses these roles or this order
            raise RequestRefusedError(f"The model's chat template refuses these messages: {error}.") from None
