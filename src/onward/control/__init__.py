"""Control policies for Gymnasium environments: environments, algorithms, evaluation, export.

All parts exchange ``core.contract.Step``: arrays with a leading axis of slots. The ends of episodes and their
kind (termination or truncation) are decided there and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.lazy import attributes

if TYPE_CHECKING:
    from onward.control.policies.policy import Policy

__all__ = ["Policy"]
__getattr__ = attributes(__name__, {"Policy": "onward.control.policies.policy"})
