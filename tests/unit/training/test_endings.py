"""How an attempt ended is read from what its child said, wrote and returned."""

import asyncio
import contextlib
import errno
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainer_world import World, world_with_a_job

from onward import config
from onward.errors import ConfigError, TrainingError
from onward.training.job.pace import Pace
from onward.training.role import attempt, endings
from onward.training.role import trainer as service
from onward.training.role.attempt import Attempt
from onward.training.role.convergence import NON_FINITE, Divergence
from onward.training.role.endings import ChildError
from onward.training.role.job_lease import JobLease


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return await world_with_a_job(tmp_path)


async def _compute(world: World, monkeypatch: pytest.MonkeyPatch, code: str) -> dict[str, Any]:
    """Runs an attempt whose child is a Python program with ``emit``. A signal's handler may call it as well,
    where ``print`` would raise RuntimeError if the signal comes within another ``print``."""
    program = (
        "import json, os, signal, sys, time\n"
        "def emit(**event): os.write(1, json.dumps(event).encode() + b'\\n')\n"
        f"{code}"
    )

    async def start(*_: Any, log: Path, **__: Any) -> Any:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, stderr=errors
            )

    monkeypatch.setattr(attempt.children, "start", start)
    trainer = service.Trainer(world.ctx)
    claimed = await trainer.table.claim(*await trainer.table.get("job-1"), trainer.owner)
    lease = JobLease(trainer.table, *claimed, world.clock, 30.0, 0.0)
    one = Attempt(world.ctx, lease, trainer.announcer)
    return await one._compute(world.settings.data_dir, {"samples": 1, "excluded": {}})


def _step(**metrics: float) -> dict[str, Any]:
    return {"event": "progress", "step": 1, "total_steps": 9, "progress": Pace(1).progress(1, 9),
            "skipped_steps": 0, "metrics": metrics}  # fmt: skip


async def test_a_child_that_says_why_it_failed_has_its_code_and_traceback(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"event": "failed", "code": "UNKNOWN", "message": "It failed (KeyError).", "traceback": "line 7"}
    with pytest.raises(ChildError, match="KeyError") as ended:
        await _compute(world, monkeypatch, f"emit(**{said!r}); sys.exit(1)")
    assert (ended.value.code, ended.value.traceback) == ("UNKNOWN", "line 7")


async def test_a_child_that_ends_without_a_word_has_the_end_of_its_own_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = world.settings.data_dir / "logs" / "job-job-1.log"
    path.parent.mkdir(parents=True)
    path.write_text("of an earlier attempt\n")
    with pytest.raises(ChildError, match=r"code 5 and no result: see logs/job-job-1\.log") as ended:
        await _compute(world, monkeypatch, "sys.stderr.write('Fatal error: x'); sys.exit(5)")
    assert (ended.value.code, ended.value.traceback) == ("UNKNOWN", "Fatal error: x")


async def _computing_too_long(
    world: World, monkeypatch: pytest.MonkeyPatch, code: str
) -> asyncio.Task[dict[str, Any]]:
    """Returns the computation of a child that is ready, after the longest time of an attempt."""
    ready = asyncio.Event()
    read = attempt.children.events

    async def events(child: Any) -> Any:
        async for event in read(child):
            ready.set()
            yield event

    monkeypatch.setattr(attempt.children, "events", events)
    computing = asyncio.create_task(_compute(world, monkeypatch, code))
    await ready.wait()
    await world.clock.advance(world.settings.training.timeout_seconds + 1)
    return computing


