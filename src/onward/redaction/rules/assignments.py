"""Layer 2, second part: values after a name or a flag, in code, settings, JSON, XML, SQL and commands.

A rule only finds the name. ``judging/names.py`` decides which names govern a secret and ``judging/values.py``
which values are literals, so that ``token = getToken()`` and ``max_tokens: 4096`` stay.
"""

from __future__ import annotations

from onward.redaction.rule import B32, HEX, Rule, body, context_rule

PASSWORDS_ABROAD = (
    r"kennwort|mot[ _-]?de[ _-]?passe|mdp|contrase(?:n|\xc3[\xb1\x91])a|senha|wachtwoord|"
    r"has(?:l|\xc5[\x82\x81])o|palavra[ _-]passe|parola[ _-]d(?:['_-]|\xe2\x80\x99)?ordine"
)
"""Words for password in German, French, Spanish, Portuguese, Dutch, Polish and Italian, as UTF-8 bytes.
``passw`` is in the other lists."""

SECRET_WORDS = (
    r"secret|token|passw|passphrase|passcode|pwd|pswd|psw|pass|credential|api[_ -]?key|apikey|"
    r"access[ _-]?key|"
    r"account[ _-]?key|private[ _-]?key|signing[ _-]?key|encryption[ _-]?key|master[ _-]?key|"
    r"license[ _-]?key|"
    r"app[ _-]?key|application[ _-]?key|client[ _-]?key|consumer[ _-]?key|shared[ _-]?key|storage[ _-]?key|"
    r"subscription[ _-]?key|service[ _-]?key|deploy[ _-]?key|ssh[ _-]?key|api[_-]?hash|auth|cookie|session|"
    r"(?:secret|product|activation|server|session|root|cipher|crypto|aes|jwt)[ _-]key|access[ _-]code|bearer|"
    r"connection[_-]?string|conn[_-]?str|dsn|jwt|nkey|"
    r"geheim|clave|segret|segred|sekret|(?:api|privater|geheimer)[ _-]?schl(?:ue|\xc3[\xbc\x9c])ssel|"
    r"(?:api|geheime)[ _-]?sleutel|cl(?:e|\xc3[\xa9\x89])[ _-]?(?:api|priv|secr)[a-z\xc3\xa8\xa9]{0,5}|"
    r"chiave[ _-]?(?:api|priv)|chave[ _-]?(?:api|priv)|klucz[ _-]?(?:api|pryw)"
)
_PERSONAL_WORDS = (
    r"(?:first|last|middle|full|given|family|maiden|birth|legal|sur|patient|customer|employee|contact|holder|"
    r"cardholder|recipient|guest|passenger|applicant|beneficiary|billing|shipping|fore)[_-]?name|address|"
    r"street|postcode|postal_?code|zip_?code|phone|mobile|msisdn|fax|ssn|social_?security|passport|national_?id|"
    r"national_?insurance|tax_?(?:id|number)|licen[cs]e_?plate|aadhaar|cpf|personnummer"
)

