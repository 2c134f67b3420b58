"""Layer 2, third part: secrets in commands, also as lists of arguments: ``["mysql", "-pV"]``."""

from __future__ import annotations

from onward.redaction.rule import Rule, body, context_rule
from onward.redaction.rules.assignments import PASSWORDS_ABROAD

_GAP = r"(?:[ \t]{1,4}|\\{0,4}[\"'],\s{0,4}\\{0,4}[\"'])"
"""Separator of two arguments: blanks, or the quotes and comma of a list."""
_BEGIN = r"(?:\s|[\"'])"
_Q = r"\\{0,4}[\"']?"
_V = r"([^\s\x00\"'\\-][^\s\x00\"'\\]{2,})"
"""An argument of three bytes or more that is no option."""
_PAIR = (
    r"\s{0,8}(?:user[a-z]{0,4}[ ]{0,2}=[ ]{0,2})?\\{0,4}[\"'][^\s\x00\"'\\]{1,64}\\{0,4}[\"'],\s{0,8}"
    r"(?:pass[a-z]{0,4}[ ]{0,2}=[ ]{0,2})?[bfru]?\\{0,4}[\"']([^\s\x00\"'\\]{3,})\\{0,4}[\"']"
)
"""Two texts in quotes, of which the second is the value."""
_GATE = (
    r"curl|wget|\bhttps?[ ]|mysql|mariadb|sshpass|redis-cli|login|upload|mongo|ldap|smb|sqlcmd|\bbcp\b|"
    r"\bisql|psql|ftp|"
    r"zip|plink|pscp|keytool|jarsigner|useradd|usermod|snmp|pdftk|qpdf|\bu?n?rar\b|ipmitool|ssh-keygen|openssl|"
    r"cargo|vault|evil-winrm|rpcclient|crackmap|netexec|\bnxc\b|hydra|xfreerdp|rdesktop|sudo|--(?:password|passphrase|"
    r"pass|token)-|--with-token|--stdin|\bsu\b|kinit|cryptsetup|passwd|gh[ ]auth|openconnect|"
    r"(?i:net(?:1|\.exe)?[ ]use|convertto-securestring|auth|networkcred|credentials)|wmi[ce]|sqlplus|rman\b|"
    r"psexec|secretsdump|skopeo|htpasswd|wpa_passphrase|nmcli|mount\.cifs"
)
"""Names of the commands: where none stands, no rule here needs to run."""

