"""Bugs of other projects' redactors, each as a test named after what it protects.

Numbers in the docstrings are those of the reports (project and issue). What concerns a pipeline is tested
on ours: the recorder and its outbox.
"""

import base64
import copy
import json
import sqlite3

import pytest

from onward import Recorder
from onward.errors import ConfigError, RedactionError
from onward.redaction import POLICY_VERSION, RULES, redact, redact_trajectory
from onward.redaction.engine import Redacted
from onward.redaction.known import Known

GITHUB = "ghp_" + "aB3dE5fG7hJ9" * 3
GOOGLE = "AIza" + "aB3dE5fG7hJ9k-L" * 2 + "mN2pQ"
AWS = "AKIA" + "QYLPMN5HHHFPZAM2"
JWT = "eyJhbGciOiJIUzI1NiJ9" + "." + "eyJzdWIiOiIxMjM0In0" + "." + "aB3dE5fG7hJ9kLmN2pQr" * 2
PAT = "f4cqwe5xvyufn2yg337iw5vi3t21ng3b0xskutzed8og"


def clean(document, **options):
    """What comes out; asserts that it parses, keeps its shape, and that a second run changes nothing."""
    redacted = redact(document, **options)
    assert json.loads(json.dumps(redacted.document)) == redacted.document
    again = redact(redacted.document, **options)
    assert not again.changed, again.document
    return redacted.document


# 1 to 25


def test_a_redacted_command_still_parses():
    """1, openclaw#113709."""
    inner = json.dumps({"command": 'echo "=== deploy token ==="', "password": 'a"b\\9-xyz'})
    document = clean({"raw": inner, "command": 'echo "=== deploy token ==="'})
    assert json.loads(document["raw"]) == {
        "command": 'echo "=== deploy token ==="',
        "password": "<PASSWORD:1>",
    }
    assert document["command"] == 'echo "=== deploy token ==="'


def test_every_redacted_line_of_a_log_still_parses():
    """2, paperclip#11037: 1,107 of 1,445 lines did not."""
    for i in range(300):
        line = {
            "i": i,
            "cmd": f'curl -H "Authorization: Bearer {GITHUB}" \\\n -d \'{{"token":"{JWT}"}}\' "C:\\tmp\\{i}"',
            "nested": json.dumps({"env": f"API_KEY={PAT}{i}\\", "q": '"' * (i % 4)}),
        }
        text = json.dumps(clean(line))
        assert GITHUB not in text and PAT not in text and JWT not in text
        assert json.loads(json.loads(text)["nested"])["q"] == '"' * (i % 4)


def test_a_cookie_object_loses_its_values_only():
    """3, kcap-cli#681."""
    document = {"headers": {"Cookie": {"session": "abc", "theme": "f00"}, "Accept": "json"}}
    assert clean(document) == {
        "headers": {"Cookie": {"session": "<COOKIE:1>", "theme": "<COOKIE:2>"}, "Accept": "json"}
    }


def test_brace_heavy_text_of_a_megabyte_is_one_linear_pass():
    """4, litellm#32353: minutes of backtracking. The engine has no backtracking; size has a limit."""
    text = 'Exception: {"a": {"b": [' * 45_000
    assert clean({"error": text})["error"] == text
    with pytest.raises(RedactionError):
        redact({"error": "x" * (33 << 20)})


def test_a_run_of_capitals_is_one_linear_pass():
    """5, tamp#20: 4.4 s for 64 KB."""
    text = "A_B" * 100_000
    assert clean([text]) == [text]


def test_a_failing_redactor_passes_nothing_on(tmp_path, monkeypatch):
    """6, litellm#30728: the original was forwarded when the analyzer failed."""

    def broken(_):
        raise RuntimeError(GITHUB)

    monkeypatch.setattr("onward.redaction.engine.scan", broken)
    with pytest.raises(RedactionError) as caught:
        redact({"a": GITHUB})
    assert GITHUB not in str(caught.value) and caught.value.__context__ is None
    with pytest.raises(RedactionError):
        redact_trajectory({"turns": [{"observation": {"content": GITHUB}}]})


