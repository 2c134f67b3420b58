"""Pass one: run the rules over the joined texts and return what they found.

Texts are joined by a NUL byte so that one RE2 call covers a document. ``re2.Filter`` names in one pass the
rules whose literals occur at all; only these are run. A match whose check fails is searched again from
its second byte: it may hide a real token (``task-sk-…``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import re2

from onward.capture.redaction import assigned, decode
from onward.capture.redaction.rule import Check, Hit, Rule, Span
from onward.capture.redaction.rules import CHECKS, RULES

_LONGEST_RETRY = 512
_BY_VALUE: dict[str, Callable[[Any, bytes], Iterator[Hit]]] = {
    "assigned": assigned.assigned,
    "flag": assigned.flags,
    "cookies": assigned.cookies,
}


class _Compiled(NamedTuple):
    rule: Rule
    expression: Any
    checks: tuple[Check, ...]


def _compile() -> tuple[tuple[_Compiled, ...], Any]:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes as they are: no text is too odd to be scanned
    options.log_errors = False
    prefilter = re2.Filter()
    compiled = []
    for rule in RULES:
        pattern = rule.pattern.encode("latin-1")
        compiled.append(
            _Compiled(rule, re2.compile(pattern, options), tuple(CHECKS[name] for name in rule.checks))
        )
        prefilter.Add(pattern, options)
    prefilter.Compile()
    return tuple(compiled), prefilter


_COMPILED, _PREFILTER = _compile()


def scan(buffer: bytes) -> list[Hit]:
    """Every hit of every rule, in no order, overlaps included; one layer of encoding is looked through."""
    hits = scan_plain(buffer)
    hits += decode.hits(buffer, scan_plain)
    return hits


def scan_plain(buffer: bytes) -> list[Hit]:
    """As ``scan``, without looking through encodings."""
    hits: list[Hit] = []
    for i in _PREFILTER.Match(buffer, True):
        compiled = _COMPILED[i]
        by_value = _BY_VALUE.get(compiled.rule.take)
        if by_value is not None:
            hits += by_value(compiled.expression, buffer)
        else:
            hits += _matches(compiled, buffer)
    return hits


def _matches(compiled: _Compiled, buffer: bytes) -> Iterator[Hit]:
    rule = compiled.rule
    group = 1 if rule.take == "group" else 0
    retry = "start" in rule.checks and not group
    for match in compiled.expression.finditer(buffer):
        again = match
        while again is not None:
            span = _checked(compiled.checks, buffer, again.span(group))
            if span is not None:
                yield Hit(*span, rule.kind, rule.layer)
                break
            if not retry or again.end() - again.start() > _LONGEST_RETRY:
                break
            again = compiled.expression.search(buffer, again.start() + 1, match.end())


def _checked(checks: tuple[Check, ...], buffer: bytes, span: Span) -> Span | None:
    for check in checks:
        narrowed = check(buffer, *span)
        if narrowed is None:
            return None
        span = narrowed
    return span
