"""A rubric writer that is a model runs in a child process, which may be killed, hang and be replaced."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from answered_task import trajectory
from frozen import freeze
from rubric_writer import two_writers

from onward import children, extras
from onward.config import RewardSettings
from onward.contracts import encode
from onward.errors import ConfigError, EngineError, MissingExtraError
from onward.rubrics import writer_child, writer_process, writers
from onward.rubrics.backend_player import BaselinePlayer
from onward.rubrics.language import InvalidRubric, parse
from onward.rubrics.policy.writer import load_player
from onward.rubrics.tasks import make_task
from onward.rubrics.trajectories import rubrics_of
from onward.rubrics.writer_process import WriterProcess
from onward.rubrics.writers import rubric_by

TASKS = [make_task("travel_itinerary", seed) for seed in range(1, 9)]
TEMPLATE = "baseline:template"
"""A writer that needs no torch, so that a child of its own costs little. It reads brief and checks alone."""


def expected(number: int) -> Any:
    return rubric_by(BaselinePlayer("template"), TASKS[number])


@pytest_asyncio.fixture
async def process(tmp_path: Path) -> AsyncIterator[WriterProcess]:
    one = WriterProcess("rubric-writer", tmp_path / "writer.log")
    yield one
    await one.stop()
    assert one.keeper.pid is None


async def begun(process: WriterProcess, number: int) -> asyncio.Task[Any]:
    """Returns a request that a frozen child has received and cannot answer."""
    request = asyncio.create_task(process.write(TEMPLATE, TASKS[number]))
    await asyncio.sleep(0.2)
    assert not request.done()
    return request


def living(process: WriterProcess) -> int:
    assert process.keeper.pid is not None
    return process.keeper.pid


# --- a trained writer ---------------------------------------------------------------------------------

SCORER = """
import asyncio, json, sys
from pathlib import Path
from onward import host
from onward.cli import rewards
from onward.config import RewardSettings
from onward.contracts import Trajectory, validate
from onward.contracts.buckets import ReleasedWriter
from onward.reward.role import rewarder
from onward.reward.role.analysis import Analysis
from onward.rubrics.trajectories import rubrics_of

given = json.loads(sys.argv[1])

class Source:
    now = 0
    async def released(self):
        n = self.now
        return ReleasedWriter(version=f"v{n}", digest=f"d{n}", object_prefix="p", manifest_sha256="m")
    async def folder(self, writer):
        return Path(given["folders"][int(writer.version[1:])])

async def main():
    source = Source()
    settings = {name: {"family": name, "writer": "released"} for name in ("expense_audit", "release_notes")}
    rubrics = rubrics_of(RewardSettings.model_validate({"rubrics": settings}), source)
    analysis, found, pids = Analysis(None, rubrics), [], []
    (keeper,) = rubrics.keepers.values()
    before = keeper.pid
    for source.now in (0, 1, 0):
        items = {one["trajectory_id"]: validate(one, Trajectory) for one in given["items"]}
        results = await analysis.rubrics(items)
        found.append([(one.writer, dict(one.weights)) for one in results.values()])
        pids.append(keeper.pid)
    await analysis.stop()
    names = [name for name in sys.modules if name.partition(".")[0] in ("torch", "chdb")]
    print(json.dumps({"found": found, "pids": pids, "idle": [before, keeper.pid], "heavy": names}))