ASSIGNMENTS = (
    context_rule(
        "ASSIGNED",
        rf"(?i)(?:{SECRET_WORDS})[A-Za-z0-9_.-]{{0,40}}(?:\\{{0,8}}[\"'`])?\]?[ \t]{{0,8}}"
        r"(?:===?|=>|:=|=|:)[ \t]{0,8}",
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
            ("Passwort: " + "korrekt9pferd", "korrekt9pferd"),
            ("Datenbankpasswort=" + "korrekt9-pferd", "korrekt9-pferd"),
            ("geheim: " + body(20), body(20)),
            ("clave = '" + body(21) + "'", body(21)),
            ("segreto: " + body(22), body(22)),
            ("segredo=" + body(23), body(23)),
            ("API-Schlüssel: " + body(24), body(24)),
            ("clé api : " + body(25), body(25)),
            ("klucz_api = '" + body(26) + "'", body(26)),
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
            'for clave, valor in d: clave = "nombre"; enclave: kx9wq2zz7',
            "parola chiave: ricerca9x, Schlüssel: abc9def7, sleutel = paar9x9x",
            "Geheimnis: niemand, Passwort: geheim, passwort_länge = 12",
        ),
    ),
    context_rule(
        "ASSIGNED",
        rf"(?i)(?:{PASSWORDS_ABROAD})[A-Za-z0-9_.-]{{0,40}}(?:\xc2\xa0|\xe2\x80\xaf)?"
        r"(?:\\{0,8}[\"'`])?\]?[ \t]{0,8}(?:===?|=>|:=|=|:)[ \t]{0,8}",
        take="assigned",
        positives=(
            ("DB_KENNWORT=" + "korrekt9pferd", "korrekt9pferd"),
            ("Mot de passe : " + "cheval9x", "cheval9x"),
            ("Mot de passe\u00a0: " + "cheval9y", "cheval9y"),
            ('{"mot_de_passe": "' + "cheval9!z" + '"}', "cheval9!z"),
            ('mdp = "' + "cheval9-w" + '"', "cheval9-w"),
            ('"contraseña": "' + "caballo9x" + '"', "caballo9x"),
            ("contrasena=" + "caballo9y", "caballo9y"),
            ("Senha: " + "cavalo9x", "cavalo9x"),
            ("palavra-passe: " + "cavalo9y", "cavalo9y"),
            ("parola d'ordine: " + "cavallo9x", "cavallo9x"),
            ("wachtwoord: " + "paard9x", "paard9x"),
            ("hasło: " + "kotek9x", "kotek9x"),
            ("haslo=" + "kotek9y", "kotek9y"),
        ),
        negatives=(
            "kennwort: str, Kennwort: geheim",
            "mot de passe : requis, mot_de_passe = getenv('X')",
            "contraseña: obligatorio; longitud_contraseña = 12, contraseña_longitud: 12",
            "desenhar: 12345x, desenha = forma2x",
            "numero d'ordine: 2024x99",
            "wachtwoord: ${WACHTWOORD}, hasło: $HASLO",
            'input("Contraseña: ")',
        ),
        note="Passwords by their names in other languages.",
    ),
    context_rule(
        "ASSIGNED",
        r"(?i)[a-z0-9][ _.-]key(?:\\{0,8}[\"'`])?\]?[ \t]{0,8}(?:=>|:=|=|:)[ \t]{0,8}(?:\\{0,8}[\"'`])"
        r"?[A-Za-z0-9_-]{20}",
        take="keyed",
        positives=(
            ("adafruit_key = " + body(32, HEX), body(32, HEX)),
            ('dropbox key: "' + body(40) + '"', body(40)),
        ),
        negatives=(
            "cache_key = " + body(40, HEX),
            "primary_key: customer_identification_number_2",
            "public_key = " + body(40, HEX),
        ),
        note="The key of a service without the word that says so: only a generated value.",
    ),
    context_rule(
        "ASSIGNED",
        r"(?i)[_-]pat(?:\\{0,8}[\"'`])?\]?[ \t]{0,8}(?:=>|:=|=|:)[ \t]{0,8}",
        take="assigned",
        positives=(("AZURE_DEVOPS_PAT=" + body(52, B32.lower()), body(52, B32.lower())),),
        negatives=("url_pat: /users/<id>", "GITHUB_PAT=${PAT}"),
        note="Personal access token.",
    ),
    context_rule(
        "ASSIGNED",
        r"(?i)<[a-z0-9_.:-]{0,40}(?:secret|token|passw|passphrase|pwd|api_?key|access_?key|private_?key|"
        r"kennwort|wachtwoord|senha|mot_?de_?passe|contrase(?:n|\xc3[\xb1\x91])a)"
        r"[a-z0-9_.-]{0,40}>",
        take="assigned",
        positives=(
            ("<db><password>" + "hunter2-e" + "</password></db>", "hunter2-e"),
            ("<db><contraseña>" + "caballo9z" + "</contraseña></db>", "caballo9z"),
        ),
        negatives=("<password>changeme</password>", "<token></token>", "use <password> here"),
        note="XML.",
    ),
    context_rule(
        "ASSIGNED",
        rf"(?i)(?:{_PERSONAL_WORDS})[A-Za-z0-9_]{{0,10}}\\{{0,8}}[\"'][ ]{{0,4}}:[ ]{{0,4}}",
        take="assigned",
        positives=(
            ('{"first_name": "Ottilie", "n": 1}', "Ottilie"),
            ('{\\"street_address\\": \\"12 Mill Lane\\"}', "12 Mill Lane"),
        ),
        negatives=('{"address": "10.0.0.1:80"}', '{"first_name": "string"}', "'phone': 'required'"),
        note="Names and addresses by their key, in JSON within text.",
    ),
    context_rule(
        "PASSWORD",
        rf"(?i)(?:password|passphrase|passcode|passwort|{PASSWORDS_ABROAD})"
        r"(?:\s(?:for\s[^\s\x00]{1,40}))?\s(?:is|was|to|ist|lautet|est|es|jest|\xc3[\xa8\xa9])"
        r"[: ]{1,3}[\"'`]?([^\s\x00\"'`<>\\]{4,})",
        checks=("literal", "password_like", "trim_prose"),
        positives=(
            ("my password is " + "hunter2!x" + ", thanks", "hunter2!x"),
            ("das Passwort lautet " + "pferd9!x" + ", danke", "pferd9!x"),
            ("le mot de passe est " + "cheval9!x" + ", merci", "cheval9!x"),
        ),
        negatives=(
            "the password is required",
            "your password was changed",
            "password is None.",
            "das Passwort ist erforderlich",
            "le mot de passe est requis",
        ),
    ),
)

RULES: tuple[Rule, ...] = ASSIGNMENTS
