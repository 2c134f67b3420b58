"""Files in the three formats: what stays, stays byte for byte; what is broken is redacted all the same."""

import io
import json

import pytest

from onward.capture import file_redaction as files
from onward.capture.file_redaction import pieces
from onward.contracts.examples import TRAJECTORY
from onward.errors import ConfigError, RedactionError
from onward.redaction import Known, Redactor

SECRET = "ghp_" + "aB3dE5fG7hJ9" * 3
ESCAPED = "\\u0067" + SECRET[1:]


def redacted(data: bytes | str, name: str = "-", kind=None, known: Known | None = None) -> bytes:
    raw = data if isinstance(data, bytes) else data.encode()
    found = pieces(io.BytesIO(raw), name, kind, Redactor(known or Known()))
    return b"".join(piece.output for piece in found)


def counts(data: str, name: str = "-") -> list[tuple[int, bool, dict[str, int]]]:
    return [
        (piece.number, bool(piece.broken), piece.redacted.counts)
        for piece in pieces(io.BytesIO(data.encode()), name)
    ]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.json", '{"b": 1.50, "a": [1e5, 2],\n "c": "\\u00e9"}\n'),
        ("a.json", "\ufeff  [ 1,2 ]\r\n\r\n"),
        ("a.json", ""),
        ("a.json", " \n"),
        ("a.jsonl", '{"x":1}\n\n{"y" : 2}\r\n3\n"four"\nnull'),
        ("a.log", "[2024-01-01] all well\n  {not json\n"),
        ("-", ""),
        ("-", "\n\n[build-system]\nname = 'x'\n"),
        ("-", b"caf\xe9 \xff\xfe bytes\n"),
        ("-", "{\nnot json\n"),
    ],
)
def test_what_holds_nothing_comes_out_byte_for_byte(name, data):
    raw = data if isinstance(data, bytes) else data.encode()
    assert redacted(raw, name) == raw


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('{"a": "%s", "b": "é"}', '{"a": "<GITHUB_TOKEN:1>", "b": "é"}'),
        ('{"a":"%s","b":[1,2]}\n', '{"a":"<GITHUB_TOKEN:1>","b":[1,2]}\n'),
        ('{"a": "%s", "b": "\\u00e9"}', '{"a": "<GITHUB_TOKEN:1>", "b": "\\u00e9"}'),
        ('\ufeff{"a": "%s"}\n', '\ufeff{"a": "<GITHUB_TOKEN:1>"}\n'),
        ('{\n  "a": "%s",\n  "b": {}\n}\n', '{\n  "a": "<GITHUB_TOKEN:1>",\n  "b": {}\n}\n'),
        ('{\r\n\t"a": "%s"\r\n}', '{\r\n\t"a": "<GITHUB_TOKEN:1>"\r\n}'),
        ('"%s"', '"<GITHUB_TOKEN:1>"'),
        ('{"a": "%s", "b": "\\ud83d"}', '{"a": "<GITHUB_TOKEN:1>", "b": "\\ud83d"}'),
        ('{"%s": NaN}', '{"<GITHUB_TOKEN:1>": NaN}'),
    ],
)
def test_json_is_redacted_by_its_texts_and_keeps_its_style(given, expected):
    assert redacted(given % SECRET, "a.json").decode() == expected


def test_a_secret_in_escapes_is_found_because_json_is_parsed():
    assert json.loads(redacted(f'{{"a": "{ESCAPED}"}}', "a.json")) == {"a": "<GITHUB_TOKEN:1>"}


def test_json_lines_are_redacted_each_by_itself():
    lines = [{"a": SECRET}, {"b": "clean"}, {"c": f"again {SECRET}"}]
    data = "".join(json.dumps(line) + "\n" for line in lines)
    out = redacted(data, "a.jsonl").decode().splitlines()
    assert [json.loads(line) for line in out] == [
        {"a": "<GITHUB_TOKEN:1>"},
        {"b": "clean"},
        {"c": "again <GITHUB_TOKEN:1>"},
    ]


def test_a_broken_line_is_redacted_as_text_and_named():
    data = f'{{"a": 1}}\n{{"token": "{SECRET}", \n{{"a": "{ESCAPED}\n{{"a": 1, "a": 2}}\n{{"a": 1e999}}\n'
    assert redacted(data, "a.jsonl").decode() == (
        '{"a": 1}\n{"token": "<GITHUB_TOKEN:1>", \n{"a": "<GITHUB_TOKEN:1>\n{"a": 1, "a": 2}\n{"a": 1e999}\n'
    )
    assert [(number, broken) for number, broken, _ in counts(data, "a.jsonl")] == [
        (1, False), (2, True), (3, True), (4, True), (5, True),
    ]  # fmt: skip


def test_a_file_that_is_named_json_and_is_not_is_redacted_as_text_and_named():
    assert counts(f"key {SECRET}", "a.json") == [(1, True, {"GITHUB_TOKEN": 1})]
    assert counts(f'{{"a": "{SECRET}", "a"', "-") == [(1, False, {"GITHUB_TOKEN": 1})]


