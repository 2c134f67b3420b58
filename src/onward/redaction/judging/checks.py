"""Checks that a pattern cannot express: where a token may begin, whether a match is a real one.

A check gets the whole buffer and the span of the candidate. It returns the span to take (perhaps narrower),
or None. The bytes come from untrusted sources: linear time, no ``re``.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import re2

from onward.redaction.expressions import compiled
from onward.redaction.judging import values
from onward.redaction.judging.drawn import is_drawn, is_telling
from onward.redaction.rule import Check, Span

_ALNUM = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_HEX = frozenset(b"0123456789abcdefABCDEF")
_JWK_REACH = 4096
_PATH = compiled(rb"[./~]+[A-Za-z0-9_.~/-]*|[A-Za-z0-9_.-]{1,24}(?:/[A-Za-z0-9_.-]{0,24})+")
_SCOPE = compiled(rb"[a-z_-]{2,}(?:[:.][a-z_*-]+[0-9]?){1,4}")
"""``read:user``, ``repo:status``."""
_VERSION_OR_FILE = compiled(
    rb"v?[0-9]+(?:[.][0-9]+)+(?:[-+.][A-Za-z0-9.+-]*)?|[A-Za-z0-9_.-]*[.](?:sql|sh|ps1|bat|txt|log|json|ya?ml|toml"
    rb"|xml|csv|cfg|conf|ini|pem|key|crt|zip|gz|tgz|tar|rar|7z|pdf|py|rs|js|lock)"
)
_RUN: Any = re2.compile(rb"[A-Za-z0-9]{14,}")


def may_start(buffer: bytes, start: int) -> bool:
    """Returns whether a token may begin at ``start``: not after a letter or digit, unless that ends an escape
    (``\\n``, ``\\u003d``, ``%3D``, a terminal colour)."""
    if start == 0 or buffer[start - 1] not in _ALNUM:
        return True
    before = buffer[max(0, start - 6) : start]
    if before[-2:-1] == b"\\" and before[-1:] in (b"n", b"r", b"t", b"b", b"f"):
        return True
    if before[-3:-2] == b"%" and before[-1] in _HEX and before[-2] in _HEX:
        return True
    if len(before) == 6 and before[:2] == b"\\u" and all(c in _HEX for c in before[2:]):
        return True
    return before[-1:] == b"m" and b"\x1b[" in buffer[max(0, start - 12) : start]


def start(buffer: bytes, first: int, last: int) -> Span | None:
    return (first, last) if may_start(buffer, first) else None


def end(buffer: bytes, first: int, last: int) -> Span | None:
    return (first, last) if last >= len(buffer) or buffer[last] not in _ALNUM else None


def digit(buffer: bytes, first: int, last: int) -> Span | None:
    return (first, last) if any(0x30 <= c <= 0x39 for c in buffer[first:last]) else None


def dense(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts a run of 20 letters and digits, or digits and capitals; not words joined by hyphens."""
    text = buffer[first:last]
    run = longest = 0
    for c in text:
        run = run + 1 if c in _ALNUM else 0
        longest = max(longest, run)
    has_digit = any(0x30 <= c <= 0x39 for c in text)
    has_upper = any(0x41 <= c <= 0x5A for c in text)
    return (first, last) if longest >= 20 or (has_digit and has_upper) else None


def telling(buffer: bytes, first: int, last: int) -> Span | None:
    """Requires a digit, a capital, or one long run of letters; refuses a placeholder in words
    (``glpat-your-token-goes-here``)."""
    text = buffer[first:last].partition(b"-")[2]
    one_run = len(text) >= 20 and text.isalpha()
    shown = one_run or any(0x30 <= c <= 0x39 or 0x41 <= c <= 0x5A for c in text)
    return (first, last) if shown else None


def dense_or_basic(buffer: bytes, first: int, last: int) -> Span | None:
    """Checks the text after ``Authorization: <scheme>``: a digit, a capital or base64 padding is enough."""
    text = buffer[first:last]
    telling = any(0x30 <= c <= 0x39 or 0x41 <= c <= 0x5A or c == 0x3D for c in text)
    return (first, last) if telling or len(text) >= 24 else None


def drawn(buffer: bytes, first: int, last: int) -> Span | None:
    """Requires a run of fourteen letters and digits, both present; refuses words joined by signs."""
    run = _RUN.search(buffer, first, last)
    while run is not None:
        text = run.group()
        if not text.isalpha() and not text.isdigit():
            return first, last
        run = _RUN.search(buffer, run.end(), last)
    letters = buffer[max(first, last - 20) : last]
    return (first, last) if len(letters) == 20 and letters.isalpha() else None


def mixed(buffer: bytes, first: int, last: int) -> Span | None:
    """Requires capitals, small letters and digits; refuses words and digests."""
    text = buffer[first:last]
    telling = (
        any(0x30 <= c <= 0x39 for c in text)
        and any(0x41 <= c <= 0x5A for c in text)
        and any(0x61 <= c <= 0x7A for c in text)
    )
    return (first, last) if telling and b"EXAMPLE" not in text else None


