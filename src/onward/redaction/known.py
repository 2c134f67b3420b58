"""Layer 0: secrets that the client knows in advance, found in any context and encoding.

They are replaced also where the text around gives no hint. Values appear in no message, repr or report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from onward.errors import ConfigError
from onward.redaction import placeholders, propagation
from onward.redaction.judging import values
from onward.redaction.judging.assigned_values import governed_spans
from onward.redaction.judging.names import PERSONAL, secret_class
from onward.redaction.propagation import MIN_LENGTH, Needle
from onward.redaction.rule import Hit

KIND = "KNOWN"
_MIN_LINE = 8


class Known:
    """Registered secrets of a client, with their search forms: raw, JSON-escaped, URL-encoded, base64, and
    each line of a secret of several lines. Short forms match whole words only; the longest match wins."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """Raises ConfigError for a secret under 6 characters, which would mask half the text."""
        self._needles: dict[bytes, Needle] = {}
        for number, secret in enumerate(secrets, start=1):
            value = secret.strip().encode("utf-8", "surrogatepass")
            if len(value) < MIN_LENGTH:
                raise ConfigError(
                    f"Known secret number {number} has {len(value)} bytes; give at least {MIN_LENGTH}, or "
                    "leave it out: replacing so short a text everywhere would destroy what is recorded."
                )
            for needle in propagation.needles(value):
                self._needles.setdefault(needle.text, needle)
            for line in value.splitlines()[1:] and value.splitlines():
                text = line.strip()
                if len(text) >= _MIN_LINE and not values.is_word(text) and b"-----" not in text:
                    self._needles.setdefault(text, Needle(text, value, whole_word=len(text) < 16))
        self.numbers: dict[float, tuple[bytes, str]] = {}
        """Secrets that a document may contain as a JSON number, which no expression scans."""
        for needle in self._needles.values():
            number = propagation.as_number(needle.value)
            if number is not None:
                self.numbers[number] = (needle.value, KIND)
        self._expressions: list[Any] = list(propagation.alternations(self._needles))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], also: Iterable[str] = ()) -> Known:
        """Makes a ``Known`` of ``also``, the values of variables with a secret name (``OPENAI_API_KEY``), and
        the passwords in URLs of any variable. Leaves out references (``${X}``), dummies (``changeme``), paths
        and values under six characters. Raises ConfigError if one of ``also`` is too short."""
        return cls(dict.fromkeys([*also, *in_environment(environ)]))

    def __bool__(self) -> bool:
        return bool(self._needles)

    def __repr__(self) -> str:
        return f"Known({len({needle.value for needle in self._needles.values()})} secrets)"

    def find(self, buffer: bytes) -> list[Hit]:
        """Returns the matches in ``buffer``, except within our own placeholders."""
        hits = []
        kept: list[tuple[int, int]] | None = None
        for expression in self._expressions:
            for match in expression.finditer(buffer):
                needle = self._needles[match.group()]
                span = propagation.placed(buffer, match.start(), needle)
                if span is None:
                    continue
                kept = placeholders.spans(buffer) if kept is None else kept
                if not placeholders.overlap(kept, *span):
                    hits.append(Hit(*span, KIND, 0, needle.value))
        return hits


def read_secrets(path: Path) -> list[str]:
    """Reads known secrets, one a line. Raises ConfigError, whose text contains nothing of the content."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text: give known secrets one a line.") from None
    return [line.strip() for line in text.splitlines() if line.strip()]


def in_environment(environ: Mapping[str, str]) -> Iterator[str]:
    """Yields the values of variables with a secret name, and the passwords in URLs of any variable."""
    for name, text in environ.items():
        value = text.strip().encode("utf-8", "surrogatepass")
        password = values.url_password(value)
        if password is not None:
            found = [password]
        else:
            kind = secret_class(name)
            spans = governed_spans(value, kind) if kind and kind not in PERSONAL else []
            found = [value[first:last] for first, last, _ in spans]
        for secret in found:
            if len(secret) >= MIN_LENGTH and not values.is_word(secret):
                yield secret.decode("utf-8", "surrogatepass")


NOTHING_KNOWN = Known()
