"""``onward quarantine`` where nothing runs: one sentence, nothing made. (With a service:
tests/integration/test_capture_quarantine.py and test_capture_retry.py.)"""

from pathlib import Path

import pytest
from docs_blocks import run_command

from onward.capture.collecting.quarantine import HeldMessage, Quarantine


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("onward quarantine list", "There is no data folder onward-data: name it with --dir."),
        ("onward quarantine show 1-aa", "There is no data folder onward-data"),
        ("onward quarantine retry --all", "Nothing ever ran on onward-data"),
        ("onward quarantine drop 1-aa --yes", "Nothing ever ran on onward-data"),
    ],
)
def test_without_a_data_folder_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = run_command(command)
    assert code == 2
    assert words in output
    assert len(output.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_empty_quarantine_says_so(tmp_path: Path) -> None:
    assert run_command(f"onward quarantine list --dir {tmp_path}") == (0, "Nothing is held.\n")
    assert run_command(f"onward quarantine list --json --dir {tmp_path}") == (0, "[]\n")
    code, output = run_command(f"onward quarantine show 1-aa --dir {tmp_path}")
    assert (code, output) == (2, "Nothing is held under '1-aa': see 'onward quarantine list'.\n")


def test_a_key_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_CAPTURE__QUARANTINE_KEY", "abc")
    code, output = run_command(f"onward quarantine list --dir {tmp_path}")
    assert code == 2
    assert (
        output
        == "capture.quarantine_key is not 32 bytes in base64: make one with 'openssl rand -base64 32'.\n"
    )


def test_the_list_shows_ids_and_times_whole_on_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldMessage(
        held_id="gateway-" + "0123456789abcdef",
        since="2026-07-01T12:34:56.123456Z",
        reason="handler_error",
        error="RuntimeError",
        subject="agent.rl.trajectory.v1",
        stream="RL_TRAJECTORIES",
        sequence=0,
        arrived="2026-07-01T12:34:56.123456Z",
        size=33_554_433,
        trajectory_id="",
        key_id="ab",
    )

    async def found(self: Quarantine, limit: int) -> list[HeldMessage]:
        return [held]

    monkeypatch.setattr(Quarantine, "list_held", found)
    monkeypatch.setenv("COLUMNS", "80")
    code, output = run_command(f"onward quarantine list --dir {tmp_path}")
    assert code == 0
    for part in (held.held_id, "2026-07-01 12:34:56Z", "handler_error", "33554433"):
        assert part in output