COMMANDS = (
    context_rule(
        "CLI_PASSWORD",
        r"(?:curl|wget|http)[^\x00\n|;&]{0,512}?"
        + _BEGIN
        + r"(?:-u|--user|--proxy-user|-U|-a)(?:=|"
        + _GAP
        + r")?"
        + _Q
        + r"[^\s:\x00\"'@/]{1,64}:([^\s\x00\"'\\]{3,})",
        gate=_GATE,
        checks=("literal", "not_numeric"),
        positives=(
            ("curl -u admin:" + "hunter2-q" + " https://h/", "hunter2-q"),
            ('curl -s --user "jo:' + "hunter2-r" + '" https://h/', "hunter2-r"),
        ),
        negatives=(
            "curl -u $USER:$PASS https://h/",
            "curl -u user:<password> https://h/",
            "docker run curlimages/curl -u 1000:1000",
        ),
    ),
    context_rule(
        "CLI_PASSWORD",
        r"(?:mysql|mysqldump|mysqladmin|mariadb)[^\x00\n|;&]{0,256}?" + _BEGIN + r"-p" + _Q + _V,
        gate=_GATE,
        checks=("literal",),
        positives=(("mysql -h db -u root -p" + "hunter2-s" + " app", "hunter2-s"),),
        negatives=("mysql -u root -p app", "mysql -u root -p$PASS app", "mysql --port 3306 -P 3306"),
    ),
    context_rule(
        "CLI_PASSWORD",
        r"sshpass" + _GAP + r"-p" + _GAP + r"?" + _Q + r"([^\s\x00\"'\\]{3,})",
        gate=_GATE,
        checks=("literal",),
        positives=(("sshpass -p " + "hunter2-t" + " ssh h", "hunter2-t"),),
        negatives=('sshpass -p "$PW" ssh h',),
    ),
    context_rule(
        "CLI_PASSWORD",
        r"(?:redis-cli[^\x00\n|;&]{0,256}?" + _BEGIN + r"-a|"
        r"(?:docker|podman|helm|oc|cf|az|nerdctl|buildah|ibmcloud|twine|npm)[^\x00\n|;&]{0,64}?(?:login|upload)"
        r"[^\x00\n|;&]{0,256}?" + _BEGIN + r"-p)" + _GAP + _Q + r"([^\s\x00\"'\\-][^\s\x00\"'\\]{3,})",
        gate=_GATE,
        checks=("literal",),
        positives=(
            ("redis-cli -h r -a " + "hunterKu" + " ping", "hunterKu"),
            ("docker login -u jo -p " + "hunterKv" + " reg.io", "hunterKv"),
        ),
        negatives=("redis-cli -h r -a $PW", "docker login -u jo -p <token>"),
    ),
    context_rule(
        "CLI_PASSWORD",
        r"(?:mongo|mongosh|ldapsearch|ldapadd|ldapmodify|smbclient|sqlcmd|bcp|isql|psql|ftp|zip|unzip|plink|pscp|"
        r"keytool|jarsigner|useradd|usermod|snmpget|snmpwalk|pdftk|qpdf|rar|unrar|ipmitool|"
        r"ssh-keygen|openssl|cargo|vault|evil-winrm|rpcclient|crackmapexec|netexec|nxc|hydra|xfreerdp|rdesktop)"
        r"[^\x00\n|;&]{0,256}?"
        + _BEGIN
        + r"(?:(?:-a|-p|-w|-P|-N|-k|-K|-pw|-pass|-storepass|-keypass|-passin|-passout|login)"
        + _GAP
        + r"|/p:|-p:)"
        + _Q
        + r"(?:pass:)?([^\s\x00\"'\\-][^\s\x00\"'\\]{3,})",
        gate=_GATE,
        checks=("literal", "password_like", "no_file"),
        positives=(("mongosh -u jo -p " + "hunter2-v" + " h/db", "hunter2-v"),),
        negatives=(
            "psql -p 5432",
            "mongosh -u jo -p <password>",
            "cargo login 1.75.0-nightly",
        ),
    ),
    context_rule(
        "PASSWORD",
        r"(?:IDENTIFIED[ ]+BY|(?i:user\b[^\x00\n]{0,80}?identified[ ]+by)|(?i:password))[ ]+"
        r"\\?'([^'\s\x00\\]{3,})\\?'",
        checks=("literal",),
        positives=(("CREATE USER jo WITH PASSWORD '" + "hunter2-w" + "';", "hunter2-w"),),
        negatives=(
            "the password 'changeme' is",
            "IDENTIFIED BY '<password>'",
            "the record identified by 'nameID'",
        ),
        note="SQL.",
    ),
    context_rule(
        "PASSWORD",
        r"(?i)login[ \t]+[^\s\x00]{1,64}(?:\s|\\n){1,4}password[ \t]+([^\s\x00\"'\\]{3,})",
        checks=("literal",),
        positives=(("machine h login jo password " + "hunter2-x" + "\n", "hunter2-x"),),
        negatives=("login jo password <password>",),
        note="netrc.",
    ),
    context_rule(
        "ASSIGNED",
        rf"(?i)--?[a-z0-9-]{{0,30}}?(?:{PASSWORDS_ABROAD}|"
        r"password|passwd|passphrase|passwort|secret|token|api-?key|access-?key|"
        r"bearer|passcode|auth|pass|pwd|pw|psk)[a-z0-9-]{0,20}" + _GAP,
        take="flag",
        positives=(
            ("login --password " + "hunter2-z" + " now", "hunter2-z"),
            ("tool --api-key '" + body(20) + "'", body(20)),
            ("tool --kennwort " + "hunter2-a" + " now", "hunter2-a"),
        ),
        negatives=("--token TOKEN  the token", "use --password to give one", "--password <pw>"),
    ),
)

_PIPED = (
    r"(?:echo|printf)[ ]{1,3}(?:-[neE]{1,3}[ ]{1,3}|[\"']?%s(?:\\{1,2}n)?[\"']?[ ]{1,3})?"
    r"(?:\\{0,4}[\"'])?([^\s\x00\"'|\\]{3,128})"
    r"(?:\\{1,2}n)?(?:\\{0,4}[\"'])?[ ]{0,3}\|[ ]{0,3}"
)
"""A text that is printed into the next command."""

