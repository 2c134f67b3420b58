"""Device and number format of a network, decided before it is loaded.

On a GPU ``auto`` is bfloat16. CPUs differ too much for a rule: one with matrix units multiplies bfloat16
seven times as fast as float32, another at a sixth of its speed. So half a second of measuring decides, once
per process. Master weights, log-probs and the optimiser's state are float32 whatever the network computes in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from onward.errors import ConfigError
from onward.lm import devices
from onward.lm.kernels import pack, product

PROBE_SECONDS = 0.5
LEAST_GAIN = 1.5
"""Speed over float32's from which on bfloat16 pays for its rounding."""
MOST_ERROR = 0.01
"""Relative error (of norms) that a product of bfloat16 numbers may have; one with float32 sums has 0.002."""
SMALL = 20_000_000
"""Parameters of a network whose time on a CPU is not spent in matrix products."""
_TOKENS, _INPUTS, _OUTPUTS = 256, 1024, 2048


@dataclass(frozen=True)
class Speeds:
    """Operations a second of one product in either format, and the relative error of bfloat16's."""

    float32: float
    bfloat16: float
    error: float

    @property
    def gain(self) -> float:
        """Speed of bfloat16 over that of float32."""
        return self.bfloat16 / self.float32

    @property
    def bfloat16_pays(self) -> bool:
        return self.gain >= LEAST_GAIN and self.error <= MOST_ERROR


@dataclass(frozen=True)
class Placement:
    """A device and a number format as torch names them, and a phrase on why the format was chosen."""

    device: str
    dtype: str
    why: str


def measure(clock: Callable[[], float] = time.perf_counter, seconds: float = PROBE_SECONDS) -> Speeds:
    """Times the products of the forward loop in turn for ``seconds``, each by its best try.

    It runs in the calling thread with its number of threads: a second team of threads would slow the first.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_TOKENS, _INPUTS, generator=generator)
    weight = torch.randn(_OUTPUTS, _INPUTS, generator=generator)
    best: dict[torch.dtype, float] = {}
    with torch.no_grad():
        sides = [_side(x, weight, torch.float32), _side(x, weight, torch.bfloat16)]
        exact = sides[1].x.float() @ sides[1].weight.float().t()
        error = float((sides[1].run().float() - exact).norm() / exact.norm())
        sides[0].run()
        until = clock() + seconds
        while True:
            for side in sides:
                started = clock()
                side.run()
                took = max(clock() - started, 1e-9)
                best[side.x.dtype] = min(took, best.get(side.x.dtype, took))
            if clock() >= until:
                break
    operations = 2 * _TOKENS * _INPUTS * _OUTPUTS
    return Speeds(operations / best[torch.float32], operations / best[torch.bfloat16], error)


@dataclass(frozen=True)
class _Side:
    x: Tensor
    weight: Tensor
    packed: Tensor | None

    def run(self) -> Tensor:
        return product(self.x, self.weight, self.packed)


def _side(x: Tensor, weight: Tensor, dtype: torch.dtype) -> _Side:
    cast = weight.to(dtype)
    return _Side(x.to(dtype), cast, pack(cast))


@lru_cache(maxsize=1)
def cpu_speeds() -> Speeds:
    """Returns ``measure()`` of this process's first call."""
    return measure()


def place(
    device: str = "auto",
    dtype: str = "auto",
    *,
    parameters: int | None = None,
    speeds: Callable[[], Speeds] = cpu_speeds,
) -> Placement:
    """Decides both names, for a network of so many ``parameters``; a small one is not worth a measurement.
    Raises ConfigError for a device that is not here."""
    where = _device(device)
    if dtype != "auto":
        return Placement(where, dtype, "as asked")
    if where != "cpu":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return Placement(where, "bfloat16", "as on every GPU that computes in it")
        return Placement(where, "float32", "since this GPU does not compute in bfloat16")
    if parameters is not None and parameters < SMALL:
        return Placement(where, "float32", "a network of this size gains nothing by another format")
    found = speeds()
    wrong = "" if found.error <= MOST_ERROR else " and wrong"
    why = f"bfloat16 is {found.gain:.2g} times as fast{wrong} on this CPU, measured"
    return Placement(where, "bfloat16" if found.bfloat16_pays else "float32", why)


def _device(name: str) -> str:
    devices.refuse_missing(name)
    usable = torch.cuda.is_available()
    if name == "auto":
        return "cuda:0" if usable else "cpu"
    if name == "cpu":
        return name
    if not usable:
        raise ConfigError(
            f"The device {name} cannot be used by torch {torch.__version__}: install the build for its "
            f"driver, or use device cpu or auto."
        )
    return f"cuda:{int(name.partition(':')[2] or 0)}"
