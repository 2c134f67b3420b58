"""The desk suite: validation tasks played by one policy, 64 at once so that the engine can batch them.

Every policy plays the same tasks with the same seeds, at the temperature of serving. The result of a task is
its program's verdict. ``play_all`` knows no engine; ``run_desk`` uses the engine of this loop.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from onward.context import Context
from onward.envs import desk
from onward.errors import EngineError, TamperedError
from onward.release.validation.probe_prompts import CheckResult, Complete, run_checks
from onward.serving.engines import Engine
from onward.serving.engines.local import LocalEngine
from onward.serving.engines.registry import verify_adapter
from onward.serving.place import any_engine
from onward.training import checkpoints
from onward.training.spec import recipes

AT_ONCE = 64


@dataclass(frozen=True)
class TaskResult:
    """``completion`` lies in [0, 1]; ``success`` is the program's verdict."""

    task_id: str
    kind: str
    success: bool
    completion: float


async def play(task: desk.Task, complete: Complete, session_id: str) -> TaskResult:
    """Plays one task from first message to verdict."""
    episode = desk.Episode(task)
    messages = [{"role": m["role"], "content": m["content"]} for m in episode.messages()]
    done = False
    while not done:
        answer = await complete(list(messages), session_id)
        step = episode.step(answer)
        done = step.done
        messages += [
            {"role": "assistant", "content": answer},
            {"role": "user", "content": step.observation or ""},
        ]
    outcome = episode.outcome()
    return TaskResult(task.task_id, task.kind, outcome.success, outcome.completion)


async def play_all(
    complete: Complete, size: int, *, split: str = "validation", seed: int = 0, at_once: int = AT_ONCE
) -> list[TaskResult]:
    """Plays ``size`` tasks of ``split`` in the order of ``desk.tasks``. Results have the same order."""
    tasks: Sequence[desk.Task] = desk.tasks(split, size, seed)
    free = asyncio.Semaphore(at_once)

    async def one(task: desk.Task) -> TaskResult:
        async with free:
            return await play(task, complete, task.task_id)

    return list(await asyncio.gather(*(one(task) for task in tasks)))


def completing(engine: Engine, digest: str | None, *, seed: int, max_tokens: int, label: str) -> Complete:
    """Returns a function that samples answers of one policy as they are served. The seed of an answer depends
    on the task and the turn alone, so that two policies get the same random numbers."""

    async def complete(messages: list[dict[str, str]], session_id: str) -> str:
        text = f"{seed}:{session_id}:{len(messages)}"
        drawn = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")
        answer = await engine.generate(
            messages,
            session_id=f"{label}-{(digest or 'base')[:12]}-{seed}-{session_id}",
            adapter=digest,
            temperature=1.0,
            max_tokens=max_tokens,
            seed=drawn,
        )
        return answer.text

    return complete


@asynccontextmanager
async def engine_of(ctx: Context) -> AsyncIterator[LocalEngine]:
    """Yields a client of an engine that a gateway of this loop started."""
    engine = any_engine(ctx.settings.run_dir)
    try:
        yield engine
    finally:
        await engine.close()


async def run_desk(
    engine: Engine, adapter_digest: str | None, *, split: str, size: int, seed: int = 0, max_tokens: int
) -> list[TaskResult]:
    """Plays the desk with an adapter that this client of the engine has loaded (None: the base model)."""
    complete = completing(engine, adapter_digest, seed=seed, max_tokens=max_tokens, label="suite")
    return await play_all(complete, size, split=split, seed=seed)


class EngineSuite:
    """Runs suite and checks of a release on an engine of this loop. An adapter stays loaded as long as the
    client that loaded it is connected, so one client serves from ``prepare`` to ``finish``."""

    def __init__(self, ctx: Context) -> None:
        from onward.capture.make_redactor import redactor_of  # compiles the rules: only if answers are stored

        self._ctx = ctx
        self._redactor = redactor_of(ctx.settings)
        self._folders = ctx.settings.data_dir / "models" / "candidates"
        self._engine = any_engine(ctx.settings.run_dir)
        self._loaded: set[str] = set()
        self._max_tokens = recipes.for_model(ctx.settings.model.base).max_tokens

    async def base_digest(self) -> str:
        """Returns the digest that the engine reports. Raises EngineError."""
        return (await self._engine.health())["base_digest"]

    async def check_stored(
        self, digest: str | None, object_prefix: str, manifest_sha256: str | None = None
    ) -> None:
        """Checks manifest, file names and base model. The base model alone has no files.

        Raises NotFoundError or TamperedError if it cannot be loaded; EngineError or ObjectError if that is
        unknown.
        """
        if digest is None:
            return
        prefix, objects = object_prefix, self._ctx.objects
        manifest = await checkpoints.read_manifest(objects, prefix, manifest_sha256=manifest_sha256)
        if manifest.adapter_digest != digest:
            raise TamperedError(
                f"{prefix} holds adapter {manifest.adapter_digest[:12]}, but {digest[:12]} was released: it "
                f"must not be loaded."
            )
        checkpoints.refuse_other_base(manifest, await self.base_digest())

    async def prepare(
        self, digest: str | None, object_prefix: str, manifest_sha256: str | None = None
    ) -> None:
        """Fetches, verifies and loads the adapter. Raises TamperedError, EngineError, ObjectError."""
        if digest is None:
            return
        folder: Path = self._folders / digest
        if not folder.exists():
            await checkpoints.fetch(self._ctx.objects, object_prefix, folder, manifest_sha256=manifest_sha256)
        await asyncio.to_thread(verify_adapter, folder, digest)
        await self._engine.load_adapter(digest, folder)
        self._loaded.add(digest)

    async def run_suite(self, digest: str | None) -> list[TaskResult]:
        size = self._ctx.settings.release.suite_size
        return await run_desk(
            self._engine, digest, split="validation", size=size, max_tokens=self._max_tokens
        )

    async def run_checks(self, digest: str | None) -> list[CheckResult]:
        complete = completing(self._engine, digest, seed=0, max_tokens=self._max_tokens, label="check")
        return await run_checks(complete, self._redact)

    def _redact(self, answer: str) -> str:
        """Redacts the answer so that it may be stored and published."""
        try:
            return self._redactor.document(answer).document
        except Exception as error:  # a defect in redaction is no evidence against the candidate
            return f"(withheld: {type(error).__name__})"

    async def finish(self) -> None:
        """Unloads the adapters that ``prepare`` loaded. An engine that is away has none loaded."""
        while self._loaded:
            with suppress(EngineError):
                await self._engine.unload_adapter(self._loaded.pop())
        await self._engine.close()
