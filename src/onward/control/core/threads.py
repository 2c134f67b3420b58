"""Number of threads that a training process computes with.

numpy's matrix products have threads of their own, apart from PyTorch's. On networks this small they save
nothing, and while they wait they keep a second core busy that another seed could use.
"""

from __future__ import annotations

import sys

from threadpoolctl import threadpool_limits


def use_threads(count: int) -> None:
    """Sets ``count`` threads for the products of numpy and PyTorch, in the whole process.

    PyTorch is not imported for this: some algorithms do not need it.
    """
    threadpool_limits(count, user_api="blas")
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)
