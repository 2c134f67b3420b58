"""Ordinary lists, words and ids near the names of secrets stay; secrets that look like words go."""

import pytest

from onward.redaction import redact, redact_trajectory

V = "Qm47" + "trWx9" + "LdPz2"

LISTS = [
    'authors = ["smith", "jones"]',
    'authors = ["smith2", "jones3"]',
    '"authorities": ["ROLE_USER","ROLE_ADMIN2"]',
    'auth_scopes=["read:user","repo:status"]',
    'auth = ["read:user", "repo:status2"]',
    'auth_providers = ["github2", "google3"]',
    'auth: ["img/logo2", "img/logo3"]',
    'auth = ("basic", "digest2", "ntlm3")',
    'app.login("main","index.html")',
    'app.login("main2", "pages/index2")',
    'router.auth("/login","handler")',
]


@pytest.mark.parametrize("text", LISTS)
def test_a_list_of_names_scopes_or_paths_is_no_pair_of_user_and_password(text):
    assert redact(text).document == text


@pytest.mark.parametrize(
    "form",
    [
        "requests.get(url, auth=('jo', '{}'))",
        'proxy_auth = ["jo", "{}"]',
        '{{"auth": ["jo", "{}"]}}',
        "auth=HTTPBasicAuth('jo', '{}')",
        "smtp.login('jo', '{}')",
    ],
)
def test_a_pair_of_user_and_password_loses_the_password(form):
    app_password = "qzkv" + "jxwp" + "mtrb" + "nhgd"
    for value in (V, app_password):
        assert redact(form.format(value)).document == form.format("<PASSWORD:1>")


def test_a_list_of_authors_keeps_the_token_ids():
    sampling = {"prompt_ids": [1], "token_ids": [2], "logprobs": [0.0]}
    action = {"sampling": sampling, "tool_args": {"text": 'authors = ["smith", "jones"]'}}
    document = {"trajectory_id": "t", "turns": [{"action": action, "result": {}}]}
    found = redact_trajectory(document).document
    assert found["turns"][0]["action"] == action
