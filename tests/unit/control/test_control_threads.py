"""One thread is one thread: numpy's products have their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from onward.control.core.threads import denormals_flushed, use_threads


@pytest.fixture(autouse=True)
def as_before():
    threads = torch.get_num_threads()
    with threadpool_limits(None), denormals_flushed(False):
        yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("count", [1, 2])
def test_numpy_and_torch_compute_with_as_many_threads_as_a_run_asks_for(count):
    np.ones((2, 2)) @ np.ones((2, 2))
    use_threads(count)
    assert torch.get_num_threads() == count
    pools = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    assert pools and max(pools) <= count


def test_denormal_numbers_are_rounded_to_zero_while_a_run_trains_so_that_adam_stays_fast():
    """Adam's moments of units that are off decay into denormals: a step then took 3 to 15 times as long."""

    def product() -> float:
        return float(torch.tensor([1e-30]) * 1e-9)

    assert product() != 0.0
    use_threads(1)
    assert product() == 0.0
    torch.set_flush_denormal(False)
    with denormals_flushed():
        assert product() == 0.0 == float(np.float32(1e-30) * np.float32(1e-9))
        with denormals_flushed(False):
            assert product() != 0.0
        assert product() == 0.0
    assert product() != 0.0
