"""The recorder in its process: what it loads, forks, the end of the process, a full outbox, opting out."""

import faulthandler
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from onward import Recorder
from onward.capture.opt_out import user_hash
from onward.contracts import Trajectory, decode
from onward.errors import ConfigError, ContractError, OutboxFullError

pytestmark = pytest.mark.slow

HEAVY = (
    "torch", "transformers", "chdb", "nats", "fastapi", "starlette", "uvicorn", "httpx", "obstore",
    "prometheus_client", "structlog", "pydantic", "asyncio", "re2", "numpy", "openai", "langchain_core",
    "onward.config", "onward.bus.connection", "onward.bus.server", "onward.warehouse.client",
)  # fmt: skip
KEY = "k" * 32


def stored(path) -> list[Trajectory]:
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT body FROM queue ORDER BY seq").fetchall()
    return [decode(body, Trajectory) for (body,) in rows]


def record(recorder: Recorder, name: str = "s", size: int = 1, **options) -> None:
    with recorder.task("x", session_id=name, **options) as task:
        task.turn(observation="o" * size, action="a")


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


@pytest.mark.parametrize("statement", ["import onward.capture.recorder", "from onward import Recorder"])
def test_importing_the_recorder_loads_no_engine_no_server_part_and_no_client(statement):
    code = f"import sys; {statement}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = run(code)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_recorder_without_a_server_loads_no_client_of_one(tmp_path):
    code = (
        "import sys; from onward import Recorder; r = Recorder(sys.argv[1]);\n"
        "with r.task('x') as t: t.turn(observation='o', action='a')\n"
        "print([m for m in ('torch', 'nats', 'fastapi', 'uvicorn', 'httpx', 'chdb', 'obstore', 'structlog', "
        "'prometheus_client') if m in sys.modules])"
    )
    done = run(code, str(tmp_path / "o.db"))
    assert done.stdout.strip() == "[]", done.stderr


def test_an_agent_that_ends_without_a_word_leaves_everything_on_disk_and_open_tasks_too(tmp_path):
    code = (
        "import sys; from onward import Recorder; from onward.capture.clients.matching import Chats\n"
        "r = Recorder(sys.argv[1], nats_url='nats://127.0.0.1:9')\n"
        "with r.task('x', session_id='done') as t: t.turn(observation='o', action='a')\n"
        "c = Chats(r, source='test').begin([{'role': 'user', 'content': 'q'}], None, 'open')\n"
    )
    done = run(code, str(tmp_path / "o.db"))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "Task was destroyed" not in done.stderr
    assert [t.session_id for t in stored(tmp_path / "o.db")] == ["done", "open"]


def test_a_forked_child_records_into_the_same_outbox(tmp_path):
    recorder = Recorder(tmp_path / "o.db", nats_url="nats://127.0.0.1:9", known_secrets=[])
    record(recorder, "before")
    child = os.fork()
    if child == 0:
        try:
            record(recorder, "child")
            ok = recorder.stats().recorded == 1 and recorder._drainer is not None
            os._exit(0 if ok else 2)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    record(recorder, "parent")
    recorder.close(timeout=0)
    assert sorted(t.session_id for t in stored(tmp_path / "o.db")) == ["before", "child", "parent"]


