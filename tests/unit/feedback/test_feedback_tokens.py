import base64
import hashlib
import hmac
import json
import stat
from datetime import UTC, datetime, timedelta

import pytest

from onward.errors import ConfigError
from onward.feedback.tokens import Subject, TokenKeys, TokenRefusedError, is_token

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WEEK = timedelta(days=7)


@pytest.fixture
def keys(tmp_path):
    return TokenKeys(tmp_path)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def test_a_token_opens_what_it_was_made_for_until_it_ends(keys):
    for subject in (Subject("s1"), Subject("s1", "t-1"), Subject('Ünï "quoted", ] \x1f', None)):
        token = keys.issue(subject, NOW, WEEK)
        assert keys.verify(token, NOW) == subject
        assert keys.verify(token, NOW + WEEK - timedelta(seconds=1)) == subject
        with pytest.raises(TokenRefusedError, match=r"ended at 2026-01-08T00:00:00"):
            keys.verify(token, NOW + WEEK)


def test_the_signature_is_hmac_sha256_over_kind_ids_and_end(tmp_path, keys):
    """Worked out here with the standard library alone."""
    key = bytes.fromhex((tmp_path / "feedback.key").read_text().strip())
    signed = "oft1." + _encoded(b'["s1","t-1",1767225600]')
    mac = hmac.new(key, b"onward-feedback\0" + signed.encode(), hashlib.sha256).digest()
    token = f"{signed}.{_encoded(mac)}"
    assert keys.issue(Subject("s1", "t-1"), NOW - timedelta(days=1), timedelta(days=1)) == token
    assert keys.verify(token, NOW - timedelta(seconds=1)) == Subject("s1", "t-1")


def test_the_key_file_is_for_its_owner_alone_and_is_made_once(tmp_path, keys):
    assert stat.S_IMODE((tmp_path / "feedback.key").stat().st_mode) == 0o600
    token = keys.issue(Subject("s1"), NOW, WEEK)
    assert TokenKeys(tmp_path).verify(token, NOW) == Subject("s1")


def test_a_token_holds_nothing_secret(tmp_path, keys):
    token = keys.issue(Subject("s1"), NOW, WEEK)
    body = token.split(".")[1]
    assert json.loads(base64.urlsafe_b64decode(body + "==")) == ["s1", None, 1767830400]
    assert (tmp_path / "feedback.key").read_text().strip() not in token


def test_no_change_of_a_single_character_opens_anything(keys):
    token = keys.issue(Subject("s1", "t-1"), NOW, WEEK)
    for place in range(len(token)):
        for other in ("A", "B", "_", "."):
            if token[place] != other:
                with pytest.raises(TokenRefusedError):
                    keys.verify(token[:place] + other + token[place + 1 :], NOW)


def test_a_token_cannot_be_widened_to_another_session_or_a_later_end(keys):
    _, body, mac = keys.issue(Subject("s1", "t-1"), NOW, WEEK).split(".")
    for forged in (["s2", "t-1", 1767830400], ["s1", None, 1767830400], ["s1", "t-1", 4102444800]):
        changed = f"oft1.{_encoded(json.dumps(forged, separators=(',', ':')).encode())}.{mac}"
        with pytest.raises(TokenRefusedError, match="changed"):
            keys.verify(changed, NOW)
    for other in ("oft2", "oft0"):
        with pytest.raises(TokenRefusedError, match="kind"):
            keys.verify(f"{other}.{body}.{mac}", NOW)


@pytest.mark.parametrize(
    "text", ["oft1", "oft1.", "oft1..", "oft1.a.b.c", "oft1.Ü.b", "oft1." + "a" * 5000 + ".b"]
)
def test_what_is_no_token_is_refused_in_one_sentence(keys, text):
    assert is_token(text)
    with pytest.raises(TokenRefusedError):
        keys.verify(text, NOW)


def test_an_api_key_is_no_token():
    assert not is_token("ok-" + "a" * 40)


def test_after_a_rotation_old_tokens_open_and_a_running_process_follows(tmp_path, keys):
    running = TokenKeys(tmp_path)
    tokens = [keys.issue(Subject("s0"), NOW, WEEK)]
    for turn in range(1, 8):
        assert keys.rotate() == turn + 1
        tokens.append(running.issue(Subject(f"s{turn}"), NOW, WEEK))
    assert [running.verify(token, NOW).session_id for token in tokens] == [f"s{n}" for n in range(8)]
    assert stat.S_IMODE((tmp_path / "feedback.key").stat().st_mode) == 0o600
    assert keys.rotate() == 8
    with pytest.raises(TokenRefusedError, match="not known here"):
        running.verify(tokens[0], NOW)
    assert running.verify(tokens[1], NOW) == Subject("s1")


def test_forgetting_voids_every_token_handed_out(tmp_path, keys):
    token = keys.issue(Subject("s1"), NOW, WEEK)
    assert keys.rotate(forget=True) == 1
    with pytest.raises(TokenRefusedError):
        TokenKeys(tmp_path).verify(token, NOW)


@pytest.mark.parametrize(
    ("subject", "lifetime"),
    [
        (Subject(""), WEEK),
        (Subject("s" * 513), WEEK),
        (Subject("half \ud83d"), WEEK),
        (Subject("s", "../t"), WEEK),
        (Subject("s"), timedelta(0)),
        (Subject("s"), timedelta(days=31)),
    ],
)
def test_what_cannot_be_a_subject_or_a_lifetime_is_refused(keys, subject, lifetime):
    with pytest.raises(ConfigError):
        keys.issue(subject, NOW, lifetime)


@pytest.mark.parametrize("text", ["", "xyz", "abcd"])
def test_a_broken_key_file_is_told(tmp_path, text):
    (tmp_path / "feedback.key").write_text(text)
    with pytest.raises(ConfigError, match="does not hold feedback keys"):
        TokenKeys(tmp_path)


def test_a_folder_that_cannot_hold_keys_is_told_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"feedback\.key cannot be made: .*: name a folder"):
        TokenKeys(tmp_path / "file" / "run")
