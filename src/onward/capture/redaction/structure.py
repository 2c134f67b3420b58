"""Layer 2: secrets that only the text around them gives away.

Where a name governs a value (``take="assigned"``, ``"flag"``), ``names.py`` says which names do and
``values.py`` which values are literals.
"""

from __future__ import annotations

from onward.capture.redaction.rule import B32, HEX, Rule, body

_PEM_BODY = "\n".join([body(64), body(64, "Zx9Yw8Vu7Ts6Rq5Po4Nm"), body(30)])
_PUTTY = "PuTTY-User-Key-File-2: ssh-rsa\nPublic-Lines: 1\nAAAA\nPrivate-Lines: 2\n"


def _pem(label: str, text: str, newline: str = "\n") -> str:
    return f"-----BEGIN {label}-----{newline}{text.replace(chr(10), newline)}{newline}-----END {label}-----"


KEYS = (
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
            (_pem("OPENSSH PRIVATE KEY", _PEM_BODY, "\\r\\n"), _PEM_BODY.replace("\n", "\\r\\n")),
            (_pem("PGP PRIVATE KEY BLOCK", _PEM_BODY), _PEM_BODY),
            (_pem("USER NKEY SEED", "SU" + body(56, B32)), "SU" + body(56, B32)),
        ),
        negatives=(_pem("PUBLIC KEY", _PEM_BODY), _pem("CERTIFICATE", _PEM_BODY)),
    ),
    Rule(
        "PRIVATE_KEY",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----((?:\\{1,4}[nr]|[A-Za-z0-9+/=\s]){40,})",
        2,
        take="group",
        checks=("trim",),
        positives=((_pem("EC PRIVATE KEY", _PEM_BODY)[:120], _PEM_BODY[:89]),),
        note="Cut off before its end.",
    ),
    Rule(
        "PRIVATE_KEY",
        r"Private-Lines: [0-9]{1,3}(?:\r?\n|\\n)((?:\\n|[A-Za-z0-9+/=\r\n]){16,})",
        2,
        take="group",
        checks=("trim",),
        positives=((_PUTTY + body(64) + "\n" + body(20), body(64) + "\n" + body(20)),),
        note="PuTTY.",
    ),
    Rule(
        "PRIVATE_KEY",
        r"Private-MAC: ([0-9a-f]{40,64})",
        2,
        take="group",
        positives=(("Private-MAC: " + body(40, HEX), body(40, HEX)),),
        note="PuTTY.",
    ),
    Rule(
        "PRIVATE_KEY",
        r"LS0tLS1CRUdJTi[A-Za-z0-9+/_-]{20,}={0,2}",
        2,
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
    Rule(
        "PRIVATE_KEY",
        r"\"(?:d|dp|dq|qi|p|q|k)\\{0,8}\"[ ]{0,2}:[ ]{0,2}\\{0,8}\"([A-Za-z0-9_-]{22,})\\{0,8}\"",
        2,
        take="group",
        checks=("jwk",),
        positives=(
            ('{"kty":"EC","crv":"P-256","d":"' + body(43) + '"}', body(43)),
            ('{"kty": "oct", "k": "' + body(43) + '"}', body(43)),
        ),
        negatives=('{"d": "' + body(43) + '"}', '{"kty":"RSA","e":"AQAB","n":"' + body(64) + '"}'),
        note="JSON Web Key.",
    ),
)