def test_a_child_forked_while_threads_record_is_not_stuck(tmp_path):
    """RE2 and SQLite have locks of their own: a child that inherits one locked would wait for ever."""
    recorder = Recorder(tmp_path / "o.db", known_secrets=[])
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            record(recorder, "thread")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    statuses = []
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                faulthandler.dump_traceback_later(30, exit=True)  # tells where a child is stuck, and ends it
                try:
                    record(recorder, "child")
                    os._exit(0)
                except BaseException:
                    os._exit(1)
            statuses.append(os.waitpid(child, 0)[1])
            assert statuses[-1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    recorder.close()
    assert statuses == [0] * 20
    assert sum(t.session_id == "child" for t in stored(tmp_path / "o.db")) == 20


def test_a_full_outbox_blocks_no_longer_than_told_and_then_raises(tmp_path):
    with Recorder(
        tmp_path / "o.db", max_bytes=3000, on_full="block", block_seconds=0.2, known_secrets=[]
    ) as recorder:
        record(recorder, "first", 1500)
        began = time.monotonic()
        with pytest.raises(OutboxFullError):
            record(recorder, "second", 1500)
        assert time.monotonic() - began >= 0.2
        assert (recorder.stats().recorded, recorder.stats().failed) == (1, 1)


def test_a_blocked_agent_goes_on_when_there_is_room(tmp_path, monkeypatch):
    with Recorder(tmp_path / "o.db", max_bytes=3000, on_full="block", known_secrets=[]) as recorder:
        record(recorder, "first", 1500)
        refusals, put = threading.Semaphore(0), recorder._outbox.put

        def watched(*args, **given) -> None:
            try:
                put(*args, **given)
            except OutboxFullError:
                refusals.release()
                raise

        monkeypatch.setattr(recorder._outbox, "put", watched)
        thread = threading.Thread(target=record, args=(recorder, "second", 1500))
        thread.start()
        for _ in range(2):  # it tries, waits, and tries again
            assert refusals.acquire(timeout=30)
        assert thread.is_alive()
        recorder._outbox.remove([message.seq for message in recorder._outbox.next_batch()])
        thread.join(30)
        assert not thread.is_alive() and recorder.stats().recorded == 2


def test_a_task_that_met_a_full_outbox_is_recorded_when_it_is_finished_again(tmp_path):
    with Recorder(tmp_path / "o.db", max_bytes=3000, known_secrets=[]) as recorder:
        record(recorder, "first", 1500)
        task = recorder.task("x", session_id="second")
        task.turn(observation="o" * 1500, action="a")
        for _ in range(2):
            with pytest.raises(OutboxFullError, match="give it again later"):
                task.finish()
        recorder._outbox.remove([message.seq for message in recorder._outbox.next_batch()])
        for _ in range(2):
            task.finish()
        assert recorder.stats().recorded == 1 + 1
        assert [t.session_id for t in stored(tmp_path / "o.db")] == ["second"]


def test_a_task_that_is_given_up_after_a_full_outbox_is_not_recorded_later(tmp_path):
    with Recorder(tmp_path / "o.db", max_bytes=100, known_secrets=[]) as recorder:
        task = recorder.task("x")
        task.turn(observation="o", action="a")
        with pytest.raises(OutboxFullError):
            task.finish()
        task.discard()
        task.finish()


def test_a_recorder_that_cannot_be_closed_does_not_keep_the_others_open_at_the_end(tmp_path):
    code = (
        "import sys; from onward import Recorder; from onward.capture.clients.matching import Chats\n"
        "made = [Recorder(f'{sys.argv[1]}/{n}.db', known_secrets=[]) for n in range(4)]\n"
        "chats = [Chats(r, source='test') for r in made]\n"
        "for c in chats: c.begin([{'role': 'user', 'content': 'q'}], None, 'open')\n"
        "def broken(*_, **__): raise OSError('mine')\n"
        "made[0]._flush = made[2]._flush = broken\n"
    )
    done = run(code, str(tmp_path))
    assert [len(stored(tmp_path / f"{n}.db")) for n in range(4)] == [1, 1, 1, 1]
    assert "Traceback" not in done.stderr and done.stderr.count("could not be closed") == 2, done.stderr


def test_a_full_outbox_is_one_alert_until_there_is_room_again(tmp_path, caplog):
    def alerts() -> int:
        return sum("outbox_full" in record.getMessage() for record in caplog.records)

    with Recorder(tmp_path / "o.db", max_bytes=3000, known_secrets=[]) as recorder:
        record(recorder, "first", 1500)
        for _ in range(3):
            with pytest.raises(OutboxFullError):
                record(recorder, "more", 1500)
        assert alerts() == 1
        recorder._outbox.remove([message.seq for message in recorder._outbox.next_batch()])
        record(recorder, "fits", 1500)
        with pytest.raises(OutboxFullError):
            record(recorder, "more", 1500)
        assert alerts() == 2


def test_an_unknown_way_of_being_full_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="'raise' or 'block'"):
        Recorder(tmp_path / "o.db", on_full="drop")  # type: ignore[arg-type]


