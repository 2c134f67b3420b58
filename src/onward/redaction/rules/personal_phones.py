"""Layer 3: telephone numbers.

A telephone number is recognised by its ``+`` and calling code, by the form of its country, or by a word
before it. A bare run of digits is not one, unless it follows ``phone:`` directly.
"""

from __future__ import annotations

from onward.redaction.expressions import compiled
from onward.redaction.judging.surroundings import LEFT, numbers_beside, stands_alone, word_pattern
from onward.redaction.judging.validators import is_date
from onward.redaction.rule import Check, Rule, Span, personal_rule, whole

CALLING_CODES = frozenset(
    b"""
1 7 20 27 30 31 32 33 34 36 39 40 41 43 44 45 46 47 48 49 51 52 53 54 55 56 57 58 60 61 62 63 64 65
66 81 82 84 86 90 91 92 93 94 95 98 211 212 213 216 218 220 221 222 223 224 225 226 227 228 229 230
231 232 233 234 235 236 237 238 239 240 241 242 243 244 245 246 247 248 249 250 251 252 253 254 255
256 257 258 260 261 262 263 264 265 266 267 268 269 290 291 297 298 299 350 351 352 353 354 355 356
357 358 359 370 371 372 373 374 375 376 377 378 380 381 382 383 385 386 387 389 420 421 423 500 501
502 503 504 505 506 507 508 509 590 591 592 593 594 595 596 597 598 599 670 672 673 674 675 676 677
678 679 680 681 682 683 685 686 687 688 689 690 691 692 800 808 850 852 853 855 856 870 880 881 882
883 886 888 960 961 962 963 964 965 966 967 968 970 971 972 973 974 975 976 977 992 993 994 995 996
998
""".split()
)
_PHONE_WORDS = """
phone,phones,telephone,tel,tel no,mobile,mobile number,cell,cell phone,phone number,fax,whatsapp,call,dial,
sms,contact,my number,number is,reach me,text me,
ring me,hotline,msisdn,gsm,telefon,handy,rufnummer,mobil,telefono,teléfono,móvil,movil,téléphone,
portable,telefone
"""
_WORDS = word_pattern(*_PHONE_WORDS.replace("\n", "").split(","))


def _digits(text: bytes) -> bytes:
    return text.translate(None, b" ()-./+\xc2\xa0")


def _after_extension(buffer: bytes, last: int) -> int:
    """Returns the end of an extension such as ``x4587`` or `` ext. 12`` behind a number, else ``last``."""
    match = _EXTENSION.match(buffer, last, last + 16)
    return last if match is None else match.end()


