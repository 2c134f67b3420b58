"""Names of devices, checked without torch, so that one that is not here is refused before anything slow.

GPUs are counted by the driver's own library, which respects CUDA_VISIBLE_DEVICES. A driver alone is not
enough: the torch of a CPU build cannot use it.
"""

from __future__ import annotations

import ctypes
import re
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Literal

from onward.errors import ConfigError

PATTERN = r"^(auto|cpu|cuda(:\d{1,3})?)$"
"""Names of devices: ``auto`` is the first GPU where there is one, else the CPU."""
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
"""Names of number formats: ``auto`` follows the device (``precision.place``)."""


@lru_cache(maxsize=1)
def gpus() -> int:
    """Returns the number of GPUs that the installed torch can use, as far as that is known without it."""
    return 0 if _is_cpu_build() else _driver_count()


def is_gpu(name: str) -> bool:
    """Returns whether the device ``name`` is, or ``auto`` would be, a GPU."""
    return name.startswith("cuda") or (name == "auto" and gpus() > 0)


def packs(dtype: str) -> bool:
    """Returns whether this CPU's sampler keeps matrices of this format in a second layout, as
    ``kernels.pack`` decides with torch."""
    return dtype == "float32" or (dtype == "bfloat16" and _multiplies_bfloat16())


@lru_cache(maxsize=1)
def _multiplies_bfloat16() -> bool:
    """Returns whether oneDNN multiplies bfloat16 here: by AVX-512 on x86, else by ARM's own instructions."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return False
    return {"avx512bw", "avx512vl", "avx512dq"} <= words or {"asimd", "bf16"} <= words


def refuse_missing(name: str) -> None:
    """Raises ConfigError for a device that is no device's name, or that this machine does not have."""
    if re.fullmatch(PATTERN, name) is None:
        raise ConfigError(f"There is no device {name[:40]!r}: give auto, cpu, cuda or cuda:N.")
    if not name.startswith("cuda"):
        return
    number = int(name.partition(":")[2] or 0)
    if number >= gpus():
        raise ConfigError(f"The device {name} is not here, since {_why(number)}: use device cpu or auto.")


def _why(number: int) -> str:
    if _is_cpu_build():
        return f"torch {metadata.version('torch')} is a build for CPUs"
    count = gpus()
    if count == 0:
        return "this machine has no NVIDIA GPU that its driver shows"
    return f"this machine has {count} GPU{'s' if count > 1 else ''} and {number} is not below that"


def _is_cpu_build() -> bool:
    try:
        return metadata.version("torch").partition("+")[2] == "cpu"
    except metadata.PackageNotFoundError:
        return False


def _driver_count() -> int:
    """Asks the driver (``cuInit``, ``cuDeviceGetCount``), which creates no context on a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int(0)
        if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return 0
    except (OSError, AttributeError):
        return 0
    return count.value
