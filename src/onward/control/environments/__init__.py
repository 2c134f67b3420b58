"""Environments behind the contract: tasks in numpy, Gymnasium environments, Gymnasium vector environments.

The one thing to know: ``make`` is the only way in, and whatever it is given comes out as ``Environments``,
which ``NoisyObservations`` wraps.
"""

from onward.control.environments.making import make, missing_package, newest_version
from onward.control.environments.noise import NoisyObservations

__all__ = ["NoisyObservations", "make", "missing_package", "newest_version"]
