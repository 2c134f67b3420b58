"""Layer 3: payment cards, bank accounts and national ids.

A form that proves itself (check letter, grouping, two check digits) is enough; a run of digits counts only
beside a word that names its kind, since one number in ten passes a single check digit.
"""

from __future__ import annotations

from collections.abc import Callable

from onward.capture.redaction import validators as v
from onward.capture.redaction.rule import Check, Rule, Span, whole
from onward.capture.redaction.surroundings import LEFT, near, stands_alone, words

Validator = Callable[[str], bool]
_SHAPE = bytes.maketrans(
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"9" * 10 + b"A" * 26
)  # "AB 12" has the shape "AA 99"


def _compact(text: bytes) -> str:
    return text.translate(None, b" -./+").decode("latin-1")


def card(buffer: bytes, first: int, last: int) -> Span | None:
    """A card number that stands alone: no float, no id in a path or a name; a code behind it is not taken."""
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
    """The pattern has each country's length; mod 97 and the surroundings are left to check."""
    alone = stands_alone(buffer, first, last)
    return (first, last) if alone and v.iban(_compact(buffer[first:last])) else None


_BY_SHAPE: dict[bytes, tuple[Validator, ...]] = {
    b"999-99-9999": (v.us_ssn, v.us_itin),
    b"AA999999A": (v.uk_nino,),
    b"AA 99 99 99 A": (v.uk_nino,),
    b"99999999A": (v.es_nif,),
    b"99999999-A": (v.es_nif,),
    b"A9999999A": (v.es_nie,),
    b"A-9999999-A": (v.es_nie,),
    b"AAAAA9999A": (v.in_pan,),
    b"999.999.999-99": (v.br_cpf,),
    b"999999-9999999": (v.kr_rrn,),
    b"99.99.99-999.99": (v.be_national_number,),
    b"99.99.99-999-99": (v.be_national_number,),
    b"999.9999.9999.99": (v.ch_ahv,),
    b"9 99 99 99 999 999 99": (v.fr_nir,),
    b"9 99 99 9A 999 999 99": (v.fr_nir,),
}
"""Forms that need no word beside them."""

_BY_WORD: tuple[tuple[tuple[str, ...], tuple[Validator, ...]], ...] = (
    (("ssn", "social security", "itin", "taxpayer", "tax id", "tin"), (v.us_ssn, v.us_itin)),
    (("nino", "national insurance"), (v.uk_nino,)),
    (("nhs", "national health service"), (v.uk_nhs,)),
    (("sin", "social insurance"), (v.ca_sin,)),
    (
        ("steuer id", "steueridentifikationsnummer", "steuernummer", "idnr", "tin", "tax id"),
        (v.de_steuer_id,),
    ),
    (("dni", "nif", "nie"), (v.es_nif, v.es_nie)),
    (("nir", "insee", "sécurité sociale", "securite sociale", "social security", "vitale"), (v.fr_nir,)),
    (("pesel",), (v.pl_pesel,)),
    (("personnummer", "personnr", "personal number", "samordningsnummer", "pnr"), (v.se_personnummer,)),
    (("aadhaar", "aadhar", "uidai"), (v.in_aadhaar,)),
    (("cpf",), (v.br_cpf,)),
    (("tfn", "tax file"), (v.au_tfn,)),
    (("rrn", "resident registration", "주민등록번호", "주민번호"), (v.kr_rrn,)),
    (("bsn", "burgerservicenummer", "sofinummer"), (v.nl_bsn,)),
    (
        ("rijksregisternummer", "registre national", "national number", "nrn", "insz", "niss"),
        (v.be_national_number,),
    ),
    (("nif", "contribuinte", "número fiscal", "numero fiscal"), (v.pt_nif,)),
    (("ahv", "avs"), (v.ch_ahv,)),
)
_GENERAL = (
    "national id",
    "id number",
    "personal id",
    "identity number",
    "identification number",
    "tax number",
)
_COUNTRIES = tuple((words(*names), checks) for names, checks in _BY_WORD)
_ANY_ID = words(*_GENERAL)
_WITH_CHECK_DIGIT = tuple(
    check for _, checks in _BY_WORD for check in checks if check not in (v.us_ssn, v.us_itin, v.uk_nino)
)
_ANY_WORD = words(*{name for names, _ in _BY_WORD for name in names}, *_GENERAL, "hetu", "henkilötunnus")
_FINNISH = words("hetu", "henkilötunnus", "personal id", "id number")


def national_id(buffer: bytes, first: int, last: int) -> Span | None:
    """An id whose form proves it, or digits that pass the check of a country named near by."""
    text = buffer[first:last]
    if not stands_alone(buffer, first, last):
        return None
    compact = _compact(text)
    proven = _BY_SHAPE.get(text.translate(_SHAPE), ())
    if any(check(compact) for check in proven) and not (proven == (v.es_nif,) and _begins_with_date(compact)):
        return (first, last)
    if len(compact) == 16 and compact.isalnum() and v.it_codice_fiscale(compact):
        return (first, last)
    finnish = len(text) == 11 and v.fi_hetu(text.decode("latin-1"))
    if finnish and (not compact.isdigit() or near(buffer, first, last, _FINNISH)):
        return (first, last)
    if not near(buffer, first, last, _ANY_WORD):
        return None
    for expression, checks in (*_COUNTRIES, (_ANY_ID, _WITH_CHECK_DIGIT)):
        if any(check(compact) for check in checks) and near(buffer, first, last, expression):
            return (first, last)
    return None


