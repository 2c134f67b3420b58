"""Layer 3: personal data recognised by its form. This file has e-mail addresses and joins the other files.

Telephone numbers are in ``personal_phones.py``, national ids in ``personal_ids.py``, cards and accounts in
``personal_numbers.py``, network addresses in ``personal_network.py``, user names in ``personal_accounts.py``.
``RULES`` and ``CHECKS`` include all of them.
"""

from __future__ import annotations

from onward.redaction.judging.surroundings import after_escapes
from onward.redaction.rule import Check, Rule, Span, personal_rule
from onward.redaction.rules import (
    personal_accounts,
    personal_ids,
    personal_network,
    personal_numbers,
    personal_phones,
)

_ALNUM = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_LOCAL = _ALNUM | frozenset(b"._%+'-") | frozenset(range(0x80, 0x100))
_COUNTRY_DOMAINS = """
ac ad ae af ag ai al am ao ar as at au aw ax az ba bb bd be bf bg bh bi bj bm bn bo br bs bt bw by bz ca cc cd
cf cg ch ci ck cl cm cn co cr cu cv cw cx cy cz de dj dk dm do dz ec ee eg er es et eu fi fj fk fm fo fr ga gb
gd ge gf gg gh gi gl gm gn gp gq gr gs gt gu gw gy hk hm hn hr ht hu id ie il im in io iq ir is it je jm jo jp
ke kg kh ki km kn kp kr kw ky kz la lb lc li lk lr ls lt lu lv ly ma mc md me mg mh mk ml mm mn mo mp mq mr ms
mt mu mv mw mx my mz na nc ne nf ng ni nl no np nr nu nz om pa pe pf pg ph pk pl pm pn pr ps pt pw py qa re ro
rs ru rw sa sb sc sd se sg sh si sk sl sm sn so sr ss st su sv sx sy sz tc td tf tg th tj tk tl tm tn to tr tt
tv tw tz ua ug uk us uy uz va vc ve vg vi vn vu wf ws ye yt za zm zw
"""
_OTHER_DOMAINS = """
com net org edu gov mil int info biz name pro aero coop museum jobs mobi travel tel cat asia post xxx app
dev page blog cloud online site website shop store tech space live life world email mail group team agency
company studio design digital media news network systems solutions services software technology consulting
engineering academy education school university institute training center community foundation health care
clinic hospital dental doctor legal law lawyer finance financial bank capital fund insurance money tax
realty house estate properties photo photography gallery art music film video tv games game fun club social
events restaurant cafe coffee bar pub pizza wine beer fashion jewelry beauty fitness yoga run bike car cars
auto taxi hotel holiday tours flights city town london paris berlin hamburg koeln cologne bayern wien
zuerich swiss amsterdam brussels madrid barcelona moscow tokyo osaka nyc boston vegas sydney melbourne
africa lat scot wales eus gal bzh global international today one top xyz vip plus zone works work expert
guru ninja rocks cool wtf gmbh ltd llc inc limited sarl ooo ngo ong church charity green eco bio farm garden
land energy solar build construction contractors supply tools parts industries ventures holdings partners
marketing press report review reviews support help host hosting domains dance date love family baby kids dog
fish pet vet toys sale deals gifts market markets trade trading exchange click link wiki ink icu monster
cyou bond lol fyi how
"""
TOP_DOMAINS = frozenset((_COUNTRY_DOMAINS + _OTHER_DOMAINS).encode().split())
"""Domains with mailboxes: all countries, and generic domains that are no brands or words of code."""
_RESERVED = (b"example.com", b"example.org", b"example.net")
_MACHINES = (
    b".amazonaws.com",
    b".googleusercontent.com",
    b".cloudapp.azure.com",
    b".cloudapp.net",
    b".local",
)
_REMOTE = frozenset((b"ssh", b"scp", b"sftp", b"rsync", b"mosh", b"ssh-copy-id", b"sshpass", b"autossh"))
_ROLES = frozenset((b"git", b"noreply", b"no-reply", b"donotreply", b"do-not-reply", b"x-oauth-basic"))


def email(buffer: bytes, first: int, last: int) -> Span | None:
    """Finds the mailbox around the ``@``: at a real top-level domain, with a name before it. Refuses
    ``Icon@3x.png``, ``git@host:path``, ``user@host:/path`` and addresses reserved for documentation."""
    sign = 3 if buffer[first : first + 1] == b"%" else 1
    last = _domain_end(buffer, first + sign, last)
    start = _local_start(buffer, first)
    if last < 0 or start == first or buffer[last : last + 2] in (b":/", b":~"):
        return None
    if buffer[start - 2 : start] == b"//":
        return None  # the user of a URL: personal_accounts.py
    domain = buffer[first + sign : last].lower()
    if domain in _RESERVED or domain.endswith(tuple(b"." + name for name in _RESERVED)):
        return None
    if buffer[start : start + 1] == b"_" and buffer[last : last + 1] == b"_":
        start += 1
    local = buffer[start:first].lower()
    if local in personal_accounts.GENERIC and _is_machine(buffer, start, domain):
        return None
    if local in _ROLES or not any(c in _ALNUM or c >= 0x80 for c in local):
        return None
    return (start, last)


