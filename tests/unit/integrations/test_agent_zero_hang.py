"""A worker that hangs: how it is recognised, what follows for its task, and what is no hang."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from agent_zero_feed import CLOSED, OPENED, TURN, FakeChild, feed_with_fakes, until
from agent_zero_world import recorded
from poisoned_worker import interpreter

from onward.capture.recorder import Recorder
from onward.integrations.agent_zero.plugin.helpers import child as children
from onward.integrations.agent_zero.plugin.helpers import hang
from onward.integrations.agent_zero.plugin.helpers.aside import Aside, Working
from onward.integrations.agent_zero.plugin.helpers.child import Child
from onward.integrations.agent_zero.plugin.helpers.hang import LONGEST_STEP, START_SECONDS, Silence
from onward.integrations.agent_zero.plugin.helpers.settings import hang_limit
from onward.integrations.agent_zero.worker import heartbeat
from onward.integrations.agent_zero.worker.heartbeat import Heartbeat
from onward.integrations.agent_zero.worker.service import Worker
from onward.redaction import Redactor, scan
from onward.redaction.steps import reported, step


def test_a_worker_hangs_when_no_sign_has_come_for_the_limit_and_not_before() -> None:
    silence = Silence(300.0, 0.0)
    assert not silence.is_hang(1, 1.0)  # its first sign
    assert next(second for second in range(2, 400) if silence.is_hang(1, float(second))) == 301


def test_each_sign_of_progress_begins_the_time_anew() -> None:
    silence = Silence(10.0, 0.0)
    assert not any(silence.is_hang(second // 9, float(second)) for second in range(9, 5000))


def test_a_suspended_machine_and_a_paused_container_are_no_hang() -> None:
    """Each hour without a look was one in which the plugin did not run either."""
    silence = Silence(60.0, 0.0)
    silence.is_hang(1, 0.0)
    looks = int(60.0 / LONGEST_STEP) - 1
    assert not any(silence.is_hang(1, 3600.0 * hour) for hour in range(1, looks + 1))


def test_a_slow_start_is_no_hang_though_the_limit_is_short() -> None:
    silence = Silence(10.0, 0.0)
    assert next(second for second in range(1, 400) if silence.is_hang(0, float(second))) == START_SECONDS


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        (None, 300.0), ("", 300.0), ("often", 300.0), ("nan", 300.0), ([], 300.0), (60, 60.0), ("90.5", 90.5),
        (1, 10.0), (0, math.inf), ("0", math.inf), (-1, math.inf), ("inf", math.inf),
    ],
)  # fmt: skip
def test_the_limit_is_the_setting_or_the_default_or_never(given: Any, limit: float) -> None:
    assert hang_limit(given) == limit


def test_a_task_is_put_aside_at_the_second_hang_and_suspected_from_the_first(tmp_path: Path) -> None:
    working, aside = Working(tmp_path), Aside(tmp_path)
    assert aside.blame_for_hang(300.0) == ""  # it worked on nothing
    working.note("task-1")
    assert aside.blame_for_hang(300.0) == "task-1"
    assert (aside.is_suspect("task-1"), aside.is_suspect("task-2"), aside.reason("task-1")) == (
        True,
        False,
        "",
    )
    working.note("task-1")
    assert aside.blame_for_hang(300.0) == "task-1"
    assert aside.reason("task-1") == "the worker made no progress on it for 300 seconds, 2 times"
    aside.forget("task-1")
    assert not aside.is_suspect("task-1") and not aside.reason("task-1")


def test_a_worker_that_ends_before_it_can_note_its_work_is_not_charged_to_the_task_before(
    tmp_path: Path,
) -> None:
    """For example, Onward is being updated: three starts that fail are no ends on a task."""
    Working(tmp_path).note("task-1")
    aside = Aside(tmp_path)
    assert [aside.blame(-9), *(aside.blame(1) for _ in range(9))] == [""] * 10
    assert aside.reason("task-1") == ""


def test_a_hang_while_a_task_is_sealed_is_the_disks_and_the_task_is_sealed_later(tmp_path: Path) -> None:
    working, aside = Working(tmp_path), Aside(tmp_path)
    for _ in range(20):
        working.note("task-1")
        aside.blame_for_hang(10.0)
    assert aside.is_sealable("task-1")
    aside.condemn("task-2", "the worker could not handle it (KeyError)")
    for _ in range(5):
        working.note("task-2")
        assert aside.blame_for_hang(10.0) == "task-2"
    assert aside.is_sealable("task-2") and not aside.is_suspect("task-2")
    assert aside.reason("task-2") == "the worker could not handle it (KeyError)"


def test_the_next_worker_gets_the_suspects_end_after_all_others_and_then_its_lines_to_be_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with feed_with_fakes(tmp_path, monkeypatch, hang_seconds=0.05) as feed:
        for task in ("task-1", "task-2"):
            for event in (OPENED, TURN, CLOSED):
                feed.put({**event, "t": task})
        until(lambda: FakeChild.made and len(FakeChild.made[0].lines) == 7)
        first = FakeChild.made[0]
        first.hang("task-1")
        until(lambda: len(FakeChild.made) == 2)
        second = FakeChild.made[1]
        until(lambda: len(second.lines) == 7)
        assert [(one["op"], one.get("t")) for one in second.lines[1:]] == [
            ("open", "task-1"), ("turn", "task-1"),
            ("open", "task-2"), ("turn", "task-2"), ("close", "task-2"), ("close", "task-1"),
        ]  # fmt: skip
        second.say(op="done", id="task-2", **{"as": "recorded"})
        until(lambda: feed.waiting == 1)
        second.hang("task-1")
        until(lambda: len(FakeChild.made) == 3)
        third = FakeChild.made[2]
        until(lambda: len(third.lines) == 2)
        told = third.lines[1]
        assert (told["op"], told["id"], told["whole"]) == ("aside", "task-1", True)
        assert told["reason"] == "the worker made no progress on it for 0.05 seconds, 2 times"
        assert [json.loads(line)["op"] for line in told["lines"]] == ["open", "turn", "close"]
        assert feed.hangs["count"] == 2 and third.lines[0]["hangs"] == feed.hangs
        assert feed.reason == "the worker made no progress on a task for 0.05 seconds and was ended"


def test_an_end_of_the_worker_is_known_before_the_next_one_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be charged to nothing: the system takes a while to remove a process."""
    with feed_with_fakes(tmp_path, monkeypatch) as feed:
        feed.put(dict(OPENED))
        until(lambda: FakeChild.made and len(FakeChild.made[0].lines) == 2)
        worker = FakeChild.made[0]
        (tmp_path / "working").write_text("task-1")
        worker.code, worker.is_running = -9, False  # type: ignore[assignment]
        feed.put(dict(TURN))
        until(lambda: not feed._events)
        time.sleep(0.1)
        assert len(FakeChild.made) == 1
        worker.die(-9)
        until(lambda: len(FakeChild.made) == 2)
        assert feed._aside._ends == {"task-1": 1}


