"""Layer 3: national ids of persons.

A form that is proof alone (check letter, grouping, two check digits) is enough. A run of digits counts only
near a word that names its kind, since one number in ten passes a single check digit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from onward.redaction.expressions import compiled
from onward.redaction.judging import validators as v
from onward.redaction.judging.surroundings import LEFT, numbers_beside, stands_alone, word_pattern
from onward.redaction.rule import Check, Rule, Span, personal_rule, whole

Validator = Callable[[str], bool]
_SHAPE = bytes.maketrans(
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"9" * 10 + b"A" * 26
)  # "AB 12" has the shape "AA 99"


def _compact(text: bytes) -> str:
    return text.translate(None, b" -./+").decode("latin-1")


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
"""Forms that need no word near them."""


def _seven_digits(text: str) -> bool:
    """DNI without its leading zero, or the NIF of a person without one (K, L or M before it)."""
    without = text[1:] if text[:1] in ("K", "L", "M") else text
    return len(without) == 8 and v.es_nif("0" + without)


def _hetu(text: str) -> bool:
    """HETU without its century sign; it is then of the last century unless it had a letter."""
    return v.fi_hetu(text) or (len(text) == 10 and v.fi_hetu(text[:6] + "-" + text[6:]))


_BY_WORD: tuple[tuple[tuple[str, ...], tuple[Validator, ...]], ...] = (
    (("ssn", "social security", "itin", "taxpayer", "tax id", "tin"), (v.us_ssn, v.us_itin)),
    (("nino", "national insurance", "ni number"), (v.uk_nino,)),
    (("nhs", "national health service"), (v.uk_nhs,)),
    (("sin", "social insurance"), (v.ca_sin,)),
    (
        ("steuer id", "steueridentifikationsnummer", "steuernummer", "idnr", "tin", "tax id"),
        (v.de_steuer_id,),
    ),
    (("dni", "nif", "nie"), (v.es_nif, v.es_nie, _seven_digits)),
    (("nir", "insee", "sécurité sociale", "securite sociale", "social security", "vitale"), (v.fr_nir,)),
    (("pesel",), (v.pl_pesel,)),
    (("personnummer", "personnr", "personal number", "samordningsnummer", "pnr"), (v.se_personnummer,)),
    (("aadhaar", "aadhar", "uidai"), (v.in_aadhaar,)),
    (("cpf",), (v.br_cpf,)),
    (("tfn", "tax file"), (v.au_tfn,)),
    (("rrn", "resident registration", "주민등록번호", "주민번호"), (v.kr_rrn, v.kr_rrn_since_2020)),
    (("bsn", "burgerservicenummer", "sofinummer"), (v.nl_bsn,)),
    (
        ("rijksregisternummer", "registre national", "national number", "nrn", "insz", "niss"),
        (v.be_national_number,),
    ),
    (("nif", "contribuinte", "número fiscal", "numero fiscal"), (v.pt_nif,)),
    (("ahv", "avs"), (v.ch_ahv,)),
    (("hetu", "henkilötunnus"), (_hetu,)),
    (("pan", "permanent account number"), (v.in_pan,)),
)
_GENERAL = (
    "national id", "id number", "personal id", "identity number", "identification number", "tax number",
)  # fmt: skip
_WITH_CHECK_DIGIT = tuple(
    check for _, checks in _BY_WORD for check in checks if check not in (v.us_ssn, v.us_itin, v.uk_nino)
)


def _by_name() -> dict[bytes, tuple[Validator, ...]]:
    """Validators per word, without separators; the longest word first."""
    found: dict[bytes, tuple[Validator, ...]] = {}
    for names, checks in (*_BY_WORD, (_GENERAL, _WITH_CHECK_DIGIT)):
        for name in names:
            key = name.replace(" ", "").encode()
            found[key] = found.get(key, ()) + checks
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


_BY_NAME = _by_name()


def national_id(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts an id whose form is proof."""
    text = buffer[first:last]
    if not stands_alone(buffer, first, last) or buffer[first - 1 : first] == b"/":
        return None
    compact = _compact(text)
    proven = _BY_SHAPE.get(text.translate(_SHAPE), ())
    if any(check(compact) for check in proven) and not (proven == (v.es_nif,) and _begins_with_date(compact)):
        return (first, last)
    if len(compact) == 16 and v.it_codice_fiscale(compact):
        return (first, last)
    lettered = not compact.isdigit()
    return (first, last) if lettered and len(text) == 11 and v.fi_hetu(text.decode("latin-1")) else None


def _begins_with_date(compact: str) -> bool:
    """Returns whether it begins with a date of the last or this century, so is no DNI: ``20260812T``."""
    year = int(compact[:4])
    return 1900 <= year < 2100 and v.is_date(year, int(compact[4:6]), int(compact[6:8]))


