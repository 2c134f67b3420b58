"""Pass one: run the rules over the joined leaves and return what they found.

Leaves are joined by a NUL byte so that one RE2 call covers a document. A match whose check fails is
searched again from its second byte: it may hide a real token (``task-sk-…``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import re2

from onward.capture.redaction import values
from onward.capture.redaction.names import NameClass, secret_class
from onward.capture.redaction.rule import Check, Rule, Span
from onward.capture.redaction.rules import CHECKS, RULES

_NAME = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-.")
_NAME_REACH = 64


@dataclass(frozen=True)
class Hit:
    """Bytes ``start``..``end`` of the buffer are a secret of ``kind``."""

    start: int
    end: int
    kind: str
    layer: int


@dataclass(frozen=True)
class _Compiled:
    rule: Rule
    expression: Any
    checks: tuple[Check, ...]


def _compile() -> tuple[_Compiled, ...]:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes as they are: no leaf is too odd to be scanned
    options.log_errors = False
    compiled = []
    for rule in RULES:
        expression = re2.compile(rule.pattern.encode("latin-1"), options)
        compiled.append(_Compiled(rule, expression, tuple(CHECKS[name] for name in rule.checks)))
    return tuple(compiled)


_COMPILED = _compile()


def scan(buffer: bytes) -> list[Hit]:
    """Every hit of every rule, in no order, overlaps included."""
    hits: list[Hit] = []
    for compiled in _COMPILED:
        take = compiled.rule.take
        if take == "assigned":
            hits += _assigned(compiled, buffer)
        elif take == "flag":
            hits += _flags(compiled, buffer)
        else:
            hits += _matches(compiled, buffer, 1 if take == "group" else 0)
    return hits


def _matches(compiled: _Compiled, buffer: bytes, group: int) -> Iterator[Hit]:
    rule = compiled.rule
    retry = "start" in rule.checks and not group
    for match in compiled.expression.finditer(buffer):
        again = match
        while again is not None:
            span = _checked(compiled.checks, buffer, again.span(group))
            if span is not None:
                yield Hit(*span, rule.kind, rule.layer)
                break
            if not retry or again.end() - again.start() > 512:
                break
            again = compiled.expression.search(buffer, again.start() + 1, match.end())


def _checked(checks: tuple[Check, ...], buffer: bytes, span: Span) -> Span | None:
    for check in checks:
        narrowed = check(buffer, *span)
        if narrowed is None:
            return None
        span = narrowed
    return span


def _assigned(compiled: _Compiled, buffer: bytes) -> Iterator[Hit]:
    done = 0
    for match in compiled.expression.finditer(buffer):
        first, last = match.span()
        if last <= done:
            continue  # within the value before
        while first > 0 and match.start() - first < _NAME_REACH and buffer[first - 1] in _NAME:
            first -= 1
        name = _name(buffer[first:last])
        kind = secret_class(name)
        if kind is None:
            continue
        before = buffer[first - 1 : first] if first else b""
        env = buffer[last - 1 : last] == b"=" and (name.isupper() or before in (b"?", b"&"))
        hit = _value(buffer, last, kind, env)
        if hit:
            done = hit.end
            yield hit


def _name(text: bytes) -> str:
    end = 0
    while end < len(text) and (text[end] in _NAME or text[end] == 0x20):
        end += 1
    return text[:end].decode("latin-1").strip(" .-")


def _flags(compiled: _Compiled, buffer: bytes) -> Iterator[Hit]:
    for match in compiled.expression.finditer(buffer):
        kind = secret_class(match.group().decode("latin-1").strip(" \t-"))
        if kind is None or buffer[match.end() : match.end() + 1] == b"-":
            continue
        found = values.parse_assigned(buffer, match.end(), loose=True)
        if found is None:
            continue
        text = buffer[found.start : found.end]
        telling = found.quoted or any(not (0x61 <= c <= 0x7A) for c in text) or len(text) >= 10
        if telling and values.is_secret_value(text, kind, how="env" if not found.quoted else "quoted"):
            yield Hit(found.start, found.end, kind, 2)


def _value(buffer: bytes, at: int, kind: NameClass, env: bool) -> Hit | None:
    found = values.parse_assigned(buffer, at, loose=env)
    if found is None:
        return None
    how = "quoted" if found.quoted else "env" if env else "bare"
    text = buffer[found.start : found.end]
    if values.is_secret_value(text, kind, how=how):
        after_scheme = _after_scheme(buffer, found, kind)
        return Hit(*after_scheme, kind, 2) if after_scheme else None
    if not found.quoted:  # a type hint with a default: `password: str = "x"`
        default = _default_after_hint(buffer, found.end)
        if default and values.is_secret_value(buffer[default[0] : default[1]], kind, how="quoted"):
            return Hit(*default, kind, 2)
    return None


def _after_scheme(buffer: bytes, found: values.Assigned, kind: NameClass) -> Span | None:
    """``Bearer abc`` → the span of ``abc``."""
    scheme, space, rest = buffer[found.start : found.end].partition(b" ")
    if space and scheme.lower().decode("latin-1") in values.SCHEMES:
        rest = rest.strip()
        if not values.is_secret_value(rest, kind, how="quoted"):
            return None
        return found.end - len(rest), found.end
    return found.start, found.end


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
