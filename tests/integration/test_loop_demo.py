"""The whole loop in one small demonstration, then its traces: messages, tokens at rest, lost or twice.

The warm start is cut short, so nothing is asserted about learning here (``test_loop_learns`` does that);
everything else is as ``onward demo --sabotage`` does it, on real parts.
"""

import asyncio
import dataclasses
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from onward.bus import Bus, NatsServer
from onward.bus.outbox import Outbox
from onward.capture import provenance
from onward.contracts import generate, subjects
from onward.demo import run, settings
from onward.demo.result import Result
from onward.redaction import redact
from onward.training.spec import recipes
from onward.warehouse import EmbeddedWarehouse, Warehouse

UPSTREAM = Path(__file__).parents[3] / "shared" / "upstream-schemas"
pytestmark = pytest.mark.timeout(400)


@dataclass(frozen=True)
class Demo:
    folder: Path
    result: Result


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    folder = tmp_path_factory.mktemp("demo")
    tiny = recipes.RECIPES["tiny"]
    short = dataclasses.replace(
        tiny.warm_up, first_check=100, check_every=1, max_steps=100, window=(0.0, 1.0), groups=2
    )
    with pytest.MonkeyPatch.context() as patch:
        pace = dataclasses.replace(settings.PACES["tiny"], trajectories=96, test_panels=1)
        patch.setitem(settings.PACES, "tiny", pace)
        patch.setitem(recipes.RECIPES, "tiny", dataclasses.replace(tiny, warm_up=short))
        options = run.Options(model="tiny", cycles=1, sabotage=True, folder=folder, seed=3)
        result = asyncio.run(run.Demonstration(options, Console(quiet=True)).run())
    yield Demo(next(path for path in folder.iterdir() if path.is_dir()), result)


def test_sabotage_is_taken_back_and_current_serves_everything(demo: Demo) -> None:
    planted = demo.result.cycles[-1]
    assert planted.sabotaged
    assert planted.decision == "rolled_back"
    assert planted.reason.startswith(("the error gate crossed with errors ", "the reward gate crossed with "))
    assert planted.crossed_at is not None and planted.verified_zero_at is not None
    crossed, zero = (
        datetime.fromisoformat(text.replace("Z", "+00:00"))
        for text in (planted.crossed_at, planted.verified_zero_at)
    )
    assert 0 <= (zero - crossed).total_seconds() < 60
    assert demo.result.current_model != planted.candidate


def test_nothing_is_lost_or_stored_twice(demo: Demo) -> None:
    assert demo.result.accepted >= 96
    assert (demo.result.lost, demo.result.duplicates) == (0, 0)


async def test_every_message_is_valid_here_and_upstream_and_only_a_rollback_says_so(demo: Demo) -> None:
    ours = {subject: generate.schema_of(model) for subject, model in generate.MODELS.items()}
    upstream = _upstream()
    seen: dict[str, int] = {}
    reasons: list[str] = []
    restored = None
    async with _bus(demo.folder) as bus:
        for subject, data in [message async for message in _messages(bus)]:
            seen[subject] = seen.get(subject, 0) + 1
            document = json.loads(data)
            _check(ours[subject], document)
            if subject in upstream:
                _check(upstream[subject], document)
            if subject == subjects.MODEL_DEPLOYED and document["metadata"]["event"] == "rollback":
                assert document["metadata"]["reason"] in {"high_error_rate", "performance_degradation"}
                reasons.append(document["metadata"]["why"])
                assert document["deployment_config"]["traffic_percentage"] == 100
                restored = document["model_info"]["model_id"]
            else:
                assert b"rollback" not in data.lower()
    # The trained candidate of so short a warm start may deserve it too; the planted one comes last.
    assert reasons == [cycle.reason for cycle in demo.result.cycles if cycle.decision == "rolled_back"]
    assert restored == demo.result.current_model
    assert set(seen) >= {
        subjects.TRAJECTORY,
        subjects.REWARD,
        subjects.TRAINING_REQUEST,
        subjects.TRAINING_STATUS,
        subjects.MODEL_DEPLOYED,
        subjects.OUTCOME,
    }