@pytest.mark.parametrize("role", ["user", "assistant", "system", "tool", "function"])
def test_every_role_and_the_arguments_of_calls_are_redacted(role):
    """7, litellm#14612 and #30723."""
    arguments = json.dumps({"key": GITHUB})
    document = {
        "messages": [
            {"role": role, "content": f"use {GITHUB}"},
            {"role": role, "content": [{"type": "text", "text": GITHUB}]},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]},
        ]
    }
    redacted = clean(document)
    assert GITHUB not in json.dumps(redacted)
    assert json.loads(redacted["messages"][2]["tool_calls"][0]["function"]["arguments"]) == {
        "key": "<GITHUB_TOKEN:1>"
    }


def test_what_is_written_is_what_was_redacted(tmp_path, caplog):
    """8 and 9, litellm#35951 and langfuse#11222: loggers and exporters read another object, raw."""
    path = tmp_path / "outbox.db"
    with Recorder(path, agent_id="a1") as recorder, recorder.task(f"Use {GITHUB}", task_id="t1") as task:
        task.turn(observation=f"key {GITHUB}", action=f"I log in with {GITHUB}", result=f"401 for {GITHUB}")
    with sqlite3.connect(path) as connection:
        (body,) = connection.execute("SELECT body FROM queue").fetchone()
    assert b"<GITHUB_TOKEN:1>" in body
    for file in tmp_path.iterdir():
        assert GITHUB.encode() not in file.read_bytes()
    assert GITHUB not in caplog.text


def test_a_header_within_an_exception_is_redacted():
    """10, langsmith-sdk#3100."""
    error = "HTTPError(401, headers={'Authorization': 'Bearer " + PAT + "', 'X-Api-Key': '" + PAT[:30] + "'})"
    redacted = clean({"error": error, "repr": repr(error)})
    assert PAT[:30] not in json.dumps(redacted)
    assert redacted["error"].startswith("HTTPError(401, headers={'Authorization': 'Bearer <AUTHORIZATION:1>'")


def test_a_token_in_call_parameters_is_redacted_wherever_it_was_copied():
    """11, langsmith-sdk#3371."""
    call = {"type": "mcp", "server_url": "https://h/x", "authorization_token": "tok-9f8e7d6c5b4a"}
    redacted = clean({"inputs": {"tools": [call]}, "metadata": {"invocation_params": [copy.deepcopy(call)]}})
    assert redacted["inputs"]["tools"][0] == call | {"authorization_token": "<TOKEN:1>"}
    assert redacted["metadata"]["invocation_params"][0] == call | {"authorization_token": "<TOKEN:1>"}


def test_events_lists_and_numbers_are_redacted():
    """12, opentelemetry-collector-contrib#36633, #37592 and #42659."""
    card = 4111_1111_1111_1111
    span = {
        "events": [{"name": "e", "attributes": [{"key": "x", "value": {"stringValue": JWT}}]}],
        "attributes": {"tokens": [JWT, [JWT]], "card": card},
        "scope": {"attributes": {"a": JWT}},
    }
    redacted = clean(span)
    assert JWT not in json.dumps(redacted)
    assert str(card) not in json.dumps(redacted)


def test_a_registered_secret_is_masked_where_nothing_names_it():
    """13, software-agent-sdk#4190: `git remote -v` prints it."""
    known = Known([PAT])
    assert redact(f"origin https://oauth2:{PAT}@h/r (fetch)\n{PAT}", known=known).document == (
        "origin https://oauth2:<KNOWN:1>@h/r (fetch)\n<KNOWN:1>"
    )
    assert redact({"output": f"just {PAT} alone"}, known=known).document == {"output": "just <KNOWN:1> alone"}
    assert not redact({"output": f"just {PAT} alone"}).changed


def test_keys_in_configuration_and_metadata_are_redacted(trajectory):
    """14, software-agent-sdk#4216: a downloaded trajectory held the keys of its models."""
    trajectory["metadata"] |= {
        "agent": {"llm": {"model": "m", "api_key": PAT}, "condenser": {"llm": {"api_key": PAT + "2"}}},
        "env": [f"OPENAI_API_KEY={PAT}"],
    }
    redacted = redact_trajectory(trajectory).document["metadata"]
    assert redacted["agent"] == {
        "llm": {"model": "m", "api_key": "<API_KEY:1>"},
        "condenser": {"llm": {"api_key": "<API_KEY:2>"}},
    }
    assert redacted["env"] == ["OPENAI_API_KEY=<API_KEY:1>"]


