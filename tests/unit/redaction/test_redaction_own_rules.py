"""Rules and an allow list of the operator, from a file."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onward.cli import app
from onward.errors import ConfigError
from onward.redaction import POLICY_VERSION, Known, Redactor, read_rules

RULES = """
[[rule]]
kind = "EMPLOYEE_ID"
pattern = 'EMP-([0-9]{6})'

[[allow]]
value = "ada@corp-mail.de"

[[allow]]
pattern = 'test-[a-z0-9-]{1,20}'
kinds = ["PASSWORD"]
"""


def redactor(folder: Path, text: str = RULES, known: Known | None = None) -> Redactor:
    file = folder / "rules.toml"
    file.write_text(text, encoding="utf-8")
    return Redactor(known or Known(), own=read_rules(file))


def test_an_own_rule_replaces_its_group_everywhere_and_a_second_run_changes_nothing(tmp_path):
    own = redactor(tmp_path)
    document = {"note": "ask EMP-123456", "seen": ["badge 123456 at the door", "EMP-1234567"]}
    found = own.document(document)
    assert found.document == {
        "note": "ask EMP-<EMPLOYEE_ID:1>",
        "seen": ["badge <EMPLOYEE_ID:1> at the door", "EMP-<EMPLOYEE_ID:1>7"],
    }
    assert own.document(found.document).changed is False


def test_an_allowed_value_stays_and_others_of_its_kind_go(tmp_path):
    own = redactor(tmp_path)
    other = "bob" + "@corp-mail.de"
    assert own.document("ada@corp-mail.de, " + other).document == "ada@corp-mail.de, <EMAIL:1>"
    assert own.document({"password": "test-9-x"}).changed is False
    assert own.document({"api_key": "test-9-x1y2z3"}).changed is True, "the pattern is for passwords alone"


def test_a_known_secret_goes_although_it_is_on_the_allow_list(tmp_path):
    own = redactor(tmp_path, known=Known(["ada@corp-mail.de"]))
    assert own.document("write to ada@corp-mail.de").document == "write to <KNOWN:1>"


def test_an_own_rule_that_reaches_over_texts_and_placeholders_ends_at_them(tmp_path):
    own = redactor(tmp_path, "[[rule]]\nkind = 'ALL'\npattern = '[^a]{3,}'\n")
    found = own.document(["bbbb", "cccc", "a"])
    assert found.document == ["<ALL:1>", "<ALL:2>", "a"]
    assert own.document(found.document).changed is False


def test_own_rules_are_part_of_the_policy_version(tmp_path):
    assert redactor(tmp_path).policy_version != POLICY_VERSION
    assert redactor(tmp_path).policy_version == redactor(tmp_path).policy_version
    assert redactor(tmp_path, "").policy_version == POLICY_VERSION


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[[rule]]\nkind = 'A'\n", "line 1: 'pattern' is missing"),
        ("\n\n[[rule]]\nkind = 'A'\npattern = '(x'\n", "line 3: 'pattern' is not an expression of RE2"),
        ("[[rule]]\nkind = 'low'\npattern = 'x'\n", "line 1: 'kind' is 'low'"),
        ("[[rule]]\nkind = 'A'\npattern = 'x*'\n", "matches the empty text"),
        ("[[rule]]\nkind = 'A'\npattern = 'x'\nwords = 1\n", "'words' is unknown"),
        ("[[allow]]\nkinds = ['A']\n", "give either 'value' or 'pattern'"),
        ("[[allow]]\nvalue = ''\n", "must be text"),
        ("[rule]\nkind = 'A'\n", "write [[rule]]"),
        ("[[rules]]\nkind = 'A'\n", "expected only [[rule]] and [[allow]]"),
        ("[[rule]]\nkind = \n", "line 2"),
    ],
)
def test_a_wrong_rule_is_named_with_its_file_and_line(tmp_path, text, part):
    with pytest.raises(ConfigError) as caught:
        redactor(tmp_path, text)
    assert part in str(caught.value)
    assert str(tmp_path / "rules.toml") in str(caught.value)


def test_the_command_honours_the_file_and_ends_with_2_for_a_wrong_one(tmp_path):
    (tmp_path / "rules.toml").write_text(RULES)
    (tmp_path / "in.json").write_text(json.dumps({"note": "EMP-123456 and ada@corp-mail.de"}))
    arguments = ["redact", str(tmp_path / "in.json"), "--rules", str(tmp_path / "rules.toml")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert "EMP-<EMPLOYEE_ID:1> and ada@corp-mail.de" in result.stdout
    (tmp_path / "rules.toml").write_text("[[rule]]\n")
    failed = CliRunner().invoke(app, arguments)
    assert failed.exit_code != 0
