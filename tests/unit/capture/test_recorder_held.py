"""What a recorder cannot redact or make fit: held encrypted beside the outbox, never lost, never in clear."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from onward import Recorder, wrap_openai
from onward.capture.recorder import Held
from onward.contracts import Trajectory, decode
from onward.errors import ContractError, OutboxFullError, RedactionError
from onward.redaction import Redactor

SECRET = "ghp_" + "aB3dE5fG7hJ9" * 3
PLAIN = "words that stand in no other file"


def record(recorder: Recorder, name: str = "s", text: str = f"{PLAIN} {SECRET}") -> None:
    with recorder.task("x", session_id=name) as task:
        task.turn(observation=text, action="a")


def stored(path: Path) -> list[Trajectory]:
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT body FROM queue ORDER BY seq").fetchall()
    return [decode(body, Trajectory) for (body,) in rows]


def break_redaction(monkeypatch, error: Exception, times: int = 1_000_000) -> list[int]:
    """The next ``times`` tries of a redactor fail; what is returned holds how many are left."""
    left, original = [times], Redactor.trajectory

    def redact(self, document):
        if left[0]:
            left[0] -= 1
            raise error
        return original(self, document)

    monkeypatch.setattr(Redactor, "trajectory", redact)
    return left


@pytest.fixture
def path(tmp_path):
    return tmp_path / "o.db"


def test_redaction_is_tried_twice_before_a_task_is_held(path, monkeypatch):
    with Recorder(path, known_secrets=[]) as recorder:
        break_redaction(monkeypatch, RuntimeError("once"), times=1)
        record(recorder)
        assert (recorder.stats().recorded, recorder.stats().held, recorder.held()) == (1, 0, [])


@pytest.mark.parametrize(
    "error", [RedactionError("r"), RuntimeError(SECRET), RecursionError(), MemoryError()]
)
def test_what_cannot_be_redacted_is_held_encrypted_and_disturbs_no_agent(path, monkeypatch, caplog, error):
    left = break_redaction(monkeypatch, error)
    with Recorder(path, known_secrets=[]) as recorder:
        record(recorder)
        assert 1_000_000 - left[0] == 2
        stats = recorder.stats()
        assert (stats.recorded, stats.failed, stats.held, stats.pending) == (0, 0, 1, 0)
        (held,) = recorder.held()
        assert isinstance(held, Held) and (held.reason, held.error) == ("redaction", type(error).__name__)
    assert "held" in caplog.text and SECRET not in caplog.text
    written = [file for file in path.parent.rglob("*") if file.is_file()]
    assert len(written) >= 3
    for file in written:
        data = file.read_bytes()
        assert SECRET.encode() not in data and PLAIN.encode() not in data
    (sealed,) = path.with_name("o.db.held").iterdir()
    modes = [file.stat().st_mode & 0o777 for file in (sealed, path.with_name("o.db.key"), sealed.parent)]
    assert modes == [0o600, 0o600, 0o700]


def test_what_is_held_is_recorded_once_when_the_rules_can_do_it(path, monkeypatch, caplog):
    with monkeypatch.context() as broken, Recorder(path, known_secrets=[]) as recorder:
        break_redaction(broken, RuntimeError())
        for name in ("one", "two"):
            record(recorder, name)
        assert recorder.retry_held() == 0
        assert recorder.stats().held == 2
    with Recorder(path, known_secrets=[]) as recorder:
        assert "call retry_held()" in caplog.text
        assert recorder.retry_held() == 2
        assert recorder.retry_held() == 0
        stats = recorder.stats()
        assert (stats.recorded, stats.held, stats.pending) == (2, 0, 2)
    assert sorted(t.session_id for t in stored(path)) == ["one", "two"]
    assert all(PLAIN in str(t.turns[0]) and SECRET not in str(t.turns[0]) for t in stored(path))


def test_a_retry_that_was_killed_before_it_removed_what_was_held_doubles_nothing(path, monkeypatch):
    with Recorder(path, known_secrets=[]) as recorder:
        with monkeypatch.context() as broken:
            break_redaction(broken, RuntimeError())
            record(recorder)
        with monkeypatch.context() as killed:
            killed.setattr(recorder._held, "drop", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                recorder.retry_held()
    with Recorder(path, known_secrets=[PLAIN]) as recorder:  # and the rules have changed meanwhile
        recorder.retry_held()
        assert (recorder.stats().held, recorder.pending()) == (0, 1)


def test_what_is_too_large_is_told_and_held_until_there_is_a_store(path):
    with Recorder(path, known_secrets=[]) as recorder:
        with (
            pytest.raises(ContractError, match=r"open the recorder with objects="),
            recorder.task("x") as task,
        ):
            for _ in range(20):
                task.turn(observation="word " * 12_000, action="a")
        assert [held.reason for held in recorder.held()] == ["too_large"]
    with Recorder(path, known_secrets=[], objects=path.parent / "store") as recorder:
        assert recorder.retry_held() == 1
        assert (recorder.stats().held, recorder.stats().pending) == (0, 1)


def test_a_task_that_is_given_up_is_not_held_either(path):
    with Recorder(path, known_secrets=[]) as recorder:
        task = recorder.task("x")
        for _ in range(20):
            task.turn(observation="word " * 12_000, action="a")
        with pytest.raises(ContractError):
            task.finish()
        assert recorder.stats().held == 1
        task.discard()
        assert recorder.stats().held == 0


def test_a_wrapped_client_whose_task_cannot_be_redacted_notices_nothing(path, monkeypatch):
    class Completions:
        def create(self, **_):
            return type("Answer", (), {"choices": [1], "model_dump": lambda *_, **__: ANSWER})()

    class Client:
        chat = type("Chat", (), {"completions": Completions()})()

    break_redaction(monkeypatch, RuntimeError())
    with Recorder(path, known_secrets=[]) as recorder:
        client = wrap_openai(Client(), recorder)
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": PLAIN}])
        assert recorder.stats().held == 1


ANSWER = {"model": "m", "choices": [{"message": {"role": "assistant", "content": "yes"}}]}


def test_who_opted_out_meanwhile_is_dropped_and_counted(path, monkeypatch):
    with monkeypatch.context() as broken, Recorder(path, known_secrets=[]) as recorder:
        break_redaction(broken, RuntimeError())
        record(recorder, "private-1")
    with Recorder(path, known_secrets=[], opt_out="private-*") as recorder:
        assert recorder.retry_held() == 0
        assert (recorder.stats().held, recorder.stats().opted_out, recorder.pending()) == (0, 1, 0)


def test_who_opted_out_is_never_held(path, monkeypatch):
    break_redaction(monkeypatch, RuntimeError())
    with Recorder(path, known_secrets=[], opt_out="private-*") as recorder:
        record(recorder, "private-1")
        assert (recorder.stats().held, recorder.stats().opted_out) == (0, 1)


@pytest.mark.parametrize("how", ["folder", "key", "full"])
def test_what_cannot_even_be_held_is_an_error_and_can_be_finished_again(path, monkeypatch, how):
    broken = break_redaction(monkeypatch, RuntimeError(SECRET))
    in_the_way = path.with_name("o.db.key" if how == "key" else "o.db.held")
    if how != "full":
        in_the_way.write_text("no key and no folder")
    with Recorder(path, known_secrets=[], max_bytes=1000 if how == "full" else 1 << 20) as recorder:
        task = recorder.task("x")
        task.turn(observation="word " * (100 if how != "full" else 300), action="a")
        with pytest.raises(RedactionError) as caught:
            task.finish()
        assert SECRET not in str(caught.value)
        assert (recorder.stats().failed, recorder.stats().recorded) == (1, 0)
        if how != "full":
            in_the_way.unlink()
            task.finish()
            assert recorder.stats().held == 1
            broken[0] = 0
            assert recorder.retry_held() == 1


def test_a_held_task_that_was_changed_or_lost_its_key_stays_and_keeps_no_other_back(path, monkeypatch):
    with monkeypatch.context() as broken, Recorder(path, known_secrets=[]) as recorder:
        break_redaction(broken, RuntimeError())
        for name in ("one", "two", "three"):
            record(recorder, name)
        ids = [held.held_id for held in recorder.held()]
    folder = path.with_name("o.db.held")
    (folder / ids[0]).write_bytes(b"\xff" + (folder / ids[0]).read_bytes())
    (folder / ids[1]).write_bytes((folder / ids[1]).read_bytes()[:-1] + b"\x00")
    with Recorder(path, known_secrets=[]) as recorder:
        key = path.with_name("o.db.key")
        kept = key.read_bytes()
        key.unlink()
        assert recorder.retry_held() == 0 and not key.exists()
        key.write_bytes(kept)
        assert recorder.retry_held() == 1
        assert {held.held_id: held.reason for held in recorder.held()}[ids[0]] == "damaged"
        for held in recorder.held():
            recorder.drop_held(held.held_id)
        recorder.drop_held("../o.db.key")
        assert recorder.stats().held == 0 and key.exists()


def test_a_full_outbox_leaves_what_is_held_where_it_is(path, monkeypatch):
    with Recorder(path, known_secrets=[], max_bytes=4000) as recorder:
        with monkeypatch.context() as broken:
            break_redaction(broken, RuntimeError())
            record(recorder, text="w " * 500)
        record(recorder, text="w " * 1200)
        with pytest.raises(OutboxFullError):
            recorder.retry_held()
        assert recorder.stats().held == 1


def test_holding_a_task_loads_no_part_of_a_server(tmp_path):
    code = (
        "import sys; from onward import Recorder; r = Recorder(sys.argv[1])\n"
        "def broken(_): raise RuntimeError\n"
        "r._preparer.prepare_with_attachments = broken\n"
        "with r.task('x') as t: t.turn(observation='o', action='a')\n"
        "heavy = ('nats', 'fastapi', 'obstore', 'chdb', 'structlog', 'onward.config', 'torch', 'asyncio')\n"
        "print(r.stats().held, [m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "o.db")], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "1 []", done.stderr