def test_a_worker_that_its_own_alarm_ended_after_a_pause_of_the_container_is_replaced_without_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the limit has passed by the kernel's clock, and the plugin has not seen once the limit."""
    with feed_with_fakes(tmp_path, monkeypatch) as feed:
        feed.put(dict(OPENED))
        for number in range(5):
            until(
                lambda number=number: len(FakeChild.made) == number + 1 and len(FakeChild.made[-1].lines) == 2
            )
            (tmp_path / "working").write_text("task-1")
            FakeChild.made[-1].die(-signal.SIGALRM)
        until(lambda: len(FakeChild.made) == 6 and len(FakeChild.made[-1].lines) == 2)
        assert feed.hangs["count"] == 0 and not feed._aside.is_suspect("task-1")
        assert feed.reason == "the worker is started again after a pause of this machine"


def test_a_vote_on_which_the_worker_hung_comes_after_the_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with feed_with_fakes(tmp_path, monkeypatch, hang_seconds=0.05) as feed:
        feed.put({"op": "feedback", "id": "vote-1", "chat": "chat"})
        feed.put({**OPENED})
        until(lambda: FakeChild.made and len(FakeChild.made[0].lines) == 3)
        FakeChild.made[0].hang("vote-1")
        until(lambda: len(FakeChild.made) == 2 and len(FakeChild.made[1].lines) == 3)
        assert [one["op"] for one in FakeChild.made[1].lines[1:]] == ["open", "feedback"]