def token_user(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts a token in place of a URL's user: by its letters, or by the password ``x-oauth-basic``."""
    drawn = values.is_random(buffer[first:last]) or buffer[last : last + 15] == b":x-oauth-basic@"
    return (first, last) if drawn else mixed(buffer, first, last)


def not_example(buffer: bytes, first: int, last: int) -> Span | None:
    return None if buffer[first:last].endswith(b"EXAMPLE") else (first, last)


def not_uuid(buffer: bytes, first: int, last: int) -> Span | None:
    """Refuses a span that goes on with a hyphen, as a longer id does."""
    return None if buffer[last : last + 1] == b"-" or buffer[first - 1 : first] == b"-" else (first, last)


def not_padding(buffer: bytes, first: int, last: int) -> Span | None:
    """Refuses base64 of zero bytes: at most a third of the token may be the letter A."""
    text = buffer[first:last]
    return (first, last) if text.lstrip(b"A").count(b"A") * 3 < len(text) and b"==" not in text else None


def dense_query(buffer: bytes, first: int, last: int) -> Span | None:
    """Checks the value of a query key that may be secret (``code``, ``key``): digits and letters, or long."""
    text = buffer[first:last].replace(b"%3D", b"").replace(b"%3d", b"")
    digits = sum(0x30 <= c <= 0x39 for c in text)
    letters = sum(c in _ALNUM for c in text) - digits
    return (first, last) if letters >= 4 and (digits >= 2 or (len(text) >= 24 and b"-" not in text)) else None


def encoded_private(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts base64 of a PEM block whose header names a private key."""
    run = buffer[first : min(last, first + 88)].replace(b"-", b"+").replace(b"_", b"/")
    head = binascii.a2b_base64(run[: len(run) // 4 * 4])
    return (first, last) if b"PRIVATE KEY" in head or b"NKEY SEED" in head else None


def jwk(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts a member of an object that has a key type near it."""
    around = buffer[max(0, first - _JWK_REACH) : last + _JWK_REACH]
    return (first, last) if b"kty" in around else None


def jwt_header(buffer: bytes, first: int, last: int) -> Span | None:
    """Requires that the first part decodes to a JSON object."""
    head = buffer[first:last].split(b".", 1)[0]
    try:
        decoded = base64.urlsafe_b64decode(head + b"=" * (-len(head) % 4))
    except (binascii.Error, ValueError):
        return None
    return (first, last) if decoded.startswith(b'{"') else None


def trim(buffer: bytes, first: int, last: int) -> Span | None:
    """Trims white space and escaped line ends at both ends; None if nothing or a placeholder is left."""
    while first < last:
        text = buffer[first : first + 16].lstrip(b"\\")
        slashes = len(buffer[first : first + 16]) - len(text)
        if buffer[first] in b" \t\r\n":
            first += 1
        elif slashes and text[:1] in (b"n", b"r"):
            first += slashes + 1
        else:
            break
    while last > first:
        if buffer[last - 1] in b" \t\r\n\\":
            last -= 1
        elif buffer[last - 2 : last] in (b"\\n", b"\\r"):
            last -= 2
        else:
            break
    return None if first >= last or values.is_reference(buffer[first:last]) else (first, last)


def trim_prose(buffer: bytes, first: int, last: int) -> Span | None:
    while last > first and buffer[last - 1] in b".,;:)!?":
        last -= 1
    return (first, last) if last > first else None


def literal(buffer: bytes, first: int, last: int) -> Span | None:
    text = buffer[first:last]
    bare = text.rstrip(b".,;:)}]")
    if values.is_reference(text) or (bare != text and values.is_reference(bare)) or values.is_scheme(text):
        return None
    return (first, last)


def password_like(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts a password in a sentence: not a word, so with a digit, or a sign after its first character."""
    text = buffer[first:last].rstrip(b".,;:)!?")
    telling = any(0x30 <= c <= 0x39 for c in text) or any(c in b"!@#$%^&*+=~" for c in text[1:])
    port = text.isdigit() and len(text) < 6
    return (first, last) if telling and len(text) >= 4 and not port else None


def no_path(buffer: bytes, first: int, last: int) -> Span | None:
    """Refuses a path, and the name of a permission (``read:user``)."""
    text = buffer[first:last]
    path = _PATH.fullmatch(text) is not None and not is_drawn(text)
    return None if path or _SCOPE.fullmatch(text) else (first, last)


def not_numeric(buffer: bytes, first: int, last: int) -> Span | None:
    """Refuses a number after a number and a colon: the ids of a user and a group."""
    user = buffer[max(0, first - 24) : first - 1]
    at = len(user) - len(user.rstrip(b"0123456789"))
    return None if at and buffer[first:last].strip(b",;").isdigit() else (first, last)


def no_file(buffer: bytes, first: int, last: int) -> Span | None:
    """Refuses a version, a file and a folder."""
    refused = _VERSION_OR_FILE.fullmatch(buffer, first, last) or buffer[last : last + 1] == b"/"
    return None if refused else (first, last)


def paired_password(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts the second of two texts as a password: no word, path, file or permission."""
    return no_path(buffer, first, last) if is_telling(buffer[first:last]) else None


CHECKS: dict[str, Check] = {
    check.__name__: check for check in (
        start, end, digit, dense, telling, dense_or_basic, dense_query, encoded_private, jwk, drawn, mixed,
        token_user, not_example, not_uuid, not_padding, jwt_header, trim, trim_prose, literal, password_like,
        no_path, not_numeric, no_file, paired_password,
    )
}  # fmt: skip
