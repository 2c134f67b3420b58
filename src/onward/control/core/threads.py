"""Number of threads that a training process computes with.

numpy's matrix products have threads of their own, apart from PyTorch's. On networks this small they save
nothing, and while they wait they keep a second core busy that another seed could use.

Denormal numbers (below 1.2e-38) are slow on most processors. Adam's moments of units that are off decay into
them: one step then takes 3 to 15 times as long, so they are rounded to 0.
"""

from __future__ import annotations

import sys

from threadpoolctl import threadpool_limits


def use_threads(count: int) -> None:
    """Sets ``count`` threads for the products of numpy and PyTorch, in the whole process, and rounds denormal
    results of the calling thread to 0.

    PyTorch is not imported for this: some algorithms do not need it.
    """
    threadpool_limits(count, user_api="blas")
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)
        torch.set_flush_denormal(True)