def _is_machine(buffer: bytes, start: int, domain: bytes) -> bool:
    """Returns whether the account ``ubuntu@…`` is on a machine, not a mailbox: the host of a cloud, or the
    argument of ``ssh``."""
    line = buffer[max(0, start - 64) : start].rpartition(b"\n")[2].rpartition(b"\x00")[2]
    words = line.replace(b'"', b" ").replace(b"'", b" ").split()
    return domain.endswith(_MACHINES) or any(word in _REMOTE for word in words)


def _domain_end(buffer: bytes, at: int, last: int) -> int:
    """Returns the end of the domain at ``at``, without the text after a full stop; -1 if there is none."""
    while True:
        labels = buffer[at:last].split(b".")
        if len(labels) < 2:
            return -1
        complete = buffer[last : last + 1] not in _WORD_BYTES or _is_closing(buffer, last)
        if complete and labels[-1].lower() in TOP_DOMAINS and not labels[-2].isdigit():
            return last if not _is_scale(labels[-2]) else -1
        last -= len(labels[-1]) + 1


def _is_closing(buffer: bytes, last: int) -> bool:
    """Returns whether an underscore or hyphen ends an emphasis or a clause and is not part of a label."""
    return buffer[last : last + 1] in (b"_", b"-") and buffer[last + 1 : last + 2] not in _WORD_BYTES


_WORD_BYTES = frozenset(bytes([c]) for c in _ALNUM | frozenset(b"-_"))


def _is_scale(label: bytes) -> bool:
    """Returns whether it is the scale of a screen image: ``Icon@2x.me``."""
    return len(label) <= 4 and label[-1:] in b"xX" and label[:-1].isdigit()


def _local_start(buffer: bytes, sign: int) -> int:
    start = sign
    while start > 0 and sign - start < 64 and buffer[start - 1] in _LOCAL:
        start -= 1
    start = after_escapes(buffer, start, sign)
    while start < sign and buffer[start] in b".%+-'":
        start += 1
    if any(c >= 0x80 for c in buffer[start:sign]):
        start = _after_quotes(buffer, start, sign)
    return start


def _after_quotes(buffer: bytes, start: int, end: int) -> int:
    """Returns the position after the last sign beyond ASCII (“, …): accented letters belong to a name."""
    text = buffer[start:end].decode("utf-8", "replace")
    for i in range(len(text) - 1, -1, -1):
        if not (text[i].isalnum() or text[i] in "._%+'-"):
            return end - len(text[i + 1 :].encode("utf-8", "replace"))
    return start


DECIDING: tuple[frozenset[bytes] | frozenset[str], ...] = (
    TOP_DOMAINS,
    personal_accounts.GENERIC,
    personal_accounts.NOT_PEOPLE,
    personal_network.RESOLVERS,
    personal_phones.CALLING_CODES,
)
"""Lists that decide besides the rules: part of the policy version."""

CHECKS: dict[str, Check] = {
    "email": email,
    **personal_phones.CHECKS,
    **personal_ids.CHECKS,
    **personal_numbers.CHECKS,
    **personal_network.CHECKS,
    **personal_accounts.CHECKS,
}

_DOMAIN = r"(?:[A-Za-z0-9\x80-\xff](?:[A-Za-z0-9\x80-\xff-]{0,62})\.){1,8}[A-Za-z]{2,24}"


def _mail(local: str, domain: str, sign: str = "@") -> str:
    return local + sign + domain


RULES: tuple[Rule, ...] = (
    personal_rule(
        "EMAIL",
        "@" + _DOMAIN,
        take="match",
        checks=("email",),
        same="lower",
        positives=(
            ("write to " + _mail("jo.doe+x", "corp-mail.io") + ".", _mail("jo.doe+x", "corp-mail.io")),
            ("Jo <" + _mail("jo", "mail.company.co.uk") + ">", _mail("jo", "mail.company.co.uk")),
            ("a\\n" + _mail("jo", "firm.net") + "\\n", _mail("jo", "firm.net")),
            ("mailto:" + _mail("jörg", "firma.de") + ".Then", _mail("jörg", "firma.de")),
            ("“" + _mail("jo", "firma.de") + "”", _mail("jo", "firma.de")),
        ),
        negatives=(
            "Icon@3x.png and logo@2x.jpeg and Shape@2x.me",
            "git@github.com:org/repo.git and noreply@github.com",
            "user@example.com, me@mail.example.org, root@localhost, a@host.local, a@b.internal",
            "uses: actions/checkout@v4 and pkg@1.2.3 and W@x.T and A@B.transpose and @app.route",
            "scp deploy@web.firm.net:/srv/x .",
        ),
    ),
    personal_rule(
        "EMAIL",
        "%40" + _DOMAIN,
        take="match",
        checks=("email",),
        same="lower",
        positives=(
            ("u=" + _mail("jo", "firm.net", "%40") + "&b=1", _mail("jo", "firm.net", "%40")),
            ("u%3D" + _mail("jo", "firm.net", "%40") + "%26", _mail("jo", "firm.net", "%40")),
        ),
        negatives=("u=user%40example.com",),
        note="As in a URL.",
    ),
    *personal_phones.RULES,
    *personal_ids.RULES,
    *personal_numbers.RULES,
    *personal_network.RULES,
    *personal_accounts.RULES,
)
