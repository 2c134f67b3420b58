"""Where a rule ends: shapes on either side of it, each test named after what it protects.

What a peer's rules or our own generator showed to leak, or to vanish without being a secret.
"""

from __future__ import annotations

import random
import string

import pytest

import redaction_corpus as corpus
from onward.redaction import redact
from onward.redaction.judging.validators import IBAN_LENGTH

KEY = "aB3dE5fG7hJ9kLmN2pQr" * 3
HEX = "0123456789abcdef" * 5


def out(text: str) -> str:
    """What ``text`` becomes; a second run changes nothing."""
    after = redact(text).document
    assert redact(after).document == after
    return after


@pytest.mark.parametrize(
    "code",
    [
        "x = getpass('Password: ')\n    while not data['x']:",
        "data['password'] = getpass.getpass('Password: ')\n    while not data['confirm']:",
        'pw = input("Your password: "); name = input("Name: ")',
        "print('token: ' + t, 'secret: ', s, end='')",
        "x('a') and y('password: ')",
        '{"code": "x = input(\\"Password: \\")\\ny = \\"z\\""}',
    ],
)
def test_the_quote_that_ends_a_prompt_opens_no_value(code: str) -> None:
    assert out(code) == code


@pytest.mark.parametrize(
    "before",
    ["don't forget, ", "'a': 1, ", "it's ", "", 'say "hi", '],
    ids=["apostrophe", "pair", "its", "nothing", "other quotes"],
)
@pytest.mark.parametrize("first", ["h", "+", ".", "%", ":", ")", ";"])
def test_a_quoted_password_goes_whatever_quotes_stand_before_it(before: str, first: str) -> None:
    secret = first + "unter2-q"
    assert out(f"{before}password: '{secret}'") == f"{before}password: '<PASSWORD:1>'"


@pytest.mark.parametrize(
    "template",
    [
        "'{0}:{1}'.format(user, passwd)",
        "f'{user}:{passwd}'",
        '"$NAME:$PASS"',
        "'%s:%s' % (u, p)",
        "'<a>/<b>'",
    ],
)
def test_a_format_template_is_no_credential(template: str) -> None:
    assert out("credentials = " + template) == "credentials = " + template


def test_a_value_that_begins_with_a_sign_of_code_goes() -> None:
    assert out("['db_password' => '+" + KEY[:20] + "']") == "['db_password' => '<PASSWORD:1>']"


def test_a_hash_in_fields_of_dollars_is_no_template() -> None:
    stored = "$argon2id$v=19$m=65536,t=3,p=4$" + KEY[:22] + "$" + KEY[:43]
    assert KEY[:22] not in out(f"password = '{stored}'")


@pytest.mark.parametrize("tail", ["." + HEX[:9], ".01." + HEX[:9], ""], ids=["one dot", "two dots", "none"])
@pytest.mark.parametrize("prefix", ["glpat-", "glrt-t1_"])
def test_the_checksum_of_a_gitlab_token_goes_with_it(prefix: str, tail: str) -> None:
    assert out(f"use {prefix}{KEY[:27]}{tail} here") == "use <GITLAB_TOKEN:1> here"


def test_the_word_behind_a_gitlab_token_stays() -> None:
    assert out(f"it is glpat-{KEY[:27]}.Next one") == "it is <GITLAB_TOKEN:1>.Next one"


@pytest.mark.parametrize("version", ["1", "12", "4631"])
def test_a_slack_app_token_of_any_version_goes(version: str) -> None:
    assert out(f"xapp-{version}-A0123456789-0594638172717-{HEX[:64]}") == "<SLACK_TOKEN:1>"


@pytest.mark.parametrize("scheme", ["Api-Token", "api-key", "ApiToken", "SSWS", "Splunk", "Token", "Bearer"])
def test_the_scheme_of_an_authorization_stays_and_its_token_goes(scheme: str) -> None:
    header = f"--header='Authorization:    {scheme} {KEY[:24]}'"
    assert out(header) == f"--header='Authorization:    {scheme} <AUTHORIZATION:1>'"
    assert redact({"Authorization": f"{scheme} {KEY[:24]}"}).document == {
        "Authorization": f"{scheme} <AUTHORIZATION:1>"
    }


