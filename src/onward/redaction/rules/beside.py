"""Layer 2, fourth part: values beside the name of a secret that no ``=`` or ``:`` joins to it: in prose, in
code, in pairs of name and value, in forms and in tables. ``judging/near_values.py`` judges them."""

from __future__ import annotations

from onward.redaction.rule import Rule, body, context_rule
from onward.redaction.rules.assignments import SECRET_WORDS

_SPOKEN = (
    r"(?:api|access|secret|account|app|application|auth|client|consumer|deploy|encryption|license|master|"
    r"private|product|activation|service|shared|signing|storage|subscription|webhook)[ _-]?key|"
    r"token|secret|jwt|credentials?|passw(?:or)?d|passphrase|passcode|pass|pwd|pswd|pw|connection[ _-]?string"
)
"""Names of secrets as people say them."""
_DRAWN = "Zk83hf" + "Yq2LmNw0"
_NAMES = SECRET_WORDS.replace("auth|cookie|session|", "") + r"|\bpw|_pw"
_GATE = rf"(?i){_NAMES}"
_WIDE_GATE = rf"(?i){_NAMES}|auth|cookie"
_NAMED = rf"((?:{_NAMES})[A-Za-z0-9_.-]{{0,40}})"

PROSE = (
    context_rule(
        "ASSIGNED",
        rf"(?i)\b({_SPOKEN})[\"'`*]{{0,3}}(?:[ ](?:for|of|on|in|to|at|from|there|here|you need|we use|"
        rf"i use)\b[^\x00\n:=]{{0,60}}?)?"
        r"(?:[ ]{0,2}[:=]|[ ](?:is|was|are|has been|will be|should be|must be|set to|changed to|becomes|"
        r"called|reads|equals))"
        r"(?:[ ](?:now|currently|just|simply|set to|changed to|still|as follows))?[ ]{0,2}[:=]?(?:\s|\\n)"
        r"{1,4}[*(]{0,3}",
        take="said",
        gate=_GATE,
        positives=(
            ("my api key is " + _DRAWN + ", thanks", _DRAWN),
            ("Password for ada: " + _DRAWN, _DRAWN),
            ("the token for the staging server was `" + _DRAWN + "`", _DRAWN),
        ),
        negatives=(
            "the token is expired, the api key is required, the secret is base64-encoded and v1beta1",
            "Password for the user: see config.yaml; the token was sha256-hashed",
        ),
        note="Prose.",
    ),
    context_rule(
        "ASSIGNED",
        rf"(?i)(?:\b|_)({_SPOKEN})[ \t]{{1,3}}[\"'`(]?[^\s\x00\"'`]{{0,64}}?[0-9]",
        take="said_next",
        gate=_GATE,
        positives=(("login admin / pw " + _DRAWN, _DRAWN), ("use token " + _DRAWN + " there", _DRAWN)),
        negatives=("the token v1beta1 and password sha256sum of token 12345678, secret key2",),
        note="The value follows after a blank.",
    ),
    context_rule(
        "ASSIGNED",
        r"(?i)(?:\b|_)(pw[0-9]?)(?:\\{0,8}[\"'`])?\]?[ \t]{0,8}(?:=>|:=|=|:)[ \t]{0,8}",
        take="given",
        gate=_GATE,
        positives=(("id: admin pw: " + _DRAWN, _DRAWN), ("DB_PW=" + _DRAWN, _DRAWN)),
        negatives=("pw = sync_playwright()", "pw: str"),
    ),
)

