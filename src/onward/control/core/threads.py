"""Number of threads that a training process computes with, its memory, and its treatment of denormal numbers.

numpy's matrix products have threads of their own, apart from PyTorch's. On networks this small they save
nothing, and while they wait they keep a second core busy that another seed could use.

The C library gives freed memory back to the system: a gradient step then gets hundreds of pages anew, which
takes a tenth of its time. So the process keeps it.

Denormal numbers (below 1.2e-38) are slow on most processors. Adam's moments of units that are off decay into
them: one step then takes 3 to 15 times as long, so they are rounded to 0.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import threadpool_limits

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def use_threads(count: int) -> None:
    """Sets ``count`` threads for the products of numpy and PyTorch, and keeps memory, in the whole process.
    Rounds denormal numbers to 0 in the calling thread.

    PyTorch is not imported for this: some algorithms do not need it.
    """
    _keep_memory()
    threadpool_limits(count, user_api="blas")
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)
        torch.set_flush_denormal(True)


def _keep_memory() -> None:
    """Keeps up to 256 MB of freed memory, and blocks of up to 32 MB, where the C library is glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(M_TRIM_THRESHOLD, 1 << 28)
    mallopt(M_MMAP_THRESHOLD, 1 << 25)


@contextmanager
def denormals_flushed(flushed: bool = True) -> Iterator[None]:
    """Rounds denormal results of the calling thread to 0 for the block, those of numpy too.

    ``flushed`` False keeps them. Does nothing where PyTorch is not loaded. Threads that PyTorch started
    before are not covered.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = _flushed(torch)
    torch.set_flush_denormal(flushed)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _flushed(torch: Any) -> bool:
    return float(torch.tensor([1e-30]) * 1e-9) == 0.0


@contextmanager
def threads_kept() -> Iterator[None]:
    """Restores the threads and the treatment of denormal numbers after the block: for programs that compute
    something else too. Memory is kept from then on."""
    import torch

    threads = torch.get_num_threads()
    with threadpool_limits(None), denormals_flushed(_flushed(torch)):
        try:
            yield
        finally:
            torch.set_num_threads(threads)
