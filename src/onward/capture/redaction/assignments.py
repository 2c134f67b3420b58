"""Layer 2, second part: values behind a name or a flag, in code, settings, JSON, XML, SQL and commands.

A rule only finds the name; ``names.py`` says which names govern a secret and ``values.py`` which values are
literals, so that ``token = getToken()`` and ``max_tokens: 4096`` stay.
"""

from __future__ import annotations

from onward.capture.redaction.rule import B32, Rule, body

COMMANDS = (
    Rule(
        "CLI_PASSWORD",
        r"(?:curl|wget|http)[^\x00\n|;&]{0,512}?\s(?:-u|--user|--proxy-user|-U)[ =]?[\"']?"
        r"[^\s:\x00\"'@/]{1,64}:([^\s\x00\"'\\]{3,})",
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
        r"\s-p[\"']?([^\s\x00\"'\\-][^\s\x00\"'\\]{2,})",
        2,
        take="group",
        checks=("literal",),
        positives=(("mysql -h db -u root -p" + "hunter2-s" + " app", "hunter2-s"),),
        negatives=("mysql -u root -p app", "mysql -u root -p$PASS app", "mysql --port 3306 -P 3306"),
    ),
    Rule(
        "CLI_PASSWORD",
        r"sshpass[ ]{1,3}-p[ ]{0,3}[\"']?([^\s\x00\"'\\]{3,})",
        2,
        take="group",
        checks=("literal",),
        positives=(("sshpass -p " + "hunter2-t" + " ssh h", "hunter2-t"),),
        negatives=('sshpass -p "$PW" ssh h',),
    ),
    Rule(
        "CLI_PASSWORD",
        r"(?:redis-cli[^\x00\n|;&]{0,256}?\s-a|"
        r"(?:docker|podman|helm)[^\x00\n|;&]{0,64}?login[^\x00\n|;&]{0,256}?\s-p)"
        r"[ ]{1,3}[\"']?([^\s\x00\"'\\-][^\s\x00\"'\\]{3,})",
        2,
        take="group",
        checks=("literal",),
        positives=(
            ("redis-cli -h r -a " + "hunterKu" + " ping", "hunterKu"),
            ("docker login -u jo -p " + "hunterKv" + " reg.io", "hunterKv"),
        ),
        negatives=("redis-cli -h r -a $PW", "docker login -u jo -p <token>"),
    ),
    Rule(
        "CLI_PASSWORD",
        r"(?:mongo|mongosh|ldapsearch|smbclient|sqlcmd|psql|ftp)"
        r"[^\x00\n|;&]{0,256}?\s(?:-a|-p|-w|-P|-pass)[ ]{1,3}[\"']?([^\s\x00\"'\\-][^\s\x00\"'\\]{3,})",
        2,
        take="group",
        checks=("literal", "password_like"),
        positives=(("mongosh -u jo -p " + "hunter2-v" + " h/db", "hunter2-v"),),
        negatives=("psql -p 5432", "mongosh -u jo -p <password>"),
    ),
    Rule(
        "PASSWORD",
        r"(?i)(?:identified[ ]+by|password)[ ]+\\?'([^'\s\x00\\]{3,})\\?'",
        2,
        take="group",
        checks=("literal",),
        positives=(("CREATE USER jo WITH PASSWORD '" + "hunter2-w" + "';", "hunter2-w"),),
        negatives=("the password 'changeme' is", "IDENTIFIED BY '<password>'"),
        note="SQL.",
    ),
    Rule(
        "PASSWORD",
        r"(?i)login[ \t]+[^\s\x00]{1,64}(?:\s|\\n){1,4}password[ \t]+([^\s\x00\"'\\]{3,})",
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
        r"(?:===?|=>|:=|=|:)[ \t]{0,8}",
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
        r"(?:is|was|to)[: ]{1,3}[\"'`]?([^\s\x00\"'`<>\\]{4,})",
        2,
        take="group",
        checks=("literal", "password_like", "trim_prose"),
        positives=(("my password is " + "hunter2!x" + ", thanks", "hunter2!x"),),
        negatives=("the password is required", "your password was changed", "password is None."),
    ),
)

RULES: tuple[Rule, ...] = (*COMMANDS, *ASSIGNMENTS)
