"""A trained policy as an agent uses it: loaded from a file and acting with numpy alone.

``PolicyParts`` is all that an algorithm passes on: plain arrays, with the frozen normaliser. Acting therefore
needs neither the trainer nor torch. Every export (safetensors, ONNX) is made from the same parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from onward.control.core.normalise import EPSILON
from onward.control.core.spaces import ActionSpec, Layout, Leaf, Obs, ObsFlattener, part_of, to_env
from onward.control.networks.images import encode_images
from onward.control.networks.in_numpy import Layer as Layer
from onward.control.networks.in_numpy import NumpyMLP
from onward.errors import ControlError

Head = Literal["q", "logits", "gaussian", "tanh"]
LOG_STD_RANGE = (-20.0, 2.0)


@dataclass(frozen=True)
class PolicyParts:
    """Result of ``Algorithm.networks``.

    Greedy action: argmax for ``q`` and ``logits`` (per component; ``multi_binary``: above 0), the mean for
    ``gaussian``, tanh of the mean for ``tanh``.
    """

    layout: Layout
    actions: ActionSpec
    head: Head
    layers: Sequence[Layer]
    """Layers from the features (the float32 part, then each encoded image in order) to the head."""
    log_std: NDArray[Any] | None = None
    """(dim,) log-stds of ``gaussian``. None for ``gaussian`` or ``tanh``: the head is dim means, then dim
    log-stds, or the means alone where the policy is deterministic."""
    norm: tuple[NDArray[Any], NDArray[Any], float] | None = None
    """(mean, variance, clip) of the float32 part: (x − mean) / √(variance + 1e-8), clipped; float64."""
    images: dict[str, NDArray[Any]] | None = None
    """``nets.Encoder.state_dict()`` as arrays; None where there are no images."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Numbers and strings stored beside the policy; ``log_std_range`` limits log-stds of the head."""

    def finite(self) -> bool:
        """False where a learned number is NaN or infinite."""
        return all(np.isfinite(array).all() for array in self.arrays().values())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Returns every learned number by name: ``layers.0.weight``, ``norm.mean``, ``images.…``."""
        found: dict[str, NDArray[Any]] = {}
        for i, (weight, bias, _, layer_norm) in enumerate(self.layers):
            found |= {f"layers.{i}.weight": weight, f"layers.{i}.bias": bias}
            if layer_norm is not None:
                found |= {f"layers.{i}.gain": layer_norm[0], f"layers.{i}.shift": layer_norm[1]}
        if self.log_std is not None:
            found["log_std"] = self.log_std
        if self.norm is not None:
            found |= {"norm.mean": self.norm[0], "norm.variance": self.norm[1]}
        return found | {f"images.{key}": array for key, array in (self.images or {}).items()}

    def check(self) -> None:
        """Raises ControlError where the parts do not fit each other."""
        if not self.layers:
            raise ControlError("A policy was given no layers; give at least the one that ends in its head.")
        if (self.head in ("gaussian", "tanh")) != (self.actions.kind == "box"):
            raise ControlError(
                f"A policy with head {self.head!r} cannot give actions of kind {self.actions.kind!r}: "
                "use gaussian or tanh for box, q or logits for the others."
            )
        if not self.layout.flat and self.images is None:
            raise ControlError("A policy over images was given no encoder: pass images.")
        width = None if self.images else self.layout.width
        for weight, bias, _, _ in self.layers:
            if weight.ndim != 2 or bias.shape != weight.shape[:1] or width not in (None, weight.shape[1]):
                raise ControlError(
                    f"A layer of the policy has weights {weight.shape} and bias {bias.shape} behind {width} "
                    "features; give weights (out, in) that follow each other."
                )
            width = len(weight)
        if width not in self._head_widths():
            raise ControlError(
                f"The policy ends in {width} numbers where its actions need {self._head_widths()[0]}."
            )
        if self.norm is not None and any(part.shape != (self.layout.width,) for part in self.norm[:2]):
            raise ControlError(
                f"The normaliser has shape {self.norm[0].shape}, the observation ({self.layout.width},)."
            )

    def _head_widths(self) -> tuple[int, ...]:
        if self.actions.kind == "box":
            return (self.actions.dim, 2 * self.actions.dim) if self.log_std is None else (self.actions.dim,)
        return (self.actions.dim if self.actions.kind == "multi_binary" else sum(self.actions.sizes),)


class Policy:
    """Chooses actions for observations."""

    def __init__(self, parts: PolicyParts, env_id: str = "") -> None:
        """``env_id``: training environment. Raises ControlError where the parts do not fit each other."""
        parts.check()
        self.parts, self.env_id = parts, env_id
        self._flattener = ObsFlattener(_with_leaves(parts.layout))
        self._network = NumpyMLP([_contiguous(layer) for layer in parts.layers])
        self._scale = None
        if parts.norm is not None:
            mean, variance, clip = parts.norm
            self._scale = mean, np.sqrt(variance + EPSILON), clip
        self._generator = np.random.default_rng()

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Loads a policy from a folder with ``policy.json``, or from a run's folder (from its ``policy/``).

        Raises ControlError for what is not a policy, TamperedError where a file was changed.
        """
        from onward.control.policies.policy_file import read_policy

        return cls(*read_policy(Path(path)))

    def save(self, folder: str | Path) -> Path:
        """Writes ``policy.safetensors`` and ``policy.json`` into ``folder``, created if needed.

        Returns the folder.
        """
        from onward.control.policies.policy_file import write_policy

        return write_policy(self, Path(folder))

    def seed(self, seed: int) -> None:
        """Seeds the draws of ``deterministic=False``, so that they are repeatable."""
        self._generator = np.random.default_rng(seed)

    def act(self, obs: Any, deterministic: bool = True, mask: NDArray[Any] | None = None) -> Any:
        """Returns the action for a raw observation, or a batch of them, in the environment's own format.

        ``obs``: one observation as ``env.reset`` returns it, or a batch as Gymnasium's vector environments
        return it (arrays with a leading axis, in a dict or tuple where the space is one). ``mask``: legal
        actions of a discrete space. A scalar discrete action is an ``int``; a batch has a leading axis.
        Raises ControlError for an observation of another shape.
        """
        flat, batched = self._flat(obs)
        if mask is not None and not batched:
            mask = mask[None]
        actions = self.act_flat(flat, mask, deterministic)
        given = to_env(self.parts.actions, actions)
        if batched:
            return given
        return int(given[0]) if self.parts.actions.kind == "discrete" else given[0]

    def _flat(self, obs: Any) -> tuple[Obs, bool]:
        """Returns (flat observations (N, …), True where ``obs`` was a batch)."""
        try:
            batched = self._flattener.holds_batch(obs)
            first = part_of(obs, self._flattener.layout.leaves[0].path)
            return (
                (self._flattener.batch(obs, len(first)), True)
                if batched
                else (self._flattener.single(obs), False)
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ControlError(
                f"A policy was given an observation of type {type(obs).__name__} that is not like those of "
                f"its environment ({error}): give it as the environment does."
            ) from None

    def act_flat(
        self, obs: Obs, mask: NDArray[Any] | None = None, deterministic: bool = True
    ) -> NDArray[Any]:
        """Returns actions (N, …) in the format of ``ActionSpec``, for flattened observations (N, …)."""
        out = self.outputs(obs)
        if self.parts.actions.kind == "box":
            return self._box(out, deterministic)
        draw = not deterministic and self.parts.head == "logits"
        if self.parts.actions.kind == "multi_binary":
            return (out > self._logistic(out.shape) if draw else out > 0).astype(np.int64)
        if mask is not None:
            out = np.where(mask, out, -np.inf)
        if draw:
            out = out + self._generator.gumbel(size=out.shape)
        if self.parts.actions.kind == "discrete":
            return out.argmax(axis=1)
        ends = np.cumsum(self.parts.actions.sizes)[:-1]
        return np.stack([part.argmax(axis=1) for part in np.split(out, ends, axis=1)], axis=1)

    def outputs(self, obs: Obs) -> NDArray[np.float32]:
        """Returns (N, out) raw outputs: Q-values, logits, or means (and log-stds). The next call with the
        same N overwrites the array."""
        vector = obs.get("vector") if isinstance(obs, dict) else obs
        features = []
        if vector is not None and self.parts.layout.width:
            features.append(self._normalised(np.asarray(vector, np.float32)))
        if self.parts.images is not None:
            assert isinstance(obs, dict)
            features += encode_images(self.parts.layout, self.parts.images, obs)
        return self._network(features[0] if len(features) == 1 else np.concatenate(features, axis=1))

    def _normalised(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        if self._scale is None:
            return x
        mean, deviation, clip = self._scale
        return np.clip((x - mean) / deviation, -clip, clip).astype(np.float32)

    def _box(self, out: NDArray[np.float32], deterministic: bool) -> NDArray[np.float32]:
        dim = self.parts.actions.dim
        mean: NDArray[Any] = out[:, :dim]
        if not deterministic:
            mean = mean + self._deviation(out) * self._generator.standard_normal(mean.shape, np.float32)
        return np.tanh(mean) if self.parts.head == "tanh" else np.clip(mean, -1, 1)

    def _deviation(self, out: NDArray[np.float32]) -> NDArray[np.float32]:
        dim = self.parts.actions.dim
        if self.parts.log_std is not None:
            return np.exp(self.parts.log_std).astype(np.float32)
        if out.shape[1] == dim:
            return np.zeros(dim, np.float32)
        bounds = np.asarray(self.parts.extra.get("log_std_range", LOG_STD_RANGE), np.float32)
        return np.exp(np.clip(out[:, dim:], *bounds))

    def _logistic(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Draws noise for which ``logit > noise`` has probability sigmoid(logit)."""
        return self._generator.logistic(size=shape)


def _contiguous(layer: Layer) -> Layer:
    weight, bias, activation, norm = layer
    return Layer(np.ascontiguousarray(weight, np.float32), np.asarray(bias, np.float32), activation, norm)


def _with_leaves(layout: Layout) -> Layout:
    """Adds leaves to a layout made by hand, which has only widths: its raw observations are already flat."""
    if layout.leaves:
        return layout
    images = tuple(Leaf((key,), "image", shape, key=key) for key, shape in layout.images)
    path = ("vector",) if images else ()
    vector = (Leaf(path, "numbers", (layout.width,)),) if layout.width else ()
    return Layout(layout.width, layout.images, vector + images)
