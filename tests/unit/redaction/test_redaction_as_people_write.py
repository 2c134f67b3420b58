"""Secrets as people and programs write them: in words, commands, code, forms, tables and arguments of
tools."""

import json

import pytest

from onward.redaction import redact, redact_trajectory

V = "Qm47" + "trWx9" + "LdPz2"
LONG = V * 3

WRITTEN = [
    f"secret key: {V}",
    f"Access Key = {V}",
    f"encryption key: {V}",
    f"license key: {V}",
    f"the api key is {V}.",
    f"our token was {V}, now revoked",
    f"API key for the staging host: {V}",
    f"user root, pw: {V}",
    f"log in as root / pw {V}",
    f"ROOT_PW={V}",
    f"PSWD={V}",
    f"MYSQLPASS: {V}",
    f"smtp_pass = '{V}'",
    f'key = os.environ.get("SERVICE_TOKEN", "{V}")',
    f"process.env.DB_PASSWORD || '{V}'",
    f'env::var("API_KEY").unwrap_or("{V}".into())',
    f"url: ${{DB_PASSWORD:-{V}}}",
    f"define('AUTH_SECRET', '{V}');",
    f'#define WIFI_PASSWORD "{V}"',
    f'if password != "{V}":',
    f'parser.add_argument("--token", default="{V}")',
    f"setx API_TOKEN {V}",
    f"ENV DB_PASSWORD {V}",
    f"npm config set _authToken {V}",
    f"aws configure set aws_secret_access_key {LONG}",
    f"echo {V} | sudo -S id",
    f"printf '%s' '{V}' | docker login -u jo --password-stdin",
    f"echo 'jo:{V}' | chpasswd",
    f"chpasswd <<< 'jo:{V}'",
    f"net use X: \\\\host\\share /user:jo {V}",
    f"session = Session(auth=('jo', '{V}'))",
    f"smtp.login('jo', '{V}')",
    f"curl --oauth2-bearer {V} https://host",
    f'curl -u "jo:{V}" https://host',
    f"subprocess.run(['curl', '-u', 'jo:{V}', url])",
    f"subprocess.run(['mysql', '-u', 'root', '-p{V}'])",
    f"mysql -uroot -p{V} app",
    f"sshpass -p{V} ssh host",
    f"docker login -u jo -p {V} host",
    f"smbclient //host/share -U jo%{V}",
    f"plink -pw {V} host",
    f"htpasswd -b file jo {V}",
    f'ConvertTo-SecureString "{V}" -AsPlainText -Force',
    f"INSERT INTO people (id, name, password) VALUES (1, 'jo', '{V}'), (2, 'al', 'x')",
    f"name,token\njo,{V}\n",
    f"name\tpassword\njo\t{V}\n",
    f"| name | api key |\n|:--|--:|\n| jo | {V} |\n",
    f" name | password\n------+---------\n jo   | {V}\n(1 row)\n",
    f"<input type='password' value='{V}'>",
    f'<input name="api_key" id="k" value="{V}"/>',
    f"user=jo&password={V}&go=1",
    f"user%5Bpassword%5D={V}&go=1",
    f'Content-Disposition: form-data; name="password"\r\n\r\n{V}\r\n',
    f"page.fill('#password', '{V}')",
    f"driver.find_element(By.ID, 'password').send_keys('{V}')",
    f"cy.get('input[name=password]').type('{V}')",
    f"password: |\n  {V}\n",
    f"- name: DB_PASSWORD\n  value: {V}\n",
    f'<add key="DbPassword" value="{V}" />',
    f'{{\\"label\\": \\"Password\\", \\"value\\": \\"{V}\\"}}',
    f"headers = [('x-api-key', '{V}')]",
    f"dropbox_key = '{LONG}'",
]


@pytest.mark.parametrize("text", WRITTEN)
def test_a_secret_goes_however_it_is_written_and_a_second_run_changes_nothing(text):
    found = redact(text)
    assert V not in found.document
    assert redact(found.document).changed is False
    assert V not in json.dumps(redact({"turns": [{"action": {"raw_response": text}}]}).document)


STAYS = [
    "the token is expired and the api key is required",
    "my password is not the problem, the secret is patience",
    "use token sha256sum or pw utf8mb4",
    'os.getenv("PASSWORD", "required")',
    'fields = ["password", "sha256-sum", "utf8mb4"]',
    "def check(user, password):\n    return user, md5sum9\n",
    "| option | token |\n|---|---|\n| -x | token of the host v2 |",
    '<input type="password" name="password" value="">',
    "echo done | sudo tee file9",
    'if token != "missing": raise ValueError',
    "echo $PW | sudo -S id; curl -u $USER:$PASS host; docker login -p $TOKEN",
    '{"label": "Password", "text": "Forgot your password?"}',
    "cache_key = " + "0123456789abcdef" * 2,
    'api_key="hf_..."',
    "self._sigv4_auth_cls = sigv4_auth_cls",
    'headers.get("api_key", "X-API-Key")',
    '"token",\n"Base64Encoder",\n"1st",\n',
]


