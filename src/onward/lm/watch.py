"""Notices that tensors changed: what was computed from them is then no longer valid.

Torch counts every in-place write of a tensor (optimiser steps, ``copy_``, ``load_state_dict``), except writes
through ``Tensor.data`` and those to tensors that were created in inference mode.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


class Watch:
    """Compares tensors with those of the last look, by identity and by their count of in-place writes."""

    def __init__(self) -> None:
        self._seen: list[tuple[Tensor, int]] | None = None

    def changed(self, tensors: Iterable[Tensor]) -> bool:
        """Returns whether any tensor is another one, or was written, since the last call; at first True."""
        now = [(tensor, -1 if tensor.is_inference() else tensor._version) for tensor in tensors]
        before, self._seen = self._seen, now
        if before is None or len(before) != len(now):
            return True
        return any(a is not b or v != w for (a, v), (b, w) in zip(before, now, strict=True))
