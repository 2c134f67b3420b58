"""Check digits and built-in dates of cards, accounts and national ids: pure functions from text to bool.

Input is the compact form: no separators, ASCII, capitals. Each function is linear, raises nothing for any
``str``, and names its standard. A wrong number passes by chance (one in ten for Luhn), so the rules that use
these also check the form and the words around.
"""

from __future__ import annotations

import calendar
from collections import Counter
from collections.abc import Sequence

_DIGITS = frozenset("0123456789")
_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def _number(text: str, *lengths: int) -> list[int] | None:
    """Returns the digits of ``text``, or None unless it consists of digits and has one of ``lengths``."""
    if len(text) not in lengths or not _DIGITS.issuperset(text):
        return None
    return [int(c) for c in text]


def _weighted(digits: Sequence[int], weights: Sequence[int]) -> int:
    return sum(d * w for d, w in zip(digits, weights, strict=False))


def is_date(year: int, month: int, day: int) -> bool:
    """Returns whether the day exists in the Gregorian calendar."""
    return 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1] if year > 0 else False


# Checksums


def luhn(text: str) -> bool:
    """ISO/IEC 7812-1, annex B: with every second digit from the right doubled, a sum that ends in 0."""
    if not text or not _DIGITS.issuperset(text):
        return False
    digits = [int(c) for c in reversed(text)]
    return (sum(digits[::2]) + sum(sum(divmod(2 * d, 10)) for d in digits[1::2])) % 10 == 0


