"""Gymnasium spaces as what networks and buffers hold: flat observations, and four kinds of action.

The one thing to know: an ``Obs`` is one float32 array (N, width) unless the space holds images; then it is a
dict with ``"vector"`` (if anything else is there) and one uint8 array (N, height, width, channels) per image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

Obs = NDArray[Any] | dict[str, NDArray[Any]]
ActionKind = Literal["discrete", "multi_discrete", "multi_binary", "box"]


@dataclass(frozen=True)
class Layout:
    """Shape of one flattened observation."""

    width: int
    """Numbers in the float32 part; 0 where there are only images."""
    images: tuple[tuple[str, tuple[int, int, int]], ...] = ()
    """(key, (height, width, channels)) of each uint8 image."""

    @property
    def flat(self) -> bool:
        """True where an observation is one float32 array."""
        return not self.images


@dataclass(frozen=True)
class ActionSpec:
    """What a policy gives, per kind of action space:

    - ``discrete``: int64 (N,), 0 … sizes[0]−1 (a space's ``start`` is added on the way to the environment);
    - ``multi_discrete``: int64 (N, len(sizes)); ``multi_binary``: int64 (N, len(sizes)) of 0 and 1;
    - ``box``: float32 (N, dim) where −1 … 1 is ``low`` … ``high``; outside is clipped on the way to the
      environment only, so a stored action is the one whose log-prob was taken.
    """

    kind: ActionKind
    sizes: tuple[int, ...] = ()
    """Choices per component (2 each for ``multi_binary``); empty for ``box``."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    """Bounds of ``box``, flattened; always finite."""
    shape: tuple[int, ...] = ()
    """Shape of one action in the environment's own space."""
    start: tuple[int, ...] = ()
    """Smallest value per discrete component."""

    @property
    def dim(self) -> int:
        """Numbers in one action."""
        return len(self.low) if self.kind == "box" else len(self.sizes)