CODE = (
    context_rule(
        "ASSIGNED",
        rf"(?i)(?:env[A-Za-z_]{{0,10}}|define|property|setting|config|option|secret|param|arg)[A-Za-z_.]{{0,12}}"
        rf"[ ]{{0,2}}\([ ]{{0,2}}\\{{0,4}}[\"'`][A-Za-z0-9_.-]{{0,40}}?{_NAMED}"
        r"\\{0,4}[\"'`][ ]{0,2},\s{0,12}(?:[a-z_]{1,16}[ ]{0,2}=[ ]{0,2})?",
        take="given_quoted",
        gate=_GATE,
        positives=(
            ('password = os.environ.get("PASSWORD", "' + "hunter2-a" + '")', "hunter2-a"),
            ("define('DB_PASSWORD', '" + "hunter2-b" + "');", "hunter2-b"),
            ('getProperty("db.password", "' + "hunter2-c" + '")', "hunter2-c"),
        ),
        negatives=('os.getenv("PASSWORD", "")', 'os.getenv("TOKEN", "missing")', 'env("SECRET", "required")'),
        note="The default of a setting.",
    ),
    context_rule(
        "ASSIGNED",
        rf"(?i){_NAMED}[\\\"'`\])]{{0,6}}"
        r"(?:[ ]{1,3}(?:or|\|\||\?\?|\?:)[ ]{1,3}|[ ]{0,3}(?:\?\?|!==?|<>|\|\|)=?[ ]{0,3}|:-"
        r"|\)?\.(?:unwrap_or|or_?else|equals|getorelse|get_or|default|fill|type|send_?keys|set|insert|press)[a-z_]{0,16}"
        r"\([ ]{0,2}(?:\|[a-z_]{0,8}\|[ ]{0,2})?|[ ]{0,2}\{[ ]{0,2}"
        r"|[^\x00\n\"'`]{0,8}?,[^\x00\n\"'`]{0,60}?default(?:_value)?[ ]{0,2}[=:][ ]{0,2})",
        take="given_quoted",
        gate=_GATE,
        positives=(
            ('PASSWORD = os.getenv("PASSWORD") or "' + "hunter2-d" + '"', "hunter2-d"),
            ('if (password !== "' + "hunter2-e" + '")', "hunter2-e"),
            ("page.locator('#password').fill('" + "hunter2-f" + "')", "hunter2-f"),
            ('add_argument("--password", default="' + "hunter2-g" + '")', "hunter2-g"),
        ),
        negatives=(
            'if password != "required"',
            'token or "none"',
            'password.equals("")',
            'args.token or "x y z1"',
        ),
        note="A default, a comparison, a filled field.",
    ),
    context_rule(
        "ASSIGNED",
        r"(?i)\$\{([A-Za-z0-9_.-]{0,40}(?:secret|token|passw|pwd|pass|key)[A-Za-z0-9_.-]{0,40}):[-=]?",
        take="given",
        gate=_GATE,
        positives=(("url: ${DB_PASSWORD:-" + _DRAWN + "}", _DRAWN),),
        negatives=("${DB_PASSWORD:?must be set}", "${TOKEN:-}"),
        note="The default of a variable of a shell.",
    ),
    context_rule(
        "ASSIGNED",
        rf"(?i)((?:{_NAMES}|auth|cookie)[A-Za-z0-9_.-]{{0,40}})(?:\\{{0,8}}[\"'`])?[\])"
        rf"]{{0,4}}[ \t]{{0,4}},\s{{0,8}}(?:[A-Za-z]{{1,12}}\()?",
        take="listed",
        gate=_WIDE_GATE,
        positives=(
            ('curl_easy_setopt(c, CURLOPT_USERPWD, "root:' + _DRAWN + '");', _DRAWN),
            ('headers.append("X-Api-Key", "' + _DRAWN + '")', _DRAWN),
            ("page.fill('#password', '" + _DRAWN + "')", _DRAWN),
            ('[["authorization", "Bearer ' + _DRAWN + '"]]', _DRAWN),
        ),
        negatives=('["password", "sha256-sum"], ("token", "utf8mb4")', '"api_key", "x-api-key-v2"'),
        note="The next argument or member of a list.",
    ),
    context_rule(
        "ASSIGNED",
        r"(?im)(?:\b(?:setx?|setenv|export|declare -x|ENV|ARG|config set|configure set|config:set|"
        r"secrets? set|secrets put)"
        r"|^[ \t]{0,8}#[ ]{0,4}define)[ \t]{1,4}(?:--?[a-z]{1,12}[ \t]{1,4}){0,3}[A-Za-z0-9_.:/-]{0,60}?"
        rf"{_NAMED}[ \t]{{1,8}}(?:--?(?:body|value|b)[ =])?",
        take="given",
        gate=_GATE,
        positives=(
            ("setx API_KEY " + _DRAWN, _DRAWN),
            ('#define WIFI_PASSWORD "' + _DRAWN + '"', _DRAWN),
            ('export DB_PASSWORD "' + _DRAWN + '"', _DRAWN),
            ("aws configure set aws_secret_access_key " + body(40), body(40)),
        ),
        negatives=("set the token to zero", "export TOKEN && run", "set password policy"),
        note="Commands that set a variable.",
    ),
    context_rule(
        "ASSIGNED",
        rf"(?i){_NAMED}\\{{0,4}}[\"'`]?[ ]{{0,2}}:[ ]{{0,2}}[|>][-+]?(?:[ ]{{0,2}}\n|\\n)(?:[ \t]{{1,20}})",
        take="given",
        gate=_GATE,
        positives=(("password: |\n  " + _DRAWN + "\n", _DRAWN),),
        negatives=("token: |\n  no\n",),
        note="A block in YAML.",
    ),
)

