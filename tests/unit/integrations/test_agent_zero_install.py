"""``onward agent-zero``: what it writes, what it leaves, what it refuses, and what a check finds."""

from __future__ import annotations

import errno
import fnmatch
import json
import os
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from agent_zero_page import make_agent_zero
from commands import run_bytes

from onward.errors import ConfigError
from onward.files import locked_folder
from onward.integrations.agent_zero import install

ROOT = Path(__file__).parents[3]
PLUGIN = "usr/plugins/onward"
ROLE = "agents/rl-trainer/prompts/agent.system.main.role.md"
"""The place that the seed names, below the folder of Agent Zero."""


@pytest.fixture
def zero(tmp_path: Path) -> Path:
    return make_agent_zero(tmp_path / "a0")


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def actions(steps: list[install.Step]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for step in steps:
        found.setdefault(step.action, set()).add(step.path)
    return found


def test_it_writes_the_plugin_and_the_profile_where_the_seed_names_it(zero: Path) -> None:
    before = files(zero)
    steps = install.install(zero, python="/opt/onward/bin/python")
    after = files(zero)
    assert {path: data for path, data in after.items() if path in before} == before
    assert actions(steps).keys() == {"new"}
    assert "rl-trainer" in after[ROLE].decode()
    assert f"{PLUGIN}/agents/reinforcement-learning-trainer/agent.yaml" in after
    assert not any(path.startswith(f"{PLUGIN}/agents/rl-trainer/") for path in after)
    worker = json.loads(after[f"{PLUGIN}/worker.json"])
    assert worker["python"] == "/opt/onward/bin/python"
    source = {p for p in files(install.SOURCE) if "__pycache__" not in p}
    written = {path for path in after if path not in before} - {install.MANIFEST, install.WORKER}
    assert len(written) == len(source)


def test_a_second_time_changes_nothing(zero: Path) -> None:
    install.install(zero)
    before = files(zero)
    assert actions(install.install(zero)).keys() == {"unchanged"}
    assert files(zero) == before


def test_a_dry_run_writes_nothing_and_says_the_same(zero: Path) -> None:
    before = files(zero)
    planned = install.install(zero, dry_run=True)
    assert files(zero) == before
    assert planned == install.install(zero)
    assert {step.action for step in install.uninstall(zero, dry_run=True)} == {"removed"}
    assert (zero / ROLE).exists()


def test_what_a_user_changed_stays_and_the_new_version_lies_beside_it(zero: Path) -> None:
    install.install(zero)
    ours = (zero / ROLE).read_bytes()
    (zero / ROLE).write_text("My own words.")
    found = actions(install.install(zero))
    assert found["kept"] == {ROLE}
    assert (zero / ROLE).read_text() == "My own words."
    assert (zero / (ROLE + ".new")).read_bytes() == ours
    assert actions(install.uninstall(zero))["kept"] == {ROLE}
    assert (zero / ROLE).read_text() == "My own words."
    assert not (zero / (ROLE + ".new")).exists()
    assert [p for p in files(zero) if p.startswith((PLUGIN, "agents/rl-trainer"))] == [ROLE]


def test_a_newer_version_replaces_what_was_not_changed_and_drops_what_it_no_longer_has(zero: Path) -> None:
    install.install(zero)
    manifest = json.loads((zero / install.MANIFEST).read_text())
    old = zero / PLUGIN / "plugin.yaml"
    old.write_text("of an older version")
    gone = zero / PLUGIN / "helpers" / "of_before.py"
    gone.write_text("x = 1\n")
    manifest["files"][f"{PLUGIN}/plugin.yaml"] = install.digest(b"of an older version")
    manifest["files"][f"{PLUGIN}/helpers/of_before.py"] = install.digest(b"x = 1\n")
    (zero / install.MANIFEST).write_text(json.dumps(manifest))
    found = actions(install.install(zero))
    assert found["updated"] == {f"{PLUGIN}/plugin.yaml"}
    assert found["removed"] == {f"{PLUGIN}/helpers/of_before.py"}
    assert old.read_bytes() == (install.SOURCE / "plugin.yaml").read_bytes() and not gone.exists()


def test_settings_data_and_other_files_survive_an_uninstall(zero: Path) -> None:
    install.install(zero)
    (zero / PLUGIN / "config.json").write_text('{"nats_url": "nats://n:4222"}')
    (zero / PLUGIN / "data").mkdir()
    (zero / PLUGIN / "data" / "outbox.db").write_bytes(b"work")
    left = {step.path for step in install.uninstall(zero) if step.action == "kept"}
    assert left == {f"{PLUGIN}/data", f"{PLUGIN}/config.json"}
    assert (zero / PLUGIN / "data" / "outbox.db").read_bytes() == b"work"
    assert not (zero / "agents" / "rl-trainer").exists()
    with pytest.raises(ConfigError, match="There is no plugin of Onward in"):
        install.uninstall(zero)


def test_a_link_in_the_place_of_a_file_is_not_followed(zero: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("not ours")
    install.install(zero)
    (zero / ROLE).unlink()
    os.symlink(elsewhere, zero / ROLE)
    assert actions(install.install(zero))["kept"] == {ROLE}
    install.uninstall(zero)
    assert elsewhere.read_text() == "not ours"


def test_a_damaged_manifest_leads_nowhere_else(zero: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("x")
    install.install(zero)
    manifest = json.loads((zero / install.MANIFEST).read_text())
    manifest["files"] |= {f"{PLUGIN}/../../../../outside": install.digest(b"x"), "agent.py": "0"}
    (zero / install.MANIFEST).write_text(json.dumps(manifest))
    install.uninstall(zero)
    assert (tmp_path / "outside").exists() and (zero / "agent.py").exists()


def older(zero: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> Path:
    """Makes a plugin of another version, and the source that ``install`` takes; returns that source."""
    source = tmp_path / f"source-{version}"
    shutil.copytree(install.SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (source / "plugin.yaml", source / "webui" / "votes.js", source / "hooks.py"):
        path.write_text(path.read_text() + f"\n{'//' if path.suffix == '.js' else '#'} {version}\n")
    monkeypatch.setattr(install, "SOURCE", source)
    return source


@pytest.mark.parametrize("writes", [0, 1, 2, 3, 30])
def test_a_killed_update_is_completed_by_another_version_and_takes_nothing_for_a_users_change(
    zero: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    install.install(zero)
    older(zero, monkeypatch, tmp_path, "two")
    with monkeypatch.context() as killed:
        left, write = [writes], install.write_whole

        def stop(path: Path, data: bytes, mode: int) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            write(path, data, mode)

        killed.setattr(install, "write_whole", stop)
        if writes < 4:
            with pytest.raises(KeyboardInterrupt):
                install.install(zero)
        else:
            install.install(zero)
    assert install.is_unfinished(zero) == (0 < writes < 4)
    third = older(zero, monkeypatch, tmp_path, "three")
    assert "kept" not in actions(install.install(zero))
    assert (zero / PLUGIN / "hooks.py").read_bytes() == (third / "hooks.py").read_bytes()
    assert not install.is_unfinished(zero) and install.changes(zero) == []
    assert {step.action for step in install.uninstall(zero)} == {"removed"}


def test_a_killed_first_installation_can_be_removed_again(
    zero: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, write, left = files(zero), install.write_whole, [20]

    def stop(path: Path, data: bytes, mode: int) -> None:
        left[0] -= 1
        if not left[0]:
            path.with_name(f".{path.name}.0badcafe.tmp").write_bytes(data[:9])  # its draft
            raise KeyboardInterrupt
        write(path, data, mode)

    with monkeypatch.context() as killed:
        killed.setattr(install, "write_whole", stop)
        with pytest.raises(KeyboardInterrupt):
            install.install(zero)
    install.uninstall(zero)
    assert files(zero) == before
    assert not (zero / PLUGIN).exists()


def test_two_installations_at_once_do_not_mix(zero: Path) -> None:
    with (
        locked_folder(zero, "busy"),
        pytest.raises(ConfigError, match=r"Another installation works on .*: wait until"),
    ):
        install.install(zero)
    assert not (zero / PLUGIN).exists()
    install.install(zero)


def test_a_users_own_file_beside_the_changed_one_stays_too(
    zero: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install.install(zero)
    place = zero / PLUGIN / "plugin.yaml"
    place.write_text("mine")
    older(zero, monkeypatch, tmp_path, "two")
    install.install(zero)
    new = place.with_name("plugin.yaml.new")
    assert new.read_bytes() == (install.SOURCE / "plugin.yaml").read_bytes()
    new.write_text("half merged")
    older(zero, monkeypatch, tmp_path, "three")
    (kept,) = [step for step in install.install(zero) if step.action == "kept"]
    assert kept.note == "you changed it and plugin.yaml.new"
    assert (place.read_text(), new.read_text()) == ("mine", "half merged")
    new.write_bytes((install.SOURCE / "plugin.yaml").read_bytes())
    place.write_bytes(new.read_bytes())  # the user has taken it over
    assert "kept" not in actions(install.install(zero))
    assert not new.exists()


def test_a_pipe_in_the_place_of_a_file_is_kept_and_not_waited_for(zero: Path) -> None:
    install.install(zero)
    (zero / ROLE).unlink()
    os.mkfifo(zero / ROLE)
    assert actions(install.install(zero))["kept"] == {ROLE}
    assert (zero / ROLE).is_fifo()


def test_others_may_not_change_what_agent_zero_runs(zero: Path) -> None:
    before = os.umask(0)
    try:
        install.install(zero)
    finally:
        os.umask(before)
    written = [path for path in (zero / PLUGIN).rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in written} == {0o644}


def test_what_the_system_refuses_is_one_sentence(zero: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install.install(zero)

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(ConfigError, match=r"cannot be read or changed \(Permission denied\): run this as"):
        install.uninstall(zero)


def test_a_file_in_the_place_of_a_folder_is_one_sentence(zero: Path) -> None:
    (zero / "usr" / "plugins").rmdir()
    (zero / "usr" / "plugins").write_text("x")
    with pytest.raises(ConfigError, match=r"plugins"):
        install.install(zero)


def test_a_path_with_spaces_and_letters_of_other_alphabets_is_fine(tmp_path: Path) -> None:
    zero = make_agent_zero(tmp_path / "Agent Zero – 零 'a'")
    install.install(zero)
    assert install.changes(zero) == []
    assert {step.action for step in install.uninstall(zero)} == {"removed"}


@pytest.mark.parametrize("old", ["python/helpers/extension.py", "helpers/extension.py"])
def test_an_agent_zero_that_is_too_old_is_refused_in_one_sentence(tmp_path: Path, old: str) -> None:
    (tmp_path / "agent.py").touch()
    (tmp_path / old).parent.mkdir(parents=True)
    (tmp_path / old).write_text("class Extension: ...\n")
    with pytest.raises(ConfigError, match=r"is too old: .* has no 'extensible'.*; update it"):
        install.install(tmp_path)
    assert len(list(tmp_path.rglob("*"))) <= 4


def run(*words: object) -> tuple[int, str]:
    done = run_bytes(Path("/"), "agent-zero", *map(str, words))
    return done.returncode, (done.stdout + done.stderr).decode()


def test_commands_report_and_refuse(zero: Path, tmp_path: Path) -> None:
    code, output = run("install", "--path", zero, "--dry-run")
    assert code == 0 and "Nothing was changed: this was a dry run." in output
    assert f"would add    {ROLE}" in output
    code, output = run("install", "--path", zero)
    assert code == 0 and f"new      {ROLE}" in output
    *_, counted, last = output.splitlines()
    count = int(counted.removesuffix(" new."))
    assert (
        last.startswith("The plugin is in ")
        and "Plugins, tab Custom, the switch of the card 'Onward'" in last
    )
    code, output = run("uninstall", "--path", zero, "--dry-run")
    assert code == 0 and f"would remove {ROLE}" in output and "removed" not in output
    assert output.splitlines()[-1] == f"would remove {count}. Nothing was changed: this was a dry run."
    code, output = run("install", "--path", tmp_path)
    assert code == 2
    assert len(output.splitlines()) == 1 and "is no Agent Zero: expected agent.py and helpers/" in output
    nowhere = ("--gateway", "http://127.0.0.1:9", "--nats", "nats://127.0.0.1:9")
    code, output = run("check", "--path", zero, *nowhere)
    assert code == 1
    assert [line[:4] for line in output.splitlines()] == ["ok  "] * 5 + ["FAIL"] * 2
    code, output = run("uninstall", "--path", zero, "--json")
    assert code == 0 and {step["action"] for step in json.loads(output)} == {"removed"}
    code, output = run("uninstall", "--path", zero)
    assert code == 2 and output.startswith("There is no plugin of Onward in") and output.count("\n") == 1


def test_a_worker_that_cannot_start_is_said_at_the_installation(zero: Path) -> None:
    code, output = run("install", "--path", zero, "--python", "/no/such")
    assert code == 0 and "There is no program /no/such on this machine" in output
    code, output = run("install", "--path", zero, "--python", sys.executable)
    assert code == 0 and "There is no program" not in output


def test_the_wheel_gets_every_file_of_the_plugin() -> None:
    """Matches package-data as setuptools does: ``**`` stands for any folders."""
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"][
        "onward"
    ]
    patterns = [one.removeprefix("integrations/agent_zero/plugin/") for one in package if "agent_zero" in one]
    assert patterns
    names = [path.as_posix() for path in install.plugin_files()]
    assert len(names) > 60
    missing = [
        name for name in names
        if not any(fnmatch.fnmatch(name, p.replace("**/", "")) or fnmatch.fnmatch(name, p) for p in patterns)
    ]  # fmt: skip
    assert missing == []
    hidden = [name for name in names if any(part.startswith(".") for part in name.split("/"))]
    assert hidden == []  # ``*`` matches no hidden name
