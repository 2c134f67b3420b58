"""Layer 3: public IP addresses and hardware addresses.

Addresses that identify no one stay: loopback, private and documentation ranges, netmasks, well-known
resolvers, and four numbers that are a version.
"""

from __future__ import annotations

import ipaddress

from onward.redaction.judging.surroundings import LEFT, stands_alone
from onward.redaction.rule import Check, Rule, Span, personal_rule

_HEX = frozenset(b"0123456789abcdefABCDEF")
_RESOLVER_LIST = """
8.8.8.8 8.8.4.4 1.1.1.1 1.0.0.1 9.9.9.9 208.67.222.222 208.67.220.220
2001:4860:4860::8888 2001:4860:4860::8844 2606:4700:4700::1111 2606:4700:4700::1001
"""
RESOLVERS = frozenset(_RESOLVER_LIST.split())
_VERSION = (b"version", b"release", b"section", b"chapter", b"clause", b"ver ", b"ver.", b"rev ")
_BOUNDS = (b"^", b"~")
_TWO_SIGNS = (b"==", b">=", b"<=", b"~=", b"!=", b"^=")
_ENCODED = (b"%3D%3D", b"%3E%3D", b"%3C%3D", b"%7E%3D", b"%21%3D")
_TWO_OCTETS = frozenset(((169, 254), (192, 168), (198, 18), (198, 19)))
_OBJECT_IDENTIFIERS = ("2.5.4.", "2.5.29.", "1.3.6.", "1.3.14.", "1.3.36.", "1.3.101.", "1.3.132.")
_THREE_OCTETS = frozenset(((192, 0, 0), (192, 0, 2), (192, 88, 99), (198, 51, 100), (203, 0, 113)))
_SMALL = 20
"""Four numbers below this are a version or a section; one in 27,000 public addresses looks like that."""
_NOBODY = (b"00:00:00:00:00:00", b"ff:ff:ff:ff:ff:ff", b"02:42:", b"33:33:", b"01:00:5e:", b"00:00:5e:00:53:")


