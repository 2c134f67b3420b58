"""Two passes, structure, placeholders, guards, limits: what holds for any document."""

import base64
import contextlib
import json
import sys
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.errors import RedactionError
from onward.redaction import POLICY_VERSION, RULES, redact
from onward.redaction.judging.assigned_values import governed_spans

GITHUB = "ghp_" + "aB3dE5fG7hJ9" * 3
OPENAI = "sk-" + "a" * 40
PASSWORD = "Tr0ub4dor/&3+x"


def test_a_password_seen_once_with_context_vanishes_everywhere():
    document = {
        "first": f"the command was: {PASSWORD}",
        "config": {"db": {"password": PASSWORD}},
        "later": f"retry with '{PASSWORD}'.",
    }
    redacted = redact(document)
    assert redacted.document == {
        "first": "the command was: <PASSWORD:1>",
        "config": {"db": {"password": "<PASSWORD:1>"}},
        "later": "retry with '<PASSWORD:1>'.",
    }
    assert redacted.counts == {"PASSWORD": 3}
    assert redacted.touched == {("first",), ("config", "db", "password"), ("later",)}


@pytest.mark.parametrize(
    "encode",
    [
        lambda s: json.dumps({"p": s}),
        lambda s: json.dumps(json.dumps({"p": s})),
        lambda s: "https://h.example/?q=" + quote(s, safe=""),
        lambda s: "blob " + base64.b64encode(s.encode()).decode(),
        lambda s: "blob " + base64.b64encode(b"x" + s.encode() + b"yz").decode(),
        lambda s: "blob " + base64.b64encode(b"xy" + s.encode()).decode(),
        lambda s: "blob " + base64.urlsafe_b64encode(b"user:" + s.encode() + b"\n").decode(),
    ],
)
def test_other_encodings_of_a_found_secret_vanish(encode):
    secret = 'Tr0ub4"dor\\&3 é+x'
    text = encode(secret)
    redacted = redact({"password": secret, "other": text}).document
    assert redacted["password"] == "<PASSWORD:1>"
    assert "<PASSWORD:1>" in redacted["other"]
    assert "ub4" not in redacted["other"]
    assert "dHIwdWI0" not in redacted["other"]


def test_an_encoded_secret_in_a_url_is_the_same_secret():
    text = redact(["see postgres://app:" + "p%40ss%2Fw0rd@db/x", "pw p@ss/w0rd used"]).document
    assert text == ["see postgres://app:<URL_PASSWORD:1>@db/x", "pw <URL_PASSWORD:1> used"]


def test_each_line_of_a_private_key_is_a_secret():
    body = [("Ab3dEf6h" * 8)[i : i + 60] for i in range(3)]
    pem = "-----BEGIN " + "PRIVATE KEY-----\n" + "\n".join(body) + "\n-----END " + "PRIVATE KEY-----"
    redacted = redact([pem, f"grep found {body[1]}"]).document
    assert redacted == [
        "-----BEGIN " + "PRIVATE KEY-----\n<PRIVATE_KEY:1>\n-----END " + "PRIVATE KEY-----",
        "grep found <PRIVATE_KEY:1>",
    ]


def test_the_same_value_has_the_same_placeholder_and_others_count_up():
    a, b = "jo" + "@corp-mail.io", "al" + "@corp-mail.io"
    assert redact([a, b, a.upper(), f"{b} and {a}"]).document == [
        "<EMAIL:1>",
        "<EMAIL:2>",
        "<EMAIL:1>",
        "<EMAIL:2> and <EMAIL:1>",
    ]


def test_new_placeholders_go_on_after_those_already_there():
    assert redact(["<EMAIL:4> wrote", "jo" + "@corp-mail.io"]).document == ["<EMAIL:4> wrote", "<EMAIL:5>"]


def test_short_passwords_go_where_they_stand_but_are_not_spread():
    assert redact({"password": "abc", "text": "abc is the alphabet"}).document == {
        "password": "<PASSWORD:1>",
        "text": "abc is the alphabet",
    }


def test_a_found_word_is_replaced_as_a_whole_word_only():
    assert redact({"password": "hunter2", "a": "hunter22 hunter2. xhunter2"}).document["a"] == (
        "hunter22 <PASSWORD:1>. xhunter2"
    )


def test_a_password_that_looks_like_a_placeholder_kind_does_not_break_placeholders():
    redacted = redact({"password": "EMAIL:1", "mail": "jo" + "@corp-mail.io", "x": "EMAIL:1"}).document
    assert redacted == {"password": "<PASSWORD:1>", "mail": "<EMAIL:1>", "x": "<PASSWORD:1>"}
    assert redact(redacted).document == redacted