def _verhoeff_tables() -> tuple[list[list[int]], list[list[int]]]:
    """Multiplication table of the dihedral group of order ten, and the powers of Verhoeff's permutation."""
    product = [
        [(a + b) % 5 + (a // 5 != b // 5) * 5 if a < 5 else (a - b) % 5 + (b < 5) * 5 for b in range(10)]
        for a in range(10)
    ]
    powers = [list(range(10))]
    base = (1, 5, 7, 6, 2, 8, 3, 0, 9, 4)
    for _ in range(7):
        powers.append([powers[-1][d] for d in base])
    return product, powers


_PRODUCT, _POWERS = _verhoeff_tables()


def verhoeff(text: str) -> bool:
    """Check of J. Verhoeff, Error Detecting Decimal Codes, 1969; the check digit is the last."""
    if not text or not _DIGITS.issuperset(text):
        return False
    check = 0
    for i, c in enumerate(reversed(text)):
        check = _PRODUCT[check][_POWERS[i % 8][int(c)]]
    return check == 0


def mod97(text: str) -> bool:
    """ISO 7064 mod 97-10 over digits and letters (A = 10 … Z = 35): the remainder is 1."""
    if not text or not (_DIGITS | _LETTERS).issuperset(text):
        return False
    return int("".join(str(int(c, 36)) for c in text)) % 97 == 1


# Cards and accounts

_CARDS: tuple[tuple[int, int, tuple[int, ...]], ...] = (
    (4, 4, (13, 16, 19)),  # Visa
    (51, 55, (16,)),  # Mastercard
    (2221, 2720, (16,)),
    (34, 34, (15,)),  # American Express
    (37, 37, (15,)),
    (300, 305, (14, 16, 19)),  # Diners Club
    (3095, 3095, (14, 16, 19)),
    (36, 36, (14, 16, 19)),
    (38, 39, (14, 16, 19)),
    (6011, 6011, (16, 19)),  # Discover
    (644, 659, (16, 19)),
    (3528, 3589, (16, 19)),  # JCB
    (62, 62, (16, 17, 18, 19)),  # UnionPay
    (81, 82, (16,)),  # RuPay
    (60, 60, (16,)),
    (508, 508, (16,)),
    (5018, 5020, (13, 14, 15, 16, 17, 18, 19)),  # Maestro and Dankort
    (5038, 5038, (13, 14, 15, 16, 17, 18, 19)),
    (5893, 5893, (13, 14, 15, 16, 17, 18, 19)),
    (6304, 6304, (13, 14, 15, 16, 17, 18, 19)),
    (6759, 6763, (13, 14, 15, 16, 17, 18, 19)),
    (6767, 6767, (16, 18, 19)),
    (506099, 506198, (16, 18, 19)),  # Verve
    (650002, 650027, (16, 18, 19)),
    (2200, 2204, (16, 17, 18, 19)),  # Mir
    (9792, 9792, (16,)),  # Troy
)


def payment_card(text: str) -> bool:
    """Number in an issuer's range (ISO/IEC 7812 issuer identification), of its length, valid by Luhn."""
    if not 13 <= len(text) <= 19 or not _DIGITS.issuperset(text):
        return False
    for low, high, lengths in _CARDS:
        if len(text) in lengths and low <= int(text[: len(str(low))]) <= high:
            return luhn(text)
    return False


_IBAN_LENGTHS = """
15 NO;16 BE;18 DK FI FK FO GL NL SD;19 MK SI;20 AT BA EE KZ LT LU MN XK;21 CH HR LI LV
22 BG BH CR DE GB GE IE ME RS VA;23 AE GI IL IQ OM SO TL;24 AD CZ ES MD PK RO SA SE SK TN VG
25 LY PT ST;26 IS TR;27 BI DJ FR GR IT MC MR SM;28 AL AZ BY CY DO GT HN HU LB NI PL SV
29 BR EG PS QA UA;30 JO KW MU YE;31 MT SC;32 LC;33 RU
"""
IBAN_LENGTH: dict[str, int] = {
    country: int(line.split()[0])
    for line in _IBAN_LENGTHS.replace("\n", ";").split(";")
    if line
    for country in line.split()[1:]
}
"""Characters of an IBAN per country: IBAN registry (ISO 13616), release 101."""


def iban(text: str) -> bool:
    """ISO 13616: the country's length, and mod 97-10 with the first four characters moved to the end."""
    return IBAN_LENGTH.get(text[:2]) == len(text) and text[2:4].isdigit() and mod97(text[4:] + text[:4])


# National ids


def us_ssn(text: str) -> bool:
    """US social security number: no check digit; area, group and serial that are never issued are refused."""
    if _number(text, 9) is None or text in ("078051120", "219099999", "457555462"):
        return False
    return text[:3] not in ("000", "666") and text[0] != "9" and text[3:5] != "00" and text[5:] != "0000"


def us_itin(text: str) -> bool:
    """US individual taxpayer number: 9xx with a group of 50–65, 70–88, 90–92 or 94–99."""
    if _number(text, 9) is None or text[0] != "9":
        return False
    group = int(text[3:5])
    return 50 <= group <= 65 or 70 <= group <= 88 or 90 <= group <= 92 or 94 <= group <= 99


def uk_nino(text: str) -> bool:
    """UK national insurance number: no check digit; prefixes that are never issued are refused."""
    if len(text) != 9 or not _DIGITS.issuperset(text[2:8]) or text[8] not in "ABCD":
        return False
    if text[0] in "DFIQUV" or text[1] in "DFIOQUV" or text[:2] in ("BG", "GB", "KN", "NK", "NT", "TN", "ZZ"):
        return False
    return _LETTERS.issuperset(text[:2])


def uk_nhs(text: str) -> bool:
    """NHS number: weights 10 … 2; with the check digit the sum is a multiple of 11."""
    digits = _number(text, 10)
    return digits is not None and any(digits) and _weighted(digits, range(10, 0, -1)) % 11 == 0


def ca_sin(text: str) -> bool:
    """Canadian social insurance number: Luhn; no person's number begins with 0 or 8."""
    return _number(text, 9) is not None and text[0] not in "08" and luhn(text)


def de_steuer_id(text: str) -> bool:
    """German tax id: one digit of the first ten occurs two or three times; ISO 7064 mod 11,10."""
    digits = _number(text, 11)
    if digits is None or digits[0] == 0:
        return False
    repeated = [n for n in Counter(digits[:10]).values() if n > 1]
    if len(repeated) != 1 or repeated[0] > 3:
        return False
    check = 10
    for d in digits[:10]:
        check = ((check + d) % 10 or 10) * 2 % 11
    return (check + digits[10]) % 10 == 1


_NIF_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"


def es_nif(text: str) -> bool:
    """Spanish DNI: eight digits modulo 23 give the letter."""
    return len(text) == 9 and _DIGITS.issuperset(text[:8]) and _NIF_LETTERS[int(text[:8]) % 23] == text[8]


def es_nie(text: str) -> bool:
    """Spanish number of a foreigner: X, Y or Z stands for 0, 1 or 2, then like the DNI."""
    return text[:1] in ("X", "Y", "Z") and es_nif("012"["XYZ".index(text[0])] + text[1:])


_CF_ODD = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)
"""Value of A … Z at an odd place; a digit has the value of its letter, 0 as A … 9 as J."""


def it_codice_fiscale(text: str) -> bool:
    """Italian tax code (D.M. 23/12/1976). Letters replace digits where two persons would share a code."""
    if len(text) != 16 or not all(c in _LETTERS for c in text[:6] + text[8] + text[11] + text[15]):
        return False
    if not all(c in "0123456789LMNPQRSTUV" for c in text[6:8] + text[9:11] + text[12:15]):
        return False
    month = "ABCDEHLMPRST".find(text[8]) + 1
    day = int("".join(str("LMNPQRSTUV".find(c)) if c in _LETTERS else c for c in text[9:11])) % 40
    if not month or not is_date(2000, month, day):  # the year has two digits: a 29 February passes
        return False
    even = sum(int(c) if c in _DIGITS else ord(c) - 65 for c in text[1:15:2])
    return (even + sum(_CF_ODD[int(c) if c in _DIGITS else ord(c) - 65] for c in text[0:15:2])) % 26 == ord(
        text[15]
    ) - 65


def fr_nir(text: str) -> bool:
    """French social security number: 97 minus the remainder by 97; Corsica's 2A and 2B count as 19 and 18."""
    digits = text[:5] + {"2A": "19", "2B": "18"}.get(text[5:7], text[5:7]) + text[7:]
    if _number(digits, 15) is None or digits[0] not in "123478":
        return False
    return 97 - int(digits[:13]) % 97 == int(digits[13:])


def pl_pesel(text: str) -> bool:
    """Polish PESEL: the month encodes the century; weights 1, 3, 7, 9."""
    digits = _number(text, 11)
    if digits is None:
        return False
    century = {0: 1900, 1: 2000, 2: 2100, 3: 2200, 4: 1800}[int(text[2:4]) // 20]
    if not is_date(century + int(text[:2]), int(text[2:4]) % 20, int(text[4:6])):
        return False
    return _weighted(digits, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)) % 10 == 0


def se_personnummer(text: str) -> bool:
    """Swedish personal number, 10 or 12 digits: a date (day + 60 for a coordination number), then Luhn."""
    if _number(text, 10, 12) is None or not luhn(text[-10:]):
        return False
    day = int(text[-6:-4]) % 60 if int(text[-6:-4]) > 60 else int(text[-6:-4])
    years = [int(text[:4])] if len(text) == 12 else [1900 + int(text[:2]), 2000 + int(text[:2])]
    return any(is_date(year, int(text[-8:-6]), day) for year in years)


def in_aadhaar(text: str) -> bool:
    """Indian Aadhaar: 12 digits, not beginning with 0 or 1, no palindrome, Verhoeff."""
    return _number(text, 12) is not None and text[0] not in "01" and text != text[::-1] and verhoeff(text)


def in_pan(text: str) -> bool:
    """Indian PAN: no public check digit; the fourth letter is the type of holder."""
    return (
        len(text) == 10
        and _LETTERS.issuperset(text[:5] + text[9])
        and text[3] in "ABCFGHJKLPT"
        and _DIGITS.issuperset(text[5:9])
        and text[5:9] != "0000"
    )


def br_cpf(text: str) -> bool:
    """Brazilian CPF: two check digits modulo 11; eleven equal digits are refused."""
    digits = _number(text, 11)
    if digits is None or len(set(digits)) == 1:
        return False
    return all(_weighted(digits, range(n + 1, 1, -1)) * 10 % 11 % 10 == digits[n] for n in (9, 10))


def au_tfn(text: str) -> bool:
    """Australian tax file number: 8 or 9 digits, weights 1 4 3 7 5 8 6 9 10, a multiple of 11."""
    digits = _number(text, 8, 9)
    return digits is not None and any(digits) and _weighted(digits, (1, 4, 3, 7, 5, 8, 6, 9, 10)) % 11 == 0


def kr_rrn(text: str) -> bool:
    """Korean resident number: a date whose century is in the seventh digit; weights 2 … 9, 2 … 5."""
    digits = _number(text, 13)
    if digits is None or int(text[7:9]) > 96:
        return False
    century = {1: 1900, 2: 1900, 5: 1900, 6: 1900, 3: 2000, 4: 2000, 7: 2000, 8: 2000}.get(digits[6], 1800)
    if not is_date(century + int(text[:2]), int(text[2:4]), int(text[4:6])):
        return False
    return (11 - _weighted(digits[:12], (2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5)) % 11) % 10 == digits[12]


def kr_rrn_since_2020(text: str) -> bool:
    """Korean resident number since October 2020: without a check digit, so only the date is checked."""
    if _number(text, 13) is None or text[6] not in "12345678":
        return False
    century = 2000 if text[6] in "3478" else 1900
    return is_date(century + int(text[:2]), int(text[2:4]), int(text[4:6]))


def nl_bsn(text: str) -> bool:
    """Dutch BSN: the eleven test, weights 9 … 2 and -1."""
    digits = _number(text, 9)
    return digits is not None and any(digits) and _weighted(digits, (9, 8, 7, 6, 5, 4, 3, 2, -1)) % 11 == 0


def be_national_number(text: str) -> bool:
    """Belgian national number: 97 minus the remainder by 97; for births from 2000 on a 2 precedes it."""
    if _number(text, 11) is None or int(text[2:4]) > 12 or int(text[4:6]) > 31 or not int(text):
        return False
    return any(97 - int(century + text[:9]) % 97 == int(text[9:]) for century in ("", "2"))


def fi_hetu(text: str) -> bool:
    """Finnish personal code: day, month, year, a sign for the century, and a letter modulo 31."""
    if len(text) != 11 or not _DIGITS.issuperset(text[:6] + text[7:10]):
        return False
    century = 1800 if text[6] == "+" else 1900 if text[6] in "-YXWVU" else 2000 if text[6] in "ABCDEF" else 0
    if not century or int(text[7:10]) < 2:
        return False
    if not is_date(century + int(text[4:6]), int(text[2:4]), int(text[:2])):
        return False
    return "0123456789ABCDEFHJKLMNPRSTUVWXY"[int(text[:6] + text[7:10]) % 31] == text[10]


def pt_nif(text: str) -> bool:
    """Portuguese tax number of a person (1, 2, 3 or 45): weights 9 … 2 modulo 11."""
    digits = _number(text, 9)
    if digits is None or (text[0] not in "123" and text[:2] != "45"):
        return False
    return (11 - _weighted(digits[:8], range(9, 1, -1)) % 11) % 11 % 10 == digits[8]


def ch_ahv(text: str) -> bool:
    """Swiss AHV number: prefix 756 and the check digit of EAN-13."""
    digits = _number(text, 13)
    return digits is not None and text.startswith("756") and _weighted(digits, (1, 3) * 6 + (1,)) % 10 == 0
