"""First pass: runs the rules over the joined texts and returns their hits.

Texts are joined by a NUL byte so that one RE2 call covers a document. Most rules cost almost nothing where
nothing is found: ``re2.Filter`` selects in one pass the rules whose literals occur. Rules that begin with no
literal (``[0-9]{13,19}``) run only over texts in which their gate matches; a gate is one expression made of
all of them. After a refused match the search goes on at its second byte, since a secret may begin inside it,
as ``sk-…`` in ``task-sk-…``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import re2

from onward.redaction import decode
from onward.redaction.expressions import compiled, latin1
from onward.redaction.judging import assigned_values, near_values
from onward.redaction.rule import Check, Hit, Rule, Span
from onward.redaction.rules.catalogue import CHECKS, RULES
from onward.redaction.steps import step

_LONGEST_RETRY = 512
_GATE_MEMORY = 24 << 20
"""Memory for the states that RE2 caches for a gate. When full, RE2 drops all states and builds them again. A
larger cache makes that a pause of 8 ms every few hundred documents (2.5 ms with this value); under 16 MB real
logs are scanned at a tenth of the speed."""
_APART = (frozenset({"NATIONAL_ID", "CARD"}), frozenset({"ASSIGNED", "PASSWORD"}))
"""Kinds with gates of their own: in one gate, their states would multiply."""
_COUNT = re2.compile(r"\{([0-9]+)(?:,[0-9]*)?\}")
"""A counted repetition in an expression of a rule."""
_META = "([{.^$|?*+\\"
_BY_VALUE: dict[str, Callable[[Any, bytes], Iterator[Hit]]] = {
    "assigned": assigned_values.assigned,
    "flag": assigned_values.flags,
    "cookies": assigned_values.cookies,
    **near_values.TAKES,
}


class _Compiled(NamedTuple):
    rule: Rule
    expression: Any
    checks: tuple[Check, ...]


class _Gate(NamedTuple):
    """``expression`` matches wherever one of the rules ``members`` does, and perhaps elsewhere."""

    expression: Any
    members: frozenset[int]


def _compile() -> tuple[_Compiled, ...]:
    return tuple(
        _Compiled(rule, compiled(rule.pattern), tuple(CHECKS[name] for name in rule.checks)) for rule in RULES
    )


def _filter() -> Any:
    prefilter = re2.Filter()
    for rule in RULES:
        prefilter.Add(rule.pattern.encode("latin-1"), latin1())
    prefilter.Compile()
    return prefilter


def _gates() -> tuple[_Gate, ...]:
    """Makes gates for rules without a literal, one for rules whose literal is not at the beginning, and
    one for each expression that rules give. In one gate, the states of rules with counted repetitions would
    multiply: such rules have a gate of their own, or their counts are left out."""
    slow = {i for i, rule in enumerate(RULES) if rule.gate is None and not _begins_literal(rule.pattern)}
    bare = slow.intersection(_PREFILTER.Match(b"", True))
    apart = [{i for i in bare if RULES[i].kind in kinds} for kinds in _APART]
    own: dict[str, set[int]] = {}
    for i, rule in enumerate(RULES):
        if rule.gate:
            own.setdefault(rule.gate, set()).add(i)
    exact = [*apart, bare.difference(*apart)]
    gates = [([RULES[i].pattern for i in sorted(members)], members) for members in exact]
    gates.append(([_uncounted(RULES[i].pattern) for i in sorted(slow - bare)], slow - bare))
    gates += [([gate], members) for gate, members in own.items()]
    return tuple(_Gate(_any_of(patterns), frozenset(members)) for patterns, members in gates if members)


def _uncounted(pattern: str) -> str:
    """Returns an expression that matches wherever ``pattern`` does, with few states: ``{0,40}`` becomes
    ``*`` and ``{20,}`` becomes ``+``."""
    return _COUNT.sub(lambda match: "*" if match.group(1) == "0" else "+", pattern)


def _any_of(patterns: Iterable[str]) -> Any:
    options = latin1(never_capture=True, max_mem=_GATE_MEMORY)
    parts = (f"(?:{pattern})" for pattern in patterns)
    return re2.compile("|".join(parts).encode("latin-1"), options)


def _begins_literal(pattern: str) -> bool:
    """Returns whether every match begins with one byte: RE2 then skips from one such byte to the next."""
    return pattern[0] not in _META and pattern[1] not in "?*+{"


_COMPILED = _compile()
_PREFILTER = _filter()
_GATES = _gates()


def scan(buffer: bytes) -> list[Hit]:
    """Returns every hit of every rule, unordered, overlaps included; one layer of encoding is decoded."""
    hits = scan_plain(buffer)
    hits += decode.hits(buffer, scan_plain)
    return hits


def scan_plain(buffer: bytes) -> list[Hit]:
    """Like ``scan``, without decoding."""
    hits: list[Hit] = []
    possible = set(_PREFILTER.Match(buffer, True))
    for gate in _GATES:
        step()
        gated = possible & gate.members
        possible -= gated
        if gated:
            hits += _through(gate, sorted(gated), buffer)
    for i in sorted(possible):
        hits += _run(_COMPILED[i], buffer)
    return hits


def _through(gate: _Gate, rules: list[int], buffer: bytes) -> Iterator[Hit]:
    """Yields hits of ``rules`` in the texts of ``buffer`` in which ``gate`` matches."""
    texts = _texts_of_interest(gate, buffer)
    if sum(last - first for first, last in texts) * 2 > len(buffer):
        for i in rules:
            yield from _run(_COMPILED[i], buffer)
    elif texts:
        joined = b"\x00".join(buffer[first:last] for first, last in texts)
        starts = list(accumulate((last - first + 1 for first, last in texts), initial=0))
        for i in rules:
            for hit in _run(_COMPILED[i], joined):
                at = bisect_right(starts, hit.start) - 1
                shift = texts[at][0] - starts[at]
                yield hit._replace(start=hit.start + shift, end=hit.end + shift)


def _texts_of_interest(gate: _Gate, buffer: bytes) -> list[Span]:
    found: list[Span] = []
    at = 0
    while at < len(buffer):
        match = gate.expression.search(buffer, at)
        if match is None:
            break
        first = buffer.rfind(b"\x00", at, match.start()) + 1 or at
        last = buffer.find(b"\x00", match.start())
        last = len(buffer) if last < 0 else last
        found.append((first, last))
        at = last + 1
    return found


def _run(entry: _Compiled, buffer: bytes) -> Iterator[Hit]:
    step()
    by_value = _BY_VALUE.get(entry.rule.take)
    return _matches(entry, buffer) if by_value is None else by_value(entry.expression, buffer)


def _matches(entry: _Compiled, buffer: bytes) -> Iterator[Hit]:
    rule = entry.rule
    group = 1 if rule.take == "group" else 0
    retry = "start" in rule.checks and not group
    for match in entry.expression.finditer(buffer):
        again = match
        while again is not None:
            span = _checked(entry.checks, buffer, again.span(group))
            if span is not None:
                yield Hit(*span, rule.kind, rule.layer)
                break
            if not retry or again.end() - again.start() > _LONGEST_RETRY:
                break
            again = entry.expression.search(buffer, again.start() + 1, match.end())


def _checked(checks: tuple[Check, ...], buffer: bytes, span: Span) -> Span | None:
    for check in checks:
        narrowed = check(buffer, *span)
        if narrowed is None:
            return None
        span = narrowed
    return span
