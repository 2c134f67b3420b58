"""Environments behind ``core.contract``: tasks in numpy, Gymnasium environments and its ``VectorEnv``.

``make`` is the only way in. It returns ``Environments`` for every input that it supports, and
``NoisyObservations`` wraps them.
"""

from onward.control.environments.making import make, missing_package, newest_version
from onward.control.environments.noise import NoisyObservations

__all__ = ["NoisyObservations", "make", "missing_package", "newest_version"]
