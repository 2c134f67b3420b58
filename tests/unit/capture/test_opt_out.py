"""Opting out by each of the three fields, and hashes that stand for users."""

import pytest

from onward.capture.opt_out import OptOut, user_hash
from onward.errors import ConfigError


@pytest.mark.parametrize(
    ("patterns", "session", "agent", "user", "dropped"),
    [
        ("", "s1", "a1", "u1", False),
        (" , ,", "s1", "a1", "u1", False),
        ("s1", "s1", "a1", "u1", True),
        ("a1", "s1", "a1", "u1", True),
        ("u1", "s1", "a1", "u1", True),
        ("demo-*", "demo-7", "a1", None, True),
        ("demo-*", "my-demo-7", "a1", None, False),
        ("s?", "s1", "a", None, True),
        ("s[23]", "s1", "a", None, False),
        ("session:a1", "s1", "a1", None, False),
        ("agent:a1", "s1", "a1", None, True),
        ("user:a*", "a1", "a2", "x", False),
        ("user:a*", "s1", "a1", "a9", True),
        ("user:*", "s1", "a1", None, False),
        ("*", "s1", None, None, True),
        ("other, agent:a1 ,s9", "s1", "a1", None, True),
        ("S1", "s1", "a1", None, False),
        ("team:blue", "team:blue", "a1", None, True),
    ],
)
def test_patterns(patterns, session, agent, user, dropped):
    assert OptOut.parse(patterns).matches(session, agent, user) is dropped


def test_a_field_without_a_pattern_is_refused_because_it_would_match_nothing():
    with pytest.raises(ConfigError, match="'agent' without a pattern"):
        OptOut.parse("s1, agent: ")


@pytest.mark.parametrize("pattern", ["ann@example.com", "u-*", "3F2A*", "zoë"])
def test_a_user_by_name_is_refused_because_no_hash_would_match(pattern):
    with pytest.raises(ConfigError, match="32 digits of 0-9 and a-f") as caught:
        OptOut.parse(f"s1, user:{pattern}")
    assert pattern not in str(caught.value)


@pytest.mark.parametrize("pattern", ["3f2a*", "*", "[0-9a]?*", "[!0]*", "0123456789abcdef" * 2])
def test_a_user_by_hash_or_part_of_one_is_taken(pattern):
    assert OptOut.parse(f"user:{pattern}").patterns == (("user", pattern),)


@pytest.mark.parametrize("text", ["usr:x", "s1, Session:x"])
def test_an_unknown_prefix_is_warned_about_and_held_as_it_is(text, caplog):
    assert OptOut.parse(text).patterns[-1][0] == ""
    (record,) = caplog.records
    assert "is none of session:, agent:, user:" in record.getMessage()


@pytest.mark.parametrize(
    ("document", "dropped"),
    [
        ({"session_id": "x", "agent_id": "y", "metadata": {"user_hash": "u1"}}, True),
        ({"session_id": "x", "agent_id": "y", "metadata": {"user_hash": ["u1"]}}, False),
        ({"session_id": 5, "metadata": None}, False),
        ({"session_id": "u1"}, True),
    ],
)
def test_a_document_is_matched_by_its_fields_whatever_they_are(document, dropped):
    assert OptOut.parse("u1").matches_document(document) is dropped


def test_no_pattern_is_false_and_one_is_true():
    assert not OptOut.parse("")
    assert OptOut.parse("x")


def test_a_user_hash_is_the_hmac_of_rfc_4231():
    # RFC 4231, test case 7 (a long key): first 16 bytes.
    text = (
        "This is a test using a larger than block-size key and a larger than block-size data. "
        "The key needs to be hashed before being used by the HMAC algorithm."
    )
    assert user_hash(text, b"\xaa" * 131) == "9b09ffa71b942fcb27635fbcd5b0e944"


def test_a_user_hash_needs_a_key_that_nobody_guesses():
    with pytest.raises(ConfigError, match="16 bytes"):
        user_hash("ann", "short")
    one, other = user_hash("ann", "k" * 16), user_hash("ann", "l" * 16)
    assert one != other
    assert one == user_hash("ann", b"k" * 16)


def test_importing_it_loads_no_server_part():
    import subprocess
    import sys

    code = (
        "import sys; import onward.capture.opt_out; "
        "print([m for m in ('nats', 'chdb', 'torch', 'fastapi', 're2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