def test_a_worker_that_works_or_waits_is_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with feed_with_fakes(tmp_path, monkeypatch, hang_seconds=0.05) as feed:
        feed.put(dict(OPENED))
        until(lambda: bool(FakeChild.made))
        worker = FakeChild.made[0]
        until(lambda: worker.signs > 100)  # one at each look, for many times the limit
        assert not worker.is_killed and feed.hangs["count"] == 0
        worker.hang("")
        until(lambda: worker.is_killed)


def test_a_worker_without_progress_is_reported_before_it_is_ended_and_until_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.integrations.agent_zero.plugin.helpers.feed.QUIET_SECONDS", 0.02)
    with feed_with_fakes(tmp_path, monkeypatch) as feed:
        feed.put(dict(OPENED))
        until(lambda: bool(FakeChild.made))
        worker = FakeChild.made[0]
        worker.hang("task-1")
        until(lambda: feed.reason == "the worker has made no progress for 0.02 seconds")
        worker.goes_on()
        until(lambda: feed.reason == "")
        assert not worker.is_killed


def test_a_worker_that_the_system_cannot_end_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with feed_with_fakes(tmp_path, monkeypatch, hang_seconds=0.05) as feed:
        monkeypatch.setattr("onward.integrations.agent_zero.plugin.helpers.feed.UNKILLED_SECONDS", 0.05)
        FakeChild.ends_when_killed = False
        feed.put(dict(OPENED))
        until(lambda: bool(FakeChild.made))
        FakeChild.made[0].hang("")
        until(lambda: "the system cannot end it: it waits for a disk" in feed.reason)
        assert len(FakeChild.made) == 1


def child_of(script: str, folder: Path) -> tuple[Child, threading.Event]:
    """Starts a shell script in place of the worker; returns it, and an event of its end."""
    program, ended = folder / "python", threading.Event()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)

    def heard(told: dict[str, Any] | None) -> None:
        if told is None:
            ended.set()

    return Child(str(program), folder, folder, heard), ended


def test_a_worker_that_does_not_read_is_looked_at_while_the_pipe_is_full_and_can_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "LOOK_SECONDS", 0.01)
    worker, ended = child_of("exec sleep 600", tmp_path)
    looks: list[float] = []

    def look() -> None:
        looks.append(time.monotonic())
        if len(looks) == 5:
            worker.kill()

    assert worker.write(b"x" * 1_000_000, look) is False
    assert len(looks) >= 5
    assert ended.wait(30) and worker.code == -signal.SIGKILL


def test_a_worker_that_does_not_read_can_be_ended_while_new_settings_make_it_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "LOOK_SECONDS", 0.01)
    worker, ended = child_of("exec sleep 600", tmp_path)
    pipe = worker._process.stdin
    while pipe is not None and pipe.write(b"x" * 4096):
        pass
    while pipe is not None and pipe.write(b"x"):
        pass
    worker.leave(30, worker.kill)
    assert ended.wait(30) and worker.code == -signal.SIGKILL


def test_a_message_larger_than_the_pipe_arrives_whole_at_a_worker_that_reads_late(tmp_path: Path) -> None:
    worker, ended = child_of(f"sleep 0.2\nhead -c 1000000 | cksum > {tmp_path}/sum", tmp_path)
    data = bytes(range(256)) * 4000
    assert worker.write(data[:1_000_000])
    worker.end(30)
    assert ended.wait(30)
    wanted = subprocess.run(["cksum"], input=data[:1_000_000], capture_output=True, check=True).stdout
    assert (tmp_path / "sum").read_bytes() == wanted


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_signs_are_sent_once_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, sent = Clock(), list[dict[str, Any]]()
    monkeypatch.setattr(heartbeat, "time", clock)
    beats = Heartbeat(sent.append)
    for _ in range(1000):
        clock.now += 0.01
        beats.beat()
    assert 9 <= len(sent) <= 11
    beats.say({"op": "figures"})
    beats.beat()
    assert sent[-1] == {"op": "figures"}  # which was a sign, too


