"""``onward validate``: what it says before it starts and after the end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from release_world import FakeSuite
from typer.testing import CliRunner

from onward.cli import app, validate
from onward.suites.suite import ItemResult

MODELS = {"new": "agent-zero-rl-v1", "old": "agent-zero-rl-v0"}


class Engine(FakeSuite):
    """Two equal models: each solves 15 items that the other does not, of 100."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__({}, {})
        self.names: list[str] = []

    async def find(self, name: str) -> Any:
        return SimpleNamespace(name=name, size=100, purpose="benchmark")

    async def run_suite(self, name: str, digest: str | None, *_: Any) -> list[ItemResult]:
        self.names.append(name)
        lost = range(15) if digest == "new" else range(15, 30)
        return [ItemResult(f"t{n}", "k", float(n not in lost), n not in lost) for n in range(100)]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    made = Engine()

    @asynccontextmanager
    async def parts(*_: Any, **__: Any) -> AsyncIterator[None]:
        yield None

    async def models(*_: Any) -> tuple[Any, Any]:
        return tuple(
            SimpleNamespace(model_id=name, adapter_digest=digest, object_prefix="p", manifest_sha256=None)
            for digest, name in MODELS.items()
        )

    monkeypatch.setattr("onward.release.validation.suite.EngineSuite", lambda *_, **__: made)
    monkeypatch.setattr(validate.host, "parts", parts)
    monkeypatch.setattr(validate, "_models", models)
    return made


def test_an_equal_model_is_told_why_it_fails_and_how_many_items_it_takes(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    arguments = ["validate", MODELS["new"], "--suite", "code_gen", "--dir", str(tmp_path)]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == validate.FAILED, shown.output
    assert "differ on more than about 3 % of them" in shown.output
    assert "100 items are too few to show that it is not worse: it takes about 466" in shown.output
    assert set(engine.names) == {"code_generation"}, "the published alias means the shipped suite"
    stored = json.loads((tmp_path / "validations" / f"{MODELS['new']}.json").read_text())
    assert (stored["verdict"], stored["summary"]["suites"]["code_generation"]["needed"]) == ("failed", 466)


def test_a_limit_of_zero_is_said_to_pass_only_a_better_model() -> None:
    words = validate.what_it_asks("desk", 10_000, 0.0)
    assert "passes only a model that is better, whatever the number of items" in words


def test_as_json_it_prints_one_document_and_nothing_else(engine: Engine, tmp_path: Path) -> None:
    arguments = ["validate", MODELS["new"], "--suite", "desk", "--dir", str(tmp_path), "--json"]
    assert json.loads(CliRunner().invoke(app, arguments).stdout)["model"] == MODELS["new"]
