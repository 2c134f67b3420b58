"""Random streams of a run, all derived from one seed.

Invariants: a stream depends on its name, never on the order of requests, so a new stream does not change the
others. Equal seeds give equal streams on the same versions of numpy and torch.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from onward.errors import ControlError

if TYPE_CHECKING:
    import torch

Name = str | int


class Seeds:
    """A tree of independent random streams: one ``numpy.random.SeedSequence``, one branch per name."""

    def __init__(self, seed: int, path: tuple[Name, ...] = ()) -> None:
        """Raises ControlError unless ``seed`` is a whole number of at least 0."""
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise ControlError(f"The seed {seed!r} is not a whole number of at least 0: give one such as 7.")
        self.seed = int(seed)
        self.path = path

    def child(self, *name: Name) -> Seeds:
        """Returns the branch under ``name``, with streams of its own."""
        return Seeds(self.seed, self.path + name)

    def sequence(self, *name: Name) -> np.random.SeedSequence:
        """Returns the seed sequence under ``name``."""
        label = json.dumps(self.path + name).encode()
        digest = blake2b(label, digest_size=16).digest()
        return np.random.SeedSequence(self.seed, spawn_key=tuple(np.frombuffer(digest, "<u4").tolist()))

    def generator(self, *name: Name) -> np.random.Generator:
        """Returns a fresh numpy generator (PCG64) under ``name``."""
        return np.random.Generator(np.random.PCG64(self.sequence(*name)))

    def integer(self, *name: Name) -> int:
        """Returns a seed of 31 bits, which every environment accepts."""
        return int(self.sequence(*name).generate_state(1)[0] >> 1)

    def slots(self, num: int) -> list[int]:
        """Returns the seeds for resetting ``num`` environments; slot i's seed does not depend on ``num``."""
        return [self.integer("env", slot) for slot in range(num)]

    def torch_generator(self, *name: Name) -> torch.Generator:
        """Returns a fresh torch generator on the CPU under ``name``."""
        import torch

        generator = torch.Generator()
        generator.manual_seed(int(self.sequence(*name).generate_state(1, np.uint64)[0] >> 1))
        return generator
