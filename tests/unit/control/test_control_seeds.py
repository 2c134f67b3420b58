"""Random streams: found by name, independent of the order in which they are asked for."""

from __future__ import annotations

import numpy as np
import pytest

from onward.control.core.seeds import Seeds
from onward.errors import ControlError


def test_equal_names_give_equal_streams_in_any_order() -> None:
    one, other = Seeds(7), Seeds(7)
    first = [one.generator("explore").random(), one.generator("replay").random(), one.integer("env", 3)]
    second = [
        other.integer("env", 3),
        other.generator("replay").random(),
        other.generator("explore").random(),
    ]
    assert first == second[::-1]


def test_names_seeds_and_branches_give_different_streams() -> None:
    streams = [
        Seeds(7).generator("explore"),
        Seeds(8).generator("explore"),
        Seeds(7).generator("replay"),
        Seeds(7).generator("env", 1),
        Seeds(7).generator("env1"),
        Seeds(7).generator("env", "1"),
        Seeds(7).child("worker", 0).generator("explore"),
        Seeds(7).child("worker", 1).generator("explore"),
    ]
    assert len({stream.random() for stream in streams}) == len(streams)


def test_a_branch_is_the_path_to_it() -> None:
    assert Seeds(7).child("a").integer("b") == Seeds(7).integer("a", "b")


def test_every_stream_hangs_on_one_seed_sequence() -> None:
    sequence = Seeds(7).sequence("explore")
    assert sequence.entropy == 7
    assert Seeds(7).generator("explore").random() == np.random.default_rng(sequence).random()


def test_a_slots_seed_does_not_depend_on_the_number_of_slots() -> None:
    many = Seeds(0).slots(64)
    assert Seeds(0).slots(2) == many[:2]
    assert len(set(many)) == 64
    assert all(0 <= seed < 2**31 for seed in many)


def test_torch_streams_repeat() -> None:
    import torch

    draws = [torch.rand(3, generator=Seeds(5).torch_generator("policy")) for _ in range(2)]
    other = torch.rand(3, generator=Seeds(5).torch_generator("noise"))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], other)


@pytest.mark.parametrize("seed", [-1, 1.5, True, "7"])
def test_what_is_no_seed_is_refused(seed: object) -> None:
    with pytest.raises(ControlError, match="whole number of at least 0"):
        Seeds(seed)  # type: ignore[arg-type]