_VALUE_NAME = r"(?:value|text|content|val|data|input|default)"
FORMS = (
    context_rule(
        "ASSIGNED",
        r"(?i)\b(?:name|key|id|label|header|field|selector|element|locator|placeholder|variable|param|parameter)"
        r"\\{0,8}[\"']?[ ]{0,3}[:=][ ]{0,3}\\{0,8}[\"']?([^\x00\n\"\\,]{0,60}?(?:secret|token|pass|pwd|"
        r"pw|key|auth|cookie|"
        r"credential)[^\x00\n\"\\,]{0,30}?)\\{0,8}[\"']?[ ]{0,3}(?:,|\\n|\n|[ ]|/?>|;)(?:\s|\\n)"
        r"{0,16}(?:-[ ])?"
        r"(?:\\{0,8}\"[a-z_]{1,20}\\{0,8}\"[ ]?:[ ]?\\{0,8}\"?[A-Za-z0-9_.-]{0,24}\\{0,8}\"?,\s{0,8}){0,2}"
        rf"[<\\]{{0,8}}[\"']?{_VALUE_NAME}\\{{0,8}}[\"']?[ ]{{0,3}}[:=>][ ]{{0,3}}",
        take="paired",
        gate=_WIDE_GATE,
        positives=(
            ('{"selector": "#password", "text": "' + _DRAWN + '"}', _DRAWN),
            ("- name: DB_PASSWORD\n  value: " + _DRAWN + "\n", _DRAWN),
            ('<add key="Password" value="' + _DRAWN + '"/>', _DRAWN),
        ),
        negatives=(
            '{"label": "Password", "text": "Forgot your password?"}',
            '{"name": "password", "value": "string"}',
            "- name: MAX_TOKENS\n  value: 4096\n",
        ),
        note="Pairs of name and value.",
    ),
    context_rule(
        "ASSIGNED",
        rf"(?i)name=\\{{0,4}}\"((?:{SECRET_WORDS})[A-Za-z0-9_.-]{{0,40}})\\{{0,4}}\"(?:\r?\n|\\r\\n|\\n){{2}}",
        take="given",
        gate=_GATE,
        positives=(('form-data; name="password"\r\n\r\n' + _DRAWN + "\r\n--x", _DRAWN),),
        note="A form of several parts.",
    ),
    context_rule(
        "ASSIGNED",
        r"(?i)<(?:input|meta)\b[^>\x00]{0,600}",
        take="inputs",
        gate="",
        positives=(
            ('<input id="password" value="' + _DRAWN + '">', _DRAWN),
            ("<input value='" + "hunter2" + "' type='password'/>", "hunter2"),
            ('<meta name="csrf-token" content="' + _DRAWN + '">', _DRAWN),
        ),
        negatives=('<input name="user" value="ada1x9z2">', '<input type="password" value="">'),
        note="HTML.",
    ),
    context_rule(
        "ASSIGNED",
        r"(?i)insert\s+(?:ignore\s+)?into\s+[^\s(\x00]{1,120}\s{0,4}\(([^()\x00]{1,1000})\)\s{0,8}values\s{0,8}\(",
        take="inserted",
        gate="",
        positives=(
            ("INSERT INTO users(name, password) VALUES ('ada', '" + _DRAWN + "')", _DRAWN),
            ("INSERT INTO u (id, token) VALUES (1, 'x'), (2, '" + _DRAWN + "');", _DRAWN),
        ),
        negatives=("INSERT INTO u (name, password) VALUES ('ada', ?)",),
        note="SQL.",
    ),
    context_rule(
        "ASSIGNED",
        r"(?i)(?:passw|pwd|secret|token|api[_ ]?key|access[_ ]?key|private[_ ]?key|credential|\bpass|\bpw)"
        r"[A-Za-z0-9_ ]*[\"'`*]{0,2}[ ]*(?:[|,;\t][^\x00\n]*?)?(?:\r?\n|\\n)",
        take="tables",
        gate=_GATE,
        positives=(
            ("user,password\nada," + _DRAWN, _DRAWN),
            ("| user | password |\n|---|---|\n| ada | " + _DRAWN + " |", _DRAWN),
            (" user | password \n------+----------\n ada  | " + _DRAWN + "\n(1 row)", _DRAWN),
        ),
        negatives=(
            "| option | token |\n|---|---|\n| -x | the token of the host |",
            "def f(user, password):\n    return user, sha256sum9",
        ),
        note="Tables.",
    ),
)

RULES: tuple[Rule, ...] = (*PROSE, *CODE, *FORMS)
