"""Assignments, flags and cookie headers: a rule finds the name; this module finds the value and judges it.

``name=value``, ``"name": "value"`` at any depth of escaping, ``name: type = "value"``,
``<name>value</name>``, ``--name value``. Of a value under a secret dict key, all or a part is the secret:
from ``Bearer abc`` only ``abc`` is removed, from a cookie header its values; references stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onward.redaction.expressions import compiled
from onward.redaction.json_numbers import behind_key
from onward.redaction.judging import values
from onward.redaction.judging.names import KIND, PERSONAL, NameClass, secret_class
from onward.redaction.rule import Hit, Span

_NAME_BYTES = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-."
_NAME = frozenset(_NAME_BYTES)
_IN_NAMES = _NAME_BYTES + b" '" + bytes(range(0x80, 0x100))
"""Bytes that a name found by a rule may contain, including letters beyond ASCII (``contraseña``)."""
_NAME_REACH = 64
_LONGEST_HINT = 64
_PIN = 5
"""Digits that a bare JSON number needs to count as a password, as it does outside of texts."""
_LINE = compiled(rb"(?:[^\x00\r\n\"'\\]|\\[^nr\"'\x00])*")
_VARIABLE = compiled(rb"[A-Z][A-Z0-9_]{2,}=")
_NEXT_PAIR = compiled(rb";[ ]?[A-Za-z][A-Za-z0-9 _.-]{0,40}=")
_COOKIE = compiled(rb"[^\s\x00=;,\"']{1,128}=\"?[^\s\x00;,\"]+")
_ATTRIBUTES = frozenset((b"path", b"domain", b"expires", b"max-age", b"samesite", b"version", b"priority"))
_SESSION_WORDS = (b"sess", b"sid", b"auth", b"tok", b"csrf", b"xsrf", b"jwt", b"login", b"remember")
_MIN_COOKIE = 4

Part = tuple[int, int, str]


def assigned(expression: Any, buffer: bytes) -> Iterator[Hit]:
    """Yields the values after the names that ``expression`` finds."""
    done = 0
    for match in expression.finditer(buffer):
        first, last = match.span()
        if last <= done:
            continue  # within the previous value
        before = buffer[max(0, first - _NAME_REACH) : first]
        first -= len(before) - len(before.rstrip(_NAME_BYTES))
        name = _name(buffer[first:last])
        kind = secret_class(name)
        if kind is None or (buffer[last - 1] == 0x3A and buffer[first - 2 : first] == b"//"):
            continue  # the user of a URL with credentials
        if buffer[first - 2 : first] == b"${" and buffer[last : last + 1] in (b"-", b"=", b"?", b"+"):
            last += 1  # the default of a variable: ``${TOKEN:-…}``
        if values.closes_a_text(buffer, last):
            continue
        hit = _value(buffer, last, kind, _how(buffer, first, last, name))
        if hit:
            done = hit.end
            yield hit


def flags(expression: Any, buffer: bytes) -> Iterator[Hit]:
    """Yields the values after ``--name``."""
    for match in expression.finditer(buffer):
        kind = secret_class(match.group().decode("utf-8", "replace").strip(" \t-"))
        if kind is None or buffer[match.end() : match.end() + 1] == b"-":
            continue
        if match.start() and buffer[match.start() - 1] in _NAME:
            continue  # ``non-secret``
        found = values.parse_assigned(buffer, match.end(), loose=True)
        if found is None:
            continue
        text = buffer[found.start : found.end]
        if _VARIABLE.match(text):
            continue  # ``--secrets NAME=value``
        telling = found.quoted or any(not (0x61 <= c <= 0x7A) for c in text) or len(text) >= 10
        if telling and values.is_secret_value(text, kind, how="env" if not found.quoted else "quoted"):
            wide = not found.quoted and len(text) == values.WIDEST_BARE
            end = values.end_of_bare(buffer, found.end, loose=True) if wide else found.end
            yield Hit(found.start, end, KIND[kind], 2)


def cookies(expression: Any, buffer: bytes) -> Iterator[Hit]:
    """Yields the values within the header that begins after each match."""
    done = 0
    for match in expression.finditer(buffer):
        at = match.end()
        if at < done:
            continue  # within the previous header
        line = _LINE.match(buffer, at)
        done = line.end() if line else at
        for first, last, kind in cookie_values(buffer[at:done]):
            yield Hit(at + first, at + last, kind, 2)


def _how(buffer: bytes, first: int, last: int, name: str) -> str:
    """Returns ``element`` for XML, ``line`` for ``name=`` at the beginning of a line, ``env`` where
    the place shows that a literal follows (an environment variable, a query, a list of options), else
    ``bare``."""
    if buffer[last - 1] == 0x3E and buffer[last - 2 : last] != b"=>":
        return "element"
    before = buffer[first - 1] if first else 0
    if before in b"\n\x00" and buffer[last - 1] == 0x3D and buffer[last - 2] != 0x20:
        return "line"
    return "env" if buffer[last - 1] == 0x3D and (name.isupper() or before in b"?&;") else "bare"


def _name(text: bytes) -> str:
    text = text.lstrip(b"<")
    end = len(text) - len(text.lstrip(_IN_NAMES))
    return text[:end].decode("utf-8", "replace").strip(" .-'")


def _value(buffer: bytes, at: int, kind: NameClass, how: str) -> Hit | None:
    found = values.parse_assigned(buffer, at, loose=how == "env")
    if found is None:
        return None
    start, end = found.start, found.end
    if how == "element":
        end = buffer.find(b"<", start)  # every candidate contains a "<" itself: no byte is read twice
        if end < 0 or buffer[end : end + 2] != b"</" or b"\x00" in buffer[start:end]:
            return None
    if not found.quoted and how == "env" and buffer.find(b";", start, end + 1) >= 0:
        pair = _NEXT_PAIR.search(buffer, start, end + 48)
        end = min(end, pair.start()) if pair else end
    quoted = found.quoted or how == "element"
    if kind in PERSONAL and not quoted:
        return None
    text = buffer[start:end]
    if not quoted and values.is_scheme(text) and buffer[end : end + 1] == b" ":
        found = values.parse_assigned(buffer, end + 1, loose=False)
        if found is None or found.quoted:
            return None
        start, end, how = found.start, found.end, "bare"
        text = buffer[start:end]
    if kind == "COOKIE" and b"=" in text:
        return None  # its values are found separately
    if kind == "PASSWORD" and not quoted and len(text) == _PIN and text.isdigit():
        how = "key" if behind_key(buffer, start, end) and not text.startswith(b"0") else how
    if values.is_secret_value(text, kind, how="quoted" if quoted else how):
        if not quoted and len(text) == values.WIDEST_BARE:
            end = values.end_of_bare(buffer, end, loose=how == "env")
        span = _after_scheme(buffer, start, end, kind)
        return Hit(*span, KIND[kind], 2) if span else None
    if not quoted and len(text) <= _LONGEST_HINT:  # `password: str = "x"`
        default = _default_after_hint(buffer, end)
        if default and values.is_secret_value(buffer[default[0] : default[1]], kind, how="quoted"):
            return Hit(*default, KIND[kind], 2)
    return None


def _after_scheme(buffer: bytes, start: int, end: int, kind: NameClass) -> Span | None:
    """Returns the span of ``abc`` in ``Bearer abc``; without a scheme, the span itself."""
    scheme, space, rest = buffer[start:end].partition(b" ")
    if space and values.is_scheme(scheme):
        rest = rest.strip()
        if not values.is_secret_value(rest, kind, how="quoted"):
            return None
        return end - len(rest), end
    return start, end


def _default_after_hint(buffer: bytes, at: int) -> Span | None:
    line = buffer[at : at + 60]
    equals = line.find(b"=")
    if equals < 0 or any(c in line[:equals] for c in b"\n\x00,;\"'("):
        return None
    at += equals + 1
    while buffer[at : at + 1] == b" ":
        at += 1
    found = values.parse_assigned(buffer, at, loose=False)
    return (found.start, found.end) if found and found.quoted else None


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
