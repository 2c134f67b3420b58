"""``redact``: rules over all leaves, then every found secret everywhere, until nothing changes.

Know before changing: replacing text moves token boundaries, so changed leaves are scanned again until
a scan finds nothing; that is what makes a second run a no-op. Errors never carry document text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import re2

from onward.capture.redaction import spread, values
from onward.capture.redaction.names import NameClass
from onward.capture.redaction.rules import policy_version
from onward.capture.redaction.scan import Hit, scan
from onward.capture.redaction.walk import Leaf, Path, Walk
from onward.errors import RedactionError

POLICY_VERSION = policy_version()
_MAX_ROUNDS = 6
_PLACEHOLDERS = re2.compile(values.PLACEHOLDER.encode())


@dataclass(frozen=True)
class Redacted:
    """``counts``: replaced places per kind. ``touched``: paths, in ``document``, of values and keys that
    changed."""

    document: Any
    counts: dict[str, int] = field(default_factory=dict)
    touched: set[Path] = field(default_factory=set)

    @property
    def changed(self) -> bool:
        return bool(self.touched)


def redact(
    document: dict[str, Any] | list[Any] | str,
    *,
    fixed_keys: frozenset[str] = frozenset(),
    fixed_values: frozenset[str] = frozenset(),
) -> Redacted:
    """A copy of ``document`` without secrets; the same value gets the same ``<KIND:n>`` everywhere in it.

    ``fixed_keys`` and ``fixed_values`` are words of a contract (field names, enum members) that stay even
    where they happen to equal a found secret. Raises RedactionError for anything that goes wrong: the
    document must then be held back.
    """
    try:
        return _redact(document, fixed_keys, fixed_values)
    except RedactionError:
        raise
    except Exception as error:
        kind = type(error).__name__
    raise RedactionError(f"The redactor failed ({kind}); the document is held back.")


def _redact(document: Any, fixed_keys: frozenset[str], fixed_values: frozenset[str]) -> Redacted:
    walk = Walk(document, fixed_keys)
    book = _Book()
    touched: dict[int, Leaf] = {}
    pending = walk.leaves
    for _ in range(_MAX_ROUNDS):
        buffer, starts = _join(pending)
        hits = scan(buffer) + _governed(pending, starts)
        if not hits:
            break
        pairs = _per_leaf(_settle(hits), starts)
        found = [(pending[i], start, end, kind) for i, start, end, kind in pairs]
        book.start(walk.leaves)
        changed = _replace(walk.leaves, found, book, fixed_values)
        touched.update((id(leaf), leaf) for leaf in changed)
        pending = changed
        if not changed:
            break
    else:
        raise RedactionError("The redactor did not come to an end; the document is held back.")
    if touched:
        walk.write_back()
    paths = {leaf.node.path() if leaf.node else () for leaf in touched.values()}
    return Redacted(walk.root, dict(book.counts), paths)


class _Book:
    """Which secret has which placeholder in this document. Lives in memory only."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._names: dict[bytes, str] = {}
        self._numbers: Counter[str] = Counter()
        self._started = False

    def start(self, leaves: Iterable[Leaf]) -> None:
        """Number on from the placeholders that the document already holds."""
        if self._started:
            return
        self._started = True
        text = b"\x00".join(_encode(leaf.text) for leaf in leaves if "<" in leaf.text)
        for match in _PLACEHOLDERS.finditer(text):
            first, last = match.span()
            kind, _, number = text[first + 1 : last - 1].decode().partition(":")
            self._numbers[kind] = max(self._numbers[kind], int(number))

    def name(self, value: bytes, kind: str) -> str:
        """The placeholder of ``value``; equal under any of its encodings."""
        same = {form.lower() if kind == "EMAIL" else form for form in spread.forms(value)} | {value}
        for form in same:
            if form in self._names:
                return self._names[form]
        self._numbers[kind] += 1
        placeholder = f"<{kind}:{self._numbers[kind]}>"
        self._names.update(dict.fromkeys(same, placeholder))
        return placeholder


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _join(leaves: list[Leaf]) -> tuple[bytes, list[int]]:
    """The joined texts as bytes, and the byte offset at which each leaf begins."""
    parts = [_encode(leaf.text) for leaf in leaves]
    starts, at = [], 0
    for part in parts:
        starts.append(at)
        at += len(part) + 1
    return b"\x00".join(parts), starts


def _governed(leaves: list[Leaf], starts: list[int]) -> list[Hit]:
    """Values under a secret-named key."""
    hits = []
    for leaf, start in zip(leaves, starts, strict=True):
        if leaf.governed is None:
            continue
        span = governed_span(_encode(leaf.text), leaf.governed)
        if span:
            hits.append(Hit(start + span[0], start + span[1], leaf.governed, 2))
    return hits