@pytest.mark.parametrize("key", ["a1b2c3d4e5f", KEY[:30]])
def test_a_key_behind_a_scheme_in_another_header_goes(key: str) -> None:
    assert key not in (after := out(f"curl -H 'X-Api-Key: Bearer {key}'"))
    assert after.startswith("curl -H 'X-Api-Key: Bearer <") and after.endswith(">'")


@pytest.mark.parametrize("value", ["ABCDEF" + "123456", "JBSWY3DPEHPK3" + "PXP", "Q7" * 8])
def test_a_key_of_capitals_and_digits_in_a_query_goes(value: str) -> None:
    assert out(f"/api?api_key={value}&user=bob") == "/api?api_key=<API_KEY:1>&user=bob"


@pytest.mark.parametrize("name", ["YOUR_API_KEY_2", "HMACSHA256", "SECRET_FROM_ENV", "KEY1", "PASSWORD"])
def test_a_constant_in_capitals_is_no_key(name: str) -> None:
    assert out(f"/api?api_key={name}&user=bob") == f"/api?api_key={name}&user=bob"


def test_a_twilio_key_in_capitals_goes() -> None:
    assert out("SK" + HEX[:32].upper()) == "<TWILIO_KEY:1>"


def _iban(country: str, rng: random.Random) -> str:
    """An account of ``country``, digits only, check digits by ISO 7064 (98 minus the remainder)."""
    account = "".join(rng.choices(string.digits, k=IBAN_LENGTH[country] - 4))
    moved = account + "".join(str(ord(c) - 55) for c in country) + "00"
    return f"{country}{98 - int(moved) % 97:02d}{account}"


@pytest.mark.parametrize("country", sorted(IBAN_LENGTH))
def test_an_iban_goes_however_it_is_grouped(country: str) -> None:
    rng = random.Random(country)
    for by in (" ", "-", "."):
        number = _iban(country, rng)
        written = number[:2] + "".join((by if rng.random() < 0.3 else "") + c for c in number[2:])
        assert out(f"pay {written} now") == "pay <IBAN:1> now", written


def test_an_iban_of_capitals_goes_with_some_fours_apart() -> None:
    number = "MT84" + "MALT" + "011000012345" + "MTLCAST001S"
    assert out(f"pay {number[:8]} {number[8:20]}-{number[20:]} now") == "pay <IBAN:1> now"


def test_an_irregular_iban_with_a_wrong_digit_stays() -> None:
    number = _iban("DE", random.Random(5))
    wrong = number[:-1] + str((int(number[-1]) + 1) % 10)
    text = f"{wrong[:2]} {wrong[2:7]}-{wrong[7:]}"
    assert out(text) == text


@pytest.mark.parametrize(
    "prefix", ["export AWS_SECRET_ACCESS_KEY=", "AWS_SECRET_ACCESS_KEY: '", "aws_secret_access_key = "]
)
def test_a_key_that_begins_like_a_path_goes(prefix: str) -> None:
    key = "/m9EKdkQPL3DN/" + "vqIOxHmavcMDpSnSjvpaRwS9il"
    assert key[5:] not in out(prefix + key + ("'" if "'" in prefix else ""))


@pytest.mark.parametrize(
    "path",
    [
        "/run/secrets/db_password",
        "/Users/Shared/Library/Keychains/Company2026/Login",
        "/etc/ssl/private/server.key",
        "/Api/V2/Get/User/Me/And/My/Own/Keys",
        "/var/lib/docker/containers/" + HEX[:24] + "/secrets",
    ],
)
def test_a_path_under_the_name_of_a_secret_stays(path: str) -> None:
    assert out(f"secret: '{path}'") == f"secret: '{path}'"


@pytest.mark.parametrize("rest", ["", ":x-oauth-basic"])
def test_a_token_of_letters_as_the_user_of_a_url_goes(rest: str) -> None:
    token = "enNAQaAfHbbcPuem" + "agFeQqwIlkhQTRtSNIJlOYqv"
    assert out(f"https://{token}{rest}@github.com/acme/app.git") == (
        f"https://<URL_PASSWORD:1>{rest}@github.com/acme/app.git"
    )


