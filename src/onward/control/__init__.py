"""Control policies for Gymnasium environments: environments, algorithms, evaluation, export.

The one thing to know: everything speaks ``contract.Step``, arrays with a leading axis of slots; who ends an
episode and why is decided there and nowhere else.
"""

from onward.control.policy import Policy

__all__ = ["Policy"]
