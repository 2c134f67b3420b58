"""Layer 3: payment cards and bank accounts, by issuer or country, length and check digits."""

from __future__ import annotations

from onward.redaction.expressions import compiled
from onward.redaction.judging import validators as v
from onward.redaction.judging.surroundings import LEFT, stands_alone
from onward.redaction.rule import Check, Rule, Span, personal_rule, whole


def _compact(text: bytes) -> str:
    return text.translate(None, b" .-").decode("latin-1")


def card(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts a card number that stands alone, not in a path or name. A code after it is left out."""
    groups = buffer[first:last].replace(b"-", b" ").split(b" ")
    shorter = last - len(groups[-1]) - 1 if len(groups) == 5 else last
    last = next((end for end in (last, shorter) if _is_card(buffer, first, end)), -1)
    return None if last < 0 else (first, last)


def _is_card(buffer: bytes, first: int, last: int) -> bool:
    if not stands_alone(buffer, first, last) or not v.payment_card(_compact(buffer[first:last])):
        return False
    in_path = first > 1 and buffer[first - 1] == 0x2F and buffer[first - 2 : first - 1].isalnum()
    return not in_path and buffer[last : last + 1] != b"/"


def iban(buffer: bytes, first: int, last: int) -> Span | None:
    """Checks mod 97 and the surroundings; the pattern already has each country's length.

    With a separator not between groups of four, more than half must be digits: it is no sentence.
    """
    text = buffer[first:last]
    compact = _compact(text)
    if not stands_alone(buffer, first, last) or not v.iban(compact.upper()):
        return None
    before = [len(_compact(text[:i])) for i, c in enumerate(text) if c in b" .-"]
    usual = all(count % 4 == 0 for count in before)
    digits = sum(c.isdigit() for c in compact)
    return (first, last) if (usual and compact.isupper()) or digits * 2 > len(compact) else None


def iban_beside_word(buffer: bytes, first: int, last: int) -> Span | None:
    """Finds an account number in small letters, in any groups, within 90 bytes after the word ``IBAN``."""
    text = buffer[first : first + _IBAN_REACH].partition(b"\x00")[0]
    for match in _IN_SMALL.finditer(text):
        length = v.IBAN_LENGTH.get(match.group()[:2].decode().upper(), 0)
        places = [i for i in range(match.start(), match.end()) if text[i : i + 1].isalnum()][:length]
        number = bytes(text[i] for i in places).decode().upper()
        if length and len(places) == length and v.iban(number):
            start, end = first + places[0], first + places[-1] + 1
            if stands_alone(buffer, start, end):
                return (start, end)
    return None


def _iban_pattern() -> str:
    """Returns a pattern of each country and length, grouped by single signs, without the text after it."""
    by_length: dict[int, list[str]] = {}
    for country, length in v.IBAN_LENGTH.items():
        by_length.setdefault(length, []).append(country)
    forms = []
    for length, countries in by_length.items():
        forms.append(f"(?:{'|'.join(countries)})(?:[ .-]?[0-9]){{2}}(?:[ .-]?[A-Za-z0-9]){{{length - 4}}}")
    return LEFT + "(" + "|".join(forms) + ")"


_CARD_PATTERN = (
    LEFT + r"([2-9][0-9]{12,18}"
    r"|[2-9][0-9]{3}(?: [0-9]{4}){3}(?: [0-9]{1,3})?|[2-9][0-9]{3}(?:-[0-9]{4}){3}(?:-[0-9]{1,3})?"
    r"|3[0-9]{3}[ -][0-9]{6}[ -][0-9]{4,5}|[56][0-9]{5} [0-9]{10,13})"
)
_IBAN_REACH = 90
_IN_SMALL = compiled(rb"\b[A-Za-z]{2}[0-9]{2}(?:[ .-]?[A-Za-z0-9]){11,30}")
CHECKS: dict[str, Check] = {"card": card, "iban": iban, "iban_beside_word": iban_beside_word}

_VISA = "4111" + "1111" * 3
_AMEX = "3782" + "822463" + "10005"
_IBAN = "DE89" + "3704" + "0044" + "0532" + "0130" + "00"


def _grouped(text: str, *sizes: int, by: str = " ") -> str:
    parts, at = [], 0
    for size in sizes:
        parts.append(text[at : at + size])
        at += size
    return by.join(part for part in parts if part)


RULES: tuple[Rule, ...] = (
    personal_rule(
        "CARD",
        _CARD_PATTERN,
        checks=("card",),
        same="digits",
        positives=(
            *whole(_VISA, _grouped(_VISA, 4, 4, 4, 4), _grouped(_VISA, 4, 4, 4, 4, by="-")),
            *whole(_AMEX, _grouped(_AMEX, 4, 6, 5)),
            ("a%20" + _VISA + "%26", _VISA),
        ),
        negatives=(
            "loss 0." + _VISA + " and " + _VISA + "E-5",
            "id_" + _VISA + " and run-" + _VISA + " and /runs/" + _VISA,
            _VISA[:-1] + "2 fails Luhn; 1" + _VISA[1:] + " has no issuer",
            "at 1785000000000 ms, 1785000000000000 us, 1785000000000000000 ns",
        ),
    ),
    personal_rule(
        "IBAN",
        _iban_pattern(),
        checks=("iban",),
        same="alnum",
        positives=(
            *whole(_IBAN, _grouped(_IBAN, 4, 4, 4, 4, 4, 2)),
            (_grouped(_IBAN, 4, 4, 4, 4, 4, 2) + " BIC COBA", _grouped(_IBAN, 4, 4, 4, 4, 4, 2)),
        ),
        negatives=(
            _IBAN[:-1] + "1",
            "sha512-" + _IBAN + "x",
            "XX" + _IBAN[2:],
            _grouped(_IBAN, 4, 9, by="  "),
        ),
    ),
    personal_rule(
        "IBAN",
        r"(?i)\biban\b",
        take="match",
        checks=("iban_beside_word",),
        gate="",
        same="alnum",
        positives=(
            ("my iban is " + _IBAN.lower(), _IBAN.lower()),
            ("IBAN " + _grouped(_IBAN.lower(), 4, 4, 4, 4, 4, 2), _grouped(_IBAN.lower(), 4, 4, 4, 4, 4, 2)),
        ),
        negatives=("my iban is " + _IBAN.lower()[:-1] + "1", "the iban of this account is not known yet"),
    ),
)