PLACES = {
    "path": ("/srv/NAME/x", "/srv/<USER:1>/x"),
    "prompt": ("NAME@web:~$ ls", "<USER:1>@web:~$ ls"),
    "user=": ("user=NAME shell=sh", "user=<USER:1> shell=sh"),
    "json": ('{"username": "NAME", "n": 1}', '{"username": "<USER:1>", "n": 1}'),
    "id": ("uid=1000(NAME) gid=1000(NAME)", "uid=1000(<USER:1>) gid=1000(<USER:1>)"),
    "ls": ("drwxr-xr-x 2 NAME NAME 4096 a", "drwxr-xr-x 2 <USER:1> <USER:1> 4096 a"),
    "ps": ("USER PID\nNAME 312 0.0", "USER PID\n<USER:1> 312 0.0"),
    "chown": ("chown NAME:staff x", "chown <USER:1>:staff x"),
    "whoami": ("$ whoami\nNAME\n$", "$ whoami\n<USER:1>\n$"),
    "alone": ("NAME", "<USER:1>"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["marshall", "hunter" + "2x", "jane.doe"])
def test_a_user_name_goes_wherever_an_account_stands(name: str, place: str) -> None:
    text, expected = PLACES[place]
    after = redact([f"cd /home/{name}/src", text.replace("NAME", name)]).document
    assert after == ["cd /home/<USER:1>/src", expected]


@pytest.mark.parametrize(
    "text",
    [
        "marshall the troops, then report",
        "from marshall import dumps; marshall(x); y.marshall = 1",
        "They will marshall 20 witnesses.",
        "the marshalling yard of marshall",
        "bWFyc2hhbGwgdGhlIHRyb29wcyBhbmQgbW9yZQ==",
    ],
)
def test_a_word_does_not_vanish_because_a_user_is_called_like_it(text: str) -> None:
    assert redact(["cd /home/marshall/src", text]).document == ["cd /home/<USER:1>/src", text]


@pytest.mark.parametrize(
    "name", ["tberg" + "22", "jane.doe", "Kowalska", "m_kowalska", "mkowalska", "jsmith"]
)
def test_a_name_that_is_no_word_goes_from_sentences_too(name: str) -> None:
    assert redact([f"cd /home/{name}/src", f"ask {name} about it"]).document == [
        "cd /home/<USER:1>/src",
        "ask <USER:1> about it",
    ]


def test_a_password_that_is_a_user_name_too_goes_everywhere_unless_it_may_be_a_word() -> None:
    document = ["cd /home/mrshll9/src", {"password": "mrshll9"}, "say mrshll9 to open"]
    assert "mrshll9" not in repr(redact(document).document)
    document = ["cd /home/marshall/src", {"password": "marshall"}, "marshall the troops", "ls ~marshall"]
    assert redact(document).document[2:] == ["marshall the troops", "ls ~<USER:1>"]


RARE = ("assigned AWS_SECRET_ACCESS_KEY", "url with a token as user")


@pytest.mark.parametrize("seed", range(100, 160, 4))
def test_rare_letters_leak_nothing(seed: int) -> None:
    """Kinds of which a rare drawing once leaked: a key like a path, a token without a digit."""
    for case in corpus.cases(seed):
        if case.kind.startswith(RARE):
            document = corpus.document(case, case.contexts[seed % len(case.contexts)], "value")
            assert not corpus.leaked(case, redact(document).document), case.kind


@pytest.mark.parametrize("unit", ["%20ada" + "@corp.de%26", "a%204111" + "111111111111%26"])
def test_a_megabyte_of_encoded_text_without_blanks_is_walked_once(unit):
    """A walk from the beginning for every hit would take hours."""
    times = 1_000_000 // len(unit)
    found = redact("https://h/?" + unit * times)
    assert sum(found.counts.values()) == times
    assert found.document.count("%26") == times
