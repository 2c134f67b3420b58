"""``python -m onward.cli``: the ``onward`` command without its script."""

from onward.cli import main

main()
