"""Layer 2: secrets that only the text around them gives away."""

from __future__ import annotations

from onward.capture.redaction.rule import B32, Rule, body

_PEM_BODY = "\n".join([body(64), body(64, "Zx9Yw8Vu7Ts6Rq5Po4Nm"), body(30)])


def _pem(label: str, text: str, newline: str = "\n") -> str:
    return f"-----BEGIN {label}-----{newline}{text.replace(chr(10), newline)}{newline}-----END {label}-----"


RULES: tuple[Rule, ...] = (
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
            (_pem("USER NKEY SEED", "SU" + body(56, B32)), "SU" + body(56, B32)),
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
            ('curl -H "Authorization: Bearer ' + body(24) + '"', body(24)),
        ),
        negatives=("Authorization: Bearer ${TOKEN}", "authorization: bearer authentication"),
    ),
    Rule(
        "AUTHORIZATION",
        r"(?i)bearer(?:\s|%20|\+){1,4}([A-Za-z0-9._~+/=-]{16,})",
        2,
        take="group",
        checks=("start", "literal", "dense"),
        positives=(("use bearer " + body(32), body(32)),),
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
            ('{"api_key": "' + body(24) + '"}', body(24)),
            ('{\\"password\\": \\"' + "hunter2-x" + '\\"}', "hunter2-x"),
            ("secret_key = '" + body(30) + "'", body(30)),
            ("export AWS_SECRET_ACCESS_KEY=" + body(40), body(40)),
            ('password: str = "' + "hunter2-y" + '"', "hunter2-y"),
            ("https://api.host/x?access_token=" + body(22) + "&a=1", body(22)),
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
            ("tool --api-key '" + body(20) + "'", body(20)),
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