def test_keys_of_all_vendors_and_headers_are_covered():
    """15, benchflow#537: only two forms were."""
    text = f"GOOGLE {GOOGLE}, AWS {AWS}; x-api-key: {PAT}"
    assert clean(text) == "GOOGLE <GOOGLE_KEY:1>, AWS <AWS_KEY_ID:1>; x-api-key: <API_KEY:1>"
    assert len({rule.kind for rule in RULES if rule.layer == 1}) >= 70


def test_a_password_below_many_levels_is_found_or_the_whole_is_refused():
    """16, airflow#65912: returned raw below five levels."""
    for depth in (6, 40, 62):
        document = {"password": "deep-s3cret"}
        for _ in range(depth):
            document = {"a": [document]} if depth < 30 else {"a": document}
        assert "deep-s3cret" not in json.dumps(redact(document).document)
    for _ in range(100):
        document = {"a": document}
    with pytest.raises(RedactionError):
        redact(document)


@pytest.mark.parametrize(
    "text",
    [
        "110bcd25-a55d-453a-8046-1297901ea002",  # 17, presidio#71: a telephone number
        "6033391", "03/22 08:51:06 INFO",  # 18, presidio#1173: persons
        "sha512-0UPjpq0G+v2vmLICxm2iOWsXlKcmO0ODkSQ4Nf3rPVLe7HyQ0XoBf6Wn4bH2ZkQMGd8A4Z1Yq3aP5xQ0LICq==",  # 19
        "Jun 02 20:17:00 CST 2026",  # 20, nullclaw#944
        "risk-adjusted PnL of the risk-adjusted-return-portfolio",  # 21, centaur#1112
        "<task-notification> task-notification-of-the-background-task",
        "sk_learn_pipeline_with_features.py", "User authenticated", "public licence of the author",
        "20:18:09", "v1.2.3.4", "requests==2.31.0.1", "1718000000123", "12.04.2026", "0.4111111111111111",
        "hosted-eu-20260812-09", "d41d8cd98f00b204e9800998ecf8427e",
        "9fceb02d0ae598e95dc970b74767f19372d61af8",
        "sha256:" + "9f86d081884c7d65" * 4, "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        'api_key = os.environ["X"]', "token = getToken()", "def f(token: str, password: str | None = None):",
        "password: required", "api_key = get_key()", 'keyup.esc="cancelEdit"',
        "STORAGE_KEY = 'vue-todo-list'",
        '"secret": "§§secret(GITHUB)"', "§§secret(GITHUB_TOKEN) and §§include(/a0/x.md)",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_secret_stays(text):
    """17 to 21, and section A3."""
    assert clean({"text": text}) == {"text": text}
    assert clean({"text": f"seen {text}, then"}) == {"text": f"seen {text}, then"}


def test_a_key_with_hyphens_and_underscores_in_its_body_is_found():
    """22, gstack#1866."""
    key = "sk-" + "proj-Ab12_Cd34-Ef56_Gh78-Ij90" + "kL12" * 4
    assert clean(f"key={key}.") == "key=<OPENAI_KEY:1>."


def test_one_line_of_json_with_a_neutral_key_first():
    """23, gitleaks#2223: nothing found, or the name reported as the secret."""
    line = '{"user": "app", "auth_token": "' + PAT + '", "n": 1, "client_secret": "' + PAT[::-1] + '"}'
    assert json.loads(clean(line)) == {
        "user": "app",
        "auth_token": "<TOKEN:1>",
        "n": 1,
        "client_secret": "<SECRET:1>",
    }


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer ${MCP_KEY}", 'f"Authorization: Bearer {token}"',
        "Authorization: Bearer $TOKEN",
        "Authorization: Bearer {{ vault.token }}", "Authorization: Bearer <KEY>", "--token ${T} -p $PW",
        "curl -u $USER:$PASS https://h/", "https://u:${PW}@h/", "https://u:<password>@h/", "mysql -p$PW db",
        'headers = {"Authorization": f"Bearer {api_key}"}', "PGPASSWORD=$PGPASSWORD psql",
        "sshpass -p $1 ssh h",
        "api_key=%s", "password=%(password)s", "key: your-api-key-here", "token=***",
        "api_key=xxxxxxxxxxxxxxxx",
    ],
)  # fmt: skip
def test_templates_stay(text):
    """24, hermes-agent#96529 and #33801."""
    assert clean([text]) == [text]


