"""Finds the secret part of a value whose dict key names a secret: all of it, or only a part.

From ``Bearer abc`` only ``abc`` is removed, from a cookie header its values, from a URL its password;
references stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import re2

from onward.redaction.judging import values
from onward.redaction.judging.names import KIND, NameClass, secret_class

_BYTES = re2.Options()
_BYTES.encoding = re2.Options.Encoding.LATIN1
_COOKIE: Any = re2.compile(rb"[^\s\x00=;,\"']{1,128}=\"?[^\s\x00;,\"]+", _BYTES)
_ATTRIBUTES = frozenset((b"path", b"domain", b"expires", b"max-age", b"samesite", b"version", b"priority"))
_SESSION_WORDS = (b"sess", b"sid", b"auth", b"tok", b"csrf", b"xsrf", b"jwt", b"login", b"remember")
_MIN_COOKIE = 4

Part = tuple[int, int, str]


def governed_spans(value: bytes, name: NameClass) -> list[Part]:
    """Returns (first, last, kind) of each secret part of a dict value under a name of class ``name``."""
    kind = KIND[name]
    if name == "COOKIE" and b"=" in value:
        parts = list(cookie_values(value))
        if parts:
            return parts
    scheme, space, rest = value.partition(b" ")
    if space and values.is_scheme(scheme):
        if values.is_reference(rest.strip()) or len(rest.strip()) < values.MIN_AFTER_SCHEME:
            return []
        return [(len(value) - len(rest.lstrip()), len(value.rstrip()), kind)]
    if not values.is_secret_value(value, name, how="key"):
        return []
    left = len(value) - len(value.lstrip(b" \t\r\n"))
    return [(left, len(value.rstrip(b" \t\r\n")), kind)]


def cookie_values(header: bytes) -> Iterator[Part]:
    """Yields the values of ``a=b; c=d``; names, attributes and plain words (``theme=dark``) stay."""
    judged: dict[bytes, bool] = {}
    for match in _COOKIE.finditer(header):
        first, last = match.span()
        pair = header[first:last]
        name, _, text = pair.partition(b"=")
        if pair not in judged:
            judged[pair] = _is_session(name.lower(), text.removeprefix(b'"'))
        if judged[pair]:
            yield last - len(text.removeprefix(b'"')), last, "COOKIE"


def _is_session(name: bytes, text: bytes) -> bool:
    if name in _ATTRIBUTES or values.is_reference(text):
        return False
    if any(word in name for word in _SESSION_WORDS) or secret_class(name.decode("latin-1")):
        return True
    return len(text) >= _MIN_COOKIE and not values.is_word(text)
