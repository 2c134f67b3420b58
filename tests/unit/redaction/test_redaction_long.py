"""Long secrets go to their end, whatever the rule looks at first."""

import pytest

from onward.redaction import redact

LONG = "aB3dE5fG7hJ9!kLm" * 400
"""6,400 characters: beyond every look-ahead."""


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("curl -u admin:", " https://h/", "CLI_PASSWORD"),
        ("mysql -u root -p", " app", "CLI_PASSWORD"),
        ("sshpass -p ", " ssh h", "CLI_PASSWORD"),
        ("redis-cli -h r -a ", " ping", "CLI_PASSWORD"),
        ("docker login -u jo -p ", " reg.io", "CLI_PASSWORD"),
        ("mongosh -u jo -p ", " h/db", "CLI_PASSWORD"),
        ("CREATE USER jo WITH PASSWORD '", "';", "PASSWORD"),
        ("machine h login jo password ", "\n", "PASSWORD"),
        ("my password is ", " and so on", "PASSWORD"),
        ("postgres://app:", "@db:5432/x", "URL_PASSWORD"),
        ("login --password ", " now", "PASSWORD"),
        ("DB_PASSWORD=", " next", "PASSWORD"),
        ("<db><password>", "</password></db>", "PASSWORD"),
        ("Cookie: sid=", "; lang=en", "COOKIE"),
    ],
)
def test_a_long_secret_leaves_no_end_behind(before, after, kind):
    for length in (100, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 4096, 4097, len(LONG)):
        text = f"say {before}{LONG[:length]}{after}"
        found = redact(text)
        assert found.document == f"say {before}<{kind}:1>{after}".replace("!kLm", ""), length
        assert not redact(found.document).changed