def test_token_counters_stay():
    """25, pinchy#484."""
    document = {
        "gen_ai.usage.input_tokens": 812, "max_tokens": 4096, "tokens": 123456, "total_tokens": 1843000000,
        "text": "gen_ai.usage.input_tokens: 812, max_tokens=4096 prompt_tokens: 1843000",
        "usage": {"completion_tokens_details": {"reasoning_tokens": 100000}},
    }  # fmt: skip
    assert clean(document) == document


# the line "More"


def test_a_jwt_has_no_greatest_length():
    """gitleaks#1207."""
    long = "eyJhbGciOiJIUzI1NiJ9" + "." + "aB3d" * 3000 + "." + "eF5g" * 500
    assert clean(f"t {long} u") == "t <JWT:1> u"


def test_a_token_of_letters_only_is_found():
    """gitleaks#1231."""
    assert clean("hf_" + "abcdefghijklmnopqrstuvwxyzabcdefgh") == "<HF_TOKEN:1>"


def test_passwords_in_yaml_are_found():
    """detect-secrets#458: one of eight."""
    text = (
        "db:\n  password: s3cr3t-one\n  passwd: 's3cr3t-two'\n  api_key: " + PAT + '\n  secret: "s3cr3t-6"\n'
    )
    text += "token: >-\n  x\nprivate_key: s3cr3t/five\nclient_secret: s3cr3t_six\npwd: s3cr3t7\n"
    redacted = clean(text)
    assert "s3cr3t" not in redacted and PAT not in redacted
    assert [line.split(":")[0] for line in redacted.splitlines()] == [
        line.split(":")[0] for line in text.splitlines()
    ]


def test_a_secret_of_several_lines_goes_line_by_line_and_its_braces_stay():
    """actions/runner#326 and #161: a JSON secret masked every brace."""
    secret = '{\n  "type": "x",\n  "private_key_id": "' + PAT + '"\n}'
    known = Known([secret])
    document = {"a": f'{{"k": 1}} and  "private_key_id": "{PAT}"', "b": secret}
    redacted = redact(document, known=known).document
    assert redacted == {"a": '{"k": 1} and  <KNOWN:1>', "b": "<KNOWN:1>"}


def test_an_empty_or_short_registered_secret_is_refused():
    """stategraph#419: an empty secret masked everything."""
    for secret in ("", "  ", "{", "docker"[:5]):
        with pytest.raises(ConfigError) as caught:
            Known(["a-real-secret-9", secret])
        assert "number 2" in str(caught.value)
        assert not secret.strip() or secret not in str(caught.value)


def test_the_longest_registered_secret_wins():
    """stategraph#491."""
    known = Known(["abc123def", "abc123def456ghi"])
    assert redact("x abc123def456ghi y abc123def z", known=known).document == "x <KNOWN:1> y <KNOWN:2> z"


def test_a_short_registered_secret_counts_as_a_whole_word():
    known = Known(["docker"])
    assert redact("dockerfile docker-compose docker", known=known).document == (
        "dockerfile <KNOWN:1>-compose <KNOWN:1>"
    )


def test_a_registered_secret_that_looks_like_a_placeholder_breaks_none():
    known = Known(["EMAIL:1", "KNOWN:1"])
    document = {"a": "jo" + "@corp-mail.io", "b": "EMAIL:1 or KNOWN:1"}
    redacted = redact(document, known=known).document
    assert redacted == {"a": "<EMAIL:1>", "b": "<KNOWN:1> or <KNOWN:2>"}
    assert redact(redacted, known=known).document == redacted


