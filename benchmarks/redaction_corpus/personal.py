"""Layer 3: personal data with valid check digits, drawn at random and kept where python-stdnum says valid.

Nothing here knows Onward's own validators. Ids made of digits stand beside the word that names them, as the
rules ask for; the word stays, the number goes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

from stdnum import iban, luhn
from stdnum.au import tfn
from stdnum.br import cpf
from stdnum.ca import sin
from stdnum.de import idnr
from stdnum.es import nie, nif
from stdnum.fr import nir
from stdnum.gb import nhs
from stdnum.in_ import aadhaar, pan
from stdnum.it import codicefiscale
from stdnum.kr import rrn
from stdnum.pl import pesel
from stdnum.se import personnummer
from stdnum.us import itin, ssn

from redaction_corpus.parts import ALNUM, DIGITS, HEX, LOWER, UPPER, draw

Made = tuple[str, str]
"""The text and the part of it that must be gone."""


def _valid(rng: random.Random, form: str, is_valid: Callable[[str], bool]) -> str:
    """``form`` with ``9`` a digit and ``A`` a capital, drawn until valid."""
    while True:
        text = "".join(
            draw(rng, DIGITS, 1) if c == "9" else draw(rng, UPPER, 1) if c == "A" else c for c in form
        )
        if is_valid(text):
            return text


CARDS = {
    "visa": ("4", 16), "mastercard": ("53", 16), "mastercard 2": ("2345", 16), "amex": ("37", 15),
    "discover": ("6011", 16), "jcb": ("3530", 16), "diners": ("36", 14), "unionpay": ("621234", 16),
    "unionpay 19": ("622848", 19), "maestro": ("676770", 16),
}  # fmt: skip


def _card(rng: random.Random, prefix: str, length: int, separator: str) -> Made:
    body = prefix + draw(rng, DIGITS, length - 1 - len(prefix))
    number = body + luhn.calc_check_digit(body)
    cuts = (4, 10) if length in (14, 15) else range(4, length, 4)
    if separator:
        edges = [0, *cuts, length]
        number = separator.join(number[a:b] for a, b in pairwise(edges))
    return f"{number}", number


_ACCOUNTS = {
    "DE": "99999999" + "9" * 10, "GB": "AAAA" + "9" * 14, "FR": "9" * 23, "NL": "AAAA" + "9" * 10,
    "ES": "9" * 20, "IT": "A" + "9" * 22, "PL": "9" * 24, "CH": "9" * 17, "AT": "9" * 16, "SE": "9" * 20,
    "BE": "9" * 12, "PT": "9" * 21, "IE": "AAAA" + "9" * 14, "NO": "9" * 11, "DK": "9" * 14, "FI": "9" * 14,
    "CZ": "9" * 20, "HU": "9" * 24, "GR": "9" * 23, "LU": "9" * 16, "TR": "9" * 22, "SA": "9" * 20,
    "AE": "9" * 19, "BR": "9" * 23 + "A" + "9",
}  # fmt: skip


def _account(rng: random.Random, country: str, grouped: bool) -> Made:
    body = _valid(rng, _ACCOUNTS[country], lambda _: True)
    number = country + iban.calc_check_digits(f"{country}00{body}") + body
    shown = " ".join(number[i : i + 4] for i in range(0, len(number), 4)) if grouped else number
    return shown, shown


def _email(form: str) -> Callable[[random.Random], Made]:
    def make(rng: random.Random) -> Made:
        address = form.format(a=draw(rng, LOWER, 7), b=draw(rng, LOWER, 8), n=draw(rng, DIGITS, 3))
        return address, address

    return make


def _phone(form: str) -> Callable[[random.Random], Made]:
    def make(rng: random.Random) -> Made:
        number = "".join(draw(rng, "2346789", 1) if c == "9" else c for c in form)
        return f"call {number}", number

    return make


PHONES = {
    "e164 us": "+1415999" + "9999", "e164 de": "+4930999" + "99999", "e164 in": "+9198999" + "99999",
    "e164 uk": "+4420799" + "99999", "spaced de": "+49 30 9999 9999", "spaced uk": "+44 20 7999 9999",
    "spaced fr": "+33 1 99 99 99 99", "spaced us": "+1 415 999 9999", "dashed us": "415-999-9999",
    "parentheses us": "(415) 999-9999", "dotted us": "415.999.9999",
    "country and parentheses": "+1 (415) 999-9999",
    "spaced br": "+55 11 99999-9999", "spaced jp": "+81 3-9999-9999", "spaced au": "+61 2 9999 9999",
    "zero in parentheses": "+49 (0)30 9999 9999",
}  # fmt: skip

_IDS: dict[str, tuple[str, str, Callable[[str], bool]]] = {
    "us ssn": ("SSN: ", "999-99-9999", ssn.is_valid),
    "us itin": ("ITIN ", "999-99-9999", itin.is_valid),
    "uk nhs": ("NHS number: ", "999 999 9999", nhs.is_valid),
    "ca sin": ("SIN: ", "999-999-999", sin.is_valid),
    "de steuer-id": ("Steuer-ID: ", "99999999999", idnr.is_valid),
    "es nif": ("DNI: ", "99999999A", nif.is_valid),
    "es nie": ("NIE: ", "X9999999A", nie.is_valid),
    "it codice fiscale": ("codice fiscale ", "RSS" + "MRA" + "99A99A999A", codicefiscale.is_valid),
    "fr nir": ("NIR: ", "199999999999999", nir.is_valid),
    "pl pesel": ("PESEL: ", "99999999999", pesel.is_valid),
    "se personnummer": ("personnummer: ", "999999-9999", personnummer.is_valid),
    "in aadhaar": ("Aadhaar: ", "9999 9999 9999", aadhaar.is_valid),
    "in pan": ("PAN: ", "AAAPA9999A", pan.is_valid),
    "br cpf": ("CPF: ", "999.999.999-99", cpf.is_valid),
    "au tfn": ("TFN: ", "999 999 999", tfn.is_valid),
    "kr rrn": ("RRN: ", "999999-9999999", rrn.is_valid),
}


def _nino(rng: random.Random) -> Made:
    """National Insurance number; it has no check digit. HMRC NIM39110: prefixes."""
    number = f"{draw(rng, 'ABCEHJKLMPRSTWXYZ', 1)}{draw(rng, 'ABCEHJKLMPRSTWXYZ', 1)}"
    number += " ".join([" " + draw(rng, DIGITS, 2), draw(rng, DIGITS, 2), draw(rng, DIGITS, 2), "C"])
    return f"NI number: {number}", number


def _id(rng: random.Random, word: str, form: str, is_valid: Callable[[str], bool]) -> Made:
    number = _valid(rng, form, is_valid)
    return word + number, number


def _ipv4(rng: random.Random) -> Made:
    address = ".".join(
        [rng.choice(["34", "81", "93", "145"]), *(str(rng.randint(11, 250)) for _ in range(3))]
    )
    return f"from {address}", address


def _ipv6(rng: random.Random) -> Made:
    address = "2a02:" + ":".join(draw(rng, "123456789abcdef", 4) for _ in range(7))
    return f"from {address}", address


def _ipv6_short(rng: random.Random) -> Made:
    address = "2a01:4f8:" + draw(rng, "123456789abcdef", 4) + "::" + draw(rng, "123456789abcdef", 3)
    return f"from {address}", address


def _mac(rng: random.Random) -> Made:
    address = ":".join(["a4", *(draw(rng, HEX, 2) for _ in range(5))])
    return f"ether {address}", address


def _user(form: str) -> Callable[[random.Random], Made]:
    def make(rng: random.Random) -> Made:
        name = draw(rng, LOWER, 8)
        return form.replace("{u}", name), name

    return make


def _git_author(rng: random.Random) -> Made:
    name = f"{draw(rng, LOWER, 6).title()} {draw(rng, LOWER, 9).title()}"
    return f"Author: {name} <{draw(rng, LOWER, 7)}@{draw(rng, LOWER, 8)}.io>", name


MAKERS: dict[str, Callable[[random.Random], Made]] = {}
for _name, (_prefix, _length) in CARDS.items():
    for _how, _sign in (("compact", ""), ("spaced", " "), ("dashed", "-")):
        MAKERS[f"card {_name} {_how}"] = lambda rng, p=_prefix, n=_length, s=_sign: _card(rng, p, n, s)
for _country in _ACCOUNTS:
    MAKERS[f"iban {_country}"] = lambda rng, c=_country: _account(rng, c, False)
    MAKERS[f"iban {_country} grouped"] = lambda rng, c=_country: _account(rng, c, True)
for _name, _form in {
    "plain": "{a}@{b}.com", "dotted": "{a}.{b}@{b}.co.uk", "plus": "{a}+{n}@{b}.io",
    "digits": "{a}{n}@{b}.de",
}.items():  # fmt: skip
    MAKERS[f"email {_name}"] = _email(_form)
for _name, _form in PHONES.items():
    MAKERS[f"phone {_name}"] = _phone(_form)
for _name, (_word, _form, _check) in _IDS.items():
    MAKERS[f"id {_name}"] = lambda rng, w=_word, f=_form, v=_check: _id(rng, w, f, v)
MAKERS |= {
    "id uk nino": _nino, "ipv4": _ipv4, "ipv6": _ipv6, "ipv6 short": _ipv6_short, "mac": _mac,
    "user linux home": _user("/home/{u}/work/app.py"), "user mac home": _user("/Users/{u}/Library/x"),
    "user windows home": _user("C:\\Users\\{u}\\AppData\\x"), "user prompt": _user("{u}@build-7:~$ ls"),
    "git author": _git_author,
}  # fmt: skip

STRUCTURED: dict[str, Callable[[random.Random], str]] = {
    "first_name": lambda rng: draw(rng, LOWER, 7).title(),
    "last_name": lambda rng: draw(rng, LOWER, 9).title(),
    "lastName": lambda rng: draw(rng, LOWER, 9).title(),
    "full_name": lambda rng: f"{draw(rng, LOWER, 7).title()} {draw(rng, LOWER, 9).title()}",
    "address": lambda rng: f"{draw(rng, DIGITS, 2)} {draw(rng, LOWER, 8).title()} Lane",
    "street_address": lambda rng: f"{draw(rng, DIGITS, 2)} {draw(rng, LOWER, 8).title()} Road",
    "phone_number": lambda rng: draw(rng, "2346789", 10),
    "email": lambda rng: f"{draw(rng, ALNUM, 7)}@{draw(rng, LOWER, 7)}.com",
}
"""Dict keys that name a person's data."""