PIPES = (
    context_rule(
        "CLI_PASSWORD",
        _PIPED + r"su\b",
        gate=_GATE,
        checks=("literal", "password_like"),
        positives=(("echo " + "hunter2-k" + " | su bob -c id", "hunter2-k"),),
        negatives=("echo message | su bob",),
    ),
    context_rule(
        "CLI_PASSWORD",
        _PIPED + r"(?:sudo[^\x00\n|;&]{0,40}?[ ]-[A-Za-z]{0,6}S|[^\x00\n|;&]{0,80}?(?:--password-stdin|"
        r"--with-token|--stdin|"
        r"--passphrase-fd|--pass-stdin|--token-stdin|-pass(?:in|out)?[ ]stdin)|kinit\b|cryptsetup\b|"
        r"sshpass\b|passwd\b|smbpasswd\b|vncpasswd\b|gh[ ]auth|openconnect\b)",
        gate=_GATE,
        checks=("literal",),
        positives=(
            ("echo '" + "hunter2-g" + "' | sudo -S apt update", "hunter2-g"),
            ("echo " + body(20) + " | docker login -u jo --password-stdin", body(20)),
        ),
        negatives=("echo done | sudo tee /etc/motd", 'echo "$PW" | sudo -S id'),
    ),
    context_rule(
        "CLI_PASSWORD",
        r"(?:sudo[^\x00\n|;&]{0,20}?[ ]-[A-Za-z]{0,6}S[^\x00\n|;&]{0,200}?|--(?:password|passphrase)"
        r"-(?:stdin|fd[ =]0)"
        r"[^\x00\n|;&]{0,80}?|--with-token[ ]{0,2})<<<[ ]{0,3}(?:\\{0,4}[\"'])?([^\s\x00\"'\\]{3,128})",
        gate=_GATE,
        checks=("literal",),
        positives=(("sudo -S id <<< '" + "hunter2-h" + "'", "hunter2-h"),),
        negatives=('sudo -S id <<< "$PW"',),
    ),
    context_rule(
        "CLI_PASSWORD",
        r"[A-Za-z0-9_.-]{1,32}:([^\s\x00\"'\\|]{3,128})(?:\\{1,2}n)?(?:\\{0,4}[\"'])?[ ]{0,3}\|[ ]{0,3}"
        r"(?:sudo[ ](?:-[A-Za-z]{1,3}[ ]){0,3})?chpasswd",
        gate=_GATE,
        checks=("literal",),
        positives=(("echo 'bob:" + "hunter2-i" + "' | sudo chpasswd", "hunter2-i"),),
        negatives=('echo "bob:$PW" | chpasswd',),
    ),
    context_rule(
        "CLI_PASSWORD",
        r"chpasswd[ ]{0,3}<<<?[ ]{0,3}(?:\\{0,4}[\"'])?[A-Za-z0-9_.-]{1,32}:([^\s\x00\"'\\]{3,128})",
        gate=_GATE,
        checks=("literal",),
        positives=(('chpasswd <<< "bob:' + "hunter2-j" + '"', "hunter2-j"),),
        negatives=('chpasswd <<< "bob:$PW"',),
    ),
)

_NET = r"(?i)(?:^|[^A-Za-z0-9_.-]|\\[nrt])net(?:1|\.exe)?[ ]"

