"""Layer 3: accounts of persons. User names in home folders and prompts, author lines of git.

Account names of roles or images (root, ubuntu) stay, and so do web routes like ``/home/settings``.
"""

from __future__ import annotations

from onward.redaction.judging.checks import may_start
from onward.redaction.rule import Check, Rule, Span, personal_rule

_ALNUM = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_NAME = _ALNUM | frozenset(b"._-") | frozenset(range(0x80, 0x100))
_GENERIC_WORDS = """
root user users username user1 ubuntu debian fedora centos alpine arch admin administrator runner
runneradmin app apps node vscode public shared default guest all all-users alluser defaultuser0 jovyan
circleci travis vagrant ec2-user azureuser opc pi git jenkins docker coder codespace gitpod linuxbrew
homebrew agent agents agent-zero sandbox sandboxuser developer dev devuser test tester testuser demo nobody
www-data ftp postgres mysql redis nginx apache oracle hadoop spark airflow builder build buildkite
gitlab-runner github actions bot worker deploy deployer service svc system container openhands swe-agent
sweagent swe workspace project repo colab kaggle conda miniconda anaconda mamba nonroot appuser myuser me
you your-name yourname your-user name oai claude computeruse pwuser seluser kali rstudio notebook mambauser
ray vllm torch tensorflow pytorch operator code web www http work rust ruby php python java golang go django
flask rails odoo frappe steam minecraft site logfiles wwwroot model models kernel linux unix somebody
someone foo bar baz example template skel lost+found bin lib local src tmp data share opt etc index about
settings dashboard profile page pages main login logout home news contact help search products feed posts
static assets img images css js api docs blog shop cart account team tabs screen explore nvidia
"""
GENERIC = frozenset(_GENERIC_WORDS.encode().split())
_BEFORE_HOME = frozenset(
    (b"mnt", b"export", b"host", b"rootfs", b"data", b"volumes", b"private", b"nfs", b"net", b"var", b"usr")
)
_NOT_PEOPLE_NAMES = """
your name,root,user,test,test user,openhands,swe-agent,agent,agent zero,github,github actions,gitlab,claude,
copilot,developer,bot,name,author,dev,admin,ci,a u thor,c o mitter,onward
"""
NOT_PEOPLE = frozenset(_NOT_PEOPLE_NAMES.replace("\n", "").encode().split(b","))


def _is_generic(name: bytes) -> bool:
    low = name.lower().strip(b".")
    return len(low) < 2 or low.isdigit() or low in GENERIC or low.replace(b"_", b"-") in GENERIC