def _begins_with_date(compact: str) -> bool:
    """``20260812T``: a day of the last or this century, and not a DNI."""
    year = int(compact[:4])
    return 1900 <= year < 2100 and v.is_date(year, int(compact[4:6]), int(compact[6:8]))


def _iban_pattern() -> str:
    """Each country with its length, compact or grouped by four: no match reaches into what follows."""
    by_length: dict[int, list[str]] = {}
    for country, length in v.IBAN_LENGTH.items():
        by_length.setdefault(length, []).append(country)
    forms = []
    for length, countries in by_length.items():
        groups, rest = divmod(length - 4, 4)
        tail = f"[ -]?[A-Z0-9]{{{rest}}}" if rest else ""
        forms.append(f"(?:{'|'.join(countries)})[0-9]{{2}}(?:[ -]?[A-Z0-9]{{4}}){{{groups}}}{tail}")
    return LEFT + "(" + "|".join(forms) + ")"


_CARD_PATTERN = (
    LEFT + r"([2-9][0-9]{12,18}"
    r"|[2-9][0-9]{3}(?: [0-9]{4}){3}(?: [0-9]{1,3})?|[2-9][0-9]{3}(?:-[0-9]{4}){3}(?:-[0-9]{1,3})?"
    r"|3[0-9]{3}[ -][0-9]{6}[ -][0-9]{4,5}|[56][0-9]{5} [0-9]{10,13})"
)
_NATIONAL_PATTERN = (
    LEFT + r"([0-9]{3}-[0-9]{2}-[0-9]{4}|[A-Z]{2} ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-D]"
    r"|[A-Z]{6}[0-9L-V]{2}[A-Z][0-9L-V]{2}[A-Z][0-9L-V]{3}[A-Z]"
    r"|[A-Z]{5}[0-9]{4}[A-Z]|[XYZ]-?[0-9]{7}-?[A-Z]|[0-9]{8}-?[A-Z]"
    r"|[0-9]{6}-[0-9]{7}|[0-9]{6}[+A-FU-Y-][0-9]{3}[0-9A-Y]|[0-9]{8}[+-][0-9]{4}"
    r"|[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}|[0-9]{2}\.[0-9]{2}\.[0-9]{2}-[0-9]{3}[.-][0-9]{2}"
    r"|756\.[0-9]{4}\.[0-9]{4}\.[0-9]{2}|[1-8] [0-9]{2} [0-9]{2} [0-9][0-9AB] [0-9]{3} [0-9]{3} [0-9]{2}"
    r"|[0-9]{4}[ -][0-9]{4}[ -][0-9]{4}|[0-9]{2} [0-9]{3} [0-9]{3} [0-9]{3}"
    r"|[0-9]{3}[ -][0-9]{3}[ -][0-9]{3,4}|[0-9]{3} [0-9]{2} [0-9]{4}|[0-9]{8,15})"
)

CHECKS: dict[str, Check] = {"card": card, "iban": iban, "national_id": national_id}

_VISA = "4111" + "1111" * 3
_AMEX = "3782" + "822463" + "10005"
_IBAN = "DE89" + "3704" + "0044" + "0532" + "0130" + "00"
_SSN = "536" + "-22-" + "8726"


def _grouped(text: str, *sizes: int, by: str = " ") -> str:
    parts, at = [], 0
    for size in sizes:
        parts.append(text[at : at + size])
        at += size
    return by.join(part for part in parts if part)


RULES: tuple[Rule, ...] = (
    Rule(
        "CARD",
        _CARD_PATTERN,
        3,
        take="group",
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
    Rule(
        "IBAN",
        _iban_pattern(),
        3,
        take="group",
        checks=("iban",),
        same="alnum",
        positives=(
            *whole(_IBAN, _grouped(_IBAN, 4, 4, 4, 4, 4, 2)),
            (_grouped(_IBAN, 4, 4, 4, 4, 4, 2) + " BIC COBA", _grouped(_IBAN, 4, 4, 4, 4, 4, 2)),
        ),
        negatives=(_IBAN[:-1] + "1", "sha512-" + _IBAN + "x", "XX" + _IBAN[2:]),
    ),
    Rule(
        "NATIONAL_ID",
        _NATIONAL_PATTERN,
        3,
        take="group",
        checks=("national_id",),
        same="alnum",
        positives=(
            *whole(_SSN, "AB 12 34 56" + " C", "1234567" + "8Z", "RSSMRA85" + "T10A562S", "131052" + "-308T"),
            *whole("529.982." + "247-25", "756.9217" + ".0769.85", "1 85 05 78 006" + " 084 91"),
            ("NHS number: 943 476" + " 5919", "943 476" + " 5919"),
            ("her SIN is 123 456" + " 782", "123 456" + " 782"),
            ('{"aadhaar": "2341 2341' + ' 2346"}', "2341 2341" + " 2346"),
            ("pesel=44051" + "401359", "44051" + "401359"),
        ),
        negatives=(
            "000-12-3456 and 666-12-3456 are no SSN",
            "on 20260812T1000 and 20060102Z",
            "943 476 5919, 44051401359, 123456782 without a word",
            "the NHS has 943 476 5918 visitors",
            "hosted-eu-20260812-09",
        ),
    ),
)
