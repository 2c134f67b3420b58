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


SECRETS_LIKE_WORDS = {
    "an app password": "qzkv" + "jxwp" + "mtrb" + "nhgd",
    "capitals": "XKQZ" + "PWJV" + "TRMB" + "NHGD",
    "four words": "correct-" + "horse-" + "battery-" + "staple",
    "a word and a number": "admin" + "123",
    "a name": "Winter" + "fell",
}


@pytest.mark.parametrize("name", SECRETS_LIKE_WORDS)
@pytest.mark.parametrize("key", ["password", "client_secret"])
def test_a_secret_that_looks_like_a_word_goes_from_the_other_texts_too(name, key):
    value = SECRETS_LIKE_WORDS[name]
    if key == "password" or name not in ("a name", "four words"):
        assert value not in str(redact({key: value, "log": f"login with {value} failed"}).document)
    log = redact({"url": f"amqp://app:{value}@host/x", "log": f"login with {value} failed"}).document["log"]
    assert log == "login with <URL_PASSWORD:1> failed"


def test_letters_that_nobody_can_say_are_a_secret_without_quotes_too():
    text = "client_secret: " + SECRETS_LIKE_WORDS["capitals"]
    assert redact([text, text[15:]]).document == ["client_secret: <SECRET:1>", "<SECRET:1>"]
    assert not redact("client_secret: configuration").changed


def test_a_common_password_goes_only_where_it_stands():
    for word in ("postgres", "rabbitmq", "super-secret"):
        url = f"amqp://app:{word}@host/queue"
        assert redact({"url": url, "log": f"{word} is up"}).document == {
            "url": "amqp://app:<URL_PASSWORD:1>@host/queue",
            "log": f"{word} is up",
        }


@pytest.mark.parametrize(
    "url", ["shopdb:{}@h/x", "app:{}@shopdb:80", "app:{}@db.shopdb/x", "app:{}@h/shopdb?a=1"]
)
def test_a_password_that_is_also_the_user_host_or_database_of_its_url_goes_only_there(url):
    found = redact({"url": "mysql://" + url.format("shopdb"), "log": "shopdb is up", "shopdb": 1})
    assert found.document == {
        "url": "mysql://" + url.format("<URL_PASSWORD:1>"),
        "log": "shopdb is up",
        "shopdb": 1,
    }
    assert (
        redact({"url": "mysql://app:" + "shopdb@h/x", "log": "shopdb"}).document["log"] == "<URL_PASSWORD:1>"
    )


HEX = "0123456789abcdef"
UUID = "6f1c" + "0a9e-2b7d-4c1e-9f3a-5d" + "8e7b6c4a21"
RECORDS = [
    (name, value)
    for names, values in (
        ("user event project tenant correlation ref order customer", (UUID, HEX * 2)),
        (
            "cursor pagination last_evaluated shard unique surrogate",
            (HEX * 2, HEX * 4, UUID),
        ),
    )
    for name in names.split()
    for value in values
]


@pytest.mark.parametrize("name,value", RECORDS)
def test_the_key_of_a_record_is_an_id_and_stays(name, value):
    text = f"{name}_key = {value}; {name} key: '{value}'"
    document = {
        f"{name}_key": value,
        "text": text,
        "log": f"row {value} read",
        "list": [[f"{name}_key", value]],
    }
    assert not redact(document).changed


@pytest.mark.parametrize("name", ["dropbox", "heroku", "new_relic", "stripe_live", "licence", "my_datadog"])
@pytest.mark.parametrize("value", [HEX * 2, UUID])
def test_the_key_of_a_service_is_a_secret(name, value):
    assert redact({f"{name}_key": value, "log": value}).document["log"] == "<API_KEY:1>"
    assert redact(f"{name}_key = {value}").document == f"{name}_key = <API_KEY:1>"


NOT_TYPED = [
    "the internet user base grew2x",
    "dotnet user secrets9 init2",
    "the .net user base3 grew2x",
    "docker run curlimages/curl -u 1000:1000",
    ["curl", "-X", "POST", "-u", "1000:1000", "http://host"],
    "lftp sftp/dir2/abc3",
    "isql my/dir9/file",
    "cargo login 1.75.0-nightly",
    "echo message | su bob",
    "sqlplus -s scripts/load2.sql",
    {"title": "Forgot password", "text": "Reset"},
    {"label": "Forgot password?", "text": "Reset"},
    '{"label": "Forgot password", "text": "Reset"}',
    {"target": "password", "text": "click"},
    ["token", "COVID-19"],
    [["token", "tag"], ["COVID-19", "NN"]],
    {"columns": ["token", "tag"], "rows": [["COVID-19", "NN"]]},
    "the AKCELERATION1 engine",
]


@pytest.mark.parametrize("document", NOT_TYPED, ids=str)
def test_commands_labels_and_tables_that_only_sound_like_a_secret_stay(document):
    assert redact(document).document == document


@pytest.mark.parametrize(
    "form",
    [
        "net user bob {} /add",
        "ran `net user bob {}`",
        "C:\\\\>net.exe user bob {}",
        "echo {} | su bob -c id",
        "curl -u 1000:{} http://host",
        "sqlplus scott/{}@db",
        "cargo login {}",
        "AKC{0}{0}{0}",
    ],
)
def test_the_same_commands_lose_their_passwords(form):
    assert V not in redact(form.format(V)).document
    assert V not in redact([form.format(V), V]).document[1] or form.startswith("AKC")


def test_a_field_with_no_more_than_its_name_may_have_a_word_as_its_password():
    for label in ("#password", "Password", "New password", "Password input field"):
        assert redact({"element": label, "text": "winterfell"}).counts == {"PASSWORD": 1}
    assert redact({"target": "password", "text": V}).counts == {"PASSWORD": 1}
    assert redact(["token", V]).counts == {"TOKEN": 1}


@pytest.mark.parametrize("value", ["XBQoCivrzuOlv0RkMzlilnCk", "QoCivrzuOlvRkMzlilnCkWe"])
def test_a_drawn_value_whose_capitals_look_like_a_class_name_goes(value: str) -> None:
    assert redact([f"api_key={value}"]).document == ["api_key=<API_KEY:1>"]


@pytest.mark.parametrize(
    "value", ["PKCS7PrivateKeyTypes", "ChatCompletionTokenLogprob", "HtmlSecretTokenField"]
)
def test_a_class_name_stays(value: str) -> None:
    assert redact([f"api_key: {value}"]).document == [f"api_key: {value}"]
