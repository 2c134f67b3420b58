import os
import stat

import pytest

from onward.errors import BusError
from onward.serving.recording.recording import Journal


def test_what_is_written_is_there_after_a_restart_and_what_is_gone_is_not(tmp_path):
    path = tmp_path / "run" / "open.db"
    journal = Journal(path)
    journal.write({"a": {"trajectory_id": "a", "n": 1}, "b": {"trajectory_id": "b"}}, [])
    journal.write({"a": {"trajectory_id": "a", "n": 2, "text": "ü"}}, ["b", "never"])
    # no close: the process was killed
    assert Journal(path).read() == [{"trajectory_id": "a", "n": 2, "text": "ü"}]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_a_file_that_is_no_journal_is_one_sentence(tmp_path):
    (tmp_path / "open.db").write_bytes(b"not a database" * 100)
    with pytest.raises(BusError, match="not a usable journal"):
        Journal(tmp_path / "open.db")


def test_a_failed_write_changes_nothing(tmp_path):
    journal = Journal(tmp_path / "open.db")
    journal.write({"a": {"trajectory_id": "a"}}, [])
    journal._file.execute("CREATE TRIGGER no BEFORE DELETE ON open BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(BusError, match="cannot be written"):
        journal.write({"b": {"trajectory_id": "b"}}, ["a"])
    assert journal.read() == [{"trajectory_id": "a"}]


def test_a_journal_damaged_while_it_is_open_is_one_error(tmp_path):
    path = tmp_path / "open.db"
    before = Journal(path)
    before.write({"a": {"trajectory_id": "a", "text": "x" * 10_000}}, [])
    before.close()
    journal = Journal(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + os.urandom(len(whole) - 4096))
    with pytest.raises(BusError, match="cannot be written"):
        journal.write({"b": {}}, ["a"])
    with pytest.raises(BusError, match="is not readable"):
        journal.read()


def test_a_journal_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(BusError, match="cannot be made"):
        Journal(tmp_path / "file" / "open.db")
