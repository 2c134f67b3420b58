"""Quantiles of Student's t beside printed tables and scipy."""

from __future__ import annotations

import pytest
from scipy.stats import t

from onward.lm.student import t_quantile


@pytest.mark.parametrize(
    ("freedom", "table"), [(1, 12.706), (7, 2.3646), (9, 2.2622), (12.0, 2.1788), (30, 2.0423), (120, 1.9799)]
)
def test_the_quantile_is_that_of_the_tables(freedom: float, table: float) -> None:
    assert t_quantile(freedom) == pytest.approx(table, abs=6e-4)


@pytest.mark.parametrize("freedom", [1.0, 1.1, 2.5, 6, 20.5, 199.9, 200.0, 1e4, 1e9])
def test_the_quantile_is_that_of_scipy(freedom: float) -> None:
    assert t_quantile(freedom) == pytest.approx(t.ppf(0.975, freedom), rel=1e-8)


@pytest.mark.parametrize("freedom", [0.9, 0, -1, float("nan")])
def test_less_than_one_degree_of_freedom_is_refused(freedom: float) -> None:
    with pytest.raises(ValueError, match="at least one degree"):
        t_quantile(freedom)
