from datetime import UTC, datetime, timedelta

import pytest
from docs_blocks import run_command

from onward.feedback.tokens import Subject, TokenKeys, TokenRefusedError


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _verify(tmp_path, token, days=0.0):
    return TokenKeys(tmp_path / "onward-data" / "run").verify(token, datetime.now(UTC) + timedelta(days=days))


def test_a_token_is_for_what_was_named_and_ends_when_it_was_said(tmp_path):
    code, text = run_command("onward feedback token --session 'chat 42' --trajectory t-1 --days 2")
    assert code == 0
    assert _verify(tmp_path, text.strip(), 1.99) == Subject("chat 42", "t-1")
    with pytest.raises(TokenRefusedError, match="ended"):
        _verify(tmp_path, text.strip(), 2.01)


def test_rotation_keeps_what_was_handed_out_and_forgetting_does_not(tmp_path):
    token = run_command("onward feedback token --session s1")[1].strip()
    assert "2 accepted in all" in run_command("onward feedback rotate")[1]
    assert _verify(tmp_path, token, 6.9) == Subject("s1")
    assert "1 accepted in all" in run_command("onward feedback rotate --forget")[1]
    with pytest.raises(TokenRefusedError):
        _verify(tmp_path, token)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "give --session, --trajectory, or both"),
        ("--trajectory t-1", "No warehouse has been started"),
        ("--session s1 --days 31", "at most 30"),
        ("--session s1 --days nan", "at most 30"),
        ("--session s1 --days 0", "more than 0"),
        ("--session s1 --trajectory ../x", "letters, digits"),
    ],
)
def test_bad_input_is_one_sentence(given, said):
    code, text = run_command(f"onward feedback token {given}")
    assert (code, said in text, len(text.strip().splitlines())) == (2, True, 1), text