async def test_an_attempt_that_takes_too_long_is_ended_and_may_save_first(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = f"""
def stop(*_):
    open({str(tmp_path / "saved")!r}, "w").close()
    sys.exit(3)
signal.signal(signal.SIGTERM, stop)
emit(event="stage", name="ready")
time.sleep(60)
"""
    computing = await _computing_too_long(world, monkeypatch, code)
    with pytest.raises(ChildError, match="86400 s") as ended:
        await computing
    assert ended.value.code == "TIMEOUT" and (tmp_path / "saved").exists()


async def test_a_child_that_has_its_result_when_the_time_is_up_is_not_late(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
def stop(*_):
    emit(event="done", metrics={}, seconds=1.0)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
emit(event="stage", name="ready")
time.sleep(60)
"""
    computing = await _computing_too_long(world, monkeypatch, code)
    assert (await computing)["event"] == "done"


async def test_json_that_a_library_prints_is_no_event(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    done = await _compute(
        world, monkeypatch, """print('{"progress": 1}'); emit(event="done", metrics={}, seconds=1.0)"""
    )
    assert done["event"] == "done"


async def test_a_training_that_diverges_is_ended_before_its_last_step(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"emit(**{_step(kl_divergence=0.5)!r}); emit(**{_step(kl_divergence=10.5)!r}); time.sleep(60)"
    with pytest.raises(ChildError, match=r"the KL divergence is 10\.5") as ended:
        await _compute(world, monkeypatch, code)
    assert ended.value.code == "CONVERGENCE"


def _watch(**settings: Any) -> Divergence:
    return Divergence(config.load(environ={}, overrides={"training": settings}).training)


def _evaluations(watch: Divergence, rewards: list[float], episodes: int = 50) -> None:
    for reward in rewards:
        watch.note({"event": "held_out", "when": "step", "reward": reward, "episodes": episodes})


def test_an_entropy_below_its_limit_diverges_only_where_one_is_set() -> None:
    _watch().note(_step(policy_entropy=0.0))
    with pytest.raises(ChildError, match="entropy"):
        _watch(min_entropy=0.1).note(_step(policy_entropy=0.05))


def test_steps_that_are_not_finite_in_a_row_diverge_and_single_ones_do_not() -> None:
    watch = _watch()
    for skipped in (1, 1, 2, 2, 3, 3, 4, 5, 6, 7):
        watch.note({**_step(), "skipped_steps": skipped})
    assert NON_FINITE == 5  # 4, 5, 6 and 7 rose; one more is the fifth in a row
    with pytest.raises(ChildError, match="not finite"):
        watch.note({**_step(), "skipped_steps": 8})


def test_a_reward_that_falls_in_three_evaluations_in_a_row_diverges() -> None:
    with pytest.raises(ChildError, match=r"from 0\.9 to 0\.3") as ended:
        _evaluations(_watch(), [0.5, 0.9, 0.7, 0.5, 0.3])
    assert ended.value.code == "CONVERGENCE"


def test_a_falling_estimate_counts_with_its_effective_tasks() -> None:
    """An estimate of logged work has no episodes; taken for one, no fall would ever be certain."""
    watch = _watch()
    with pytest.raises(ChildError, match=r"from 0\.9 to 0\.3"):
        for reward in (0.9, 0.7, 0.5, 0.3):
            watch.note({"event": "held_out", "reward": reward, "attempts": 900, "effective": 50.0})


@pytest.mark.parametrize(
    "rewards", [[0.9, 0.7, 0.5], [0.9, 0.7, 0.5, 0.6, 0.4, 0.2], [0.6, 0.58, 0.56, 0.54]]
)
def test_too_few_a_rise_between_or_a_fall_that_chance_explains_does_not(rewards: list[float]) -> None:
    """0.6 to 0.54 on 50 tasks: each mean has a standard error of 0.07."""
    _evaluations(_watch(), rewards)


def test_few_equal_values_are_no_certainty() -> None:
    _evaluations(_watch(), [1.0, 0.75, 0.5, 0.25], episodes=2)


@pytest.mark.parametrize(("seen", "code"), [(True, "OOM"), (False, "INFRA")])
def test_a_sigkill_is_for_memory_if_the_kernel_counted_one_more(seen: bool, code: str) -> None:
    watch = SimpleNamespace(has_seen_one=seen)
    assert endings.of_exit(-9, watch, "logs/x").code == code  # type: ignore[arg-type]
    assert endings.of_exit(-11, watch, "logs/x").code == "UNKNOWN"  # type: ignore[arg-type]


def test_the_events_of_a_child_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    from onward.training.job import worker

    worker.emit("failed", code="UNKNOWN", message="m", traceback='File "x.py"\n')
    assert json.loads(capsys.readouterr().out)["traceback"] == 'File "x.py"\n'


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("Give two."), "DATA", "Give two."),
        (TrainingError("CONVERGENCE", "It diverged."), "CONVERGENCE", "It diverged."),
        (MemoryError(), "OOM", "The job ran out of memory: give it a smaller batch."),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "INFRA",
            "The job's folder cannot be used (OSError).",
        ),
        (
            ModuleNotFoundError("No module named 'abc_def'"),
            "UNKNOWN",
            "The training process failed (No module named 'abc_def').",
        ),
        (ValueError("the user's text"), "UNKNOWN", "The training process failed (ValueError)."),
    ],
)
def test_every_kind_of_job_child_reports_its_error_by_kind(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, error: Exception, code: str, message: str
) -> None:
    from onward.training.job import worker

    with pytest.raises(type(error)) if code == "UNKNOWN" else contextlib.nullcontext():
        try:
            raise error
        except Exception as raised:
            worker.emit_failure(raised, tmp_path)
    told = json.loads(capsys.readouterr().out)
    assert (told["event"], told["code"], told["message"]) == ("failed", code, message)
    assert ("traceback" in told) == (code == "UNKNOWN")
