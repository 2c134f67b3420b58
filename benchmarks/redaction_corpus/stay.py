"""What looks like a secret and is none: hashes, ids, versions, code, templates, words. It must stay as it is.

Every entry comes from a known false positive of a redactor or scanner. Put together at run time where a
scanner of this repository might take it for a leak.
"""

from __future__ import annotations

import base64
import hashlib
import random
import uuid

from redaction_corpus.parts import ALNUM, HEX, LOWER_ALNUM, draw

_WORDS: dict[str, str] = {
    "semantic version": "numpy 2.1.3, release 12.04.2026, build 1.2.3-rc.1+build.5",
    "version like an address": "requests==2.32.3.1 and v1.2.3.4",
    "clock": "20:18:09 and 2026-06-02T20:17:00Z",
    "date of unix": "Jun 02 20:17:00 CST 2026",
    "epoch seconds": "1767312000 and 1767312000.123456",
    "epoch milliseconds": "at 1767312000123 ms",
    "log time": "03/22 08:51:06 INFO   :.main: *** started",
    "run id with a date": "hosted-eu-20260812-09",
    "hyphenated word": "the risk-adjusted PnL of the desk-optimised-portfolio",
    "tag": "<task-notification>done</task-notification>",
    "author": "author: Smith, monkey: 3, keyboard: qwerty",
    "public": "public: true, license: MIT, publication: none",
    "authenticated": "User authenticated, authorization required",
    "placeholder stars": "password: ********",
    "placeholder x": "api_key=xxxxxxxxxxxxxxxx",
    "changeme": "password=changeme",
    "your key": 'api_key="your-api-key-here"',
    "angle placeholder": "Authorization: Bearer <YOUR_TOKEN>",
    "shell variable": "Authorization: Bearer ${MCP_KEY}",
    "shell variable bare": "mysql -u root -p$MYSQL_PASSWORD main",
    "template": "token: {{ secrets.GITHUB_TOKEN }}",
    "percent template": "password=%s user=%(user)s",
    "agent zero alias": "curl -H 'Authorization: Bearer §§secret(GITHUB)'",
    "include alias": "§§include(/root/notes.txt)",
    "environment lookup": 'api_key = os.environ["OPENAI_API_KEY"]',
    "getenv": "token = os.getenv('TOKEN')",
    "call": "token = getToken(); password = get_password(user)",
    "type hints": "def login(password: str, token: str | None = None) -> Session:",
    "typescript": "interface Login { password: string; apiKey?: string }",
    "attribute": "self.password = password; token = self.token",
    "component key": 'keyup.esc="cancelEdit"',
    "storage key": "STORAGE_KEY = 'vue-todo-list'",
    "primary key": "PRIMARY KEY (user_id), FOREIGN KEY (key_id) REFERENCES keys(id)",
    "private functions": "private key_down_handler, public_key_path",
    "token counters": "total_tokens=1843 max_tokens: 4096 prompt_tokens=12",
    "usage attribute": "gen_ai.usage.input_tokens: 812",
    "special tokens": "eos_token: </s>, pad_token_id: 0, cls_token=[CLS]",
    "image": "Shape@3x.png icon@2x.jpeg",
    "ssh remote": "git@github.com:acme/app.git",
    "action": "uses: actions/checkout@v4",
    "documentation mail": "mail user@example.com or admin@example.org",
    "documentation address": "192.0.2.1, 198.51.100.7, 203.0.113.9 and 2001:db8::1",
    "private address": "127.0.0.1, 10.0.0.5, 192.168.1.20, 172.16.0.1, 169.254.0.1, 0.0.0.0, ::1",
    "netmask": "255.255.255.0 and 10.0.0.0/8",
    "port": "listening on http://localhost:8080/a?b=c",
    "url without credentials": "https://api.acme.dev:8443/v1/users?page=2&sort=asc",
    "redirect": "https://login.acme.dev/authorize?response_type=code&scope=read",
    "public pem": "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQ\n-----END PUBLIC KEY-----",
    "root home": "/root/work and /home/runner/work/app and /home/user/x",
    "decimal": "loss 0.4532015112830366, x = 4.532015112830366e-05",
    "large number": "4111111111 bytes of 123456789012",
    "bare ten digits": "order 6033391234 arrived",
    "coordinates": "51.5074, -0.1278",
    "phone-like range": "rows 100-200-3000, lines 12-34",
    "hex colour": "#a1b2c3 and 0xdeadbeef",
    "file names": "sk_learn_pipeline_final_version_2.py sk_test_mode_is_on",
    "own placeholders": "<EMAIL:2> <GITHUB_TOKEN:1> <PASSWORD:3>",
    "deploy echo": 'echo "=== deploy token ==="',
    "flag help": "--token TOKEN  the token to use; --password PASSWORD",
    "session words": "session: started, cookie: accepted, auth: basic",
    "config words": "auth: none, secret: true, token: null, password: required",
    "cookie settings": "cookie_secure: true, session_timeout: 3600, token_expiry: 900s",
    "path of a key": "ssl_key: /etc/ssl/private/server.key, private_key_path=~/.ssh/id_ed25519",
    "commit range": "git log a1b2c3d..e4f5a6b",
    "math": "x = a*b; key = lambda r: r.score",
    "sorted key": "sorted(rows, key=lambda row: row['secret_count'])",
    "dict access": "headers['Authorization'] = f'Bearer {token}'",
    "javascript": "const token = await getToken(); localStorage.setItem('token', token)",
    "password prompt": "Enter password: ",
    "assert": "assert response.token == expected_token",
    "sql column": "CREATE TABLE users (password VARCHAR(255) NOT NULL, token TEXT)",
    "yaml secret ref": "secretKeyRef:\n  name: db-credentials\n  key: password",
    "vault path": "secret/data/app/config",
    "enum": "TokenType.IDENTIFIER, Token.KEYWORD",
    "parser": "token: NAME 'session_manager' 12:4",
    "prompt before other quotes": "x = getpass('Password: ')\n    while not data['x']:\n        y = 'z'",
    "format template": "credentials = '{0}:{1}'.format(user, passwd); auth = f'{user}:{passwd}'",
    "bearer words": "the bearer of this long-document is authenticated",
}


