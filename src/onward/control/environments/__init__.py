"""Environments behind the contract: tasks in numpy, Gymnasium environments, Gymnasium vector environments.

The one thing to know: ``make`` is the only way in, and whatever it is given comes out as ``Environments``.
"""

from onward.control.environments.making import make

__all__ = ["make"]