def id_beside_word(buffer: bytes, first: int, last: int) -> Span | None:
    """Finds the first number near a matched word such as ``SSN`` that passes the check of that country."""
    word = buffer[first:last].lower().translate(None, b" _.-")
    checks = next((checks for name, checks in _BY_NAME.items() if name in word), ())
    for start, end in numbers_beside(buffer, first, last, _NUMBER):
        for span in _readings(buffer, start, end):
            if stands_alone(buffer, *span) and any(check(_plain(buffer[slice(*span)])) for check in checks):
                return span
    return None


def _readings(buffer: bytes, start: int, end: int) -> Iterator[Span]:
    """Yields the number as found, and without the text before it (``is 123``) or after it (``123 4 of``)."""
    digit = next(i for i in range(start, end) if 0x30 <= buffer[i] <= 0x39)
    for first in dict.fromkeys((start, digit)):
        last = end
        while last - first >= _SHORTEST:
            yield first, last
            last = max(buffer.rfind(joint, first, last) for joint in (b" ", b"-", b".", b":", b"/"))


def _plain(text: bytes) -> str:
    return text.translate(None, b" -./:+").decode("latin-1").upper()


_PATTERN = (
    LEFT + r"([0-9]{3}-[0-9]{2}-[0-9]{4}|[A-Z]{2} ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-D]"
    r"|[A-Z]{6}[0-9L-V]{2}[A-Z][0-9L-V]{2}[A-Z][0-9L-V]{3}[A-Z]"
    r"|[A-Z]{5}[0-9]{4}[A-Z]|[XYZ]-?[0-9]{7}-?[A-Z]|[0-9]{8}-?[A-HJ-NP-TV-Z]"
    r"|[0-9]{6}-[0-9]{7}|[0-9]{6}[+A-FU-Y-][0-9]{3}[A-Y]|[0-9]{6}[+A-FU-Y][0-9]{4}"
    r"|[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}|[0-9]{2}\.[0-9]{2}\.[0-9]{2}-[0-9]{3}[.-][0-9]{2}"
    r"|756\.[0-9]{4}\.[0-9]{4}\.[0-9]{2}|[1-8] [0-9]{2} [0-9]{2} [0-9][0-9AB] [0-9]{3} [0-9]{3} [0-9]{2})"
)
_SHORTEST = 8
_NUMBER = compiled(
    LEFT + r"([12][ 0-9]{4,8}2[ABab][ 0-9]{8,11}|[A-Za-z]{5}[0-9]{4}[A-Za-z]"
    r"|[0-9]{6}[A-FYXWVUa-f][0-9]{3}[0-9A-Ya-y]"
    r"|(?:[A-Za-z]{1,2}[ -]?)?[0-9](?:[ .:/-]?[0-9]){5,14}(?:[ -]?[A-Za-z])?)"
)

CHECKS: dict[str, Check] = {"national_id": national_id, "id_beside_word": id_beside_word}

_SSN = "536" + "-22-" + "8726"

RULES: tuple[Rule, ...] = (
    personal_rule(
        "NATIONAL_ID",
        _PATTERN,
        checks=("national_id",),
        same="alnum",
        positives=(
            *whole(_SSN, "AB 12 34 56" + " C", "1234567" + "8Z", "RSSMRA85" + "T10A562S", "131052" + "-308T"),
            *whole("529.982." + "247-25", "756.9217" + ".0769.85", "1 85 05 78 006" + " 084 91"),
        ),
        negatives=(
            "000-12-3456 and 666-12-3456 are no SSN",
            "on 20260812T1000 and 20060102Z and doi:10.1137/10081232X",
            "hosted-eu-20260812-09",
        ),
    ),
    personal_rule(
        "NATIONAL_ID",
        word_pattern(*(name for names, _ in _BY_WORD for name in names), *_GENERAL),
        take="match",
        checks=("id_beside_word",),
        same="alnum",
        positives=(
            ("NHS number: 943 476" + " 5919", "943 476" + " 5919"),
            ("her SIN is 123 456" + " 782", "123 456" + " 782"),
            ('{"aadhaar": "2341 2341' + ' 2346"}', "2341 2341" + " 2346"),
            ("pesel=44051" + "401359", "44051" + "401359"),
            ("943 476" + " 5919 (NHS)", "943 476" + " 5919"),
            ("my ssn is 536 22" + " 8726 and", "536 22" + " 8726"),
            ("ni number: ab 1234" + " 56 c", "ab 1234" + " 56 c"),
            ("DNI 1234567" + "-l", "1234567" + "-l"),
            ("hetu 131052" + "-3140", "131052" + "-3140"),
        ),
        negatives=(
            "943 476 5919, 44051401359, 123456782 without a word",
            "the NHS has 943 476 5918 visitors",
            "using 123456782 and testing 123456789",
            "Boston, MA 02110-1301 USA\n\nTIN",
        ),
    ),
)