asyncio.run(main())
"""


def test_a_process_that_scores_with_released_writers_never_imports_torch(tmp_path: Path) -> None:
    """A fresh interpreter scores with one version, with the next, and with the first again, in one child.
    Each rubric is the one that the writer writes in the process of its caller."""
    folders, ids = two_writers(tmp_path), ["expense_audit/3", "release_notes/5", "release_notes/6"]
    items = [json.loads(encode(trajectory(name.replace("/", "-"), name, "# Note", "report"))) for name in ids]
    given = json.dumps({"folders": [str(one) for one in folders], "items": items})
    done = subprocess.run([sys.executable, "-c", SCORER, given], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["heavy"] == []
    assert told["idle"] == [None, None] and len(set(told["pids"])) == 1
    right = []
    for version in (0, 1, 0):
        player, shares = load_player(folders[version]), []
        for name in ids:
            family, _, seed = name.partition("/")
            rubric = rubric_by(player, make_task(family, int(seed)))
            pairs = zip(rubric.checks, rubric.weights.tolist(), strict=True)
            by = {"version": f"v{version}", "digest": f"d{version}"}
            shares.append([by, {str(check): weight for check, weight in pairs}])
        right.append(shares)
    assert told["found"] == right
    assert right[0][0][1] != right[1][0][1], "the two writers differ"


# --- a child that is killed, or hangs -----------------------------------------------------------------


async def test_requests_at_once_are_answered_each_with_its_own_rubric(process: WriterProcess) -> None:
    found = await asyncio.gather(*(process.write(TEMPLATE, one) for one in TASKS))
    assert found == [expected(number) for number in range(len(TASKS))]
    assert len({str(one.criteria) for one in found}) > 1
    assert process.keeper.ends == 0


async def test_a_child_that_is_killed_in_the_middle_of_a_request_costs_nothing(
    process: WriterProcess,
) -> None:
    await process.write(TEMPLATE, TASKS[0])
    first = living(process)
    freeze(first)
    request = await begun(process, 1)
    os.kill(first, signal.SIGKILL)
    assert await request == expected(1)
    assert living(process) != first
    assert (process.keeper.restarts, process.keeper.cause) == (1, "it ended with code -9")


async def test_a_child_that_hangs_is_replaced_and_writes_what_was_asked(
    process: WriterProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "PROBE_SECONDS", 0.3)
    await process.write(TEMPLATE, TASKS[0])
    first = living(process)
    freeze(first)
    assert await process.write(TEMPLATE, TASKS[1]) == expected(1)
    assert living(process) != first
    assert process.keeper.cause == "it did not answer 4 times in a row"


async def test_a_request_that_takes_too_long_is_an_error_and_the_next_one_has_a_new_child(
    tmp_path: Path,
) -> None:
    process = WriterProcess("rubric-writer", tmp_path / "log", write_seconds=0.5)
    await process.write(TEMPLATE, TASKS[0])
    first = living(process)
    freeze(first)
    with pytest.raises(
        EngineError, match=r"template wrote no rubric within 0\.5 s, so its process is started"
    ):
        await process.write(TEMPLATE, TASKS[1])
    assert await process.write(TEMPLATE, TASKS[2]) == expected(2)
    assert living(process) != first
    assert process.keeper.cause == "it wrote no rubric within 0.5 s"
    await process.stop()


async def test_a_caller_that_gives_up_leaves_the_next_one_its_own_answer(process: WriterProcess) -> None:
    await process.write(TEMPLATE, TASKS[0])
    child = living(process)
    freeze(child)
    request = await begun(process, 1)
    request.cancel()
    following = await begun(process, 2)
    os.kill(child, signal.SIGCONT)
    assert await following == expected(2)
    assert request.cancelled() and living(process) == child


@pytest.mark.parametrize(
    ("ending", "out_of_memory", "why"),
    [
        ("sys.exit(7)", False, "it ended with code 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", True, "the kernel killed it for lack of memory"),
    ],
)
async def test_a_child_that_dies_each_time_is_a_sentence(
    process: WriterProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    ending: str, out_of_memory: bool, why: str,
) -> None:  # fmt: skip
    class Kernel:
        def __init__(self, pid: int) -> None:
            self.has_seen_one = out_of_memory

    (tmp_path / "dies_at_once.py").write_text(f"import os, signal, sys\ninput()\n{ending}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(writer_process, "CHILD", "dies_at_once")
    monkeypatch.setattr(writer_process, "KillWatch", Kernel)
    with pytest.raises(EngineError, match=rf"^The process of the rubric writer is gone: {why}\.$"):
        await process.write(TEMPLATE, TASKS[0])
    assert process.keeper.ends == 2


async def test_a_child_that_is_stopped_starts_again_for_a_later_request(process: WriterProcess) -> None:
    await process.write(TEMPLATE, TASKS[0])
    first = living(process)
    await process.stop()
    assert process.keeper.pid is None
    assert await process.write(TEMPLATE, TASKS[1]) == expected(1)
    assert living(process) != first


# --- errors -------------------------------------------------------------------------------------------


async def test_a_writer_that_cannot_be_loaded_leaves_the_one_before(
    process: WriterProcess, tmp_path: Path
) -> None:
    await process.write(TEMPLATE, TASKS[0])
    child = living(process)
    with pytest.raises(EngineError, match=r"has no trained writer: give the folder of a run"):
        await process.write(str(tmp_path), TASKS[0])
    with pytest.raises(InvalidRubric, match=r"^The writer's text is no rubric: "):
        await process.write("baseline:constant_uncapped", TASKS[0])
    assert await process.write(TEMPLATE, TASKS[1]) == expected(1)
    assert living(process) == child


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError(), "The memory of this machine is too small for the rubric writer run."),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
            "The memory of this machine is too small for the rubric writer run.",
        ),
        (ConfigError("run has no writer.json."), "run has no writer.json."),
        (KeyError("questions"), "The rubric writer run failed (KeyError: 'questions')."),
    ],
)
def test_an_error_of_the_child_is_one_sentence(
    error: Exception, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = writer_child.Desk()
    request = {"writer": "run", "brief": TASKS[0].brief, "checks": [(c.name, c.arg) for c in TASKS[0].active]}
    with monkeypatch.context() as broken:

        def fails(name: str) -> Any:
            raise error

        broken.setattr(writers, "open_writer", fails)
        assert desk.answer(request) == {"error": sentence}
    answer = desk.answer({**request, "writer": TEMPLATE})
    assert parse(answer["rubric"], TASKS[0].active) == expected(0)


def test_without_the_language_models_a_writer_that_is_a_model_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "writer.json").write_text("{}")

    def missing(extra: str, module: str, needed_for: str) -> None:
        raise MissingExtraError(extra, needed_for)

    monkeypatch.setattr(extras, "require", missing)
    given = {"r": {"family": "release_notes", "writer": str(tmp_path)}}
    with pytest.raises(
        MissingExtraError, match="A rubric writer that is a model needs the optional part 'lm'"
    ):
        rubrics_of(RewardSettings.model_validate({"rubrics": given}))


def test_a_name_of_a_writer_has_one_process_and_others_have_none(tmp_path: Path) -> None:
    (tmp_path / "writer.json").write_text("{}")
    names = {"a": str(tmp_path), "b": f"local:{tmp_path}", "c": str(tmp_path), "d": TEMPLATE, "e": "openai:m"}
    given = {key: {"family": "release_notes", "writer": name} for key, name in names.items()}
    found = rubrics_of(RewardSettings.model_validate({"rubrics": given}))
    assert list(found.keepers) == ["rubric-writer", "rubric-writer-2"]