@pytest.mark.parametrize(
    "value",
    [
        "${VAR}", "$VAR", "$(pass show x)", "{{ vault.x }}", "{password}", "%s", "%(pw)s", "§§secret(GITHUB)",
        "<PASSWORD:1>", "<your password>", "[REDACTED]", "changeme", "****", "xxxxxxxx", "", "  ", "none",
        "required", "your-api-key", "password", "str",
    ],
)  # fmt: skip
def test_references_and_dummies_are_not_values(value):
    document = {"password": value, "api_key": value, "text": f'password="{value}" secret: {value}'}
    assert redact(document).document == document


def test_token_counters_ids_numbers_and_settings_stay():
    document = {
        "max_tokens": 4096, "total_tokens": 18430, "token_count": "18430", "token": "Hello", "tokens": ["a"],
        "token_ids": [1, 2, 3], "session_id": "desk-1234567890abcdef",
        "trajectory_id": "110bcd25-a55d-453a-8046-1297901ea002",
        "password_required": True, "auth": {"type": "bearer", "enabled": True}, "secret": None,
        "commit": "9fceb02d0ae598e95dc970b74767f19372d61af8", "sha": "sha512-" + "Ab0+" * 16,
        "usage": "prompt_tokens=12 completion_tokens=34", "author": "Smith", "pass": True,
    }  # fmt: skip
    assert redact(document).document == document


def test_a_schema_of_a_secret_parameter_is_not_a_secret():
    document = {"properties": {"password": {"type": "string", "description": "The password of the user 1"}}}
    assert redact(document).document == document


def test_a_secret_key_hides_values_at_any_depth():
    document = {"credentials": {"a": {"b": ["x9y8z7w6v5"]}}, "headers": {"Cookie": {"sid": "abc123def456"}}}
    redacted = redact(document).document
    assert redacted == {
        "credentials": {"a": {"b": ["<SECRET:1>"]}},
        "headers": {"Cookie": {"sid": "<COOKIE:1>"}},
    }


def test_a_value_under_two_names_is_judged_by_the_stricter_one_and_a_second_run_changes_nothing():
    """The inner name is redacted itself, so the second run knows the outer one alone."""
    inner = "Authorization: Bearer " + "SUCIvVPB3R04Nop" + "MtxkKaglq"
    once = redact({"Passwd": {inner: 10000}, "user_name": {"auth": GITHUB}}).document
    assert once["Passwd"] == {"Authorization: Bearer <AUTHORIZATION:1>": "<PASSWORD:1>"}
    assert GITHUB not in json.dumps(once)
    assert redact(once).document == once


def test_a_name_beside_its_value():
    document = [{"name": "X-Api-Key", "value": "k3y-0f-the-h0use"}, {"name": "count", "value": "12345678"}]
    assert redact(document).document == [
        {"name": "X-Api-Key", "value": "<API_KEY:1>"},
        {"name": "count", "value": "12345678"},
    ]


def test_the_scheme_of_an_authorization_stays():
    secret = "Zx9" * 9
    assert redact({"Authorization": f"Bearer {secret}"}).document == {
        "Authorization": "Bearer <AUTHORIZATION:1>"
    }
    assert governed_spans(b"Bearer ${TOKEN}", "AUTHORIZATION") == []


def test_keys_are_redacted_without_merging():
    one, two = "jo" + "@corp-mail.io", "JO" + "@corp-mail.io"
    redacted = redact({one: 1, "x": 0, two: 2})
    assert redacted.document == {"<EMAIL:1>": 1, "x": 0, "<EMAIL:1>#2": 2}
    assert redacted.touched == {("<EMAIL:1>",), ("<EMAIL:1>#2",)}
    assert redact(redacted.document).document == redacted.document


def test_the_callers_document_is_untouched():
    document = {"password": PASSWORD, "list": [GITHUB]}
    before = json.dumps(document)
    redact(document)
    assert json.dumps(document) == before


def test_clean_text_is_returned_as_it_is():
    document = {"a": ["text", 1, 2.5, None, True, {"é": "\x00 \ud800 ok"}]}
    redacted = redact(document)
    assert redacted.document == document
    assert not redacted.changed


def test_redaction_works_on_decoded_leaves_so_output_parses():
    """A serialized `deploy token ==="` once became invalid JSON: the leaf is redacted, not the text."""
    document = {"command": 'echo "=== deploy token ==="', "raw": json.dumps({"password": 'a"b9c\\d'})}
    redacted = redact(document).document
    assert redacted["command"] == document["command"]
    assert json.loads(redacted["raw"]) == {"password": "<PASSWORD:1>"}


@pytest.mark.parametrize("depth", [65, 500, 5000])
def test_too_deep_fails_closed(depth):
    document: dict = {"password": "deep-s3cret"}
    for _ in range(depth):
        document = {"a": document}
    with pytest.raises(RedactionError):
        redact(document)


