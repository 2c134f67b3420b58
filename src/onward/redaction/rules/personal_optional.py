"""Kinds of layer 3 that are off by default, and the interface for an entity finder.

Wallets, seed phrases, coordinates, dates of birth and passports are everyday data for some teams and secrets
for others. ``optional(kinds)`` makes a finder of the chosen ones for ``redact(..., also=[…])``. Licence
plates look like product codes and are left out. Coordinates are found in text alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from onward.errors import ConfigError
from onward.redaction.expressions import compiled
from onward.redaction.judging import wallets
from onward.redaction.judging.checks import may_start
from onward.redaction.judging.surroundings import LEFT, stands_alone, word_pattern
from onward.redaction.judging.validators import is_date
from onward.redaction.rule import Check, Hit, Rule, Span, body, personal_rule, whole

Finder = Callable[[bytes], list[Hit]]
"""Function that returns the hits in a buffer of texts joined by NUL."""
_PHRASE_SIZES = (12, 15, 18, 21, 24)
_NO_SEED_WORDS = frozenset(
    b"the and for are was not has had from can your which were been their will".split()
)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]


class EntityFinder(Protocol):
    """Finds names, places and similar entities in free text, for example with a model. Yields (first, last,
    kind) in characters. ``kind`` is upper case with underscores; it names the placeholder."""

    def __call__(self, text: str) -> Iterable[tuple[int, int, str]]: ...


def optional(kinds: Iterable[str]) -> Finder:
    """Makes a finder of optional kinds. Raises ConfigError for an unknown kind."""
    rules = []
    for kind in kinds:
        if kind not in OPTIONAL:
            raise ConfigError(f"Optional kind {kind!r} was given; expected one of {', '.join(OPTIONAL)}.")
        rules += [(rule, compiled(rule.pattern), CHECKS[rule.checks[0]]) for rule in OPTIONAL[kind]]

    def find(buffer: bytes) -> list[Hit]:
        hits = []
        for rule, expression, check in rules:
            for match in expression.finditer(buffer):
                span = check(buffer, *match.span(1 if rule.take == "group" else 0))
                if span is not None:
                    hits.append(Hit(span[0], span[1], rule.kind, rule.layer))
        return hits

    return find


def entities(finder: EntityFinder) -> Finder:
    """Makes a ``Finder`` that applies ``finder`` to each text of a document."""

    def find(buffer: bytes) -> list[Hit]:
        hits, at = [], 0
        for part in buffer.split(b"\x00"):
            text = part.decode("utf-8", "surrogatepass")
            for first, last, kind in finder(text):
                start = at + len(text[:first].encode("utf-8", "surrogatepass"))
                hits.append(
                    Hit(start, start + len(text[first:last].encode("utf-8", "surrogatepass")), kind, 3)
                )
            at += len(part) + 1
        return hits

    return find


def wallet(buffer: bytes, first: int, last: int) -> Span | None:
    text = buffer[first:last].decode("latin-1")
    right = wallets.bitcoin_base58(text) or wallets.bitcoin_bech32(text) or wallets.ethereum(text)
    return (first, last) if right and stands_alone(buffer, first, last) else None


def seed_phrase(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts as many words as BIP-39 has, each of 3 to 8 letters, after a word that names a seed phrase."""
    found = buffer[first:last].split()
    if buffer[last : last + 1].isalnum() or buffer[last + 1 : last + 2].islower():
        return None
    if len(found) not in _PHRASE_SIZES or len(set(found)) < len(found) - 3:
        return None
    return None if _NO_SEED_WORDS.intersection(found) else (first, last)