HEADERS = (
    Rule(
        "AUTHORIZATION",
        r"(?i)authorization(?:\\*[\"'])?\s{0,4}[:=,]\s{0,4}(?:\\*[\"'])?"
        r"(?:bearer|basic|token|apikey|api-key|negotiate|ntlm|key)(?:\s|%20|\+){1,4}"
        r"([A-Za-z0-9._~+/=:|-]{6,})",
        2,
        take="group",
        checks=("literal", "dense_or_basic"),
        positives=(
            ("Authorization: Basic " + "dXNlcjpw" + "YXNzdzByZA==", "dXNlcjpw" + "YXNzdzByZA=="),
            ('curl -H "Authorization: Bearer ' + body(24) + '"', body(24)),
            ("Proxy-Authorization: Token " + body(20), body(20)),
        ),
        negatives=("Authorization: Bearer ${TOKEN}", "authorization: bearer authentication"),
    ),
    Rule(
        "AUTHORIZATION",
        r"(?i)authorization(?:\\*[\"'])?\s{0,4}[:=]\s{0,4}(?:\\*[\"'])?([A-Za-z0-9._~+/=-]{16,})",
        2,
        take="group",
        checks=("literal", "dense"),
        positives=(("authorization: " + body(32), body(32)),),
        negatives=("authorization: authentication-required", "Authorization: AWS4-HMAC-SHA256 x"),
        note="Without a scheme.",
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
        "AUTHORIZATION",
        r"(?i)digest\s[^\x00\n]{0,400}?response=\\{0,8}\"([0-9a-f]{32,64})",
        2,
        take="group",
        positives=(('Authorization: Digest username="a", response="' + body(32, HEX) + '"', body(32, HEX)),),
        negatives=('Digest realm="a", nonce="7f"',),
    ),
    Rule(
        "COOKIE",
        r"(?i)(?:set-)?cookie2?(?:\\*[\"'])?\]?[ ]{0,2}[:=][ ]{0,2}(?:\\*[\"'])?",
        2,
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
    Rule(
        "URL_PASSWORD",
        r"[A-Za-z][A-Za-z0-9+.-]{1,20}:(?:\\?/){2}[^\s:/?#@\x00\"'<>\\`]{0,128}:"
        r"([^\s/\x00\"'<>\\`]{1,256})@[^\s@\x00]",
        2,
        take="group",
        checks=("literal",),
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
    Rule(
        "URL_PASSWORD",
        r"(?i)https?://([a-z0-9_-]{20,255})(?::x-oauth-basic)?@[a-z0-9]",
        2,
        take="group",
        checks=("literal", "mixed"),
        positives=(("git clone https://" + body(40) + "@github.com/o/r.git", body(40)),),
        negatives=("https://some-user-name-of-a-person@localhost/",),
        note="A token in place of the user.",
    ),
    Rule(
        "QUERY_SECRET",
        r"(?i)[?&](?:amp;)?(?:key|sig|signature|code|pwd|pass|auth|jwt|sas|secret|token|hmac|apikey|"
        r"x-goog-signature|x-amz-security-token|x-amz-credential|client_assertion|code_verifier)"
        r"(?:=|%3d)([A-Za-z0-9._~%+/=-]{8,})",
        2,
        take="group",
        checks=("literal", "dense_query"),
        positives=(
            ("https://maps.host/x?key=" + body(24) + "&a=1", body(24)),
            ("https://h/cb?state=1&code=" + body(30), body(30)),
        ),
        negatives=("https://h/x?key=primary-key-name&code=python", "?code=404&sig=none"),
    ),
)

COMMANDS = (
    Rule(
        "CLI_PASSWORD",
        r"(?:curl|wget|http)[^\x00\n|;&]{0,512}?\s(?:-u|--user|--proxy-user|-U)[ =]?[\"']?"
        r"[^\s:\x00\"'@/]{1,64}:([^\s\x00\"'\\]{3,128})",
        2,
        take="group",
        checks=("literal",),
        positives=(
            ("curl -u admin:" + "hunter2-q" + " https://h/", "hunter2-q"),
            ('curl -s --user "jo:' + "hunter2-r" + '" https://h/', "hunter2-r"),
        ),
        negatives=("curl -u $USER:$PASS https://h/", "curl -u user:<password> https://h/"),
    ),
    Rule(
        "CLI_PASSWORD",
        r"(?:mysql|mysqldump|mysqladmin|mariadb)[^\x00\n|;&]{0,256}?"
        r"\s-p[\"']?([^\s\x00\"'\\-][^\s\x00\"'\\]{2,128})",
        2,
        take="group",
        checks=("literal",),
        positives=(("mysql -h db -u root -p" + "hunter2-s" + " app", "hunter2-s"),),
        negatives=("mysql -u root -p app", "mysql -u root -p$PASS app", "mysql --port 3306 -P 3306"),
    ),
    Rule(
        "CLI_PASSWORD",
        r"sshpass[ ]{1,3}-p[ ]{0,3}[\"']?([^\s\x00\"'\\]{3,128})",
        2,
        take="group",
        checks=("literal",),
        positives=(("sshpass -p " + "hunter2-t" + " ssh h", "hunter2-t"),),
        negatives=('sshpass -p "$PW" ssh h',),
    ),
    Rule(
        "CLI_PASSWORD",
        r"(?:redis-cli|mongo|mongosh|docker login|podman login|helm|ldapsearch|smbclient|sqlcmd|psql|ftp)"
        r"[^\x00\n|;&]{0,256}?\s(?:-a|-p|-w|-P|-pass)[ ]{1,3}[\"']?([^\s\x00\"'\\-][^\s\x00\"'\\]{3,128})",
        2,
        take="group",
        checks=("literal", "password_like"),
        positives=(
            ("redis-cli -h r -a " + "hunter2-u" + " ping", "hunter2-u"),
            ("docker login -u jo -p " + "hunter2-v" + " reg.io", "hunter2-v"),
        ),
        negatives=("redis-cli -h r -a $PW", "psql -p 5432", "docker login -u jo -p <token>"),
    ),
    Rule(
        "PASSWORD",
        r"(?i)(?:identified[ ]+by|password)[ ]+\\?'([^'\s\x00\\]{3,128})\\?'",
        2,
        take="group",
        checks=("literal",),
        positives=(("CREATE USER jo WITH PASSWORD '" + "hunter2-w" + "';", "hunter2-w"),),
        negatives=("the password 'changeme' is", "IDENTIFIED BY '<password>'"),
        note="SQL.",
    ),
    Rule(
        "PASSWORD",
        r"(?i)login[ \t]+[^\s\x00]{1,64}(?:\s|\\n){1,4}password[ \t]+([^\s\x00\"'\\]{3,128})",
        2,
        take="group",
        checks=("literal",),
        positives=(("machine h login jo password " + "hunter2-x" + "\n", "hunter2-x"),),
        negatives=("login jo password <password>",),
        note="netrc.",
    ),
    Rule(
        "ASSIGNED",
        r"(?i)--?[a-z0-9-]{0,30}?(?:password|passwd|passphrase|passwort|secret|token|api-?key|access-?key|"
        r"auth|pass)[a-z0-9-]{0,20}[ \t]{1,4}",
        2,
        take="flag",
        positives=(
            ("login --password " + "hunter2-z" + " now", "hunter2-z"),
            ("tool --api-key '" + body(20) + "'", body(20)),
        ),
        negatives=("--token TOKEN  the token", "use --password to give one", "--password <pw>"),
    ),
)

_SECRET_WORDS = (
    r"secret|token|passw|passphrase|passcode|pwd|pass|credential|api[_ -]?key|apikey|access[_-]?key|"
    r"account[_-]?key|private[_-]?key|signing[_-]?key|encryption[_-]?key|master[_-]?key|license[_-]?key|"
    r"app[_-]?key|application[_-]?key|client[_-]?key|consumer[_-]?key|shared[_-]?key|storage[_-]?key|"
    r"subscription[_-]?key|service[_-]?key|deploy[_-]?key|ssh[_-]?key|api[_-]?hash|auth|cookie|session|"
    r"connection[_-]?string|conn[_-]?str|dsn|jwt|nkey"
)
_PERSONAL_WORDS = (
    r"(?:first|last|middle|full|given|family|maiden|birth|legal|sur|patient|customer|employee|contact|holder|"
    r"cardholder|recipient|guest|passenger|applicant|beneficiary|billing|shipping|fore)[_-]?name|address|"
    r"street|postcode|postal_?code|zip_?code|phone|mobile|msisdn|fax|ssn|social_?security|passport|national_?id|"
    r"national_?insurance|tax_?(?:id|number)|licen[cs]e_?plate|aadhaar|cpf|personnummer"
)

ASSIGNMENTS = (
    Rule(
        "ASSIGNED",
        rf"(?i)(?:{_SECRET_WORDS})[A-Za-z0-9_.-]{{0,40}}(?:\\{{0,8}}[\"'`])?\]?[ \t]{{0,8}}"
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
            ("PGPASSWORD=" + "hunter2-k" + " psql -h db", "hunter2-k"),
            ("Server=db;User Id=sa;Password=" + "hunter2;Encrypt=no"[:7] + ";Encrypt=no", "hunter2"),
            ("jdbc:sqlserver://h;user=sa;pwd=" + "abcdefg" + ";x=1", "abcdefg"),
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
        r"(?i)[_-]pat(?:\\{0,8}[\"'`])?\]?[ \t]{0,8}(?:=>|:=|=|:)[ \t]{0,8}",
        2,
        take="assigned",
        positives=(("AZURE_DEVOPS_PAT=" + body(52, B32.lower()), body(52, B32.lower())),),
        negatives=("url_pat: /users/<id>", "GITHUB_PAT=${PAT}"),
        note="Personal access token.",
    ),
    Rule(
        "ASSIGNED",
        r"(?i)<[a-z0-9_.:-]{0,40}(?:secret|token|passw|passphrase|pwd|api_?key|access_?key|private_?key)"
        r"[a-z0-9_.-]{0,40}>",
        2,
        take="assigned",
        positives=(("<db><password>" + "hunter2-e" + "</password></db>", "hunter2-e"),),
        negatives=("<password>changeme</password>", "<token></token>", "use <password> here"),
        note="XML.",
    ),
    Rule(
        "ASSIGNED",
        rf"(?i)(?:{_PERSONAL_WORDS})[A-Za-z0-9_]{{0,10}}\\{{0,8}}[\"'][ ]{{0,4}}:[ ]{{0,4}}",
        2,
        take="assigned",
        positives=(
            ('{"first_name": "Ottilie", "n": 1}', "Ottilie"),
            ('{\\"street_address\\": \\"12 Mill Lane\\"}', "12 Mill Lane"),
        ),
        negatives=('{"address": "10.0.0.1:80"}', '{"first_name": "string"}', "'phone': 'required'"),
        note="Names and addresses by their key, in JSON within text.",
    ),
    Rule(
        "PASSWORD",
        r"(?i)(?:password|passphrase|passcode|passwort)(?:\s(?:for\s[^\s\x00]{1,40}))?\s"
        r"(?:is|was|to)[: ]{1,3}[\"'`]?([^\s\x00\"'`<>\\]{4,128})",
        2,
        take="group",
        checks=("literal", "password_like", "trim_prose"),
        positives=(("my password is " + "hunter2!x" + ", thanks", "hunter2!x"),),
        negatives=("the password is required", "your password was changed", "password is None."),
    ),
)

RULES: tuple[Rule, ...] = (*KEYS, *HEADERS, *URLS, *COMMANDS, *ASSIGNMENTS)