async def test_trained_tokens_are_the_gateways_and_tokens_at_rest_hold_no_secret(demo: Demo) -> None:
    from onward.lm.chat import Chat
    from onward.lm.policy import Policy

    tokenizer = Policy.load(demo.folder / "models" / "tiny").tokenizer
    chat = Chat(tokenizer)
    key = provenance.load_key(demo.folder / "run")
    signed: dict[str, dict[str, Any]] = {}
    async with _warehouse(demo.folder) as view:
        for row in await view.query("SELECT payload FROM trajectories_v"):
            for turn in json.loads(row["payload"])["turns"]:
                record = turn["action"].get("sampling")
                if record is None:
                    continue
                assert provenance.verify(record, key)
                signed[record["generation_id"]] = record
                text = tokenizer.decode(record["prompt_ids"] + record["token_ids"])
                assert not redact(text).changed
                assert chat.text(record["token_ids"]) == turn["action"]["raw_response"]
    trained = [
        call
        for path in (demo.folder / "jobs").glob("*/dataset.jsonl")
        for line in path.read_text().splitlines()
        for call in json.loads(line)["calls"]
    ]
    assert len(trained) >= 96
    for call in trained:
        assert call["token_ids"] == signed[call["generation_id"]]["token_ids"]
        assert call["logprobs"] == signed[call["generation_id"]]["logprobs"]


async def test_a_job_learns_from_the_first_tasks_also_those_that_took_long(demo: Demo) -> None:
    async with _warehouse(demo.folder) as view:
        rows = await view.query("SELECT trajectory_id, session_id FROM trajectories_v")
    session = {row["trajectory_id"]: row["session_id"] for row in rows}
    (dataset,) = (demo.folder / "jobs").glob("*/dataset.jsonl")
    learned = {session[json.loads(line)["trajectory_id"]] for line in dataset.read_text().splitlines()}
    assert learned == {f"desk-3-{number}" for number in range(1, 97)}


async def test_a_planted_loss_is_caught_by_the_audit_process(demo: Demo, tmp_path: Path) -> None:
    planted = Outbox(tmp_path / "planted.db")
    planted.put(subjects.TRAJECTORY, b"{}", "never-published")
    planted.close()
    async with _warehouse(demo.folder):
        audit = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "onward.demo.audit", "--data-dir", str(demo.folder),
            "--outbox", str(demo.folder / "outbox" / "agents.db"), "--outbox", str(tmp_path / "planted.db"),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await audit.communicate()
    assert audit.returncode == 1
    assert json.loads(out)["lost"] == ["never-published"]


def test_agents_know_only_http_and_the_recorder() -> None:
    code = (
        "import sys, onward.demo.agents\n"
        "bad = [m for m in sys.modules if m == 'torch' or m.startswith(('onward.lm', 'onward.serving'))]\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def _upstream() -> dict[str, Any]:
    if not UPSTREAM.is_dir():
        return {}
    found = {}
    for path in UPSTREAM.glob("*.json"):
        text = path.read_text().replace('"exclusiveMinimum": true', '"exclusiveMinimum": 0')
        found["agent.rl." + path.name.removesuffix(".schema.json")] = json.loads(text)
    return found


def _check(schema: dict[str, Any], document: Any) -> None:
    checker = jsonschema.FormatChecker(formats=("date-time",))
    jsonschema.Draft202012Validator(schema, format_checker=checker).validate(document)


@asynccontextmanager
async def _bus(folder: Path) -> AsyncIterator[Bus]:
    server = NatsServer(folder)
    await server.start()
    bus = await Bus.connect(server.url, token=server.token)
    try:
        yield bus
    finally:
        await bus.close()
        await server.stop()


async def _messages(bus: Bus) -> AsyncIterator[tuple[str, bytes]]:
    """Every message of the contract streams, as stored."""
    for name in ("RL_TRAJECTORIES", "RL_REWARDS", "RL_TRAINING", "RL_DEPLOY", "RL_OUTCOMES"):
        state = (await bus.js.stream_info(name)).state
        subscription = await bus.js.pull_subscribe("", stream=name)
        left = state.messages
        while left:
            batch = await subscription.fetch(min(left, 500), timeout=10)
            for message in batch:
                yield message.subject, message.data
                await message.ack()  # the server hands out at most 1,000 that are not acknowledged
            left -= len(batch)
        await subscription.unsubscribe()


@asynccontextmanager
async def _warehouse(folder: Path) -> AsyncIterator[Warehouse]:
    embedded = EmbeddedWarehouse(folder)
    view = await embedded.start()
    try:
        yield view
    finally:
        await embedded.stop()
