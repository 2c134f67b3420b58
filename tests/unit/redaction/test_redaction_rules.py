"""Every rule against its own examples, and every vendor token in the contexts in which agents show it."""

import json

import pytest

from onward.redaction import RULES, redact
from onward.redaction.judging.names import components, secret_class

POSITIVES = [
    pytest.param(rule, text, secret, id=f"{rule.kind}-{i}-{j}")
    for i, rule in enumerate(RULES)
    for j, (text, secret) in enumerate(rule.positives)
]
NEGATIVES = [
    pytest.param(text, id=f"{rule.kind}-{i}-{j}")
    for i, rule in enumerate(RULES)
    for j, text in enumerate(rule.negatives)
]
VENDOR_TOKENS = [
    pytest.param(secret, rule.kind, id=f"{rule.kind}-{i}-{j}")
    for i, rule in enumerate(RULES)
    if rule.layer == 1 and rule.take == "match"
    for j, (_, secret) in enumerate(rule.positives)
]
CONTEXTS = {
    "plain": "{}",
    "prose dot": "The key is {}. Keep it.",
    "prose comma": "I used {}, then left",
    "parenthesis": "(see {})",
    "bold": "**{}**",
    "after underscore": "_{}.",
    "html": "<b>{}</b>",
    "braces": "{{{}}}",
    "brackets": "[{}]",
    "url query": "https://h.example/x?k={}&y=1",
    "url encoded": "q%3D{}%26y",
    "quoted": '"{}"',
    "single quoted": "'{}';",
    "escaped quotes": '{{\\"k\\": \\"{}\\"}}',
    "double escaped": '{{\\\\\\"k\\\\\\": \\\\\\"{}\\\\\\"}}',
    "own line": "a\n{}\nb",
    "escaped line": "a\\n{}\\nb",
    "unicode escape": "a\\u003d{}\\u0026",
    "terminal colour": "\x1b[31m{}\x1b[0m",
    "backticks": "`{}`",
    "angle": "<{}>",
    "tab": "k\t{}\tv",
}


@pytest.mark.parametrize("rule,text,secret", POSITIVES)
def test_a_positive_example_loses_its_secret_and_nothing_else_breaks(rule, text, secret):
    redacted = redact(text)
    assert secret not in redacted.document
    assert redacted.counts
    assert redact(redacted.document).document == redacted.document
    start = text.index(secret)
    assert redacted.document.startswith(text[:start])
    assert redacted.document.endswith(text[start + len(secret) :])


@pytest.mark.parametrize("text", NEGATIVES)
def test_a_negative_example_stays(text):
    assert redact(text).document == text


@pytest.mark.parametrize("secret,kind", VENDOR_TOKENS)
def test_a_vendor_token_is_found_in_every_context(secret, kind):
    redacted = redact({name: context.format(secret) for name, context in CONTEXTS.items()})
    assert redacted.document == {name: context.format(f"<{kind}:1>") for name, context in CONTEXTS.items()}
    assert redacted.counts == {kind: len(CONTEXTS)}
    for context in CONTEXTS.values():
        assert redact(context.format(secret)).document == context.format(f"<{kind}:1>")


@pytest.mark.parametrize("secret,kind", VENDOR_TOKENS)
def test_a_vendor_token_is_found_wherever_it_stands(secret, kind):
    document = {
        secret: 1,
        "list": [["x", secret]],
        "raw_response": json.dumps({"tool_args": {"note": secret}}),
        "headers": {"X-Api-Key": secret},
        "error": f"Exception: 401 for {secret}!",
    }
    redacted = redact(document)
    assert secret not in json.dumps(redacted.document)
    assert json.loads(redacted.document["raw_response"]) == {"tool_args": {"note": f"<{kind}:1>"}}
    assert list(redacted.document)[1:] == list(document)[1:]
    assert redacted.counts == {kind: 5}


def test_no_rule_matches_across_leaves():
    for rule in RULES:
        for text, secret in rule.positives:
            middle = text.index(secret) + len(secret) // 2
            redacted = redact([text[:middle], text[middle:]]).document
            assert len(redacted) == 2


def test_rules_have_examples_and_compile_to_known_checks():
    for rule in RULES:
        assert rule.positives, rule.kind


@pytest.mark.parametrize(
    "name,parts",
    [
        ("dbPassword", ["db", "password"]),
        ("X-API-Key", ["x", "api", "key"]),
        ("APIKey", ["api", "key"]),
        ("aws_secret_access_key", ["aws", "secret", "access", "key"]),
        ("author", ["author"]),
    ],
)
def test_components(name, parts):
    assert components(name) == parts


@pytest.mark.parametrize(
    "name,kind",
    [
        ("password", "PASSWORD"),
        ("PGPASSWORD", "PASSWORD"),
        ("db.password", "PASSWORD"),
        ("api_key", "API_KEY"),
        ("X-Api-Key", "API_KEY"),
        ("authorization_token", "TOKEN"),
        ("id_token", "TOKEN"),
        ("accessToken", "TOKEN"),
        ("client_secret", "SECRET"),
        ("Authorization", "AUTHORIZATION"),
        ("Set-Cookie", "COOKIE"),
        ("password_hash", "PASSWORD"),
        ("max_tokens", None),
        ("total_tokens", None),
        ("token_count", None),
        ("token_ids", None),
        ("tokens_void", None),
        ("eos_token", None),
        ("session_id", None),
        ("aws_access_key_id", None),
        ("tokenizer", None),
        ("author", None),
        ("monkey", None),
        ("public_key", None),
        ("group_key", None),
        ("password_file", None),
        ("token_url", None),
    ],
)
def test_names_that_govern_a_secret(name, kind):
    assert secret_class(name) == kind
