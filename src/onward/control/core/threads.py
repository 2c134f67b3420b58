"""How many threads a training process computes with.

The one thing to know: numpy's products have threads of their own, apart from PyTorch's. On networks as small
as these they save nothing, and while they wait they keep a second core busy that another seed could use.
"""

from __future__ import annotations

import sys

from threadpoolctl import threadpool_limits


def use_threads(count: int) -> None:
    """``count`` threads for the products of numpy and PyTorch, in the whole process.

    PyTorch is not loaded for this: an algorithm may do without.
    """
    threadpool_limits(count, user_api="blas")
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)