def test_escaped_letters_in_text_hide_nothing_and_others_stay():
    assert redacted(f'say "\\u003cb\\u003e" {ESCAPED}\n') == b'say "\\u003cb\\u003e" <GITHUB_TOKEN:1>\n'
    assert redacted(f'say "\\u003cb\\u003e" {SECRET}\n') == b'say "\\u003cb\\u003e" <GITHUB_TOKEN:1>\n'


def test_standard_input_is_told_apart_by_its_first_line():
    assert counts('{"a": 1}\nno json\n')[1][1] is True
    assert [n for n, *_ in counts('{\n "a": 1\n}\n')] == [1]
    assert [n for n, *_ in counts("one\ntwo\n")] == [1]


def test_token_ids_of_a_trajectory_go_with_its_text():
    document = json.loads(json.dumps(TRAJECTORY))
    document["task_context"]["instructions"] = f"use {SECRET}"
    for data in (json.dumps(document), json.dumps([document])):
        out = json.loads(redacted(data, "a.json"))
        one = out[0] if isinstance(out, list) else out
        assert one["turns"][0]["action"]["sampling"]["token_ids"] == []
        assert one["turns"][0]["action"]["sampling"]["tokens_void"] is True


def test_a_line_that_cannot_be_redacted_stops_before_it_is_written():
    data = b'{"a": 1}\n' + b"[" * 70 + b"]" * 70 + b'\n{"a": 2}\n'
    out = []
    with pytest.raises(RedactionError, match="Line 2 was not written: The document nests deeper"):
        for piece in pieces(io.BytesIO(data), "a.jsonl"):
            out.append(piece.output)
    assert out == [b'{"a": 1}\n']


def test_json_too_deep_for_the_parser_is_not_taken_for_text():
    with pytest.raises(RedactionError, match="nests too deep"):
        redacted(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "a.json")


@pytest.mark.parametrize("data", [b"a\x00b", '{"a": 1}'.encode("utf-16")])
def test_bytes_that_are_no_text_are_refused(data):
    with pytest.raises(ConfigError, match="not text"):
        redacted(data, "a.json")


def test_known_secrets_are_replaced_in_every_format():
    known = Known(["correct horse battery"])
    assert redacted('{"a": "correct horse battery"}', "a.json", known=known) == b'{"a": "<KNOWN:1>"}'
    assert redacted("is correct horse battery\n", known=known) == b"is <KNOWN:1>\n"


def test_long_text_is_redacted_in_parts_that_never_cut_a_key(monkeypatch):
    monkeypatch.setattr(files, "TEXT_PIECE", 400)
    begin, end = "-----BEGIN " + "PRIVATE KEY-----\n", "-----END " + "PRIVATE KEY-----\n"
    key = begin + ("aB3dE5fG7hJ9kLmN2pQr" * 3 + "\n") * 6 + end
    text = ("plain words\n" * 20 + "\n") + key + "more words\n" * 60 + f"last {SECRET}"
    found = list(pieces(io.BytesIO(text.encode()), "a.log"))
    out = b"".join(piece.output for piece in found).decode()
    assert [piece.number for piece in found] == list(range(1, len(found) + 1))
    assert len(found) > 2
    assert "aB3dE5" not in out
    assert out.startswith("plain words\n" * 20 + "\n-----BEGIN")
    assert out.endswith("more words\nlast <GITHUB_TOKEN:1>")
    assert out.count("more words\n") == 60


def test_a_key_without_an_end_is_not_waited_for_forever(monkeypatch):
    monkeypatch.setattr(files, "TEXT_PIECE", 400)
    text = "-----BEGIN " + "of the report\n" + "plain words\n" * 400
    found = list(pieces(io.BytesIO(text.encode()), "a.log"))
    assert b"".join(piece.output for piece in found).decode() == text
    assert max(len(piece.output) for piece in found) < 1000


def test_a_file_above_the_limit_is_refused_as_json_and_read_in_parts_as_text(monkeypatch):
    monkeypatch.setattr(files, "MAX_PIECE", 30)
    data = '{\n"a": "bcdefghij",\n"k": "lmnopqrst"\n}\n'
    with pytest.raises(RedactionError, match="give JSON lines"):
        redacted(data, "a.json")
    assert redacted(data).decode() == data
    with pytest.raises(RedactionError, match="Line 1 has more than"):
        redacted("x" * 31)


def test_places_are_json_pointers_and_hold_no_value():
    document = {"a/b": [f"{SECRET} and again {SECRET}"], f"k {SECRET}": 1}
    (piece,) = pieces(io.BytesIO(json.dumps(document).encode()), "a.json")
    assert piece.leaves == [
        ("/a~1b/0", {"GITHUB_TOKEN": 2}),
        ("/k <GITHUB_TOKEN:1>", {"GITHUB_TOKEN": 1}),
    ]


def test_a_second_run_changes_nothing():
    data = f'{{"password": "hunter22x", "a": ["{SECRET}", "me@corp-mail.io"]}}\n{{"b": "{SECRET}"}}\n'
    once = redacted(data, "a.jsonl")
    assert once != data.encode()
    assert redacted(once, "a.jsonl") == once
