"""What the base promises without any extra, here with every other package out of reach."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import pkgutil
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

import onward
from onward import extras
from onward.contracts.examples import TRAJECTORY
from onward.errors import MissingExtraError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BLOCKED = """
import sys
from importlib.machinery import PathFinder
class OnlyAllowed:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, path, target) if name.split(".")[0] in ALLOWED else None
sys.meta_path[:] = [OnlyAllowed if finder is PathFinder else finder for finder in sys.meta_path]
"""
"""Hides every module that is not in ALLOWED, as if it were not installed."""


def _name(requirement: str) -> str:
    """The normal form of a requirement's package: ``Foo_bar[x]>=1`` is ``foo-bar``."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def _packages(*extras: str) -> set[str]:
    """The packages of the base and of ``extras``, and what they require, extras of theirs left out."""
    found: set[str] = set()
    optional = PROJECT["optional-dependencies"]
    declared = [*PROJECT["dependencies"], *(one for extra in extras for one in optional[extra])]
    waiting = [_name(requirement) for requirement in declared]
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            try:
                required = importlib.metadata.requires(name) or []
            except importlib.metadata.PackageNotFoundError:
                continue  # for another platform or Python
            waiting += [_name(one) for one in required if "extra ==" not in one]
    return found


def _with_base_alone(code: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _with_alone((), code, folder, *arguments)


def _with_alone(
    parts: tuple[str, ...], code: str, folder: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    modules = importlib.metadata.packages_distributions()
    installed = _packages(*parts)
    allowed = {module for module, of in modules.items() if installed & {_name(one) for one in of}}
    allowed |= {*sys.stdlib_module_names, "onward", "__main__"}
    # The name of Python's own build data differs between distributions.
    allowed |= {sysconfig._get_sysconfigdata_name(), "_cffi_backend"}  # type: ignore[attr-defined]
    return subprocess.run(
        [sys.executable, "-c", f"ALLOWED = {allowed!r}\n{BLOCKED}\n{code}", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def _command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _with_base_alone("from onward.cli import main; main(sys.argv[1:])", folder, *arguments)


RECORD = """
import onward
from onward import Recorder
from onward.redaction import Redactor
import onward.contracts, onward.capture.clients.openai, onward.capture.clients.langchain
with Recorder("outbox.db", agent_id="agent") as recorder:
    with recorder.task("What is 6 times 7?") as task:
        task.turn(observation="What is 6 times 7?", action="42")
        task.outcome("completed_successfully")
    print(recorder.stats().recorded)
"""


def test_the_recorder_records_without_any_extra(tmp_path: Path) -> None:
    done = _with_base_alone(RECORD, tmp_path)
    assert done.stdout == "1\n", done.stderr


def test_a_file_is_redacted_and_scored_without_any_extra(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("write to ann.miller" + "@uni-hamburg.de")
    done = _command(tmp_path, "redact", "note.txt")
    assert done.stdout == "write to <EMAIL:1>", done.stderr
    (tmp_path / "one.json").write_text(json.dumps(TRAJECTORY) + "\n")
    scored = _command(tmp_path, "rewards", "score", "one.json")
    assert scored.returncode == 0, scored.stderr
    assert json.loads(scored.stdout)["components"]["task_completion"]["score"] == 1.0


ROLES = """
import importlib, sys
from onward import extras, host
extras.install_hint()
for module in [*host.ROLES.values(), *host.BESIDE.values()]:
    importlib.import_module(module)
print(sorted({"torch", "chdb", "transformers", "gymnasium"} & sys.modules.keys()))
"""


@pytest.mark.parametrize("parts", [("server", "lm", "demo"), ("server",)])
def test_the_service_starts_with_the_parts_that_the_demo_installs(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    """``make demo`` in a new environment; no role has a training library in its own process."""
    assert "\t$(install) server lm demo\n" in (ROOT / "Makefile").read_text()
    done = _with_alone(parts, ROLES, tmp_path)
    assert done.stdout == "[]\n", done.stderr


REQUESTS = """
from onward.config import Settings
from onward.contracts.training import ControlRequest, RubricsRequest
from onward.errors import TrainingError
from onward import extras
from onward.training.role.possible import refuse_impossible
extras.install_hint()
envelope = {"training_job_id": "j", "timestamp": "2026-01-05T13:00:00Z", "requester": "tests"}
for asked in (
    ControlRequest.model_validate({**envelope, "environment": "CartPole-v1", "algorithm": "ppo"}),
    RubricsRequest.model_validate({**envelope, "kind": "rubrics", "algorithm": "rloo"}),
):
    try:
        refuse_impossible(asked, Settings())
    except TrainingError as error:
        print(error.code, error)
"""


def test_a_job_whose_part_is_not_installed_is_refused_at_once(tmp_path: Path) -> None:
    done = _with_alone(("server",), REQUESTS, tmp_path)
    control, rubrics = done.stdout.splitlines() or ["", done.stderr]
    assert control.startswith("DATA A job for a control policy needs the optional part 'control'"), control
    assert rubrics.startswith("DATA ") and "optional part" in rubrics, rubrics


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("up",), "server"),
        (("control", "train", "CartPole-v1"), "control"),
        (("train", "--algorithm", "sft", "--env", "maze", "--steps", "1", "--out", "out"), "lm"),
    ],
)
def test_a_command_that_needs_more_names_the_extra_in_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...], extra: str
) -> None:
    done = _command(tmp_path, *arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert f"optional part {extra!r}" in done.stderr


def test_every_module_can_be_imported_with_the_base_alone_or_names_an_extra(tmp_path: Path) -> None:
    names = [
        module.name
        for module in pkgutil.walk_packages(onward.__path__, "onward.")
        if not module.name.endswith(".__main__")
    ]
    code = """
import importlib
from onward.errors import MissingExtraError
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except MissingExtraError:
        pass
    except BaseException as error:
        print(name, repr(error))
"""
    done = _with_base_alone(code, tmp_path, *names)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr
    assert "onward.lm.policy" in names and "onward.host" in names


def test_imports_of_other_programs_fail_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.MODULES, "a_module_that_nobody_has", ("lm",))
    with pytest.raises(ModuleNotFoundError) as here:
        import a_module_that_nobody_has  # type: ignore  # noqa: F401
    assert not isinstance(here.value, MissingExtraError)


def test_a_missing_module_is_told_with_the_extra_of_the_package_that_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(extras.MODULES, "a_module_that_nobody_has", ("lm", "control"))
    for asking, extra in [("onward.control.x", "control"), ("onward.training.x", "lm"), ("onward.x", "lm")]:
        with pytest.raises(MissingExtraError, match=rf"{asking} needs the optional part '{extra}'") as found:
            exec("import a_module_that_nobody_has", {"__name__": asking})
        assert found.value.name == "a_module_that_nobody_has"


def test_every_module_that_onward_imports_comes_with_the_base_or_an_extra() -> None:
    """The tools of the tests bring more: what only they bring is missing for users."""
    distributions = importlib.metadata.packages_distributions()
    base = {_name(one) for one in PROJECT["dependencies"]}
    known = {*sys.stdlib_module_names, *extras.MODULES, "onward"}
    known |= {"pydantic_core"}  # pydantic's own
    known |= {"vllm"}  # looked for before it is imported; nothing installs it
    known |= {
        "pylint",
        "astroid",
        "mccabe",
        "bandit",
    }  # of the extra `code`, in a child that says what is missing
    missing: set[tuple[str, str]] = set()
    for file in (ROOT / "src").rglob("*.py"):
        if "plugin" in file.parts:  # runs in Agent Zero, and imports its modules
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for module in {one.split(".")[0] for one in names} - known:
                if not base & {_name(one) for one in distributions.get(module, ())}:
                    missing.add((module, file.relative_to(ROOT).as_posix()))
    assert missing == set()


def test_each_extra_declares_the_modules_that_are_said_to_come_with_it() -> None:
    brought_along = {"starlette": "fastapi", "mcp_types": "mcp", "mlflow": "mlflow_skinny"}
    distributions = importlib.metadata.packages_distributions()
    for module, of in extras.MODULES.items():
        bringing = brought_along.get(module, module)
        names = {_name(one) for one in distributions.get(bringing, [bringing])}
        for extra in of:
            declared = {_name(one) for one in PROJECT["optional-dependencies"][extra]}
            assert names & declared, (module, extra)


def test_the_package_lists_its_public_names_and_nothing_else() -> None:
    import onward.config  # a submodule becomes an attribute and is none of them

    assert onward.config
    assert dir(onward) == ["Recorder", "__version__", "langchain_handler", "wrap_openai"]
    assert all(hasattr(onward, name) for name in dir(onward))