MORE = (
    context_rule(
        "CLI_PASSWORD",
        _NET + r"(?:use[ ][^\x00\n]{1,120}?/user:[^\s\x00]{1,64}[ ]{1,3}|"
        r"user[ ][^\s\x00/]{1,64}[ ]{1,3})"
        r"[\"']?([^\s\x00\"'/*\\][^\s\x00\"'`\\]{2,})",
        gate=_GATE,
        checks=("literal", "password_like"),
        positives=(
            ("net use Z: \\\\srv\\x /user:bob " + "hunter2-l", "hunter2-l"),
            ("net user bob " + "hunter2-l" + " /add", "hunter2-l"),
        ),
        negatives=(
            "net user bob /delete",
            "net use Z: \\\\srv\\x /user:bob *",
            "the internet user base grew2x, dotnet user secrets9 init2, the .net user base3 grew2x",
        ),
        note="Windows.",
    ),
    context_rule(
        "CLI_PASSWORD",
        _NET + r"use[ ][^\x00\n]{1,80}?\\[^\s\x00]{1,60}[ ]{1,3}([^\s\x00\"'/\\*][^\s\x00\"'\\]{2,})"
        r"[ ]{1,3}/user:",
        gate=_GATE,
        checks=("literal", "password_like"),
        positives=(("net use Z: \\\\srv\\x " + "hunter2-m" + " /user:bob", "hunter2-m"),),
    ),
    context_rule(
        "CLI_PASSWORD",
        r"(?i)ConvertTo-SecureString[ ]{1,3}(?:-String[ ]{1,3})?\\{0,4}[\"']([^\s\x00\"'\\]{3,})",
        gate=_GATE,
        checks=("literal",),
        positives=(('ConvertTo-SecureString "' + "hunter2-n" + '" -AsPlainText -Force', "hunter2-n"),),
        negatives=('ConvertTo-SecureString "$env:PW" -AsPlainText',),
        note="PowerShell.",
    ),
    context_rule(
        "CLI_PASSWORD",
        r"(?:smbclient|rpcclient|smbmap|mount\.cifs|wmic|sqlplus|rman|lftp|psexec(?:\.py)?|secretsdump\.py|skopeo|ncftp|isql)"
        r"[^\x00\n|;&]{0,200}?"
        + _BEGIN
        + r"(?:(?:-U|--user|-u|--creds|--src-creds|--dest-creds)(?:=|"
        + _GAP
        + r")"
        + _Q
        + r"[A-Za-z0-9_.\\/-]{1,64}[%,:])([^\s\x00\"'\\@/%]{3,})",
        gate=_GATE,
        checks=("literal", "password_like"),
        positives=(("smbclient //h/s -U jo%" + "hunter2-o", "hunter2-o"),),
        negatives=("smbclient //h/s -U jo", "lftp -u jo h", "lftp sftp/dir2/abc3", "isql my/dir9/file3"),
    ),
    context_rule(
        "CLI_PASSWORD",
        r"(?:sqlplus|rman\b|psexec(?:\.py)?|secretsdump\.py|wmiexec(?:\.py)?)[^\x00\n|;&]{0,200}?"
        + _BEGIN
        + r"[\"']?[A-Za-z0-9_.]{1,32}/([^\s\x00\"'\\@/%]{3,})",
        gate=_GATE,
        checks=("literal", "password_like", "no_file"),
        positives=(
            ("sqlplus scott/" + "hunter2-q" + "@db", "hunter2-q"),
            ("rman target sys/" + "hunter2-y" + "@db", "hunter2-y"),
        ),
        negatives=("sqlplus -s scripts/load2.sql", "sqlplus my/dir9/file3"),
    ),
    context_rule(
        "CLI_PASSWORD",
        r"(?:htpasswd[^\x00\n|;&]{0,80}?[ ]-[A-Za-z]{0,5}b[A-Za-z]{0,5}(?:[ ][^\s\x00]{1,120}){2}|"
        r"wpa_passphrase[ ][^\s\x00]{1,64}|"
        r"mysqladmin[^\x00\n|;&]{0,120}?[ ]password|nmcli[^\x00\n|;&]{0,160}?[ ]password)[ ]{1,3}"
        r"[\"']?([^\s\x00\"'\\<-][^\s\x00\"'\\]{3,})",
        gate=_GATE,
        checks=("literal", "password_like"),
        positives=(
            ("htpasswd -bc /etc/nginx/.htpasswd jo " + "hunter2-u", "hunter2-u"),
            ("nmcli dev wifi connect home password " + "hunter2-r", "hunter2-r"),
        ),
        negatives=("htpasswd -c /etc/nginx/.htpasswd jo",),
    ),
    context_rule(
        "PASSWORD",
        rf"(?i)(?:\b(?:(?:basic|http|proxy)_)?auth\\{{0,4}}[\"']?[ ]{{0,2}}[=:][ ]{{0,2}}[\[(]|"
        rf"\.(?:login|auth|authenticate)[ ]{{0,2}}\(){_PAIR}[ ]{{0,2}},?\s{{0,8}}[\])]",
        gate=_GATE,
        checks=("literal", "paired_password"),
        positives=(
            ('requests.get(url, auth=("bob", "' + "hunter2-s" + '"))', "hunter2-s"),
            ('{"auth": ["bob", "' + "hunter2-p" + '"]}', "hunter2-p"),
            ("smtp.login('bob', '" + "hunter2-w" + "')", "hunter2-w"),
        ),
        negatives=(
            'auth=("user", "password")',
            'auth=(user, "x")',
            'authors = ["smith", "jones2"]',
            'auth_scopes=["read:user", "repo:status2"]',
            'auth = ["basic", "digest", "ntlm2"]',
            'router.auth("/login2", "handler")',
            'app.login("main", "index.html")',
        ),
        note="User and password as a pair.",
    ),
    context_rule(
        "PASSWORD",
        r"(?i)(?:basic_?auth|digest_?auth|networkcredential|usernamepasswordcredentials|"
        r"passwordauthentication|usernamepasswordauthenticationtoken|\.credentials|basiccredentials)"
        rf"[ ]{{0,2}}\({_PAIR}",
        gate=_GATE,
        checks=("literal", "no_path"),
        positives=(("HTTPBasicAuth('bob', '" + "hunter2-v" + "')", "hunter2-v"),),
        negatives=("HTTPBasicAuth('bob', '<password>')", "BasicAuth('/login', '/home')"),
        note="A type that takes nothing but user and password.",
    ),
)

RULES: tuple[Rule, ...] = (*COMMANDS, *PIPES, *MORE)
