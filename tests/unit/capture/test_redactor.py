"""How a service redacts: optional kinds, known secrets, and the policy version that says what was on."""

import pytest

from onward import Recorder
from onward.capture.make_redactor import redactor_of
from onward.cli import main
from onward.config import load
from onward.errors import ConfigError
from onward.redaction import PLAIN, POLICY_VERSION, Known, Redactor

BORN = "born on 12 August" + " 1980"
OWN = "Blue" + "Whale-42-" + "q7"


def settings(tmp_path, environ=None, **capture):
    return load(environ=environ or {}, overrides={"data_dir": str(tmp_path), "capture": capture})


def test_the_policy_version_says_which_optional_kinds_were_on():
    one, both = Redactor(optional_kinds=("GPS",)), Redactor(optional_kinds=("GPS", "WALLET"))
    assert PLAIN.policy_version == Redactor(Known([OWN])).policy_version == POLICY_VERSION
    assert both.policy_version == Redactor(optional_kinds=("WALLET", "GPS", "GPS")).policy_version
    versions = {PLAIN.policy_version, one.policy_version, both.policy_version}
    assert len(versions) == 3
    assert all(version.startswith(POLICY_VERSION) for version in versions)
    assert set("".join(versions)) <= set("0123456789abcdef")  # the collector knows its own header by this


def test_a_redactor_takes_its_kinds_and_secrets_to_documents_and_trajectories():
    redactor = Redactor(Known([OWN]), ("DATE_OF_BIRTH",))
    clean = f"<KNOWN:1>, {BORN[:7]} <DATE_OF_BIRTH:1>"
    assert redactor.document(f"{OWN}, {BORN}").document == clean
    found = redactor.trajectory({"turns": [{"observation": {"content": f"{OWN}, {BORN}"}}]})
    assert found.document["turns"][0]["observation"]["content"] == clean
    assert found.report()["policy_version"] == redactor.policy_version
    assert PLAIN.document(BORN).changed is False


def test_optional_kinds_come_from_the_settings_and_with_commas_from_the_environment(tmp_path):
    environ = {"ONWARD_CAPTURE__OPTIONAL_KINDS": "GPS, DATE_OF_BIRTH"}
    assert redactor_of(settings(tmp_path, environ), {}).optional_kinds == ("DATE_OF_BIRTH", "GPS")
    with pytest.raises(ConfigError, match=r"^Optional kind 'SHOE' was given; expected one of WALLET, "):
        redactor_of(settings(tmp_path, optional_kinds=["SHOE"]), {})


def test_secrets_of_a_file_the_environment_and_the_data_folder_are_known(tmp_path):
    (tmp_path / "mine").write_text(f"{OWN}\n\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "api.key").write_text("ok-local-9z\n")
    environ = {"SOME_TOKEN": "env-" + "t0k3n-9", "HOME": "/nowhere/at/all"}
    redactor = redactor_of(settings(tmp_path, known_secrets_file=str(tmp_path / "mine")), environ)
    assert redactor.document(f"{OWN} ok-local-9z env-t0k3n-9 /nowhere/at/all").document == (
        "<KNOWN:1> <KNOWN:2> <KNOWN:3> /nowhere/at/all"
    )
    assert OWN not in repr(redactor)


@pytest.mark.parametrize("section", ["vllm", "sglang", "openai", "providers", "capture"])
def test_a_key_of_the_settings_is_known(tmp_path, section):
    key = "ek" + "9fQ2xL7vTz81mB4cWd"
    special = {"providers": {"far": {"key": key, "base_url": "http://x"}}, "capture": {"quarantine_key": key}}
    given = load(
        environ={}, overrides={"data_dir": str(tmp_path), section: special.get(section, {"key": key})}
    )
    assert redactor_of(given, {}).document(f"it is {key}").document == "it is <KNOWN:1>"


def test_a_password_that_is_a_plain_word_does_not_take_the_word_out_of_every_text(tmp_path):
    given = load(environ={}, overrides={"data_dir": str(tmp_path), "warehouse": {"password": "clickhouse"}})
    assert not redactor_of(given, {}).document("ask clickhouse").changed


def test_a_missing_file_and_an_unknown_kind_are_one_sentence_before_anything_starts(tmp_path, capsys):
    for setting, value, said in (
        ("KNOWN_SECRETS_FILE", str(tmp_path / "gone"), "gone cannot be read: No such file or directory."),
        ("OPTIONAL_KINDS", "SHOE", "Optional kind 'SHOE' was given; expected one of"),
    ):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
            patch.setenv(f"ONWARD_CAPTURE__{setting}", value)
            main(["run", "collector", "--dir", str(tmp_path / "data")])
        assert ended.value.code == 2
        errors = capsys.readouterr().err
        assert said in errors and "Traceback" not in errors


def test_the_recorder_takes_optional_kinds(tmp_path):
    with pytest.raises(ConfigError, match="Optional kind 'SHOE'"):
        Recorder(tmp_path / "o.db", optional_kinds=["SHOE"])
    recorder = Recorder(tmp_path / "o.db", optional_kinds=["DATE_OF_BIRTH"])
    with recorder, recorder.task("x") as task:
        task.turn(observation=BORN, action="y", result=True)
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("o.db*"))
    assert b"DATE_OF_BIRTH:1" in stored and BORN.encode() not in stored


def test_redact_takes_optional_kinds(tmp_path, capsys):
    (tmp_path / "a.txt").write_text(f"{BORN} at location: 52.52" + "0008, 13.40" + "4954\n")
    kinds = ("--optional", "DATE_OF_BIRTH", "--optional", "GPS")
    with pytest.raises(SystemExit) as ended:
        main(["redact", str(tmp_path / "a.txt"), *kinds])
    assert ended.value.code in (0, None)
    assert capsys.readouterr().out == "born on <DATE_OF_BIRTH:1> at location: <GPS:1>\n"
    with pytest.raises(SystemExit) as ended:
        main(["redact", str(tmp_path / "a.txt"), "--optional", "SHOE"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("Optional kind 'SHOE' was given")
