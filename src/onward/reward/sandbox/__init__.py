"""A sandbox for programs that a policy wrote: confined by the kernel, or not run at all.

``runner`` is the parent's side, ``confined`` the process of a program, ``filter`` its system calls.
"""

from onward.reward.sandbox.runner import Limits, Outcome, Sandbox

__all__ = ["Limits", "Outcome", "Sandbox"]