@pytest.mark.parametrize("text", STAYS)
def test_ordinary_text_with_the_names_of_secrets_stays(text):
    assert redact(text).document == text


CALLS = {
    "a field by selector": {"selector": "#password", "text": V},
    "a field by label": {"element": "Password input field", "ref": "e12", "text": V},
    "a list of fields": {"fields": [{"id": "user", "value": "jo"}, {"id": "password", "value": V}]},
    "the argument after an option": {"argv": ["app", "--api-key", V]},
    "user and password for curl": {"command": ["curl", "-u", "jo:" + V, "https://host"]},
    "an option that ends in the password": {"args": ["mysql", "-u", "root", "-p" + V]},
    "docker login": {"args": ["docker", "login", "-u", "jo", "-p", V]},
    "pairs of headers": {"headers": [["Authorization", "Bearer " + V], ["X-Api-Key", V]]},
    "a table with columns": {"columns": ["name", "password"], "rows": [["jo", V]]},
    "a table with a first row": {"data": [["name", "password"], ["jo", V]]},
}


@pytest.mark.parametrize("name", CALLS)
def test_a_secret_in_the_arguments_of_a_tool_goes_and_a_second_run_changes_nothing(name):
    call = {"tool_name": "run", "tool_args": CALLS[name]}
    found = redact(call)
    assert V not in json.dumps(found.document)
    assert redact(found.document).changed is False
    assert V not in json.dumps(redact({"arguments": json.dumps(CALLS[name])}).document) or "table" in name


def test_other_arguments_of_a_tool_stay():
    call = {
        "argv": ["git", "commit", "-m", "Fix the password prompt v2", "-p", "8080"],
        "element": "User name",
        "text": "jo",
        "pair": ["password", "email"],
        "columns": ["name", "token_count"],
        "rows": [["a1b2c3d4", 12]],
    }
    assert redact(call).changed is False


def test_a_password_that_is_a_common_word_goes_only_where_it_is_the_password():
    url = "mysql://mariadb:" + "mariadb@host/app"
    found = redact({"url": url, "log": "the mariadb container of mariadb:11 is up", "user": "mariadb"})
    assert found.document["url"] == "mysql://mariadb:<URL_PASSWORD:1>@host/app"
    assert found.document["log"] == "the mariadb container of mariadb:11 is up"
    assert found.document["user"] == "mariadb"


def test_a_generated_password_still_goes_everywhere():
    found = redact({"url": "mysql://app:" + V + "@host/app", "log": f"seen {V}"})
    assert found.document["log"] == "seen <URL_PASSWORD:1>"


STATE = {
    "shell_session": "attach host.example 8080",
    "session": "main window",
    "address": "C7",
    "full_name": "numpy.linalg.norm",
    "repository": {"full_name": "octo/hello"},
    "last": "ssh -i id.pem ubuntu@ec2-1-2-3-4.compute.amazonaws.com uptime",
}


def test_state_fields_cells_and_names_of_classes_are_no_secrets():
    assert redact(STATE).changed is False
    assert redact({"session_id_token": V, "session": LONG}).changed is True


def test_a_trajectory_keeps_its_token_ids_where_only_a_common_word_was_a_password():
    sampling = {"prompt_ids": [1], "token_ids": [2], "logprobs": [0.0]}
    turn = {"action": {"sampling": sampling, "tool_args": {}}, "result": {"output": "psql://u:" + "docker@h"}}
    later = {"action": {"sampling": dict(sampling), "tool_args": {"x": "docker ps"}}, "result": {}}
    found = redact_trajectory({"trajectory_id": "t", "turns": [turn, later]}).document
    assert found["turns"][0]["action"]["sampling"]["token_ids"] == [2]
    assert found["turns"][1]["action"]["tool_args"] == {"x": "docker ps"}


NUMBERS = [
    "Fax: 415-555-" + "2671x4587",
    "+1-415-555-" + "2671 ext. 12",
    "001-415-555-" + "2671",
    "0049 30 1234" + "567",
    "phone 4155" + "552671",
    "my number is 07911 12" + "3456",
    "call me at 0494 92" + " 82 32",
    "my iban is de89" + "370400440532013000",
    "IBAN de89 3704 0044 " + "0532 0130 00",
    "手机号：138" + "00138000",
]


@pytest.mark.parametrize("text", NUMBERS)
def test_personal_numbers_with_extensions_small_letters_and_other_scripts_go(text):
    found = redact(text)
    assert found.changed
    assert sum(map(str.isdigit, found.document)) <= 2
    assert redact(found.document).changed is False