def test_a_deep_secret_within_the_limit_is_found():
    document: dict = {"password": "deep-s3cret"}
    for _ in range(60):
        document = {"a": document}
    assert "deep-s3cret" not in json.dumps(redact(document).document)


@pytest.mark.parametrize("document", [{"a": object()}, {1: "x"}, {"a": b"bytes"}])
def test_what_is_not_json_fails_closed(document):
    with pytest.raises(RedactionError):
        redact(document)


def test_any_error_fails_closed_without_the_text(monkeypatch):
    def broken(_):
        raise ValueError(PASSWORD)

    monkeypatch.setattr("onward.redaction.engine.scan", broken)
    with pytest.raises(RedactionError) as caught:
        redact({"password": PASSWORD})
    assert PASSWORD not in str(caught.value)
    assert caught.value.__context__ is None


def test_too_much_text_fails_closed(monkeypatch):
    monkeypatch.setattr("onward.redaction.document.MAX_TEXT", 1000)
    with pytest.raises(RedactionError):
        redact({"a": "x" * 1001})


MALICE = [
    "A", "{", '{"a":', "@", "a@", "a@b.c@", "eyJ", "eyJhbGciOi.", "token=", "token=token=", "x_pat=",
    "\\", '\\"',
    "-----BEGIN " + "PRIVATE KEY-----", "sk-", "sk-a-", "AKIA" + "ABCDEFGHIJKLMNOP", "password=a",
    'password="',
    'password=\\"', "://:a", "http://a:b", "%", "%41", "%25", "QUJD", "curl ", "mysql -p",
    "login a password ",
    "cookie: a=", "a=b;", "7", "12 ", "4111 1111 ", "1.1.1.", "00:11:22:33:44:55 ", "DE12 ", "+1", "/home/",
    "phone ", "<", "<password>", "<EMAIL:1>", "<EMAIL:", "\x00", "é", "\ud800", "authorization: ", "--pass ",
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("unit", MALICE)
def test_work_on_a_megabyte_of_malice_is_linear(unit):
    """Four times the text costs four times the time of this process, with room for noise, or less."""

    def cost(size: int) -> float:
        text = unit * (size // len(unit))
        started = time.process_time()
        with contextlib.suppress(RedactionError):
            redact({"a": text})
        return time.process_time() - started

    small = min(cost(1 << 18) for _ in range(3))
    assert min(cost(1 << 20) for _ in range(2)) < 4 * 2.5 * small + 0.5


def test_many_distinct_secrets_are_all_found_and_spread():
    text = " ".join(f"u{i}x" + "@corp-mail.io" for i in range(3000))
    redacted = redact([text, text + " and the same again"])
    assert redacted.counts == {"EMAIL": 6000}
    assert "corp-mail" not in redacted.document[1]
    assert redacted.document[0].split() == redacted.document[1].split()[:3000]
    assert redacted.document[0].split()[2999] == "<EMAIL:3000>"


_TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [OPENAI, GITHUB, PASSWORD, f"password={PASSWORD}", "jo" + "@corp-mail.io", f"Bearer {GITHUB}",
         "<EMAIL:2>", f'{{"api_key": "{OPENAI}"}}', "https://u:p4ssw0rd" + "@host/x", "token: ", "\\n", "\\",
         '"', "%3D"]
    ),
)  # fmt: skip
_JOINED = st.lists(_TEXTS, max_size=6).map("".join)
_NAMES = st.sampled_from(["password", "token", "name", "value"])
_DOCUMENTS = st.recursive(
    st.one_of(_JOINED, st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(_JOINED, st.sampled_from(["password", "token", "name", "value"])), inner, max_size=4
        ),
    ),
    max_leaves=12,
)


def _shape(value):
    if isinstance(value, dict):
        return [_shape(item) for item in value.values()]
    if isinstance(value, list):
        return ["list"] + [_shape(item) for item in value]
    return None


@settings(max_examples=80, deadline=None)
@given(_DOCUMENTS)
def test_any_document_keeps_its_shape_and_a_second_run_changes_nothing(document):
    once = redact(document)
    again = redact(once.document)
    assert again.document == once.document
    assert not again.changed
    assert _shape(once.document) == _shape(document)
    assert json.loads(json.dumps(once.document)) == once.document


def test_the_policy_version_follows_the_rules():
    assert len(POLICY_VERSION) == 12
    assert len({(rule.kind, rule.pattern) for rule in RULES}) == len(RULES)


def test_nothing_of_the_untrusted_path_uses_re():
    for name, module in sys.modules.items():
        if name.startswith("onward.redaction") and module.__file__:
            assert "\nimport re\n" not in Path(module.__file__).read_text(encoding="utf-8")
