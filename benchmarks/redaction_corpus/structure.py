"""Layer 2: secrets without a form of their own, known by the text around them.

A carrier is text with a hole: ``{s}`` is the secret, the rest is what a tool or a file shows around it. Which
contexts make sense is said per group: a carrier is not put where its own syntax would end.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable

from redaction_corpus.parts import ALNUM, BASE32, BASE64, BASE64URL, DIGITS, HEX, LOWER_ALNUM, draw, password

Maker = Callable[[random.Random], str]


def _drawn(alphabet: str, length: int, end: str = "") -> Maker:
    return lambda rng: draw(rng, alphabet, length) + end


KEY24, HEX32, ALNUM40, BASE64_40 = _drawn(ALNUM, 24), _drawn(HEX, 32), _drawn(ALNUM, 40), _drawn(BASE64, 40)
BASIC = _drawn(ALNUM, 26, "==")
STORAGE_KEY = _drawn(BASE64, 86, "==")
URL_PASSWORD = _drawn(ALNUM, 14)

URLS: dict[str, tuple[str, Maker]] = {
    f"url {scheme}": (f"{scheme}://app:{{s}}@db.acme.dev:{port}/main", URL_PASSWORD)
    for scheme, port in [
        ("http", 80), ("https", 443), ("postgres", 5432), ("postgresql", 5432), ("mysql", 3306),
        ("mongodb", 27017), ("redis", 6379), ("rediss", 6380), ("amqp", 5672), ("amqps", 5671), ("ftp", 21),
        ("smtp", 587), ("nats", 4222), ("ssh", 22), ("postgresql+psycopg", 5432),
    ]
} | {
    "url mongodb+srv": ("mongodb+srv://app:{s}@cluster0.acme.dev/main?retryWrites=true", URL_PASSWORD),
    "url without user": ("redis://:{s}@cache.acme.dev:6379/0", URL_PASSWORD),
    "url of a git clone": ("git clone https://x-access-token:{s}@github.com/acme/app.git", ALNUM40),
    "url with a token as user": ("https://{s}:x-oauth-basic@github.com/acme/app.git", ALNUM40),
    "url with a signed password": ("postgres://app:{s}@db/x", lambda rng: draw(rng, ALNUM, 6) + "%40" +
                                   draw(rng, ALNUM, 6) + "%2F" + draw(rng, DIGITS, 3)),
}  # fmt: skip

QUERIES: dict[str, tuple[str, Maker]] = {
    f"query {name}": (f"https://api.acme.dev/v1/items?page=2&{name}={{s}}&sort=asc", KEY24)
    for name in ("api_key", "access_token", "token", "key", "password", "client_secret", "auth_token")
} | {
    "query code": ("https://app.acme.dev/callback?state=ok&code={s}&scope=read", ALNUM40),
    "query sig": ("https://acct.blob.core.windows.net/c/f?sv=2023-11-03&sp=r&sig={s}&se=2027-01-01",
                  lambda rng: draw(rng, ALNUM, 43) + "%3D"),
    "query aws signature": ("https://b.s3.amazonaws.com/k?X-Amz-Date=20260102T030405Z&X-Amz-Signature={s}"
                            "&X-Amz-Expires=60", _drawn(HEX, 64)),
    "query aws token": ("https://b.s3.amazonaws.com/k?X-Amz-Expires=60&X-Amz-Security-Token={s}"
                        "&X-Amz-SignedHeaders=host", _drawn(ALNUM, 200)),
}  # fmt: skip

HEADERS: dict[str, tuple[str, Maker]] = {
    "header bearer": ("Authorization: Bearer {s}", KEY24),
    "header basic": ("Authorization: Basic {s}", BASIC),
    "header token": ("Authorization: Token {s}", ALNUM40),
    "header digest": (
        'Authorization: Digest username="app", realm="api", nonce="7f", uri="/x", response="{s}"',
        HEX32,
    ),
    "header proxy": ("Proxy-Authorization: Basic {s}", BASIC),
    "header lower case": ("authorization: bearer {s}", KEY24),
    "header without scheme": ("Authorization: {s}", ALNUM40),
    "header x-api-key": ("X-Api-Key: {s}", KEY24),
    "header api-key": ("api-key: {s}", HEX32),
    "header x-auth-token": ("X-Auth-Token: {s}", HEX32),
    "header private-token": ("PRIVATE-TOKEN: {s}", KEY24),
    "header cookie": ("Cookie: theme=dark; sessionid={s}; lang=en", HEX32),
    "header set-cookie": ("Set-Cookie: sid={s}; Path=/; HttpOnly", HEX32),
    "header csrf cookie": ("Cookie: csrftoken={s}", ALNUM40),
    "header sigv4": (
        "Authorization: AWS4-HMAC-SHA256 Credential=app/20260102/eu-west-1/s3/aws4_request, "
        "SignedHeaders=host, Signature={s}",
        _drawn(HEX, 64),
    ),
    "header in curl": ("curl -H 'Authorization: Bearer {s}' https://api.acme.dev/v1", KEY24),
    "header dict in python": ("headers={{'Authorization': 'Bearer {s}', 'Accept': '*/*'}}", KEY24),
    "bare bearer": ("used Bearer {s}", _drawn(ALNUM, 40)),
}

FLAGS: dict[str, tuple[str, Maker]] = {
    "flag curl user": ("curl -u admin:{s} https://api.acme.dev/v1", password),
    "flag curl long user": ("curl --user admin:{s} https://api.acme.dev/v1", password),
    "flag password equals": ("login --password={s} --host db", password),
    "flag password": ("login --password {s} --host db", password),
    "flag quoted password": ('login --password "{s}" --host db', password),
    "flag token": ("tool --token {s} run", KEY24),
    "flag api key": ("tool --api-key={s} run", KEY24),
    "flag secret": ("tool --client-secret {s} run", KEY24),
    "flag mysql": ("mysql -h db -u root -p{s} main", URL_PASSWORD),
    "flag mysqldump": ("mysqldump -uroot -p'{s}' main", URL_PASSWORD),
    "flag sshpass": ("sshpass -p {s} ssh app@db.acme.dev", password),
    "flag sshpass quoted": ("sshpass -p '{s}' scp f app@db:/tmp", password),
    "flag PGPASSWORD": ("PGPASSWORD={s} psql -h db -U app", password),
    "flag MYSQL_PWD": ("MYSQL_PWD={s} mysql -u app", password),
    "flag docker login": ("docker login -u app -p {s} registry.acme.dev", password),
    "flag redis": ("redis-cli -h cache -a {s} ping", URL_PASSWORD),
}

CONNECTIONS: dict[str, tuple[str, Maker]] = {
    "connection jdbc": ("jdbc:sqlserver://db:1433;databaseName=m;user=app;password={s};encrypt=true", KEY24),
    "connection jdbc query": ("jdbc:postgresql://db/m?user=app&password={s}&ssl=true", KEY24),
    "connection odbc": ("Driver={{SQL Server}};Server=db;Uid=app;Pwd={s};", KEY24),
    "connection ado": ("Server=db;Database=m;User Id=app;Password={s};", password),
    "connection azure storage": (
        "DefaultEndpointsProtocol=https;AccountName=acme;AccountKey={s};EndpointSuffix=core.windows.net",
        STORAGE_KEY,
    ),
    "connection azure bus": (
        "Endpoint=sb://acme.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey={s}",
        _drawn(BASE64, 43, "="),
    ),
    "connection libpq": ("host=db port=5432 dbname=m user=app password={s} sslmode=require", password),
}

_NAMES: dict[str, Maker] = {
    "SECRET": KEY24, "APP_TOKEN": KEY24, "DB_PASSWORD": password, "passwd": password, "pwd": password,
    "passphrase": password, "API_KEY": KEY24, "apiKey": KEY24, "AWS_SECRET_ACCESS_KEY": BASE64_40,
    "AWS_SESSION_TOKEN": _drawn(BASE64, 180), "private_key": ALNUM40, "client_secret": ALNUM40,
    "credential": KEY24, "auth": HEX32, "auth_token": KEY24, "session": HEX32, "cookie": HEX32,
    "DEEPSEEK_API_KEY": HEX32, "MISTRAL_API_KEY": _drawn(ALNUM, 32), "COHERE_API_KEY": ALNUM40,
    "AZURE_OPENAI_API_KEY": HEX32, "AZURE_DEVOPS_PAT": _drawn(LOWER_ALNUM, 52), "encryption_key": HEX32,
    "signing_secret": HEX32, "refreshToken": KEY24, "secret_key_base": _drawn(HEX, 128),
}  # fmt: skip
_SYNTAX = {
    "env": "{n}={s}",
    "export": "export {n}={s}",
    "env quoted": '{n}="{s}"',
    "yaml": "{n}: {s}",
    "yaml quoted": "{n}: '{s}'",
    "json": '"{n}": "{s}"',
    "python": '{n} = "{s}"',
    "ini": "{n} = {s}",
    "go": '{n} := "{s}"',
    "arrow": "'{n}' => '{s}'",
}
ASSIGNMENTS: dict[str, tuple[str, Maker]] = {
    f"assigned {name} {syntax}": (form.replace("{n}", name), make)
    for name, make in _NAMES.items()
    for syntax, form in _SYNTAX.items()
} | {
    "slack webhook": ("https://hooks.slack.com/services/T0{s}", lambda rng: draw(rng, "0123456789ABCDEF", 8)
                      + "/B" + draw(rng, "0123456789ABCDEF", 9) + "/" + draw(rng, ALNUM, 24)),
    "slack workflow": ("https://hooks.slack.com/workflows/T0{s}", lambda rng: draw(rng, DIGITS, 8) + "/A" +
                       draw(rng, DIGITS, 9) + "/" + draw(rng, DIGITS, 18) + "/" + draw(rng, ALNUM, 24)),
    "slack trigger": ("https://hooks.slack.com/triggers/T0{s}", lambda rng: draw(rng, DIGITS, 8) + "/" +
                      draw(rng, DIGITS, 13) + "/" + draw(rng, HEX, 32)),
    "discord webhook": ("https://discord.com/api/webhooks/{s}", lambda rng: draw(rng, DIGITS, 18) + "/" +
                        draw(rng, BASE64URL, 68)),
    "password in a sentence": ("the password is {s}", password),
}  # fmt: skip


def pem(rng: random.Random, label: str = "RSA PRIVATE KEY", lines: int = 12) -> tuple[str, tuple[str, ...]]:
    body = [draw(rng, BASE64, 64) for _ in range(lines)] + [draw(rng, BASE64, 30) + "=="]
    text = "\n".join([f"-----BEGIN {label}-----", *body, f"-----END {label}-----"])
    return text, tuple(body)


def _newlines_as(newline: str) -> Callable[[random.Random], tuple[str, tuple[str, ...]]]:
    def make(rng: random.Random) -> tuple[str, tuple[str, ...]]:
        text, body = pem(rng, "PRIVATE KEY")
        return text.replace("\n", newline), body

    return make


def _armoured(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    text, body = pem(rng, "PGP PRIVATE KEY BLOCK")
    return text.replace("BLOCK-----\n", "BLOCK-----\nVersion: GnuPG v2\n\n", 1), body


def _putty(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    public, secret = draw(rng, BASE64, 64), [draw(rng, BASE64, 64) for _ in range(3)]
    mac = draw(rng, HEX, 64)
    lines = ["PuTTY-User-Key-File-3: ssh-rsa", "Encryption: none", "Comment: key", "Public-Lines: 1", public]
    return "\n".join([*lines, "Private-Lines: 3", *secret, f"Private-MAC: {mac}"]), (*secret, mac)


def _pem_in_base64(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    text = base64.b64encode(pem(rng)[0].encode()).decode()
    return text, (text[60:],)


def _jwk(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    x, d = draw(rng, BASE64URL, 43), draw(rng, BASE64URL, 43)
    return f'{{"kty":"EC","crv":"P-256","x":"{x}","y":"{draw(rng, BASE64URL, 43)}","d":"{d}"}}', (d,)


def _pkcs12(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    body = draw(rng, BASE64, 400)
    return f"pkcs12: MIIK{body}==", (body,)


def _nkey(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    seed = draw(rng, BASE32, 56)
    return f"-----BEGIN USER NKEY SEED-----\nSU{seed}\n------END USER NKEY SEED------", (seed,)


def _service_account(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    text, body = pem(rng, "PRIVATE KEY")
    key_id = draw(rng, HEX, 40)
    escaped = text.replace("\n", "\\n") + "\\n"
    return f'{{"type": "service_account", "private_key_id": "{key_id}", "private_key": "{escaped}"}}', body


def _aws_pair(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    secret = draw(rng, BASE64, 40)
    return f"Access key ID,Secret access key\nAKIA{draw(rng, BASE32, 16)},{secret}", (secret,)


def _aws_lines(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    secret = draw(rng, BASE64, 40)
    return f"id: AKIA{draw(rng, BASE32, 16)}\nregion: eu-west-1\nvalue: {secret}", (secret,)


BLOCKS: dict[str, Callable[[random.Random], tuple[str, tuple[str, ...]]]] = {
    "pem rsa": pem,
    "pem openssh": lambda rng: pem(rng, "OPENSSH PRIVATE KEY"),
    "pem ec": lambda rng: pem(rng, "EC PRIVATE KEY", 2),
    "pem encrypted": lambda rng: pem(rng, "ENCRYPTED PRIVATE KEY"),
    "pem with literal \\n": _newlines_as("\\n"),
    "pem with literal \\r\\n": _newlines_as("\\r\\n"),
    "pem with carriage returns": _newlines_as("\r\n"),
    "pem in base64": _pem_in_base64,
    "pgp": _armoured,
    "putty": _putty,
    "jwk": _jwk,
    "pkcs12": _pkcs12,
    "nkey block": _nkey,
    "service account": _service_account,
    "aws secret beside its id": _aws_pair,
    "aws secret two lines after its id": _aws_lines,
}
LINES = URLS | QUERIES | HEADERS | FLAGS | CONNECTIONS | ASSIGNMENTS
GOVERNING_KEYS = (
    "password", "db_password", "passwd", "pwd", "passphrase", "secret", "clientSecret", "client_secret",
    "token", "accessToken", "access_token", "refresh_token", "id_token", "api_key", "apiKey", "X-Api-Key",
    "access_key", "secret_access_key", "private_key", "credential", "credentials", "auth", "Authorization",
    "Proxy-Authorization", "cookie", "Set-Cookie", "session", "connection_string", "dsn",
    "authorization_token",    "signing_secret", "webhook_secret",
)  # fmt: skip
"""Dict keys whose value is a secret, whatever it looks like."""
