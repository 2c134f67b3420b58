"""The rules, as data: what a secret looks like, with examples that prove each rule right.

A rule says only what; ``engine.py`` knows how. Patterns are RE2 over UTF-8 bytes, must not match a
NUL byte (leaves are joined by it), and carry no left boundary: a match counts where a token may
begin (``"start"``), which RE2 cannot express because it has no look-behind. Examples are put together at
import, so that no scanner takes this file for a leak. Changing anything here changes POLICY_VERSION.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Literal

from onward.capture.redaction import names, values

Take = Literal["match", "group", "assigned", "flag"]
ENGINE_VERSION = 1
"""Raise it when code, not data, changes what is redacted."""


@dataclass(frozen=True)
class Rule:
    """``kind`` names the placeholder; for ``assigned`` and ``flag`` the name before the value decides."""

    kind: str
    pattern: str
    layer: Literal[1, 2, 3]
    """1 vendor token, 2 structure around it, 3 personal data. The lower layer wins an overlap."""
    take: Take = "match"
    checks: tuple[str, ...] = ()
    """Names of functions in ``checks.py`` that must all agree."""
    positives: tuple[tuple[str, str], ...] = ()
    """(text, the part of it that must disappear)"""
    negatives: tuple[str, ...] = ()
    """Texts that must stay as they are."""
    note: str = field(default="", compare=False)


def _body(length: int, alphabet: str = "aB3dE5fG7hJ9kLmN2pQr") -> str:
    return (alphabet * (length // len(alphabet) + 1))[:length]


def _whole(*secrets: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"see {secret} here", secret) for secret in secrets)


_HEX = "0123456789abcdef"
_B32 = "ABCDEFGHJKMNPQRSTUVWXYZ234567"
_JWT = "eyJhbGciOiJIUzI1NiJ9" + "." + "eyJzdWIiOiIxMjM0In0" + "." + _body(43)
_PEM_BODY = "\n".join([_body(64), _body(64, "Zx9Yw8Vu7Ts6Rq5Po4Nm"), _body(30)])


def _pem(label: str, body: str, newline: str = "\n") -> str:
    return f"-----BEGIN {label}-----{newline}{body.replace(chr(10), newline)}{newline}-----END {label}-----"


VENDOR = (
    Rule(
        "ANTHROPIC_KEY",
        r"sk-ant-[A-Za-z0-9_-]{20,}",
        1,
        checks=("start",),
        positives=_whole("sk-" + "ant-api03-" + _body(93) + "AA", "sk-" + "ant-oat01-" + _body(60)),
        negatives=("sk-" + "ant-short", "task-ant-colony-optimisation-with-many-ants"),
    ),
    Rule(
        "OPENROUTER_KEY",
        r"sk-or-v1-[0-9a-f]{32,}",
        1,
        checks=("start",),
        positives=_whole("sk-" + "or-v1-" + _body(64, _HEX)),
    ),
    Rule(
        "OPENAI_KEY",
        r"sk-[A-Za-z0-9_-]{20,}",
        1,
        checks=("start", "dense"),
        positives=_whole(
            "sk-" + "proj-" + _body(74) + "T3" + "BlbkFJ" + _body(74),
            "sk-" + _body(20) + "T3" + "BlbkFJ" + _body(20),
            "sk-" + "a" * 40,
            "sk-" + "svcacct-" + _body(50) + "-_" + _body(20),
        ),
        negatives=(
            "the risk-adjusted-return-of-the-portfolio",
            "<task-notification-for-the-user>",
            "sk-learn-pipeline-with-many-steps",
        ),
    ),
    Rule(
        "GITHUB_TOKEN",
        r"gh[pousr]_[A-Za-z0-9]{36,}",
        1,
        checks=("start",),
        positives=_whole("ghp_" + _body(36), "gho_" + _body(36), "ghs_" + _body(40)),
        negatives=("ghp_short", "the ghp_token_name_of_the_setting_is_long_enough"),
    ),
    Rule(
        "GITHUB_TOKEN",
        r"github_pat_[A-Za-z0-9_]{36,}",
        1,
        checks=("start",),
        positives=_whole("github_" + "pat_" + _body(22) + "_" + _body(59)),
    ),
    Rule(
        "GITLAB_TOKEN",
        r"gl(?:pat|ptt|dt|rt|cbt|ft|imt|agent|oas|soat)-[A-Za-z0-9_-]{20,}",
        1,
        checks=("start", "dense"),
        positives=_whole("glpat-" + _body(20), "glrt-" + _body(26)),
    ),
    Rule(
        "AWS_KEY_ID",
        r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",
        1,
        checks=("start", "end", "not_example"),
        positives=_whole("AKIA" + _body(16, _B32), "ASIA" + _body(16, "Z7Y6X5W4")),
        negatives=("AKIA" + "IOSFODNN7EXAMPLE", "AKIA" + "SHORT"),
        note="Documentation keys end in EXAMPLE.",
    ),
    Rule(
        "GOOGLE_KEY",
        r"AIza[A-Za-z0-9_-]{35,}",
        1,
        checks=("start",),
        positives=_whole("AIza" + _body(35)),
    ),
    Rule(
        "GOOGLE_TOKEN",
        r"ya29\.[A-Za-z0-9_-]{20,}",
        1,
        checks=("start",),
        positives=_whole("ya29." + _body(60)),
    ),
    Rule(
        "GOOGLE_CLIENT_SECRET",
        r"GOCSPX-[A-Za-z0-9_-]{28}",
        1,
        checks=("start",),
        positives=_whole("GOCSPX-" + _body(28)),
    ),
    Rule(
        "SLACK_TOKEN",
        r"xox[abeprs]-[A-Za-z0-9-]{10,}",
        1,
        checks=("start", "digit"),
        positives=_whole("xoxb-" + "123456789012-1234567890123-" + _body(24)),
        negatives=("xoxb-token-goes-here",),
    ),
    Rule(
        "SLACK_TOKEN",
        r"xapp-[0-9]-[A-Za-z0-9-]{10,}",
        1,
        checks=("start",),
        positives=_whole("xapp-" + "1-A0123456789-1234567890-" + _body(40, _HEX)),
    ),
    Rule(
        "SLACK_WEBHOOK",
        r"hooks\.slack\.com/(?:services|workflows|triggers)/([A-Za-z0-9/_-]{20,})",
        1,
        take="group",
        checks=("digit",),
        positives=(
            (
                "post to https://hooks.slack." + "com/services/T01234567/B01234567/" + _body(24),
                "T01234567/B01234567/" + _body(24),
            ),
        ),
    ),
    Rule(
        "HF_TOKEN",
        r"hf_[A-Za-z0-9]{30,}",
        1,
        checks=("start",),
        positives=_whole("hf_" + _body(34)),
        negatives=("hf_hub_download and hf_transfer",),
    ),
    Rule(
        "STRIPE_KEY",
        r"(?:sk|rk)_(?:live|test|prod)_[A-Za-z0-9]{16,}",
        1,
        checks=("start",),
        positives=_whole("sk_" + "live_" + _body(24), "rk_" + "test_" + _body(99)),
        negatives=("sk_" + "test_mode_is_on_for_this_account",),
    ),
    Rule(
        "STRIPE_KEY",
        r"whsec_[A-Za-z0-9+/]{24,}={0,2}",
        1,
        checks=("start",),
        positives=_whole("whsec_" + _body(32)),
    ),
    Rule(
        "NPM_TOKEN",
        r"npm_[A-Za-z0-9]{36,}",
        1,
        checks=("start",),
        positives=_whole("npm_" + _body(36)),
        negatives=("npm_config_registry",),
    ),
    Rule(
        "PYPI_TOKEN",
        r"pypi-AgE[A-Za-z0-9_-]{50,}",
        1,
        checks=("start",),
        positives=_whole("pypi-" + "AgEIcHlwaS5vcmc" + _body(140)),
    ),
    Rule(
        "NATS_SEED",
        r"S[UAONCX][A-Z2-7]{56}",
        1,
        checks=("start", "end"),
        positives=_whole("SU" + _body(56, _B32)),
        negatives=("SU" + _body(80, _B32),),
    ),
    Rule(
        "JWT",
        r"eyJ[A-Za-z0-9_-]{8,}\.(?:[A-Za-z0-9_-]{2,}|\.[A-Za-z0-9_-]+)(?:\.[A-Za-z0-9_-]+){0,3}",
        1,
        checks=("start", "jwt_header"),
        positives=_whole(_JWT),
        negatives=("eyJust.some.words", "the file eyJournal_of_days.txt"),
    ),
)

STRUCTURE = (
    Rule(
        "PRIVATE_KEY",
        r"-----BEGIN [A-Z0-9 ]{0,40}(?:PRIVATE KEY(?: BLOCK)?|NKEY SEED)-----"
        r"((?:[^\x00-]|-[^\x00-])*)-----END",
        2,
        take="group",
        checks=("trim",),
        positives=(
            (_pem("RSA PRIVATE KEY", _PEM_BODY), _PEM_BODY),
            (_pem("PRIVATE KEY", _PEM_BODY, "\\n"), _PEM_BODY.replace("\n", "\\n")),
            (_pem("USER NKEY SEED", "SU" + _body(56, _B32)), "SU" + _body(56, _B32)),
        ),
        negatives=(_pem("PUBLIC KEY", _PEM_BODY), _pem("CERTIFICATE", _PEM_BODY)),
    ),
    Rule(
        "PRIVATE_KEY",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----((?:\\[nr]|[A-Za-z0-9+/=\s]){40,})",
        2,
        take="group",
        checks=("trim",),
        positives=((_pem("EC PRIVATE KEY", _PEM_BODY)[:120], _PEM_BODY[:89]),),
        note="Cut off before its end.",
    ),
    Rule(
        "AUTHORIZATION",
        r"(?i)authorization(?:\\*[\"'])?\s{0,4}[:=]\s{0,4}(?:\\*[\"'])?"
        r"(?:bearer|basic|token|digest|apikey|negotiate)(?:\s|%20|\+){1,4}"
        r"([A-Za-z0-9._~+/=-]{6,})",
        2,
        take="group",
        checks=("literal", "dense_or_basic"),
        positives=(
            ("Authorization: Basic " + "dXNlcjpw" + "YXNzdzByZA==", "dXNlcjpw" + "YXNzdzByZA=="),
            ('curl -H "Authorization: Bearer ' + _body(24) + '"', _body(24)),
        ),
        negatives=("Authorization: Bearer ${TOKEN}", "authorization: bearer authentication"),
    ),
    Rule(
        "AUTHORIZATION",
        r"(?i)bearer(?:\s|%20|\+){1,4}([A-Za-z0-9._~+/=-]{16,})",
        2,
        take="group",
        checks=("start", "literal", "dense"),
        positives=(("use bearer " + _body(32), _body(32)),),
        negatives=("Bearer authentication-is-required", "the bearer of-this-long-document"),
    ),
    Rule(
        "URL_PASSWORD",
        r"[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s:/?#@\x00\"'<>\\`]{0,128}:([^\s/\x00\"'<>\\`]{1,256})@[^\s@\x00]",
        2,
        take="group",
        checks=("literal",),
        positives=(
            ("postgres://app:" + "s3cr3t-Pw" + "@db:5432/x", "s3cr3t-Pw"),
            ("redis://:" + "p%40ss-w0rd" + "@cache/0", "p%40ss-w0rd"),
            ("amqp://u:" + "a@b-c9" + "@host", "a@b-c9"),
        ),
        negatives=(
            "postgres://user:" + "password@localhost/db",
            "https://user:${PASS}@host/",
            "https://host:8080/a@b",
            "git@github.com:org/repo.git",
            "http://a:b, see c@example.com",
        ),
    ),
    Rule(
        "ASSIGNED",
        r"(?i)(?:secret|token|passw|passphrase|passcode|pwd|pass|credential|api[_ -]?key|access[_-]?key|"
        r"account[_-]?key|private[_-]?key|signing[_-]?key|encryption[_-]?key|auth|cookie|session|"
        r"connection[_-]?string|dsn|jwt)[A-Za-z0-9_.-]{0,40}(?:\\{0,8}[\"'`])?\]?[ \t]{0,8}"
        r"(?:===?|=>|:=|=|:|%3[dD])[ \t]{0,8}",
        2,
        take="assigned",
        positives=(
            ("DB_PASSWORD=" + "correct9horse", "correct9horse"),
            ('{"api_key": "' + _body(24) + '"}', _body(24)),
            ('{\\"password\\": \\"' + "hunter2-x" + '\\"}', "hunter2-x"),
            ("secret_key = '" + _body(30) + "'", _body(30)),
            ("export AWS_SECRET_ACCESS_KEY=" + _body(40), _body(40)),
            ('password: str = "' + "hunter2-y" + '"', "hunter2-y"),
            ("https://api.host/x?access_token=" + _body(22) + "&a=1", _body(22)),
        ),
        negatives=(
            "total_tokens=1843 max_tokens: 4096 token_count = 12",
            "password: str, token: Optional[str] = None",
            'api_key = os.environ["KEY"]',
            "token = getToken()",
            "password=${DB_PASSWORD} secret: §§secret(GITHUB)",
            "password: changeme",
            "password = self.password",
            "the author: Smith; monkey: 3; session: started",
            "eos_token: </s>, token_ids = [1, 2, 3]",
            'api_key="<your key>" password="<PASSWORD:1>"',
        ),
    ),
    Rule(
        "ASSIGNED",
        r"(?i)--[a-z0-9-]{0,30}?(?:password|passwd|passphrase|secret|token|api-?key|access-?key)"
        r"[a-z0-9-]{0,20}[ \t]{1,4}",
        2,
        take="flag",
        positives=(
            ("login --password " + "hunter2-z" + " now", "hunter2-z"),
            ("tool --api-key '" + _body(20) + "'", _body(20)),
        ),
        negatives=("--token TOKEN  the token", "use --password to give one", "--password <pw>"),
    ),
    Rule(
        "PASSWORD",
        r"(?i)\b(?:password|passphrase|passcode)(?:\s(?:for\s[^\s\x00]{1,40}))?\s(?:is|was|to)[: ]{1,3}"
        r"[\"'`]?([^\s\x00\"'`<>\\]{4,128})",
        2,
        take="group",
        checks=("literal", "password_like", "trim_prose"),
        positives=(("my password is " + "hunter2!x" + ", thanks", "hunter2!x"),),
        negatives=("the password is required", "your password was changed", "password is None."),
    ),
)

PERSONAL = (
    Rule(
        "EMAIL",
        r"[A-Za-z0-9._%+-]{1,64}(?:@|%40)(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}",
        3,
        checks=("email",),
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

RULES: tuple[Rule, ...] = (*VENDOR, *STRUCTURE, *PERSONAL)


def policy_version() -> str:
    """Twelve hex digits over everything that decides what is redacted: rules, names, words, engine."""
    content = [
        ENGINE_VERSION,
        [[rule.kind, rule.pattern, rule.layer, rule.take, rule.checks] for rule in RULES],
        [sorted(names.SINGLE.items()), sorted(names.PAIRS.items()), sorted(names.ENDINGS.items())],
        [sorted(names.BEFORE_EXEMPT), sorted(names.AFTER_EXEMPT), sorted(values.NOT_VALUES)],
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
