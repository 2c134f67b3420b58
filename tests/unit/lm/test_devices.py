"""Devices by name without torch, and the number format that a measurement of this machine decides."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from onward.errors import ConfigError
from onward.lm import devices, precision
from onward.lm.policy import Policy
from onward.lm.precision import Speeds, measure, place


def unknown() -> Speeds:
    raise AssertionError("nothing is to be measured here")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cpu:0", "", "mps", "cuda:0 "])
def test_a_word_that_names_no_device_is_refused_with_those_that_do(name: str) -> None:
    with pytest.raises(ConfigError, match=r"give auto, cpu, cuda or cuda:N\."):
        devices.refuse_missing(name)


@pytest.mark.parametrize(("count", "good", "bad"), [(0, ["auto", "cpu"], ["cuda", "cuda:0"]),
                                                    (2, ["cuda", "cuda:1"], ["cuda:2"])])  # fmt: skip
def test_a_gpu_that_is_not_here_is_refused_before_torch_is_imported(
    monkeypatch: pytest.MonkeyPatch, count: int, good: list[str], bad: list[str]
) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: count)
    monkeypatch.setattr(devices, "_is_cpu_build", lambda: False)
    for name in good:
        devices.refuse_missing(name)
    for name in bad:
        with pytest.raises(
            ConfigError, match=r"is not here, since this machine has .*: use device cpu or auto"
        ):
            devices.refuse_missing(name)
    assert [devices.is_gpu(name) for name in ("auto", "cpu", "cuda:1")] == [count > 0, False, True]


def test_a_build_of_torch_for_cpus_has_no_gpu_whatever_the_driver_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices.metadata, "version", lambda name: "2.13.0+cpu")
    monkeypatch.setattr(devices, "_driver_count", lambda: 4)
    devices.gpus.cache_clear()
    try:
        assert devices.gpus() == 0
        with pytest.raises(ConfigError, match=r"torch 2\.13\.0\+cpu is a build for CPUs"):
            devices.refuse_missing("cuda")
    finally:
        devices.gpus.cache_clear()


def test_devices_are_counted_without_torch() -> None:
    program = "import sys; from onward.lm import devices; devices.gpus(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("speeds", "dtype"),
    [
        (Speeds(299e9, 2120e9, 0.002), "bfloat16"),  # a CPU with matrix units
        (Speeds(100e9, 16e9, 0.002), "float32"),  # one without
        (Speeds(100e9, 149e9, 0.002), "float32"),
        (Speeds(100e9, 150e9, 0.002), "bfloat16"),
        (Speeds(100e9, 900e9, 0.02), "float32"),  # fast and wrong
    ],
)
def test_a_cpu_computes_in_bfloat16_only_where_that_is_fast_and_right(speeds: Speeds, dtype: str) -> None:
    chosen = place("cpu", "auto", speeds=lambda: speeds)
    assert (chosen.device, chosen.dtype) == ("cpu", dtype)
    assert f"{speeds.gain:.2g} times as fast" in chosen.why


def test_a_number_format_that_was_asked_for_is_not_measured() -> None:
    for dtype in ("float32", "bfloat16", "float16"):
        assert place("cpu", dtype, speeds=unknown).dtype == dtype
    assert place("cpu", "auto", parameters=1_000_000, speeds=unknown).dtype == "float32"


@pytest.mark.parametrize(("bfloat16", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_a_gpu_computes_in_bfloat16_where_it_can(
    monkeypatch: pytest.MonkeyPatch, bfloat16: bool, dtype: str
) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: bfloat16)
    assert [place(name, speeds=unknown).device for name in ("auto", "cuda", "cuda:1")] == [
        "cuda:0", "cuda:0", "cuda:1",
    ]  # fmt: skip
    assert place("auto", speeds=unknown).dtype == dtype
    assert place("cpu", speeds=lambda: Speeds(2.0, 1.0, 0.0)).device == "cpu"


def test_a_driver_that_torch_cannot_use_is_refused_and_auto_is_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="cannot be used by torch"):
        place("cuda")
    assert place("auto", "float32").device == "cpu"


def test_the_speeds_are_those_of_the_fastest_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Durations of float32 and bfloat16 in turn: 4 and 8 s, then 2 and 6 s, then the time is over."""
    durations = iter([4.0, 8.0, 2.0, 6.0])
    now = 100.0

    def clock() -> float:
        return now

    def run(side: precision._Side) -> torch.Tensor:
        nonlocal now
        if warm:
            warm.pop()
        else:
            now += next(durations)
        return exact(side)

    exact, warm = precision._Side.run, [1, 2]
    monkeypatch.setattr(precision._Side, "run", run)
    found = measure(clock, seconds=20.0)
    operations = 2 * 256 * 1024 * 2048
    assert (found.float32, found.bfloat16) == (operations / 2.0, operations / 6.0)
    assert 5e-4 < found.error < 4e-3, "the rounding of the result to eight bits"


@pytest.fixture()
def fresh_probe() -> Iterator[None]:
    precision.cpu_speeds.cache_clear()
    yield
    precision.cpu_speeds.cache_clear()


def test_a_process_measures_once(monkeypatch: pytest.MonkeyPatch, fresh_probe: None) -> None:
    calls = []
    monkeypatch.setattr(precision, "measure", lambda: calls.append(1) or Speeds(1.0, 2.0, 0.0))
    assert [place("cpu").dtype, place("cpu").dtype, len(calls)] == ["bfloat16", "bfloat16", 1]


def test_a_policy_says_what_it_computes_in(small: Path) -> None:
    assert Policy.load(small).dtype == "float32"
    assert Policy.load(small, device="auto", dtype="bfloat16").dtype == "bfloat16"
    with pytest.raises(ConfigError, match="The device cuda:7 is not here"):
        Policy.load(small, device="cuda:7")