def home(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts the user of ``/home/<user>``; refuses web routes, files and accounts of images."""
    while last > first and buffer[last - 1] in b".-":
        last -= 1
    folder = buffer.rfind(b"/home/" if buffer[first - 6 : first] == b"/home/" else b"/Users/", 0, first)
    if _is_generic(buffer[first:last]) or not _is_root(buffer, folder) or _is_file(buffer, first, last):
        return None
    return (first, last)


def _is_root(buffer: bytes, slash: int) -> bool:
    """Returns whether the folder at ``slash`` is directly below the root, perhaps of a mounted disk."""
    if slash <= 0 or (buffer[slash - 1] not in _NAME and buffer[slash - 1] not in b"~}/)"):
        return True
    if buffer[slash - 1] == 0x2F or (buffer[slash - 1] in _ALNUM and may_start(buffer, slash)):
        return True  # file:///home/x, \\n/home/x
    if buffer[slash - 1] in b"~})":
        return False
    start = slash
    while start > 0 and slash - start < 16 and buffer[start - 1] in _NAME:
        start -= 1
    part = buffer[start:slash].lower()
    if part in _BEFORE_HOME or (len(part) == 1 and part.isalpha()):
        return buffer[start - 1 : start] == b"/"
    return False


def _is_file(buffer: bytes, first: int, last: int) -> bool:
    """Returns whether the path ends here with an extension: ``/home/index.html``."""
    stem, dot, ending = buffer[first:last].rpartition(b".")
    return bool(dot and stem) and buffer[last : last + 1] not in (b"/", b"\\") and ending.isalpha()


def windows_home(buffer: bytes, first: int, last: int) -> Span | None:
    return None if _is_generic(buffer[first:last].strip()) else (first, last)


def url_user(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts the user of ``https://user@host``. A password after it belongs to layer 2."""
    name = buffer[first:last].lower()
    machine = name in (b"x-access-token", b"oauth2", b"x-token-auth", b"token", b"anonymous")
    return None if machine or _is_generic(name) else (first, last)


def login(buffer: bytes, first: int, last: int) -> Span | None:
    """Finds the user before ``@host:~$``, ``@host dir]$`` or ``@host:/path``, left of the match."""
    start = first
    while start > 0 and first - start < 32 and buffer[start - 1] in _NAME:
        start -= 1
    while start < first and not may_start(buffer, start):
        start += 1
    while start < first and buffer[start] in b".-":
        start += 1
    if start == first or _is_generic(buffer[start:first]) or buffer[start - 1 : start] in (b"@", b"/", b"%"):
        return None
    return (start, first)


def person(buffer: bytes, first: int, last: int) -> Span | None:
    """Accepts a name in an author line; refuses names of machines and templates."""
    name = buffer[first:last].strip(b" \t\"'")
    low = name.lower()
    if not name or low in NOT_PEOPLE or low.endswith((b"[bot]", b"-bot", b" bot")) or name[:1] in b"$<{%":
        return None
    if not any(c in _ALNUM or c >= 0x80 for c in name):
        return None
    at = buffer.find(name, first, last)
    return (at, at + len(name))


CHECKS: dict[str, Check] = {check.__name__: check for check in (home, windows_home, url_user, login, person)}

_USER = r"[A-Za-z_\x80-\xff][A-Za-z0-9_.\x80-\xff-]{0,31}"
_WINDOWS_NAME = r"[A-Za-z0-9_.\x80-\xff-]{1,32}"
_PERSON = r"([^\x00\r\n<>\":=\\]{2,64}?)"

RULES: tuple[Rule, ...] = (
    personal_rule(
        "USER",
        rf"/(?:home|Users)/({_USER})",
        checks=("home",),
        positives=(
            ("cd /home/" + "mkowalska/src && ls", "mkowalska"),
            ('open("/Users/' + "jane.doe/Desktop/a.txt" + '")', "jane.doe"),
            ("PATH=/usr/bin:/home/" + "tberg2/bin", "tberg2"),
            ("a\\n/home/" + "tberg2\\n", "tberg2"),
            ("/mnt/c/Users/" + "tberg2/x", "tberg2"),
        ),
        negatives=(
            "/home/ubuntu/x /home/user /home/runner/work /Users/Shared/x /home/node/app /home/vscode",
            "https://shop.host/home/kitchen/pots and /api/Users/list and ${BASE}/home/kitchen",
            "/home/$USER/x /home/<user>/x /home/{name}/x /home/index.html /home/settings",
        ),
    ),
    personal_rule(
        "USER",
        r"[A-Za-z]:(?:\\{1,4}|/)(?i:users)(?:\\{1,4}|/)"
        rf"({_WINDOWS_NAME}(?: {_WINDOWS_NAME}){{0,2}})[\\/]",
        checks=("windows_home",),
        positives=(
            ("C:\\Users\\" + "mkowalska\\AppData", "mkowalska"),
            ("C:\\\\Users\\\\" + "Jane Doe\\\\x", "Jane Doe"),
            ("c:/users/" + "mkowalska/x", "mkowalska"),
        ),
        negatives=(
            "C:\\Users\\Public\\x C:\\Users\\Default\\x C:\\Users\\runneradmin\\x C:\\Users\\%USERNAME%\\x",
        ),
    ),
    personal_rule(
        "USER",
        rf"[A-Za-z]:\\{{1,4}}(?i:users)\\{{1,4}}({_WINDOWS_NAME})",
        checks=("windows_home",),
        positives=(("dir C:\\Users\\" + "mkowalska", "mkowalska"),),
        note="At the end of a path.",
    ),
    personal_rule(
        "USER",
        r"@[A-Za-z0-9][A-Za-z0-9.-]{0,62}(?::[~/]| [^\x00\n\]\[]{1,64}\][$#])",
        take="match",
        checks=("login",),
        positives=(
            ("mkowalska" + "@web-01:~$ ls", "mkowalska"),
            ("[mkowalska" + "@web-01 src]$ ls", "mkowalska"),
            ("scp a mkowalska" + "@web-01:/srv/x", "mkowalska"),
        ),
        negatives=(
            "root@a1b2c3:/# ls",
            "git@github.com:org/repo.git",
            "user@host:~$ ls",
            "[root@web-01 src]# ls",
        ),
    ),
    personal_rule(
        "USER",
        r"://([A-Za-z0-9._+\x80-\xff-]{2,64})@[A-Za-z0-9-]{1,63}\.[A-Za-z0-9]",
        checks=("url_user",),
        positives=(("git clone https://mkowalska" + "@git.firm.net/x.git", "mkowalska"),),
        negatives=(
            "ssh://git@github.com/o/r https://x-access-token@github.com/o/r https://jane@localhost/x",
        ),
    ),
    personal_rule(
        "PERSON",
        r"(?:[Aa]uthor|[Cc]ommit(?:ter)?|[Tt]agger|(?:[Cc]o-[Aa]uthored|[Ss]igned-[Oo]ff|[Rr]eviewed|[Aa]cked"
        rf"|[Tt]ested|[Rr]eported)-[Bb]y)(?::[ \t]{{1,8}}| |=[\"']?){_PERSON} <[^\x00\s<>@]{{0,64}}@",
        checks=("person",),
        positives=(
            ("Author: Jane" + " Kowalska <jk@example.com>", "Jane" + " Kowalska"),
            ("author Jane" + " Kowalska <jk@example.com> 1785000000 +0200", "Jane" + " Kowalska"),
            ("Co-authored-by: Jane" + " Kowalska <jk@example.com>", "Jane" + " Kowalska"),
            ("--author='Jane" + " Kowalska <jk@example.com>'", "Jane" + " Kowalska"),
        ),
        negatives=(
            "Author: dependabot[bot] <support@example.com>",
            "Author: Your Name <you@example.com>",
            "author = models.ForeignKey(User)",
        ),
    ),
    personal_rule(
        "PERSON",
        r"(?:GIT_(?:AUTHOR|COMMITTER)_NAME=|git config (?:--[a-z]{1,12} )?user\.name[ =])"
        r"\\?[\"']?([^\x00\r\n\"'<>;&|\\]{2,64})",
        checks=("person",),
        positives=(
            ('git config user.name "Jane' + ' Kowalska"', "Jane" + " Kowalska"),
            ("GIT_AUTHOR_NAME='Jane" + " Kowalska' git commit", "Jane" + " Kowalska"),
        ),
        negatives=('git config user.name "openhands"', "print(user.name)", "user.name = $NAME"),
    ),
)
