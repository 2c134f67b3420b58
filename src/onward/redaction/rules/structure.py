"""Layer 2, first part: private keys in every format, headers, cookies and URLs."""

from __future__ import annotations

from onward.redaction.rule import B32, HEX, Rule, body, context_rule

_LETTERS = "aQkZxWmBvTrLpYcN"
_PEM_BODY = "\n".join([body(64), body(64, "Zx9Yw8Vu7Ts6Rq5Po4Nm"), body(30)])
_PUTTY = "PuTTY-User-Key-File-2: ssh-rsa\nPublic-Lines: 1\nAAAA\nPrivate-Lines: 2\n"


def _pem(label: str, text: str, newline: str = "\n") -> str:
    return f"-----BEGIN {label}-----{newline}{text.replace(chr(10), newline)}{newline}-----END {label}-----"


KEYS = (
    context_rule(
        "PRIVATE_KEY",
        r"-----BEGIN [A-Z0-9 ]{0,64}(?:PRIVATE KEY(?: BLOCK)?|NKEY SEED)-----"
        r"((?:[^\x00-]|-[^\x00-])*)-----END",
        checks=("trim",),
        positives=(
            (_pem("RSA PRIVATE KEY", _PEM_BODY), _PEM_BODY),
            (_pem("PRIVATE KEY", _PEM_BODY, "\\n"), _PEM_BODY.replace("\n", "\\n")),
            (_pem("OPENSSH PRIVATE KEY", _PEM_BODY, "\\r\\n"), _PEM_BODY.replace("\n", "\\r\\n")),
            (_pem("PGP PRIVATE KEY BLOCK", _PEM_BODY), _PEM_BODY),
            (_pem("USER NKEY SEED", "SU" + body(56, B32)), "SU" + body(56, B32)),
        ),
        negatives=(_pem("PUBLIC KEY", _PEM_BODY), _pem("CERTIFICATE", _PEM_BODY)),
    ),
    context_rule(
        "PRIVATE_KEY",
        r"-----BEGIN [A-Z0-9 ]{0,64}PRIVATE KEY(?: BLOCK)?-----((?:\\{1,8}[nr]|[A-Za-z0-9+/=\s]){40,})",
        checks=("trim",),
        positives=((_pem("EC PRIVATE KEY", _PEM_BODY)[:120], _PEM_BODY[:89]),),
        note="Cut off before its end.",
    ),
    context_rule(
        "PRIVATE_KEY",
        r"Private-Lines: [0-9]{1,3}(?:\\{1,8}[nr]|\r?\n)((?:\\{1,8}[nr]|[A-Za-z0-9+/=\r\n]){16,})",
        checks=("trim",),
        positives=((_PUTTY + body(64) + "\n" + body(20), body(64) + "\n" + body(20)),),
        note="PuTTY.",
    ),
    context_rule(
        "PRIVATE_KEY",
        r"Private-MAC: ([0-9a-f]{40,64})",
        positives=(("Private-MAC: " + body(40, HEX), body(40, HEX)),),
        note="PuTTY.",
    ),
    context_rule(
        "PRIVATE_KEY",
        r"LS0tLS1CRUdJTi[A-Za-z0-9+/_-]{20,}={0,2}",
        take="match",
        checks=("encoded_private",),
        positives=(
            (
                "key: " + "LS0tLS1CRUdJTi" + "BQUklWQVRFIEtFWS0tLS0t" + body(60),
                "LS0tLS1CRUdJTi" + "BQUklWQVRFIEtFWS0tLS0t" + body(60),
            ),
        ),
        negatives=("LS0tLS1CRUdJTi" + "BDRVJUSUZJQ0FURS0tLS0t" + body(60),),
        note="base64 of PEM, also where the text is cut off.",
    ),
    context_rule(
        "PRIVATE_KEY",
        r"\"(?:d|dp|dq|qi|p|q|k)\\{0,8}\"[ ]{0,2}:[ ]{0,2}\\{0,8}\"([A-Za-z0-9_-]{22,})\\{0,8}\"",
        checks=("jwk",),
        positives=(
            ('{"kty":"EC","crv":"P-256","d":"' + body(43) + '"}', body(43)),
            ('{"kty": "oct", "k": "' + body(43) + '"}', body(43)),
        ),
        negatives=('{"d": "' + body(43) + '"}', '{"kty":"RSA","e":"AQAB","n":"' + body(64) + '"}'),
        note="JSON Web Key.",
    ),
)

BLOBS = (
    context_rule(
        "PRIVATE_KEY",
        r"(?i)(?:pkcs_?#?12|\bpfx\b|\bp12\b)[^\x00\n]{0,40}?[^A-Za-z0-9+/\x00](MI[A-Za-z0-9+/]{100,}={0,2})",
        positives=(("keystore.p12: " + "MII" + body(400), "MII" + body(400)),),
        negatives=("the p12 file holds MIIs",),
        note="A PKCS 12 store in base64.",
    ),
    context_rule(
        "PRIVATE_KEY",
        r"MI[A-Za-z0-9+/]{4}IBADANBgkqhkiG9w0BAQEFAASC[A-Za-z0-9+/]{100,}={0,2}",
        take="match",
        checks=("start",),
        positives=(
            (
                "key " + "MIIEvQ" + "IBADANBgkqhkiG9w0BAQEFAASC" + body(200),
                "MIIEvQ" + "IBADANBgkqhkiG9w0BAQEFAASC" + body(200),
            ),
        ),
        note="PKCS 8 without its header lines.",
    ),
)