def shapes(seed: int = 0) -> dict[str, str]:
    """name → text. The drawn ones (hashes, ids, blobs) differ by seed."""
    rng = random.Random(f"stay:{seed}")
    sha1, sha256 = draw(rng, HEX, 40), draw(rng, HEX, 64)
    integrity = base64.b64encode(hashlib.sha512(sha1.encode()).digest()).decode()
    drawn = {
        "uuid": str(uuid.UUID(int=rng.getrandbits(128), version=4)),
        "uuid with phone inside": "110bcd25-a55d-453a-8046-1297901ea002",
        "uuid by key": f'"session_id": "{uuid.UUID(int=rng.getrandbits(128), version=4)}"',
        "ulid": "01" + draw(rng, "0123456789ABCDEFGHJKMNPQRSTVWXYZ", 24),
        "nanoid": "id " + draw(rng, ALNUM, 21),
        "git sha": f"commit {sha1}",
        "short sha": f"{sha1[:7]} fix the build",
        "sha256": f"sha256:{sha256}",
        "docker image": f"python@sha256:{sha256}",
        "integrity": f'"integrity": "sha512-{integrity}"',
        "lock file": f'"resolved": "https://registry.acme.dev/x/-/x-1.0.0.tgz", "shasum": "{sha1}"',
        "go sum": "h1:" + integrity[:43] + "=",
        "etag": f'ETag: "{sha1[:32]}"',
        "md5": f"{sha1[:32]}  file.tar.gz",
        "base64 picture": "data:image/png;base64,iVBORw0KGgo" + integrity * 3,
        "hash file name": f"main.{sha1[:8]}.js chunk-{sha1[:12]}.css",
        "request id": f"x-request-id: {draw(rng, LOWER_ALNUM, 32)}",
        "call id": "call_" + draw(rng, ALNUM, 24),
        "chat completion id": "chatcmpl-" + draw(rng, ALNUM, 29),
        "tool use id": "toolu_01" + draw(rng, ALNUM, 22),
        "message id": "msg_" + draw(rng, HEX, 48),
        "test vector": " ".join(str(rng.randint(0, 255)) for _ in range(40)),
        "floats": " ".join(f"{rng.random():.16f}" for _ in range(12)),
        "pointer": f"<Session object at 0x7f{draw(rng, HEX, 10)}>",
        "stack line": 'File "/usr/lib/python3.11/site-packages/auth/token.py", line 312, in refresh_token',
        "not a card": "4111 1111 1111 1112",
        "aws example": "AKIA" + "IOSFODNN7EXAMPLE",
    }
    return _WORDS | drawn


KEYED: dict[str, object] = {
    "max_tokens": 4096, "total_tokens": 18430, "token_count": "18430", "input_tokens": 812, "token": "Hello",
    "tokens": ["a", "b"], "token_ids": [1, 2, 3], "eos_token": "</s>", "session_id": "desk-1234567890abcdef",
    "password_required": True, "auth": {"type": "bearer"}, "secret": None, "author": "Smith",
    "key": "dependencies", "primary_key": "user_id", "cookie_consent": "accepted", "auth_type": "oauth2",
    "commit": "9fceb02d0ae598e95dc970b74767f19372d61af8", "password": "${DB_PASSWORD}",
    "api_key": "your-api-key",
    "name": "search_tool", "tool_name": "code_execution", "authenticated": "yes", "timestamp": 1767312000123,
    "phone_count": 3, "address_family": "inet",
}  # fmt: skip
"""Dict entries that look governed by a secret name and are not secrets."""