def test_a_long_redaction_shows_progress_at_each_of_its_rules() -> None:
    steps: list[int] = []
    text = "password=hunter2horse and jane.doe@example.org called +1 415 555 2671 " * 3
    with reported(lambda: steps.append(1)):
        Redactor().document({"text": text})
    assert len(steps) > 10
    before = len(steps)
    Redactor().document({"text": text})
    assert len(steps) == before  # outside of the block none is reported


def test_a_large_task_is_in_progress_while_it_is_redacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step takes ten minutes by the clock of the test: the task lasts for hours, and is no hang."""
    clock, heard = Clock(), list[tuple[float, str]]()
    monkeypatch.setattr(heartbeat, "time", clock)

    def late() -> None:
        clock.now += 600
        step()

    monkeypatch.setattr(scan, "step", late)
    worker = Worker(tmp_path, tmp_path, lambda told: heard.append((clock.now, told["op"])))
    for event in ({"op": "settings"}, OPENED, TURN, CLOSED):
        worker.take(event)
    worker.end()
    during = [at for at, operation in heard if operation == "beat"]
    assert during[-1] - during[0] > 3600 and len(recorded(tmp_path)) == 1
    assert max(after - before for before, after in pairwise(during)) == 600


def test_a_worker_that_hangs_after_the_end_of_agent_zero_ends_by_itself(tmp_path: Path) -> None:
    program, _ = interpreter(tmp_path, "hangs")
    command = [str(program), "-m", children.MODULE, "--root", str(tmp_path), "--data", str(tmp_path)]
    asked = {**OPENED, "content": {"user_message": "poison"}}
    events = ({"op": "settings", "hang_seconds": "0.5"}, asked, CLOSED)
    lines = "".join(json.dumps(event) + "\n" for event in events)
    done = subprocess.run(command, input=lines.encode(), capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGALRM
    assert (tmp_path / "working").read_text().strip() == "task-1"


def test_the_alarm_rests_while_the_worker_waits_for_work_or_for_a_plugin_that_does_not_read() -> None:
    program = (
        "import time\n"
        "from onward.integrations.agent_zero.worker.heartbeat import Heartbeat\n"
        "beats = Heartbeat(lambda told: time.sleep(0.5), with_alarm=True)\n"
        "beats.limit(0.1)\n"
        "with beats.work():\n    beats.say({})\n    beats.beat()\n"
        "time.sleep(0.5)\n"
        "print('here', flush=True)\n"
        "with beats.work():\n    time.sleep(600)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120)
    assert (done.stdout, done.returncode) == (b"here\n", -signal.SIGALRM)


def test_a_failure_of_one_task_does_not_keep_the_others_from_being_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outbox is nearly full: a large task does not fit, small ones do."""
    from onward.integrations.agent_zero.worker import waiting

    clock, stored, is_full = Clock(), list[str](), True

    def accept(recorder: Recorder, document: dict[str, Any]) -> None:
        if is_full or document["trajectory_id"] == "large":
            raise OSError(28, "No space left on device")
        stored.append(document["trajectory_id"])

    monkeypatch.setattr(waiting, "time", clock)
    monkeypatch.setattr(Recorder, "accept", accept)
    worker = Worker(tmp_path, tmp_path, lambda told: None)
    worker.take({"op": "settings"})
    for task in ("large", "task-1", "task-2"):
        for event in (OPENED, CLOSED):
            worker.take({**event, "t": task})
    is_full = False
    for _ in range(10):
        clock.now += 60
        worker.tick()
    assert stored == ["task-1", "task-2"]
    worker.end()


def test_the_default_of_the_settings_page_is_the_default_of_the_program() -> None:
    import yaml

    import onward.integrations.agent_zero.plugin as plugin

    page = Path(plugin.__file__ or "").with_name("default_config.yaml").read_text()
    assert yaml.safe_load(page)["hang_seconds"] == hang.LIMIT