def phone_international(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts ``+`` and a calling code: 8 to 15 digits, in North America 11; no float, offset or sum. The
    extension behind it is taken too."""
    longer = _after_extension(buffer, last)
    if longer > last:
        digits = _digits(buffer[first:last])
        fits = (
            len(digits) == 11 and _is_nanp(digits[1:]) if digits.startswith(b"1") else 8 <= len(digits) <= 15
        )
        return (first, longer) if fits and stands_alone(buffer, first, longer) else None
    last = _trim_neighbours(buffer, first, last)
    if not stands_alone(buffer, first, last) or buffer[first - 1 : first] in (b"+", b")", b"]"):
        return None
    text = buffer[first:last]
    digits = _digits(text)
    if digits.startswith(b"1"):
        if len(digits) < 11:
            return None
        while len(digits) > 11:
            last = max(text.rfind(b" "), text.rfind(b"-"), text.rfind(b"."))
            if last < 0:
                return None
            text = text[:last].rstrip(b" ()-./")
            digits = _digits(text)
        last = first + len(text)
        return (first, last) if len(digits) == 11 and _is_nanp(digits[1:]) else None
    if not any(digits[:n] in CALLING_CODES for n in (1, 2, 3)) or not 8 <= len(digits) <= 15:
        return None
    body = text[1:]
    like_float = body.count(b".") == 1 and body.replace(b".", b"").isdigit()
    as_in_whois = body.partition(b".")[0] in CALLING_CODES and len(digits) >= 11
    return None if like_float and not as_in_whois else (first, last)


def _trim_neighbours(buffer: bytes, first: int, last: int) -> int:
    """Returns the end without a date or another number that follows."""
    text = buffer[first:last]
    for century in (b" 19", b" 20"):
        at = text.find(century)
        if at > 6 and buffer[first + at + 5 : first + at + 6] in (b"-", b"/", b"."):
            return first + at
    if buffer[last : last + 1].isdigit():
        return first + len(text[: max(text.rfind(b" "), 0)].rstrip(b" ()-./"))
    return last


def _is_nanp(digits: bytes) -> bool:
    """Returns whether it fits the North American plan: area and exchange from 2 on, not all digits equal."""
    return len(digits) == 10 and digits[0:1] > b"1" and digits[3:4] > b"1" and len(set(digits)) > 1


def phone(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts a national number by its form: ``415-555-2671``, ``0171/1234567``, ``415-555-2671x12``."""
    digits = _digits(buffer[first:last])
    last = _after_extension(buffer, last)
    if not stands_alone(buffer, first, last) or buffer[first - 1 : first] in _NOT_BEFORE:
        return None
    right = digits[:1] == b"0" or _is_nanp(digits[-10:])
    return (
        (first, last)
        if right and len(set(digits)) >= 3 and buffer[last : last + 1] not in _NOT_AFTER
        else None
    )


def phone_beside_word(buffer: bytes, first: int, last: int) -> Span | None:
    """Finds the first number with separators after the word, such as ``call``, at the start of the match."""
    for start, end in numbers_beside(buffer, first, first, _NUMBER):
        text = buffer[start:end]
        digits = _digits(text)
        alone = stands_alone(buffer, start, end) and buffer[start - 1 : start] not in _NOT_BEFORE
        if not alone or not 7 <= len(digits) <= 15 or len(set(digits)) < 3:
            continue
        if buffer[end : end + 1] not in _NOT_AFTER and not _is_something_else(text, digits):
            return (start - (b")" in text and buffer[start - 1 : start] == b"("), end)
    return None


def _is_something_else(text: bytes, digits: bytes) -> bool:
    """Returns whether it is a decimal, an address, a version, a date or a pair of years."""
    if text.count(b".") == 1 and text.replace(b".", b"").isdigit():
        return True
    groups = text.translate(_TO_SPACES).split()
    if len(groups) == 2 and all(len(group) == 4 and group[:2] in (b"19", b"20") for group in groups):
        return True
    dotted = b"." in text and not text.translate(None, b"0123456789.")
    if dotted and (len(groups) == 4 and all(len(group) <= 3 for group in groups)):
        return True
    year = groups[0][:2] in (b"19", b"20")
    if len(groups) >= 3 and year and len(groups[0]) == 4 and len(groups[1]) == len(groups[2]) == 2:
        return True
    return len(groups) >= 3 and len(groups[2]) == 4 and groups[2][:2] in (b"19", b"20") and len(digits) == 8


_TO_SPACES = bytes.maketrans(b".-/()", b"     ")
_NOT_BEFORE = (b"/", b"#", b"$", b"+")
_NOT_AFTER = (b"/", b":", b"%")


def bracketed_phone(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts ``(415) 555-2671``, with the trunk ``1`` before it if there is one."""
    digits = _digits(buffer[first:last])
    american = digits[:1] != b"0"
    if american and buffer[first - 2 : first] in (b"1 ", b"1-", b"1."):
        first -= 2
    if not stands_alone(buffer, first, last) or buffer[first - 1 : first] in (b"+", b")", b"]"):
        return None
    return (first, last) if (_is_nanp(digits) if american else 8 <= len(digits) <= 12) else None


def labelled_phone(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts any number after ``phone:``, also bare digits, unless they are a date or a point in time."""
    digits = _digits(buffer[first:last])
    if not stands_alone(buffer, first, last) or len(set(digits)) < 3:
        return None
    bare = len(digits) == last - first
    day = len(digits) == 8 and is_date(int(digits[:4]), int(digits[4:6]), int(digits[6:]))
    moment = len(digits) >= 13 or (len(digits) == 10 and digits[:2] in (b"16", b"17", b"18"))
    if bare and buffer[first - 1 : first] == b" " and buffer[first - 2 : first - 1] not in (b":", b"=", b"."):
        moment = moment or not (len(digits) in (10, 11) and (_is_nanp(digits[-10:]) or digits[:1] == b"0"))
    return None if bare and (day or moment) else (first, last)


def phone_from_abroad(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts ``00`` and a calling code with separators: ``0049 30 1234567``."""
    digits = _digits(buffer[first:last])[2:]
    known = any(digits[:n] in CALLING_CODES for n in (1, 2, 3))
    alone = stands_alone(buffer, first, last) and buffer[first - 1 : first] not in _NOT_BEFORE
    return (first, last) if known and alone and 9 <= len(digits) <= 15 and len(set(digits)) > 2 else None


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        phone,
        phone_international,
        phone_beside_word,
        bracketed_phone,
        labelled_phone,
        phone_from_abroad,
    )
}

_EXTENSION = compiled(rb"(?i)[ ]?(?:x|ext\.?|extension)[ .]{0,2}[0-9]{1,6}")
_NATIONAL_NUMBER = (
    LEFT + r"((?:(?:00)?1[ .-])?[2-9][0-9]{2}(?:-[2-9][0-9]{2}-|\.[2-9][0-9]{2}\.)[0-9]{4}"
    r"|0[1-9][0-9]{1,3}(?:/|-)[0-9]{6,8})"
)
_NUMBER = compiled(LEFT + r"([0-9]{2,5}\)?(?:[ ./-]{1,2}[0-9]{2,8}){1,5})")
_BRACKETED_NUMBER = (
    r"\((?:[2-9][0-9]{2}\) ?[2-9][0-9]{2}[ .-][0-9]{4}|0[1-9][0-9]{0,4}\) ?[0-9]{2,8}(?:[ -][0-9]{2,5}){0,3})"
)
_LABELLED_NUMBER = (
    r"(?i)(?:phone|telephone|mobile|cell|fax|whatsapp|msisdn|telefon|handy|tel)(?:[ _.-]?(?:no|nr|number))?"
    r"(?:\\{0,4}[\"'])?\s{0,2}[.:=]{1,2}\s{0,2}(?:\\{0,4}[\"'])?(\(?[0-9](?:[ ()./-]{0,2}[0-9]){6,14})"
)
_GATE = r"(?i)phone|mobile|\bcell|\bfax|whatsapp|\btel\b|00[1-9][0-9]{0,2}[ /-]"
_PHONE_WORDS_ELSEWHERE = (
    "手机号码",
    "手机号",
    "手机",
    "电话号码",
    "电话",
    "電話番号",
    "電話",
    "携帯",
    "휴대폰",
    "전화번호",
    "전화",
)
_LABELLED_ELSEWHERE = (
    "(?:"
    + "|".join(word.encode().decode("latin-1") for word in _PHONE_WORDS_ELSEWHERE)
    + r")(?:[ :=]|\xef\xbc\x9a|\xe6\x98\xaf){1,3}(\(?[0-9](?:[ ()./-]{0,2}[0-9]){6,14})"
)

RULES: tuple[Rule, ...] = (
    personal_rule(
        "PHONE",
        r"\+[1-9](?:[ .()/-]{0,2}[0-9]){6,14}",
        take="match",
        checks=("phone_international",),
        same="digits",
        positives=(
            *whole(
                "+49 30 1234" + "5678", "+1 (415) 555" + "-2671", "+4479460" + "95812", "+1.41555" + "52671"
            ),
            ("call +49 170 1234" + "567 2026-08-12", "+49 170 1234" + "567"),
        ),
        negatives=(
            "+0200 and +01:00 and 1e+1234567 and a+12345678 and +1234567890",
            "+3.1415926 and +52.5200066, +13.404954",
            "@@ -1234,7 +1234567,9 @@",
        ),
    ),
    personal_rule(
        "PHONE",
        _NATIONAL_NUMBER,
        checks=("phone",),
        same="digits",
        positives=(
            *whole("415-555" + "-2671", "415.555" + ".2671", "415-555" + "-2671x12", "0171/1234" + "567"),
        ),
        negatives=(
            "4155552671 and 1785000000 and 1785000000000",
            "110bcd25-a55d-453a-8046-1297901ea002",
            "Jun 02 20:17:00 CST 2026 and 2026-08-12 and 12.04.2026 and 08/12/2026 and 03/22 08:51:06",
            "hosted-eu-20260812-09 and 415-555-26711 and v415.555.2671 and 1415.555.2671",
            "01 02 03 04 05 06 07 08 and 200 300 4000 and 52.5200, 13.4049 and 12:34:56",
        ),
    ),
    personal_rule(
        "PHONE",
        rf"(?:{_WORDS})[^\x00]{{0,40}}?[0-9][0-9 ()./-]{{6}}",
        take="match",
        checks=("phone_beside_word",),
        same="digits",
        positives=(
            ("tel 020 7946" + " 0958", "020 7946" + " 0958"),
            ("mobile: 06 12 34" + " 56 78", "06 12 34" + " 56 78"),
            ("call me at 98765" + " 43210", "98765" + " 43210"),
            ("my number is 07911 12" + "3456", "07911 12" + "3456"),
            ("call me at 0494 92" + " 82 32", "0494 92" + " 82 32"),
            ("call (555) 123" + "-4567", "(555) 123" + "-4567"),
        ),
        negatives=(
            "call 2026-08-12 and phone 12.04.2026 and tel 10.20.30.40 and cell 123.4567 and fax 12-34",
            "call (c) 1997-2003 and tel 2020/2021",
            "call 4155552671 times and mobile 1785000000",
            "total recall 020 7946 0958 of the metaphone 06 12 34 56 78",
        ),
    ),
    personal_rule(
        "PHONE",
        _BRACKETED_NUMBER,
        take="match",
        checks=("bracketed_phone",),
        same="digits",
        positives=whole("(415) 555" + "-2671", "1 (415) 555" + "-2671", "(030) 1234" + "5678"),
        negatives=("f(415) 555-2671", "(2026) 555-2671", "(012) 34"),
    ),
    personal_rule(
        "PHONE",
        _LABELLED_NUMBER,
        checks=("labelled_phone",),
        same="digits",
        positives=(
            ('"phone": "4155' + '552671"', "4155" + "552671"),
            ("Tel.: 12 34" + " 56 78", "12 34" + " 56 78"),
        ),
        negatives=("telemetry: 12345678", "tel: 20260812", "fax=1785000000000", "phone 12345678 and cell 7"),
    ),
    personal_rule(
        "PHONE",
        r"(?i)\b(?:phone|telephone|mobile|cell|fax|whatsapp|tel)(?:[ ](?:no|nr|number))?[ ]{1,2}(?:is[ ]|"
        r"#[ ]?)?([0-9]{10,11})",
        checks=("labelled_phone",),
        same="digits",
        positives=(("phone 4155" + "552671", "4155" + "552671"),),
        gate=_GATE,
        negatives=("mobile 1785000000, metaphone 4155552671, phone 12345678",),
    ),
    personal_rule(
        "PHONE",
        _LABELLED_ELSEWHERE,
        checks=("labelled_phone",),
        same="digits",
        positives=(
            ("手机号：138" + "0013" + "8000", "138" + "0013" + "8000"),
            ("電話: 03-1234" + "-5678", "03-1234" + "-5678"),
        ),
        negatives=("电话：12345",),
        gate="",
        note="After the word in Chinese, Japanese and Korean.",
    ),
    personal_rule(
        "PHONE",
        LEFT + r"(00[1-9][0-9]{0,2}(?:[ /-](?:\(0\))?[0-9]{2,9}){1,5})",
        checks=("phone_from_abroad",),
        gate=_GATE,
        same="digits",
        positives=whole("0049 30 1234" + "567", "0044-20-7946" + "-0958"),
        negatives=("0012 34 and 00123-45-67 and 0x0049 30 1234567", "00 11 22 33 44 55"),
    ),
)