def coordinates(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts latitude and longitude in degrees, with four decimals or more (a precision of ten metres)."""
    text = buffer[first:last].replace(b",", b" ").replace(b";", b" ").split()
    if len(text) != 2 or not stands_alone(buffer, first, last):
        return None
    latitude, longitude = (float(part) for part in text)
    return (first, last) if abs(latitude) <= 90 and abs(longitude) <= 180 else None


def birth_date(buffer: bytes, first: int, last: int) -> Span | None:
    text = buffer[first:last].decode("latin-1")
    if not stands_alone(buffer, first, last):
        return None
    parts = text.replace(".", " ").replace("/", " ").replace("-", " ").replace(",", " ").split()
    return (first, last) if len(parts) == 3 and any(_is_birthday(p) for p in _orders(parts)) else None


def _orders(parts: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yields (year, month, day) for dates written year first, day first or month first."""
    a, b, c = parts
    yield a, b, c
    yield c, b, a
    yield c, a, b


def _is_birthday(date: tuple[str, str, str]) -> bool:
    year, month, day = date
    number = str(_MONTHS.index(month[:3].lower()) + 1) if month[:3].lower() in _MONTHS else month
    if not (year.isdigit() and number.isdigit() and day.isdigit() and len(year) == 4):
        return False
    return 1900 <= int(year) < 2100 and is_date(int(year), int(number), int(day))


def passport(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts the second line of the machine-readable zone, or a number after the word."""
    text = buffer[first:last].decode("latin-1")
    if not may_start(buffer, first):
        return None
    if len(text) == 44:
        return (first, last) if wallets.passport_line(text) else None
    digits = sum(c.isdigit() for c in text)
    return (first, last) if digits >= 5 and stands_alone(buffer, first, last) else None


CHECKS: dict[str, Check] = {
    check.__name__: check for check in (wallet, seed_phrase, coordinates, birth_date, passport)
}

_ETHEREUM = "0x5aAeb6053F3E94C9b9A09f33" + "669435E7Ef1BeAed"
_ICAO = "L898902C36UTO7408122" + "F1204159ZE184226B<<<<<10"
_WORDS = "legal winner thank year wave sausage worth useful legal winner thank yellow"
_GAP = r"[^\x00a-zA-Z0-9]{1,12}(?:is|was|number|no|am|on|le|of)?[^\x00a-zA-Z0-9-]{0,4}"
_PLACE = word_pattern("gps", "coordinates", "location", "position", "lat", "latlng", "geo", "koordinaten")
_BIRTH = word_pattern(
    "date of birth", "dob", "born", "birth date", "birthday", "birthdate", "geburtsdatum", "geboren"
)
_MONTH = r"[A-Za-z]{3,9}\.?"

OPTIONAL: dict[str, tuple[Rule, ...]] = {
    "WALLET": (
        personal_rule(
            "WALLET",
            LEFT + r"([13][1-9A-HJ-NP-Za-km-z]{25,34}|0x[0-9a-fA-F]{40}"
            r"|(?:bc1|BC1)[02-9ac-hj-np-zAC-HJ-NP-Z]{11,87})",
            checks=("wallet",),
            positives=(("to " + _ETHEREUM, _ETHEREUM),),
            negatives=("to " + _ETHEREUM.lower(), "commit 0x" + body(40, "0a1b2c3d4e5f")),
        ),
    ),
    "SEED_PHRASE": (
        personal_rule(
            "SEED_PHRASE",
            r"(?i:seed phrase|recovery phrase|mnemonic(?: phrase)?|seed words)[^\x00a-zA-Z]{1,12}"
            r"(?:is[^\x00a-zA-Z]{1,4})?([a-z]{3,8}(?:[ \n]{1,2}[a-z]{3,8}){11,23})",
            checks=("seed_phrase",),
            positives=(("seed phrase: " + _WORDS + ".", _WORDS),),
            negatives=("the mnemonic is a word that helps you to remember the longer thing which was said",),
        ),
    ),
    "GPS": (
        personal_rule(
            "GPS",
            rf"(?:{_PLACE})"
            r"[^\x00a-zA-Z0-9-]{0,12}(?:(?:is|at|lon|lng|long)[^\x00a-zA-Z0-9-]{0,6}){0,2}"
            r"(-?[0-9]{1,2}\.[0-9]{4,15}[,; ]{1,3}-?[0-9]{1,3}\.[0-9]{4,15})",
            checks=("coordinates",),
            positives=(("location: 52.5200" + "08, 13.4049" + "54", "52.5200" + "08, 13.4049" + "54"),),
            negatives=("loss 52.520008, 13.404954", "location: 99.1234, 181.1234"),
        ),
    ),
    "DATE_OF_BIRTH": (
        personal_rule(
            "DATE_OF_BIRTH",
            rf"(?:{_BIRTH}){_GAP}([0-9]{{4}}[-./][0-9]{{1,2}}[-./][0-9]{{1,2}}|[0-9]{{1,2}}[-./][0-9]{{1,2}}[-./][0-9]{{4}}"
            rf"|[0-9]{{1,2}}\.? {_MONTH} [0-9]{{4}}|{_MONTH} [0-9]{{1,2}},? [0-9]{{4}})",
            checks=("birth_date",),
            positives=(
                ("DOB: 1980" + "-08-12", "1980" + "-08-12"),
                ("she was born on 12 August" + " 1980", "12 August" + " 1980"),
                ('"dateOfBirth": "08/12' + '/1980"', "08/12" + "/1980"),
            ),
            negatives=("created on 1980-08-12", "DOB: 1980-13-42"),
        ),
    ),
    "PASSPORT": (
        personal_rule(
            "PASSPORT",
            r"[A-Z0-9][A-Z0-9<]{8}[0-9][A-Z<]{3}[0-9]{7}[MFX<][0-9]{7}[A-Z0-9<]{14}[0-9<][0-9]",
            take="match",
            checks=("passport",),
            positives=whole(_ICAO),
            negatives=(_ICAO[:-1] + "1",),
        ),
        personal_rule(
            "PASSPORT",
            r"(?i:passport|reisepass|passeport|pasaporte)(?i:[ _-]?(?:number|no|nr|num|nummer))?"
            r"[^\x00a-zA-Z0-9]{1,8}(?:is )?([A-Z0-9]{6,9})",
            checks=("passport",),
            positives=(("passport no. C01X0" + "0T47", "C01X0" + "0T47"),),
            negatives=("passport control", "passport 2026"),
        ),
    ),
}
