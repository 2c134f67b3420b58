"""Student's t distribution, for intervals of means of few values."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

Z95 = 1.959963984540054
"""The normal quantile of a two-sided 95 % interval."""
_MANY = 200.0
"""Degrees of freedom from which the expansion is exact to 1e-8."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


@lru_cache(1024)
def t_quantile(freedom: float) -> float:
    """Returns Student's two-sided 95 % quantile for at least one degree of freedom, exact to 1e-8.

    Newton's method on the distribution function, from Cornish and Fisher's expansion. The function is
    concave above 0, so the steps cannot pass the quantile from below.
    """
    if not freedom >= 1.0:
        raise ValueError(f"Student's t needs at least one degree of freedom, not {freedom!r}.")
    x = _expansion(freedom)
    if freedom >= _MANY:
        return x
    constant = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    for _ in range(100):
        # With t = sqrt(v) tan(a) the density is a power of a cosine: smooth for the rule.
        end = math.atan(x / math.sqrt(freedom))
        angles = end / 2 * (_NODES + 1)
        below = 0.5 + constant * end / 2 * float(_WEIGHTS @ np.cos(angles) ** (freedom - 1))
        density = constant / math.sqrt(freedom) * (1 + x * x / freedom) ** (-(freedom + 1) / 2)
        step = (0.975 - below) / density
        x += step
        if abs(step) <= 1e-10 * x:
            break
    return x


def _expansion(v: float) -> float:
    z = Z95
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )
