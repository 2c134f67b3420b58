"""``onward redact`` as a program: standard output is the redacted bytes and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run_bytes

from onward.redaction import POLICY_VERSION

SECRET = "ghp_" + "aB3dE5fG7hJ9" * 3


def redact(
    folder: Path, *arguments: str, given: bytes = b"", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    return run_bytes(folder, "redact", *arguments, given=given, **environment)


def test_a_json_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(f'{{"key": "{SECRET}", "n": 1}}\n')
    done = redact(tmp_path, "a.json")
    assert (done.returncode, done.stdout) == (0, b'{"key": "<GITHUB_TOKEN:1>", "n": 1}\n')
    assert done.stderr == b"1 redacted: GITHUB_TOKEN 1.\n"
    assert list(tmp_path.iterdir()) == [tmp_path / "a.json"]


def test_a_process_of_its_own_reads_and_writes_bytes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "onward.cli", "redact", "-"],
        cwd=tmp_path, input=f"caf\u00e9 {SECRET}\r\n".encode("latin-1"), capture_output=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"caf\xe9 <GITHUB_TOKEN:1>\r\n")
    assert done.stderr == b"1 redacted: GITHUB_TOKEN 1.\n"


def test_json_lines_with_a_broken_one_from_standard_input(tmp_path: Path) -> None:
    data = f'{{"a": "{SECRET}"}}\n{{"a": "{SECRET}\n{{"b": 1}}\n'.encode()
    done = redact(tmp_path, given=data)
    assert done.stdout == b'{"a": "<GITHUB_TOKEN:1>"}\n{"a": "<GITHUB_TOKEN:1>\n{"b": 1}\n'
    assert done.returncode == 1
    said = "Redacted as text, since not usable as JSON: 1 (line 2, column 7: Unterminated string starting)."
    assert said in done.stderr.decode()
    assert redact(tmp_path, "-", given=data).stdout == done.stdout


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1, "a": 2}', "line 1: a key is repeated"),
        ('{\n "a": 1,\n "a": 2\n}\n', "a key is repeated"),
        ('{\n "a": 1\n "b": 2\n}\n', "line 3, column 2: Expecting ',' delimiter"),
        ('{"a": 1e999}', "line 1: a number is too large"),
        ('{"a": ' + "9" * 5000 + "}", "line 1: a number is too long"),
    ],
)
def test_why_a_file_is_not_taken_as_json_is_said(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "a.json").write_text(text)
    done = redact(tmp_path, "a.json")
    assert (done.returncode, done.stdout.decode()) == (1, text)
    assert done.stderr.decode().splitlines()[0] == (f"Redacted as text, since not usable as JSON: 1 ({why}).")


def test_text_that_holds_nothing(tmp_path: Path) -> None:
    done = redact(tmp_path, "-", given=b"caf\xe9\r\nall well")
    assert (done.returncode, done.stdout, done.stderr) == (
        0, b"caf\xe9\r\nall well", b"Nothing was redacted.\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("missing.json",), "missing.json cannot be read: No such file or directory."),
        ((".",), "cannot be read: Is a directory."),
        (("binary",), "binary is not text (line 1 holds NUL bytes)"),
        (("a.txt", "--format", "yaml"), "--format is 'yaml': expected one of json, jsonl, text."),
        (("a.txt", "--known", "missing"), "missing cannot be read"),
        (("a.txt", "--known", "short"), "Known secret number 1 has 3 bytes"),
        (("a.txt", "--report", "--tenant-key", "short"), "A tenant key of 3 bytes was given"),
        (("a.txt", "--tenant-key", "short"), "A tenant key of 3 bytes was given"),
        (("a.txt", "--report-to", "no/folder"), "no/folder cannot be written"),
        (("a.txt", "--json"), "--json goes with 'onward redact rules'"),
        (("deep.jsonl",), "Line 1 was not written: The document nests deeper"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    (tmp_path / "a.txt").write_text(f"key {SECRET}\n")
    (tmp_path / "binary").write_bytes(b"\x7fELF\x00\x01")
    (tmp_path / "short").write_text("abc\n")
    (tmp_path / "deep.jsonl").write_text("[" * 70 + f'"{SECRET}"' + "]" * 70)
    done = redact(tmp_path, *arguments)
    assert done.returncode == 2
    assert words in done.stderr.decode()
    assert len(done.stderr.splitlines()) == 1
    assert SECRET.encode() not in done.stdout + done.stderr


def test_the_report_says_where_and_links_equal_values_but_never_shows_one(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k" * 32)
    (tmp_path / "mine").write_text("\ncorrect horse\n")
    data = f'{{"a": "{SECRET}"}}\n{{"b": 1}}\n{{"c": ["x {SECRET}", "correct horse"]}}\n'.encode()
    options = ("--report", "--known", "mine")
    done = redact(tmp_path, *options, given=data, ONWARD_TENANT_KEY_FILE="key")
    first, third, summary = done.stderr.decode().splitlines()
    assert summary == "3 redacted: GITHUB_TOKEN 2, KNOWN 1."
    assert SECRET not in done.stderr.decode() and "horse" not in done.stderr.decode()
    one, three = json.loads(first), json.loads(third)
    assert (one["line"], three["line"]) == (1, 3)
    assert one["leaves"] == [{"at": "/a", "kinds": {"GITHUB_TOKEN": 1}}]
    assert three["leaves"][1] == {"at": "/c/1", "kinds": {"KNOWN": 1}}
    assert one["links"]["<GITHUB_TOKEN:1>"] == three["links"]["<GITHUB_TOKEN:1>"]
    redact(tmp_path, "--report-to", "report", "--known", "mine", given=data)
    written = [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()]
    assert [line["line"] for line in written] == [1, 3]
    assert "links" not in written[0]


def test_the_rules_are_printed(tmp_path: Path) -> None:
    shown = json.loads(redact(tmp_path, "rules", "--json").stdout)
    assert shown["policy_version"] == POLICY_VERSION
    (github,) = [rule for rule in shown["rules"] if rule["kind"] == "GITHUB_TOKEN"]
    assert (github["layer"], github["what"]) == (1, "a vendor's token")
    assert github["examples"] > 0
    table = redact(tmp_path, "rules", COLUMNS="120").stdout.decode()
    assert f"Policy version {POLICY_VERSION}" in table and "GITHUB_TOKEN" in table
    (tmp_path / "rules").write_text(SECRET)
    assert redact(tmp_path, "./rules").stdout == b"<GITHUB_TOKEN:1>"


def test_a_reader_that_leaves_early_is_no_defect(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words\n" * 100_000)
    command = f"{sys.executable} -m onward.cli redact a.txt | head -n 1"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert done.stdout == b"some words\n"
    assert b"Traceback" not in done.stderr and b"Exception" not in done.stderr


def test_it_starts_without_the_heavy_parts() -> None:
    code = (
        "import sys, onward.cli\n"
        "try: onward.cli.main(['redact', 'rules', '--json'])\n"
        "except SystemExit: pass\n"
        "heavy = [m for m in ('torch', 'chdb', 'nats', 'fastapi', 'obstore') if m in sys.modules]\n"
        "print(heavy, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.strip().splitlines()[-1] == "[]"
