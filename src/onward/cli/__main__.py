"""Runs the ``onward`` command as ``python -m onward.cli``, without its script."""

from onward.cli import main

main()