def test_tags_across_documents_need_the_tenants_key():
    """presidio#1845: a plain hash can be tried against a list."""
    first, second = (redact([GITHUB, f"x {PAT}"], known=Known([PAT])) for _ in range(2))
    one = first.report(b"k" * 32)["links"]
    assert one == second.report(b"k" * 32)["links"]
    assert set(one) == {"<GITHUB_TOKEN:1>", "<KNOWN:1>"}
    assert one != first.report(b"other-key-of-the-tenant")["links"]
    assert "links" not in first.report()
    report = json.dumps(first.report(b"k" * 32))
    assert GITHUB not in report and PAT not in report and first.report()["policy_version"] == POLICY_VERSION
    with pytest.raises(ConfigError):
        first.report(b"short")
    assert "ghp" not in repr(first)
    assert isinstance(first, Redacted)


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: f"x {s}yz", lambda s: json.dumps({"api_key": s})])
def test_a_secret_within_base64_is_found(wrap):
    inner = wrap(f"api_key={PAT}, and more text of it")
    run = base64.b64encode(inner.encode()).decode()
    redacted = clean({"blob": f"data: {run} end", "later": f"plain {PAT}"})
    assert redacted == {"blob": "data: <API_KEY:1> end", "later": "plain <API_KEY:1>"}


def test_a_secret_within_a_url_encoded_text_goes_and_the_rest_stays():
    text = "https://h.example/cb?x=1&body=%7B%22password%22%3A%22s3cr3t-9%22%7D&y=2"
    assert clean(text) == "https://h.example/cb?x=1&body=%7B%22password%22%3A%22<PASSWORD:1>%22%7D&y=2"


def test_digests_and_images_in_base64_stay():
    image = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 20).decode()
    integrity = "sha512-" + base64.b64encode(bytes(range(64))).decode()
    assert clean([image, integrity]) == [image, integrity]


def test_cookie_jars_of_browsers_lose_their_values():
    jar = {"cookies": [{"name": "sid", "value": "9f8e7d6c", "domain": ".acme.dev", "path": "/"}]}
    assert clean(jar)["cookies"] == [
        {"name": "sid", "value": "<COOKIE:1>", "domain": ".acme.dev", "path": "/"}
    ]
    header = "Set-Cookie: sid=9f8e7d6c; Path=/; Domain=acme.dev; HttpOnly; SameSite=Lax"
    assert clean(header) == "Set-Cookie: sid=<COOKIE:1>; Path=/; Domain=acme.dev; HttpOnly; SameSite=Lax"


def test_names_and_addresses_go_by_their_key():
    document = {
        "customer": {"first_name": "Ottilie", "lastName": "Brandt", "email": "x", "id": 7},
        "shipping_address": {"street": "Lindenweg 5", "zip_code": "50667", "city": "Köln"},
        "ip_address": "10.0.0.1", "address": "0x7ffe12", "name": "search_tool",
        "phone_number": "0221 555 0199 12",
        "schema": {"first_name": {"type": "string"}, "address": "string"},
    }  # fmt: skip
    redacted = clean(document)
    assert redacted["customer"] == {
        "first_name": "<PERSON:1>",
        "lastName": "<PERSON:2>",
        "email": "x",
        "id": 7,
    }
    assert redacted["shipping_address"]["street"] == "<ADDRESS:1>"
    assert redacted["shipping_address"]["zip_code"] == "<ADDRESS:2>"
    assert redacted["phone_number"] == "<PHONE:1>"
    for kept in ("ip_address", "address", "name", "schema"):
        assert redacted[kept] == document[kept]


def test_known_secrets_come_from_the_environment_by_name():
    environ = {
        "OPENAI_API_KEY": PAT, "DB_PASSWORD": "correct9horse",
        "DATABASE_URL": "postgres://u:" + "pw-9-of-db" + "@h/x",
        "HOME": "/home/app", "SSH_AUTH_SOCK": "/tmp/ssh/agent.1", "SECRET_NAME": "the-name-1",
        "TOKEN": "${X}",
        "API_KEY": "changeme", "PIN_PASSWORD": "1234", "MAX_TOKENS": "4096", "PATH": "/usr/bin:/bin",
    }  # fmt: skip
    known = Known.from_environment(environ)
    assert repr(known) == "Known(3 secrets)"
    text = f"{PAT} correct9horse pw-9-of-db /home/app the-name-1 4096 changeme"
    assert redact(text, known=known).document == (
        "<KNOWN:1> <KNOWN:2> <KNOWN:3> /home/app the-name-1 4096 changeme"
    )
    assert not Known.from_environment({"PATH": "/bin"})
