"""Shell completion in a real bash: what it offers, and what installing it writes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BASH = shutil.which("bash")
PROGRAM = Path(sys.executable).with_name("onward")
COMPLETE = """
eval "$(onward --show-completion)"
complete -p onward
COMP_WORDS=(onward mod); COMP_CWORD=1; _onward_completion onward; echo "${COMPREPLY[@]}"
COMP_WORDS=(onward dlq re); COMP_CWORD=2; _onward_completion onward; echo "${COMPREPLY[@]}"
COMP_WORDS=(onward jobs list --st); COMP_CWORD=3; _onward_completion onward; echo "${COMPREPLY[@]}"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    assert BASH is not None and PROGRAM.exists(), "bash and the program 'onward' beside this Python"
    path = f"{PROGRAM.parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(tmp_path), "TERM": "dumb"}


def bash(script: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [str(BASH), "-c", script + "\nexit 0"], env=environment, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def test_commands_verbs_and_options_complete_and_old_names_do_not(environment: dict[str, str]) -> None:
    registered, *offered = bash(COMPLETE, environment).splitlines()
    assert registered == "complete -o default -F _onward_completion onward"
    assert offered == ["models", "retry", "--state"]


def test_installing_it_writes_it_for_the_next_shell(environment: dict[str, str], tmp_path: Path) -> None:
    bash("onward --install-completion", environment)
    assert "_onward_completion" in (tmp_path / ".bash_completions" / "onward.sh").read_text()
    assert "onward.sh" in (tmp_path / ".bashrc").read_text()