def ip(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts a public IPv4 or IPv6 address that stands alone."""
    text = buffer[first:last].decode("latin-1")
    if ":" not in text:
        return (first, last) if _is_person_v4(buffer, first, last, text) else None
    trimmed = text.rstrip(":") + ("::" if text.endswith("::") else "")
    last = first + len(trimmed)
    groups = [group for group in trimmed.split(":") if group]
    if len(groups) < 3 or sum(map(len, groups)) < 8 or not stands_alone(buffer, first, last):
        return None
    if buffer[first - 1 : first] == b":" or buffer[last : last + 1] == b":":
        return None
    return (first, last) if _is_public_v6(trimmed) else None


def _is_public_v6(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return address.is_global and not address.is_multicast and text.lower() not in RESOLVERS


def is_public_v4(text: str) -> bool:
    """Returns whether four numbers are an address outside IANA's special-purpose registry (RFC 6890)."""
    parts = text.split(".")
    if any(len(part) > 1 and part[0] == "0" for part in parts):
        return False
    a, b, c, d = map(int, parts)
    if max(a, b, c, d) > 255 or a in (0, 10, 127) or a >= 224 or (a, b) in _TWO_OCTETS:
        return False
    shared = (a == 100 and 64 <= b < 128) or (a == 172 and 16 <= b < 32)
    return not shared and (a, b, c) not in _THREE_OCTETS and text not in RESOLVERS


def _is_person_v4(buffer: bytes, first: int, last: int, text: str) -> bool:
    """Returns whether it is public, and neither a version nor the name of a network."""
    if not is_public_v4(text) or not stands_alone(buffer, first, last) or text.endswith(".0.0"):
        return False
    left, right = buffer[max(0, first - 2) : first], buffer[last : last + 2]
    if text.startswith(_OBJECT_IDENTIFIERS):
        return False
    if left != b"//" and left[-1:] != b"@" and all(int(part) < _SMALL for part in text.split(".")):
        return False
    if left[-1:] in _BOUNDS or left in _TWO_SIGNS or buffer[max(0, first - 6) : first].upper() in _ENCODED:
        return False
    if left[-1:] in (b"<", b">") and right[:1] not in (b"<", b">"):
        return False  # a bound on a version, not markup
    if left[-1:] == b"/" and left[:1] != b"/":  # Chrome/120.0.1.2, a folder of a release
        return False
    if right[:1] == b"+" or (right[:1] == b"." and right[1:].isalpha()):
        return False
    words = buffer[max(0, first - 32) : first].lower()
    return not any(word in words for word in _VERSION)


def mac(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts a hardware address; refuses parts of a fingerprint, times, and broadcast or null addresses."""
    text = buffer[first:last].lower()
    if not stands_alone(buffer, first, last):
        return None
    joint = text[2:3] if text[4:5] != b"." else b"."
    if buffer[last : last + 1] == joint and buffer[last + 1 : last + 2].isalnum():
        return None
    if first > 1 and buffer[first - 1 : first] == joint and buffer[first - 2] in _HEX:
        return None
    lettered = any(0x61 <= c <= 0x66 for c in text)
    if not lettered and (joint != b":" or all(int(pair) < 60 for pair in text.split(b":"))):
        return None  # a time, a date, a version
    plain = text.replace(b"-", b":")
    return None if plain.startswith(_NOBODY) else (first, last)


CHECKS: dict[str, Check] = {"ip": ip, "mac": mac}

_PUBLIC_4 = "81.2" + ".69.142"
_PUBLIC_6 = "2a02:8108" + ":8ac0:1c3::1f"
_MAC = "3c:22" + ":fb:a4:9e:01"

RULES: tuple[Rule, ...] = (
    personal_rule(
        "IP",
        LEFT + r"([0-9]{1,3}(?:\.[0-9]{1,3}){3}|[23][0-9a-fA-F]{3}:[0-9a-fA-F:]{3,35})",
        checks=("ip",),
        same="lower",
        positives=(
            ("GET / from " + _PUBLIC_4 + ":443", _PUBLIC_4),
            ("http://" + _PUBLIC_4 + "/x", _PUBLIC_4),
            ("host=" + _PUBLIC_4 + ", up.", _PUBLIC_4),
            ("inet6 " + _PUBLIC_6 + "/64", _PUBLIC_6),
            ("connect [" + _PUBLIC_6 + "]:8080: refused", _PUBLIC_6),
        ),
        negatives=(
            "127.0.0.1 10.1.2.3 172.16.9.9 192.168.1.7 169.254.169.254 0.0.0.0 255.255.255.0 100.64.1.1",
            "192.0.2.1 198.51.100.7 203.0.113.9 and 2001:db8::1 and fe80::1 and ::1 and fd00::8",
            "pkg==81.2.69.142 lib>=81.2.69.1 v81.2.69.142 version 81.2.69.142 Chrome/81.2.69.142",
            "x-81.2.69.142 81.2.69.142.tar.gz 81.2.69.142-rc1 1.3.6.1.4.1 81.2.69.142.5",
            "see section 4.2.1.3 999.2.3.4 and ObjectIdentifier('2.5.29.37')",
            "at 20:18:09 and a[2000::2] and std::dec::add and 2024::add",
            "ping 8.8.8.8",
        ),
    ),
    personal_rule(
        "MAC",
        LEFT + r"([0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5}|[0-9a-fA-F]{2}(?:-[0-9a-fA-F]{2}){5}"
        r"|[0-9a-fA-F]{4}\.[0-9a-fA-F]{4}\.[0-9a-fA-F]{4})",
        checks=("mac",),
        same="alnum",
        positives=(
            ("ether " + _MAC + " txqueuelen", _MAC),
            ("HWaddr " + _MAC.upper().replace(":", "-"), _MAC.upper().replace(":", "-")),
            ("mac 3c22" + ".fba4.9e01", "3c22" + ".fba4.9e01"),
        ),
        negatives=(
            "00:00:00:00:00:00 ff:ff:ff:ff:ff:ff 02:42:ac:11:00:02 33:33:00:00:00:01",
            "MD5:16:27:ac:a5:76:28:2d:36:63:1b:56:4d:eb:df:a6:48",
            "26-08-12-20-18-09 and 20:18:09:11:22:33",
            "110bcd25-a55d-453a-8046-1297901ea002",
        ),
    ),
)
