"""Layer 3: personal data that its own form gives away."""

from __future__ import annotations

from onward.capture.redaction.rule import Check, Rule, Span

_ALNUM = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_HEX = frozenset(b"0123456789abcdefABCDEF")
_NOT_DOMAINS = frozenset(
    b"png jpg jpeg gif svg webp ico bmp pdf css scss js mjs ts tsx jsx vue json yaml yml toml xml html htm "
    b"md rst txt log csv py pyc rb go rs java kt cpp hpp sh lock map zip gz tgz whl so dll exe "
    b"local localhost localdomain internal lan invalid test example home".split()
)
_RESERVED = (b"example.com", b"example.org", b"example.net")


def email(buffer: bytes, first: int, last: int) -> Span | None:
    """A mailbox at a public domain, not ``Icon@3x.png``, ``git@host:path`` or a documentation address."""
    first = _after_escape(buffer, first)
    while first < last and buffer[first] in b".%+-":
        first += 1
    text = buffer[first:last]
    local, _, domain = text.partition(b"@") if b"@" in text else text.partition(b"%40")
    domain = domain.lower()
    labels = domain.split(b".")
    if not local or labels[-1] in _NOT_DOMAINS or domain.endswith(_RESERVED):
        return None
    if local.lower() == b"git" or not any(c in _ALNUM and not 0x30 <= c <= 0x39 for c in labels[-2]):
        return None
    return (first, last)


def _after_escape(buffer: bytes, first: int) -> int:
    """``\\njo@…``, ``\\u003cjo@…``, ``%3Cjo@…``: the address begins after the escape."""
    if first and buffer[first - 1] == 0x5C:
        if buffer[first : first + 1] == b"u" and all(c in _HEX for c in buffer[first + 1 : first + 5]):
            return first + 5
        if buffer[first : first + 1] in (b"n", b"r", b"t", b"b", b"f"):
            return first + 1
    if buffer[first : first + 1] == b"%" and all(c in _HEX for c in buffer[first + 1 : first + 3]):
        return first + 3
    return first


CHECKS: dict[str, Check] = {"email": email}

RULES: tuple[Rule, ...] = (
    Rule(
        "EMAIL",
        r"[A-Za-z0-9._%+-]{1,64}(?:@|%40)(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}",
        3,
        checks=("email",),
        same="lower",
        positives=(
            ("write to jo.doe+x" + "@corp-mail.io.", "jo.doe+x" + "@corp-mail.io"),
            ("Jo <jo" + "@mail.company.co.uk>", "jo" + "@mail.company.co.uk"),
            ("https://h/x?u=jo" + "%40firm.net&b=1", "jo" + "%40firm.net"),
        ),
        negatives=(
            "Icon@3x.png and logo@2x.jpeg",
            "git@github.com:org/repo.git",
            "user@example.com, root@localhost, a@host.local",
            "uses: actions/checkout@v4 and pkg@1.2.3",
        ),
    ),
)
