"""An engine for tests: deterministic answers, no torch, failures on demand.

Its token ids are the bytes of the text. So a prompt that extends another one also extends its ids, as with
the real engine.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onward.errors import EngineError
from onward.ids import derived_id
from onward.serving.engines import (
    AnswerOptions,
    Generation,
    Messages,
    OnProgress,
    Progress,
    RequestRefusedError,
)
from onward.serving.engines.session_memory import FinishedGeneration, SessionMemory

Script = Callable[[Messages, str | None], str]
BASE_DIGEST = hashlib.sha256(b"scripted").hexdigest()


def echo(messages: Messages, adapter: str | None) -> str:
    return f"{(adapter or 'base')[:8]}: {messages[-1]['content']}"


class ScriptedEngine:
    """A scripted engine. ``fail`` decides per call (adapter, session) whether it raises EngineError.
    ``delay`` seconds pass before each answer. ``refused`` holds digests whose load fails with the given
    error. With ``piece`` it reports progress, so many characters at a time, ``pause`` seconds apart."""

    def __init__(self, script: Script = echo, *, max_context: int = 4096) -> None:
        self.script = script
        self.max_context = max_context
        self.delay = 0.0
        self.piece = 0
        self.pause = 0.0
        self.cancelled = 0
        self.fail: Callable[[str | None, str], bool] = lambda adapter, session: False
        self.refused: dict[str, Exception] = {}
        self.calls: list[tuple[str, str | None]] = []
        self._adapters: dict[str, Path] = {}
        self._memory = SessionMemory()
        self._count = 0
        self.options: AnswerOptions | None = None
        """Options of the call that came last."""

    async def generate(
        self,
        messages: Messages,
        *,
        session_id: str,
        adapter: str | None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        tools: Sequence[dict[str, Any]] = (),
        on_progress: OnProgress | None = None,
        options: AnswerOptions | None = None,
    ) -> Generation:
        self.options = options
        self.calls.append((session_id, adapter))
        if self.delay:
            await asyncio.sleep(self.delay)
        if adapter is not None and adapter not in self._adapters:
            raise EngineError(f"Adapter {adapter[:12]} is not loaded: load it first.")
        if self.fail(adapter, session_id):
            raise EngineError("The scripted engine failed on purpose.")
        before = self._memory.find(session_id, adapter, messages, tools)
        shown = messages if before is None else messages[len(before.messages) + 1 :]
        head = json.dumps(list(tools)) if tools and before is None else ""
        prompt = list((head + "".join(map(_render, shown)) + "<assistant>").encode())
        full = prompt if before is None else [*before.ids, *prompt]
        if len(full) + (max_tokens or 1) > self.max_context:
            raise RequestRefusedError(f"The prompt has {len(full)} tokens: shorten it or ask for fewer.")
        text = self.script(messages, adapter)
        tokens = [*text.encode()[: (max_tokens or 512) - 1], 0]
        self._count += 1
        generation_id = derived_id("scripted", session_id, str(self._count))
        record: dict[str, Any] = {
            "generation_id": generation_id,
            "continues": before.generation_id if before else None,
            "prompt_ids": prompt,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "model_digest": adapter or BASE_DIGEST,
        }
        if on_progress is not None and self.piece:
            await self._tell(on_progress, record, text)
        self._memory.put(
            session_id,
            FinishedGeneration(generation_id, adapter, list(messages), text, [*full, *tokens], True, tools),
        )
        sampling = record | {
            "token_ids": tokens,
            "logprobs": [-0.5] * len(tokens),
            "finish_reason": "stop",
        }
        usage = {
            "prompt_tokens": len(full),
            "completion_tokens": len(tokens),
            "total_tokens": len(full) + len(tokens),
        }
        return Generation(text, sampling, usage)

    async def _tell(self, on_progress: OnProgress, record: dict[str, Any], text: str) -> None:
        on_progress(Progress(record=record))
        try:
            for start in range(0, len(text), self.piece):
                part = text[start : start + self.piece]
                ids = list(part.encode())
                on_progress(Progress(part, ids, [-0.5] * len(ids)))
                await asyncio.sleep(self.pause)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def load_adapter(self, digest: str, folder: Path) -> None:
        if digest in self.refused:
            raise self.refused[digest]
        self._adapters[digest] = folder

    async def unload_adapter(self, digest: str) -> None:
        self._adapters.pop(digest, None)

    async def adapters(self) -> list[str]:
        return sorted(self._adapters)

    async def health(self) -> dict[str, Any]:
        return {"base_digest": BASE_DIGEST, "adapters": sorted(self._adapters), "running": 0}


def _render(message: dict[str, Any]) -> str:
    calls = json.dumps(message["tool_calls"], sort_keys=True) if message.get("tool_calls") else ""
    return f"<{message['role']}>{message['content']}{calls}"
