"""Runs programs as ``python PROGRAM WORD…`` would, one after the other in one process; reports as JSON.

``python framework_programs.py '[["program.py", "word"], …]'``. Their frameworks take seconds to import, and
share most of what they import.
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys


def run(program: str, *words: str) -> dict[str, object]:
    """Runs one program; returns its exit code and what it wrote."""
    sys.argv = [program, *words]
    out, errors, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            runpy.run_path(program, run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return {"code": code, "out": out.getvalue(), "errors": errors.getvalue()}


if __name__ == "__main__":
    found = [run(*command) for command in json.loads(sys.argv[1])]
    print(json.dumps(found))
