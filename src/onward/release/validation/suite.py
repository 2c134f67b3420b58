"""Hosts the policies of a validation on an engine of this loop, and runs suites on them.

Every policy gets the same items with the same seeds, at the temperature of serving. The desk asks the engine
directly; any other suite asks an endpoint that exists for the time of its run.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from onward.context import Context
from onward.errors import EngineError, TamperedError
from onward.release.record import Model
from onward.release.validation.lineage import other_environments, trained_on
from onward.release.validation.probe_prompts import CheckResult, run_checks
from onward.serving.engines import Engine
from onward.serving.engines.local import LocalEngine
from onward.serving.engines.registry import verify_adapter
from onward.serving.place import any_engine
from onward.suites.asking import seed_of
from onward.suites.desk import SPLIT, Complete, DeskSuite, play_all
from onward.suites.finding import Sources, find
from onward.suites.policy_server import serve_policy
from onward.suites.recorded.replay import ReplaySuite
from onward.suites.safety import report as red_team
from onward.suites.suite import ItemResult, OnItem, Resumable, Suite
from onward.suites.trained import TrainedOn
from onward.training import checkpoints
from onward.training.signatures import Trust
from onward.training.spec import recipes


def completing(engine: Engine, digest: str | None, *, seed: int, max_tokens: int, label: str) -> Complete:
    """Returns a function that samples answers of one policy as they are served. The seed of an answer depends
    on the task and the turn alone, so that two policies get the same random numbers."""

    async def complete(messages: list[dict[str, str]], session_id: str) -> str:
        answer = await engine.generate(
            messages,
            session_id=f"{label}-{(digest or 'base')[:12]}-{seed}-{session_id}",
            adapter=digest,
            temperature=1.0,
            max_tokens=max_tokens,
            seed=seed_of(seed, session_id, len(messages)),
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
    engine: Engine,
    adapter_digest: str | None,
    *,
    split: str,
    size: int,
    seed: int = 0,
    max_tokens: int,
    done: Collection[str] = (),
    on_item: OnItem | None = None,
) -> list[ItemResult]:
    """Plays the desk with an adapter that this client of the engine has loaded (None: the base model)."""
    complete = completing(engine, adapter_digest, seed=seed, max_tokens=max_tokens, label="suite")
    return await play_all(complete, size, split=split, seed=seed, done=done, on_item=on_item)


AUTO = "auto"
"""Entry of ``validation.other_tasks``: every environment in which the models were not trained."""


class EngineSuite:
    """Runs suites and checks of a release on an engine of this loop. An adapter stays loaded as long as the
    client that loaded it is connected, so one client serves from ``prepare`` to ``finish``."""

    def __init__(self, ctx: Context, *, fresh: bool = False, on_item: OnItem | None = None) -> None:
        """``fresh``: recorded tasks are chosen anew for models that were compared before."""
        from onward.capture.make_redactor import redactor_of  # compiles the rules: only if answers are stored

        self._ctx = ctx
        self._redactor = redactor_of(ctx.settings)
        self._trust = Trust.from_settings(ctx.settings)
        self._folders = ctx.settings.data_dir / "models" / "candidates"
        self._engine = any_engine(ctx.settings.run_dir)
        self._loaded: set[str] = set()
        self._found: dict[str, Suite] = {}
        self._models: tuple[Model, ...] = ()
        self._fresh = fresh
        self._trained: TrainedOn | None = None
        self._on_item = on_item
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
        manifest = await checkpoints.read_manifest(
            objects, prefix, manifest_sha256=manifest_sha256, trust=self._trust
        )
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
            await checkpoints.fetch(
                self._ctx.objects, object_prefix, folder, manifest_sha256=manifest_sha256, trust=self._trust
            )
        await asyncio.to_thread(verify_adapter, folder, digest, self._trust)
        await self._engine.load_adapter(digest, folder)
        self._loaded.add(digest)

    async def begin(self, *models: Model) -> None:
        """Begins a comparison of these models; recorded tasks that one was trained on are left out."""
        self._models, self._trained = models, None

    async def find(self, name: str) -> Suite:
        """Returns the suite, which has the same items for every policy until ``finish``."""
        if name not in self._found:
            given = self._ctx.settings.validation
            if name.startswith("recorded:") and self._trained is None and self._models:
                self._trained = await trained_on(self._ctx, self._models)
            self._found[name] = await find(
                name,
                Sources(
                    self._ctx.settings.data_dir,
                    self._ctx.warehouse,
                    items=given.size,
                    rubric=given.rubric,
                    trained=self._trained,
                    comparison="/".join(model.adapter_digest or "base" for model in self._models) or None,
                    fresh=self._fresh,
                ),
            )
        return self._found[name]

    async def other_tasks(self, names: Sequence[str]) -> list[str]:
        """Replaces ``auto`` by the environments in which the models were not trained."""
        found: list[str] = []
        for name in names:
            found += await other_environments(self._ctx, self._models) if name == AUTO else [name]
        return list(dict.fromkeys(found))

    async def purpose(self, name: str) -> Literal["benchmark", "safety"]:
        return (await self.find(name)).purpose

    async def suite_digest(self, name: str) -> str:
        return (await self.find(name)).digest()

    async def suite_facts(self, name: str) -> dict[str, Any]:
        found = await self.find(name)
        return dict(found.facts) if isinstance(found, ReplaySuite) else {}

    async def run_suite(
        self,
        name: str,
        digest: str | None,
        done: Mapping[str, ItemResult] | None = None,
        on_result: OnItem | None = None,
    ) -> list[ItemResult]:
        """Runs a suite. Answers and notes come back redacted, so that they may be stored."""
        suite = await self.find(name)
        whole = suite.purpose == "safety"
        if not isinstance(suite, Resumable):
            return [
                self._stored(result, whole=whole) for result in await self._run(suite, digest, self._on_item)
            ]

        def finished(result: ItemResult) -> None:
            if on_result is not None:
                on_result(self._stored(result, whole=whole))
            if self._on_item is not None:
                self._on_item(result)

        known, order = dict(done or {}), suite.item_ids
        if not known.keys() >= set(order):
            for result in await self._run(suite.without(known) if known else suite, digest, finished):
                known[result.item_id] = self._stored(result, whole=whole)
        return [known[one] for one in order]

    async def _run(self, suite: Suite, digest: str | None, on_item: OnItem | None) -> list[ItemResult]:
        if isinstance(suite, DeskSuite):
            return await run_desk(
                self._engine,
                digest,
                split=SPLIT,
                size=suite.size,
                max_tokens=self._max_tokens,
                done=suite.done,
                on_item=on_item,
            )
        async with serve_policy(self._engine, digest, max_tokens=self._max_tokens) as policy:
            return await suite.run(policy, seed=0, on_item=on_item)

    async def keep_report(self, name: str, digest: str | None, report: dict[str, Any]) -> str:
        """Writes the red-team report below ``validations/`` of the data folder, as JSON and HTML."""
        folder = self._ctx.settings.data_dir / "validations"
        place = folder / (digest or "base")[:12] / re.sub(r"[^\w.-]", "_", name)
        return str((await asyncio.to_thread(red_team.write, place, report))[1])

    def _stored(self, result: ItemResult, *, whole: bool) -> ItemResult:
        """Returns the result redacted: the ``whole`` transcript, or its last answer alone."""
        said = [message for message in result.transcript if whole or message.get("role") == "assistant"]
        said = said if whole else said[-1:]
        kept = [{**message, "content": self._redact(str(message.get("content") or ""))} for message in said]
        return replace(result, transcript=kept, note=self._redact(result.note))

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
        """Unloads the adapters that ``prepare`` loaded. An engine that is away has none loaded. The next
        validation finds its suites anew, with the items of that time."""
        self._found.clear()
        while self._loaded:
            with suppress(EngineError):
                await self._engine.unload_adapter(self._loaded.pop())
        await self._engine.close()