def governed_span(value: bytes, kind: NameClass) -> tuple[int, int] | None:
    """The secret part of a dict value: all of it, or what follows ``Bearer``."""
    scheme, space, rest = value.partition(b" ")
    if space and scheme.lower().decode("latin-1") in values.SCHEMES:
        if values.is_reference(rest.strip()) or len(rest.strip()) < 6:
            return None
        return len(value) - len(rest.lstrip()), len(value.rstrip())
    if not values.is_secret_value(value, kind, how="key"):
        return None
    left = len(value) - len(value.lstrip(b" \t\r\n"))
    return left, len(value.rstrip(b" \t\r\n"))


def _settle(hits: list[Hit]) -> list[Hit]:
    """Overlaps resolved: tokens and structure merge into one span, personal data gives way."""
    strong = sorted((h for h in hits if h.layer < 3), key=lambda h: (h.start, -h.end, h.layer))
    settled: list[Hit] = []
    for hit in strong:
        last = settled[-1] if settled else None
        if last is None or hit.start >= last.end:
            settled.append(hit)
        elif hit.end > last.end:
            settled[-1] = Hit(last.start, hit.end, last.kind, last.layer)
    ends = [hit.end for hit in settled]
    free = []
    for hit in sorted((h for h in hits if h.layer == 3), key=lambda h: (h.start, -h.end)):
        i = bisect_right(ends, hit.start)
        clear = i == len(settled) or settled[i].start >= hit.end
        if clear and (not free or hit.start >= free[-1].end):
            free.append(hit)
    return sorted(settled + free, key=lambda h: h.start)


def _per_leaf(hits: list[Hit], starts: list[int]) -> list[tuple[int, int, int, str]]:
    placed = []
    for hit in hits:
        i = bisect_right(starts, hit.start) - 1
        if i + 1 < len(starts) and hit.end >= starts[i + 1]:
            raise RedactionError("A redaction rule matched across two texts; the document is held back.")
        placed.append((i, hit.start - starts[i], hit.end - starts[i], hit.kind))
    return placed


def _replace(
    leaves: list[Leaf], found: list[tuple[Leaf, int, int, str]], book: _Book, fixed_values: frozenset[str]
) -> list[Leaf]:
    """Put placeholders for what was found, and for every other place where it stands."""
    spans: dict[int, list[tuple[int, int, str, bool]]] = {}
    wanted: dict[bytes, spread.Needle] = {}
    names: dict[bytes, str] = {}
    for leaf, start, end, kind in found:
        value = _encode(leaf.text)[start:end]
        names[value] = book.name(value, kind)
        spans.setdefault(id(leaf), []).append((start, end, names[value], True))
        if value.decode("utf-8", "replace") not in fixed_values:
            wanted.update({needle.text: needle for needle in spread.needles(value)})
    buffer, starts = _join(leaves)
    kept = sorted(match.span() for match in _PLACEHOLDERS.finditer(buffer)) if b"<" in buffer else []
    for start, end, needle in spread.find(buffer, wanted.values()):
        i = bisect_right(starts, start) - 1
        leaf = leaves[i]
        if leaf.text in fixed_values or _overlaps(kept, start, end):
            continue
        spans.setdefault(id(leaf), []).append(
            (start - starts[i], end - starts[i], names[needle.value], False)
        )
    changed = []
    for leaf in leaves:
        if id(leaf) in spans:
            leaf.text = _rewrite(_encode(leaf.text), spans[id(leaf)], book.counts)
            changed.append(leaf)
    return changed


def _overlaps(spans: list[tuple[int, int]], start: int, end: int) -> bool:
    i = bisect_right(spans, (start, end))
    return (i > 0 and spans[i - 1][1] > start) or (i < len(spans) and spans[i][0] < end)


def _rewrite(text: bytes, spans: list[tuple[int, int, str, bool]], counts: Counter[str]) -> str:
    """``spans`` may overlap: one that was found goes first, then the longest; the rest of an overlap goes
    with it."""
    spans.sort(key=lambda s: (s[0], not s[3], -s[1]))
    out: list[bytes] = []
    at = 0
    for start, end, placeholder, _ in spans:
        if start < at:
            if end > at:
                at = end
            continue
        out += [text[at:start], placeholder.encode()]
        counts[placeholder[1:].partition(":")[0]] += 1
        at = end
    out.append(text[at:])
    return b"".join(out).decode("utf-8", "surrogatepass")