HEADERS = (
    context_rule(
        "AUTHORIZATION",
        r"(?i)authorization(?:\\*[\"'])?\s{0,4}[:=,]\s{0,4}(?:\\*[\"'])?"
        r"(?:bearer|basic|token|api-?key|api-?token|ssws|splunk|negotiate|ntlm|key)(?:\s|%20|\+){1,4}"
        r"([A-Za-z0-9._~+/=:|-]{6,})",
        checks=("literal", "dense_or_basic"),
        positives=(
            ("Authorization: Basic " + "dXNlcjpw" + "YXNzdzByZA==", "dXNlcjpw" + "YXNzdzByZA=="),
            ('curl -H "Authorization: Bearer ' + body(24) + '"', body(24)),
            ("Proxy-Authorization: Token " + body(20), body(20)),
            ("--header='Authorization:    Api-Token " + body(24) + "'", body(24)),
        ),
        negatives=("Authorization: Bearer ${TOKEN}", "authorization: bearer authentication"),
    ),
    context_rule(
        "AUTHORIZATION",
        r"(?i)authorization(?:\\*[\"'])?\s{0,4}[:=]\s{0,4}(?:\\*[\"'])?([A-Za-z0-9._~+/=-]{16,})",
        checks=("literal", "dense"),
        positives=(("authorization: " + body(32), body(32)),),
        negatives=("authorization: authentication-required", "Authorization: AWS4-HMAC-SHA256 x"),
        note="Without a scheme.",
    ),
    context_rule(
        "AUTHORIZATION",
        r"(?i)bearer(?:\s|%20|\+){1,4}([A-Za-z0-9._~+/=-]{16,})",
        checks=("start", "literal", "dense"),
        positives=(("use bearer " + body(32), body(32)),),
        negatives=("Bearer authentication-is-required", "the bearer of-this-long-document"),
    ),
    context_rule(
        "AUTHORIZATION",
        r"(?i)digest\s[^\x00\n]{0,400}?response=\\{0,8}\"([0-9a-f]{32,64})",
        positives=(('Authorization: Digest username="a", response="' + body(32, HEX) + '"', body(32, HEX)),),
        negatives=('Digest realm="a", nonce="7f"',),
    ),
    context_rule(
        "COOKIE",
        r"(?i)(?:set-)?cookie2?(?:\\*[\"'])?\]?[ ]{0,2}[:=][ ]{0,2}(?:\\*[\"'])?",
        take="cookies",
        positives=(
            ("Cookie: theme=dark; sid=" + body(26) + "; lang=en", body(26)),
            ("Set-Cookie: session=" + "abc9" + "; Path=/; HttpOnly", "abc9"),
        ),
        negatives=("Cookie: theme=dark; lang=en", "cookie = getCookie(name)", "Cookie: sid=${SID}"),
        note="Names and attributes stay.",
    ),
)

URLS = (
    context_rule(
        "URL_PASSWORD",
        r"[A-Za-z][A-Za-z0-9+.-]{1,20}:(?:\\?/){2}[^\s:/?#@\x00\"'<>\\`]{0,128}:"
        r"([^\s/\x00\"'<>\\`]+)@[^\s@\x00]",
        checks=("literal",),
        gate=r":(?:\\?/){2}[^\s/?#@\x00\"'<>\\`]*:[^\s/\x00\"'<>\\`]+@",
        positives=(
            ("postgres://app:" + "s3cr3t-Pw" + "@db:5432/x", "s3cr3t-Pw"),
            ("redis://:" + "p%40ss-w0rd" + "@cache/0", "p%40ss-w0rd"),
            ("amqp://u:" + "a@b-c9" + "@host", "a@b-c9"),
            ("https://x-access-token:" + body(30) + "@github.com/o/r.git", body(30)),
        ),
        negatives=(
            "postgres://user:" + "password@localhost/db",
            "https://user:${PASS}@host/",
            "https://host:8080/a@b",
            "git@github.com:org/repo.git",
            "http://a:b, see c@example.com",
        ),
    ),
    context_rule(
        "URL_PASSWORD",
        r"(?i)https?://([a-z0-9_-]{20,255})(?::x-oauth-basic)?@[a-z0-9]",
        checks=("literal", "token_user"),
        positives=(
            ("git clone https://" + body(40) + "@github.com/o/r.git", body(40)),
            ("https://" + body(40, _LETTERS) + "@github.com/o/r.git", body(40, _LETTERS)),
            ("https://" + body(40, _LETTERS) + ":x-oauth-basic@github.com", body(40, _LETTERS)),
        ),
        negatives=(
            "https://some-user-name-of-a-person@localhost/ https://JohnSmithFromAccounting@localhost/",
        ),
        note="A token in place of the user.",
    ),
    context_rule(
        "QUERY_SECRET",
        r"(?i)[?&](?:amp;)?(?:key|sig|signature|code|pwd|pass|auth|jwt|sas|secret|token|hmac|apikey|"
        r"x-goog-signature|x-amz-security-token|x-amz-credential|client_assertion|code_verifier)"
        r"(?:=|%3d)([A-Za-z0-9._~%+/=-]{8,})",
        checks=("literal", "dense_query"),
        positives=(
            ("https://maps.host/x?key=" + body(24) + "&a=1", body(24)),
            ("https://h/cb?state=1&code=" + body(30), body(30)),
        ),
        negatives=("https://h/x?key=primary-key-name&code=python", "?code=404&sig=none"),
    ),
)

RULES: tuple[Rule, ...] = (*KEYS, *BLOBS, *HEADERS, *URLS)