def test_a_trajectory_too_large_for_a_message_names_the_object_store(tmp_path):
    with Recorder(tmp_path / "o.db", known_secrets=[]) as recorder:
        task = recorder.task("x")
        for _ in range(20):
            task.turn(observation="word " * 12_000, action="a")
        with pytest.raises(ContractError, match=r"open the recorder with objects=") as caught:
            task.finish()
        assert caught.value.reason == "too_large"
    with Recorder(tmp_path / "o.db", known_secrets=[], objects=tmp_path / "store") as recorder:
        task = recorder.task("x")
        for _ in range(20):
            task.turn(observation="word " * 12_000, action="a")
        task.finish()
        assert recorder.stats().recorded == 1


def test_who_opted_out_is_dropped_before_anything_is_written_and_counted(tmp_path, monkeypatch):
    hashed = user_hash("alice@example.com", KEY)
    monkeypatch.setenv("RL_CAPTURE_OPT_OUT", f"session:private-*, user:{hashed}")
    with Recorder(tmp_path / "o.db", user_key=KEY, known_secrets=[]) as recorder:
        record(recorder, "private-1")
        record(recorder, "open", user="alice@example.com")
        record(recorder, "open", user="bob@example.com")
        stats = recorder.stats()
        assert (stats.recorded, stats.opted_out, stats.pending) == (1, 2, 1)
    (kept,) = stored(tmp_path / "o.db")
    assert kept.metadata.model_dump()["user_hash"] == user_hash("bob@example.com", KEY)
    assert b"bob@example" not in (tmp_path / "o.db").read_bytes()


def test_a_user_without_a_key_is_refused(tmp_path):
    with (
        Recorder(tmp_path / "o.db", known_secrets=[]) as recorder,
        pytest.raises(ConfigError, match="ONWARD_USER_KEY"),
    ):
        recorder.task("x", user="alice")


def test_a_user_key_that_is_too_short_is_refused_before_any_work_is_lost(tmp_path, monkeypatch):
    monkeypatch.setenv("ONWARD_USER_KEY", "short")
    with pytest.raises(ConfigError, match="16 bytes"):
        Recorder(tmp_path / "o.db", known_secrets=[])


def test_secrets_of_the_environment_vanish_wherever_they_stand(tmp_path, monkeypatch):
    password = "korrekt-" + "pferd-batterie"
    monkeypatch.setenv("SHOP_DB_PASSWORD", password)
    with Recorder(tmp_path / "o.db") as recorder, recorder.task("x") as task:
        task.turn(observation=f"the word is {password} they said", action="a")
    (trajectory,) = stored(tmp_path / "o.db")
    assert password not in trajectory.model_dump_json()
    assert "the word is <" in str(trajectory.turns[0].observation.content)


def test_given_secrets_and_the_servers_token_vanish_too(tmp_path):
    mine, token = "mein-" + "geheimnis", "tok" + "en-of-nats-4711"
    with Recorder(
        tmp_path / "o.db", nats_url="nats://127.0.0.1:9", nats_token=token, known_secrets=[mine]
    ) as recorder:
        with recorder.task("x") as task:
            task.turn(observation=f"{mine} and {token}", action="a")
        recorder.close(timeout=0)
    text = json.dumps([t.model_dump(mode="json") for t in stored(tmp_path / "o.db")])
    assert mine not in text and token not in text
