"""Feedback tokens: a browser with one can vote on one conversation and do nothing else.

Invariants: a token is readable by its holder (ids and expiry, nothing secret) and bound to one session, or to
one trajectory of it, by HMAC-SHA-256 over all of its text. Any reader of the key file can make any token; the
file never leaves ``data_dir/run``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from onward.clock import utc_text
from onward.errors import ConfigError, OnwardError
from onward.files import write_secret_once
from onward.ids import is_id

KEY_FILE = "feedback.key"
KEYS_KEPT = 8
"""Number of accepted keys: the newest, which signs, and the seven before it."""
MAX_CHARACTERS = 4096
MAX_SESSION = 512
MAX_DAYS = 30
PREFIX = "oft1"
"""Kind of token and version of its form; the signature covers it."""


class TokenRefusedError(OnwardError):
    """A token that permits nothing; the message gives the reason."""


@dataclass(frozen=True)
class Subject:
    """The one session or trajectory that a token is valid for."""

    session_id: str
    trajectory_id: str | None = None


def is_token(text: str) -> bool:
    """Returns whether ``text`` has the form of a feedback token and not of an API key."""
    return text.startswith("oft")


def is_text(value: object) -> bool:
    """Returns whether ``value`` is text that UTF-8 can write: no half of a surrogate pair."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


class TokenKeys:
    """The signing keys of a data directory: one file, one key in hex a line, the newest first. The file is
    read again when it has changed, so a rotation needs no restart."""

    def __init__(self, run_dir: Path) -> None:
        """Creates the file if there is none. Raises ConfigError if that fails, or for a file without keys."""
        self._path = run_dir / KEY_FILE
        self._read_at: tuple[int, int, int] | None = None
        self._keys: list[bytes] = []
        try:
            if not self._path.exists():
                write_secret_once(self._path, secrets.token_hex(32) + "\n")
        except OSError as error:
            raise ConfigError(
                f"{self._path} cannot be made: {error.strerror}: name a folder that you may write to."
            ) from None
        self._current()

    def issue(self, subject: Subject, now: datetime, lifetime: timedelta) -> str:
        """Returns a token for ``subject`` that expires at ``now + lifetime``, in whole seconds.

        Raises ConfigError for an invalid id, or a lifetime that is not between a second and 30 days.
        """
        if not 0 < len(subject.session_id) <= MAX_SESSION or not is_text(subject.session_id):
            raise ConfigError(f"A session id has 1 to {MAX_SESSION} characters: give the session's own.")
        if subject.trajectory_id is not None and not is_id(subject.trajectory_id):
            raise ConfigError("A trajectory id has 1 to 128 letters, digits, '_' or '-': give its own.")
        if not timedelta(seconds=1) <= lifetime <= timedelta(days=MAX_DAYS):
            raise ConfigError(f"A feedback token lives for at least a second and at most {MAX_DAYS} days.")
        body = [subject.session_id, subject.trajectory_id, int((now + lifetime).timestamp())]
        signed = f"{PREFIX}.{_encoded(json.dumps(body, separators=(',', ':')).encode())}"
        return f"{signed}.{_mac(signed, self._current()[0])}"

    def verify(self, token: str, now: datetime) -> Subject:
        """Returns the subject of ``token``. Raises TokenRefusedError: no token, not ours, expired."""
        signed, _, mac = token.rpartition(".")
        if len(token) > MAX_CHARACTERS or signed.count(".") != 1 or not token.isascii():
            raise TokenRefusedError("This is no feedback token: send it whole, as it was handed out.")
        if not signed.startswith(PREFIX + "."):
            raise TokenRefusedError("This feedback token is of a kind that is not known here: get a new one.")
        matches = [hmac.compare_digest(_mac(signed, key), mac) for key in self._current()]
        if not any(matches):
            raise TokenRefusedError(
                "This feedback token was changed, or made with a key that is not known here: get a new one."
            )
        session_id, trajectory_id, until = json.loads(_decoded(signed.partition(".")[2]))
        if now.timestamp() >= until:
            ended = utc_text(datetime.fromtimestamp(until, UTC))
            raise TokenRefusedError(f"This feedback token ended at {ended}: get a new one to vote.")
        return Subject(session_id, trajectory_id)

    def rotate(self, *, forget: bool = False) -> int:
        """Signs with a new key from now on; returns the number of accepted keys. With ``forget`` only the new
        key is accepted, and every earlier token is void. Raises ConfigError, OSError."""
        old = [] if forget else [key.hex() for key in self._current()]
        partial = self._path.with_name(f".{KEY_FILE}.{secrets.token_hex(4)}")
        write_secret_once(partial, "".join(f"{key}\n" for key in [secrets.token_hex(32), *old][:KEYS_KEPT]))
        partial.replace(self._path)
        return len(self._current())

    def _current(self) -> list[bytes]:
        try:
            found = os.stat(self._path)
            state = (found.st_mtime_ns, found.st_ino, found.st_size)
            if state != self._read_at:
                lines = self._path.read_text(encoding="ascii").split()
                self._keys, self._read_at = [bytes.fromhex(line) for line in lines], state
        except (OSError, ValueError):
            self._keys, self._read_at = [], None
        if not self._keys or any(len(key) != 32 for key in self._keys):
            raise ConfigError(
                f"{self._path} does not hold feedback keys: delete it, and the next start makes a new one."
            )
        return self._keys


def _mac(signed: str, key: bytes) -> str:
    return _encoded(hmac.new(key, b"onward-feedback\0" + signed.encode(), hashlib.sha256).digest())


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
