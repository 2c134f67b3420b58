"""``redact``: applies the rules to all texts, then replaces every found secret everywhere, until nothing
changes.

Invariants: replacing text moves token boundaries, so changed texts are scanned again until a scan finds
nothing. A second run therefore changes nothing. Errors never contain document text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any, NamedTuple

from onward.errors import ConfigError, RedactionError
from onward.redaction import decode, placeholders
from onward.redaction import propagation as spread
from onward.redaction.document import NOTHING_FIXED, Fixed, Key, Path, Texts, collect, rebuild
from onward.redaction.json_numbers import Numbers
from onward.redaction.judging.assigned_values import governed_spans
from onward.redaction.known import NOTHING_KNOWN, Known
from onward.redaction.placeholders import Book
from onward.redaction.propagation import as_number, same_number
from onward.redaction.rules.catalogue import SAME, policy_version
from onward.redaction.rules.personal_optional import Finder
from onward.redaction.scan import Hit, scan

POLICY_VERSION = policy_version()
_MAX_ROUNDS = 8
_MIN_TENANT_KEY = 16
Allows = Callable[[bytes, str], bool]
"""Function from a found value and its kind to whether it stays."""


@dataclass(frozen=True)
class Redacted:
    """``document``: the input object if nothing changed, else a copy. ``counts``: replaced places per kind.
    ``touched``: paths, in ``document``, of changed values and keys."""

    document: Any
    counts: dict[str, int] = field(default_factory=dict)
    touched: set[Path] = field(default_factory=set)
    policy_version: str = POLICY_VERSION
    _book: Book | None = field(default=None, repr=False, compare=False)

    @property
    def changed(self) -> bool:
        return bool(self.touched)

    def report(self, tenant_key: bytes | None = None) -> dict[str, Any]:
        """Returns a summary without any value: policy version, counts per kind, number of texts that changed.

        With a ``tenant_key`` of at least 16 bytes also ``links``: a tag per placeholder, equal for equal
        values in all documents of the tenant. Raises ConfigError for a shorter key.
        """
        report: dict[str, Any] = {
            "policy_version": self.policy_version,
            "counts": dict(self.counts),
            "texts": len(self.touched),
        }
        if tenant_key is not None:
            check_tenant_key(tenant_key)
            report["links"] = self._book.links(tenant_key) if self._book else {}
        return report


def check_tenant_key(key: bytes) -> None:
    """Raises ConfigError for a key under 16 bytes."""
    if len(key) < _MIN_TENANT_KEY:
        raise ConfigError(
            f"A tenant key of {len(key)} bytes was given; give at least {_MIN_TENANT_KEY}, "
            "so that nobody can guess it."
        )


def redact(
    document: dict[str, Any] | list[Any] | str,
    *,
    known: Known = NOTHING_KNOWN,
    also: Sequence[Finder] = (),
    fixed: Fixed = NOTHING_FIXED,
    fixed_values: frozenset[str] = frozenset(),
    allows: Allows | None = None,
) -> Redacted:
    """Returns ``document`` without secrets; the same value gets the same ``<KIND:n>`` everywhere in it.

    ``known`` are secrets of the client, replaced wherever they occur. ``also`` are finders besides the rules
    (``rules/personal_optional.py``). ``fixed`` and ``fixed_values`` are words of a contract (field names,
    enum members) that stay even where they equal a found secret. ``allows`` decides from a value and its
    kind whether it stays although a rule finds it. Raises RedactionError for any failure: the
    document must then not be written.
    """
    try:
        return _redact(document, known, also, fixed, fixed_values, allows)
    except RedactionError:
        raise
    except Exception as error:
        kind = type(error).__name__
    raise RedactionError(f"The redactor failed ({kind}); the document is held back.")


def _redact(
    document: Any,
    known: Known,
    also: Sequence[Finder],
    fixed: Fixed,
    fixed_values: frozenset[str],
    allows: Allows | None,
) -> Redacted:
    texts = collect(document, fixed.keys)
    plain = texts.plain()
    buffer = _encode("\x00".join(plain))
    hits = _found(buffer, known, also)
    if not hits and not texts.under and not known.numbers:
        return Redacted(document)
    work = _Work(texts, plain, buffer, fixed_values)
    pending: Sequence[int] = range(len(plain))
    hits = work.governed(pending, work.starts) + hits  # first: of equal spans the first names the kind
    hits = _not_allowed(hits, buffer, allows)
    starts = work.starts
    for _ in range(_MAX_ROUNDS):
        if not hits:
            break
        pending = work.replace(_per_text(_settle(hits), buffer, starts, pending), hits)
        buffer, starts = work.join(pending)
        hits = work.governed(pending, starts) + _found(buffer, known, also)
        hits = _not_allowed(hits, buffer, allows)
    else:
        raise RedactionError("The redactor did not come to an end; the document is held back.")
    new = work.changed()
    number = work.numbers(known)
    if not new and number is None:
        return Redacted(document)
    copy, paths, places, numbers = rebuild(document, texts, new, number, fixed)
    if not paths:
        return Redacted(document)
    return Redacted(copy, work.counts(places, numbers), paths, _book=work.book)


def _found(buffer: bytes, known: Known, also: Sequence[Finder]) -> list[Hit]:
    def find(buffer: bytes) -> list[Hit]:
        return scan(buffer) + known.find(buffer) + [hit for finder in also for hit in finder(buffer)]

    hits = find(buffer)
    escaped = decode.unescaped(buffer)
    if escaped is not None:
        hits += escaped.hits(find)
    kept = placeholders.spans(buffer) if hits else []
    return [hit for hit in hits if not placeholders.cut(kept, hit.start, hit.end)] if kept else hits


def _not_allowed(hits: list[Hit], buffer: bytes, allows: Allows | None) -> list[Hit]:
    """Returns the hits whose value is not on the allow list. Known secrets always go."""
    if allows is None:
        return hits

    def stays(hit: Hit) -> bool:
        value = buffer[hit.start : hit.end] if hit.value is None else hit.value
        return hit.layer > 0 and allows(value, hit.kind)

    return [hit for hit in hits if not stays(hit)]


class _Span(NamedTuple):
    """Bytes ``start``..``end`` of one text stand for ``value``. ``found``: by a rule, not by propagation."""

    start: int
    end: int
    value: bytes
    found: bool


class _Work:
    """The texts of one document during redaction."""

    def __init__(self, texts: Texts, plain: list[str], buffer: bytes, fixed_values: frozenset[str]) -> None:
        self.keys = texts.keys
        self.book = Book(SAME, spread.forms)
        self.book.go_on_after(buffer)
        self._fixed = fixed_values
        self._plain = plain
        self._parts: dict[int, bytes] = {}
        self._kinds: dict[bytes, str] = {}
        self._buffer = buffer
        if buffer.isascii():
            sizes = map(len, plain)
        else:
            sizes = (len(text) if text.isascii() else len(_encode(text)) for text in plain)
        self.starts = list(accumulate((size + 1 for size in sizes), initial=0))[:-1]
        self._under = [i for i, key in enumerate(self.keys) if type(key) is not str] if texts.under else []

    def text(self, index: int) -> bytes:
        part = self._parts.get(index)
        return _encode(self._plain[index]) if part is None else part

    def join(self, indexes: Iterable[int]) -> tuple[bytes, list[int]]:
        parts = [self.text(i) for i in indexes]
        return b"\x00".join(parts), list(accumulate((len(p) + 1 for p in parts), initial=0))[:-1]

    def governed(self, indexes: Sequence[int], starts: list[int]) -> list[Hit]:
        """Returns the values under keys with a secret name."""
        if not self._under:
            return []
        at = dict(zip(indexes, starts, strict=True)) if len(indexes) < len(self.keys) else starts
        hits = []
        for i in self._under:
            if isinstance(at, dict) and i not in at:
                continue
            start = at[i]
            mark = self.keys[i][1]
            if isinstance(mark, tuple):
                spans = [] if i in self._parts else [mark]
            else:
                spans = governed_spans(self.text(i), mark)  # type: ignore[arg-type]
            for first, last, kind in spans:
                hits.append(Hit(start + first, start + last, kind, 2, None))
        return hits

    def replace(self, found: dict[int, list[tuple[_Span, str]]], hits: list[Hit]) -> list[int]:
        """Replaces the hits, and every other occurrence of their values, by placeholders."""
        wanted: dict[bytes, str] = {}
        spans: dict[int, list[_Span]] = {}
        names: set[bytes] = set()
        for index, here in found.items():
            text = self.text(index)
            for span, kind in here:
                if kind == "URL_PASSWORD" and spread.names_its_url(text, span.start, span.end):
                    names.add(span.value)
                self._kinds.setdefault(span.value, kind)
                spans.setdefault(index, []).append(span)
                _want(wanted, span.value, kind)
        for hit in hits:
            if hit.value is not None:
                self._kinds.setdefault(hit.value, hit.kind)
                if hit.layer:
                    _want(wanted, hit.value, hit.kind)
                else:
                    wanted.pop(hit.value, None)  # known secrets were already searched in every form
        if self._fixed:
            wanted = {v: k for v, k in wanted.items() if v.decode("utf-8", "replace") not in self._fixed}
        for name in names:
            wanted.pop(name, None)
        self._propagate(wanted, spans)
        for index in sorted(spans):
            self._parts[index] = self._rewrite(self.text(index), spans[index])
        return sorted(spans)

    def _propagate(self, wanted: dict[bytes, str], spans: dict[int, list[_Span]]) -> None:
        needles = {needle.text: needle for v, kind in wanted.items() for needle in spread.needles(v, kind)}
        if not needles:
            return
        buffer, starts = self.join(range(len(self.keys))) if self._parts else (self._buffer, self.starts)
        kept = placeholders.spans(buffer)
        found = spread.find(buffer, needles)
        escaped = decode.unescaped(buffer)
        if escaped is not None:
            found = chain(
                found, ((*escaped.place(a, b), n) for a, b, n in spread.find(escaped.text, needles))
            )
        for start, end, needle in found:
            i = bisect_right(starts, start) - 1
            if placeholders.overlap(kept, start, end) or (self._fixed and self._plain[i] in self._fixed):
                continue
            spans.setdefault(i, []).append(_Span(start - starts[i], end - starts[i], needle.value, False))

    def _rewrite(self, text: bytes, spans: list[_Span]) -> bytes:
        """Replaces ``spans``, which may overlap: a found span wins, then the longest. The rest of an overlap
        is removed with it. A JSON number is replaced whole, by text in quotes. A number that only contains
        the digits of a value found elsewhere is a different number: it stays."""
        spans.sort(key=lambda span: (span.start, not span.found, -span.end))
        out: list[bytes] = []
        numbers = Numbers(text)
        at = 0
        for span in spans:
            if span.start < at:
                at = max(at, span.end)
                continue
            number = numbers.around(span.start, span.end)
            if number is None:
                first, last, quote = span.start, span.end, b""
            elif span.found or same_number(text[number.first : number.last], span.value):
                first, last, quote = number
            else:
                continue
            name = self.book.name(span.value, self._kinds[span.value]).encode()
            out += [text[at:first], quote, name, quote]
            at = last
        out.append(text[at:])
        return b"".join(out)

    def changed(self) -> dict[Key, str]:
        return {self.keys[i]: part.decode("utf-8", "surrogatepass") for i, part in self._parts.items()}

    def numbers(self, known: Known) -> Callable[[float], str | None] | None:
        """Returns a function from a number to its placeholder, if it is a secret; None without any."""
        found = dict(known.numbers)
        for value, kind in self._kinds.items():
            number = as_number(value)
            if number is not None:
                found.setdefault(number, (value, kind))
        if not found:
            return None

        def name(number: float) -> str | None:
            secret = found.get(number) or found.get(abs(number))
            return None if secret is None else self.book.name(*secret)

        return name

    def counts(self, places: Counter[Key], numbers: Counter[str]) -> dict[str, int]:
        total: Counter[str] = Counter()
        for placeholder, times in numbers.items():
            total.update({kind: n * times for kind, n in placeholders.count(_encode(placeholder)).items()})
        for i in sorted(self._parts):
            times = places[self.keys[i]]
            new = placeholders.count(self._parts[i])
            new.subtract(placeholders.count(_encode(self._plain[i])))
            for kind, number in new.items():
                if number > 0:
                    total[kind] += number * times
        return dict(total)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _want(wanted: dict[bytes, str], value: bytes, kind: str) -> None:
    """Adds a value to propagate. A value that is both a user name and a password counts as a password,
    unless it can be read as a word: then it is replaced where a user name can stand."""
    other = wanted.get(value, kind)
    if other != kind and "USER" in (other, kind):
        secret = kind if other == "USER" else other
        word = spread.may_be_word(value) or spread.may_be_common(value, secret)
        wanted[value] = "USER" if word else secret
    else:
        wanted.setdefault(value, kind)


def _settle(hits: list[Hit]) -> list[Hit]:
    """Resolves overlaps: tokens and structure merge into one span, personal data loses to them."""
    strong = sorted((h for h in hits if h.layer < 3), key=lambda h: (h.start, -h.end, h.layer))
    settled: list[Hit] = []
    for hit in strong:
        last = settled[-1] if settled else None
        if last is None or hit.start >= last.end:
            settled.append(hit)
        elif hit.end > last.end:
            settled[-1] = Hit(last.start, hit.end, last.kind, last.layer, None)
    ends = [hit.end for hit in settled]
    free: list[Hit] = []
    for hit in sorted((h for h in hits if h.layer == 3), key=lambda h: (h.start, -h.end)):
        i = bisect_right(ends, hit.start)
        clear = i == len(settled) or settled[i].start >= hit.end
        if clear and (not free or hit.start >= free[-1].end):
            free.append(hit)
    return sorted(settled + free, key=lambda h: h.start)


def _per_text(
    hits: list[Hit], buffer: bytes, starts: list[int], indexes: Sequence[int]
) -> dict[int, list[tuple[_Span, str]]]:
    """Groups hits by text and widens them to whole characters."""
    placed: dict[int, list[tuple[_Span, str]]] = {}
    size = len(buffer)
    for hit in hits:
        first, last = hit.start, hit.end
        while last < size and buffer[last] & 0xC0 == 0x80:
            last += 1
        while first > 0 and buffer[first] & 0xC0 == 0x80:
            first -= 1
        i = bisect_right(starts, first) - 1
        begin = starts[i]
        if i + 1 < len(starts) and last >= starts[i + 1]:
            raise RedactionError("A redaction rule matched across two texts; the document is held back.")
        value = buffer[first:last] if hit.value is None else hit.value
        placed.setdefault(indexes[i], []).append((_Span(first - begin, last - begin, value, True), hit.kind))
    return placed
