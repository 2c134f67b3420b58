"""A policy as an ONNX file, for programs without Python. The normaliser is part of the graph.

The graph is written operation by operation from ``PolicyParts``, without torch or its exporter. The greedy
action has the environment's format: scaled, clipped, ``start`` added.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.control.core.normalise import EPSILON
from onward.control.networks.images import image_layers
from onward.control.policies.policy import Layer, Policy, PolicyParts
from onward.errors import ControlError, MissingExtraError

OPSET = 17
IR_VERSION = 8
ONNX = "policy.onnx"


def export(policy: Policy, folder: str | Path, onnx: bool = True) -> list[Path]:
    """Writes ``policy.safetensors``, ``policy.json`` and ``policy.onnx``. Returns the files."""
    where = policy.save(folder)
    if onnx:
        write_onnx(policy, where / ONNX)
    return sorted(where.glob("policy.*"))


def write_onnx(policy: Policy, file: Path) -> Path:
    """Writes the ONNX file.

    Inputs: ``obs`` (N, width) float32, flattened as in training; with images, ``vector`` and one uint8 (N,
    height, width, channels) per image. Outputs: ``action``, as ``Policy.act`` returns it for a batch, and
    ``output`` (N, out), the raw output of the network. Raises ControlError where ONNX rejects the graph.
    """
    onnx = _onnx()
    model = build(policy.parts)
    try:
        onnx.checker.check_model(model, full_check=True)
    except onnx.checker.ValidationError as error:
        why = " ".join(str(error).split())
        raise ControlError(
            f"The policy cannot be written as ONNX ({why}): use the safetensors file."
        ) from None
    model.metadata_props.add(key="env", value=policy.env_id)
    partial = file.with_name(f".{file.name}.tmp")
    partial.write_bytes(model.SerializeToString())
    return partial.replace(file)


def build(parts: PolicyParts) -> Any:
    """Builds the ``onnx.ModelProto`` of the greedy policy."""
    onnx = _onnx()
    graph = _Graph(onnx)
    features = _features(graph, parts)
    x = features[0] if len(features) == 1 else graph.op("Concat", *features, axis=1)
    for layer in parts.layers:
        x = _layer(graph, x, layer)
    graph.op("Identity", x, name="output")
    graph.op("Identity", _action(graph, x, parts), name="action")
    kind = onnx.TensorProto.FLOAT if parts.actions.kind == "box" else onnx.TensorProto.INT64
    outputs = [
        graph.value("action", kind, ["N", *parts.actions.shape]),
        graph.value("output", onnx.TensorProto.FLOAT, ["N", len(parts.layers[-1][1])]),
    ]
    made = onnx.helper.make_graph(graph.nodes, "policy", graph.inputs, outputs, graph.constants)
    opset = [onnx.helper.make_opsetid("", OPSET)]
    return onnx.helper.make_model(made, opset_imports=opset, ir_version=IR_VERSION, producer_name="onward")


class _Graph:
    """Collects nodes and constants; every operation returns the name of its result."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        result = name or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(kind, list(inputs), [result], **attributes))
        return result

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(self._onnx.numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def value(self, name: str, kind: int, shape: list[Any]) -> Any:
        return self._onnx.helper.make_tensor_value_info(name, kind, shape)

    def input(self, name: str, kind: int, shape: list[Any]) -> str:
        self.inputs.append(self.value(name, kind, shape))
        return name

    def cast(self, x: str, dtype: str) -> str:
        return self.op("Cast", x, to=getattr(self._onnx.TensorProto, dtype))


def _features(graph: _Graph, parts: PolicyParts) -> list[str]:
    types = _onnx().TensorProto
    layout, found = parts.layout, []
    if layout.width:
        x = graph.input("obs" if layout.flat else "vector", types.FLOAT, ["N", layout.width])
        found.append(x if parts.norm is None else _normalised(graph, x, parts.norm))
    if parts.images is None:
        return found
    for (key, shape), (convolutions, linear) in zip(
        layout.images, image_layers(layout, parts.images), strict=True
    ):
        x = graph.cast(graph.input(key, types.UINT8, ["N", *shape]), "FLOAT")
        x = graph.op("Transpose", graph.op("Div", x, graph.constant(255.0)), perm=[0, 3, 1, 2])
        for c in convolutions:
            weights = graph.constant(c.weight), graph.constant(c.bias)
            x = graph.op("Conv", x, *weights, strides=[c.stride] * 2, pads=[c.padding] * 4)
            x = graph.op("Relu", x)
        found.append(_layer(graph, graph.op("Flatten", x, axis=1), Layer(*linear, "relu")))
    return found


def _normalised(graph: _Graph, x: str, norm: tuple[NDArray[Any], NDArray[Any], float]) -> str:
    """Normalises in float64, as training does: a large mean would cost digits otherwise."""
    mean, variance, clip = norm
    x = graph.op("Sub", graph.cast(x, "DOUBLE"), graph.constant(mean, np.float64))
    x = graph.op("Div", x, graph.constant(np.sqrt(variance + EPSILON), np.float64))
    bounds = graph.constant(-clip, np.float64), graph.constant(clip, np.float64)
    return graph.cast(graph.op("Clip", x, *bounds), "FLOAT")


def _layer(graph: _Graph, x: str, layer: Layer) -> str:
    x = graph.op("Gemm", x, graph.constant(layer.weight), graph.constant(layer.bias), transB=1)
    if layer.layer_norm is not None:
        gain, shift = layer.layer_norm
        x = graph.op("LayerNormalization", x, graph.constant(gain), graph.constant(shift), epsilon=1e-5)
    return (
        x if layer.activation == "none" else graph.op({"tanh": "Tanh", "relu": "Relu"}[layer.activation], x)
    )


def _action(graph: _Graph, x: str, parts: PolicyParts) -> str:
    actions = parts.actions
    if actions.kind == "box":
        x = _part(graph, x, 0, actions.dim) if len(parts.layers[-1][1]) > actions.dim else x
        if parts.head == "tanh":
            x = graph.op("Tanh", x)
        else:
            x = graph.op("Clip", x, graph.constant(-1.0), graph.constant(1.0))
        low, high = np.array(actions.low, np.float32), np.array(actions.high, np.float32)
        x = graph.op("Mul", graph.op("Add", x, graph.constant(1.0)), graph.constant((high - low) / 2))
        x = graph.op("Add", x, graph.constant(low))
        x = graph.op("Min", graph.op("Max", x, graph.constant(low)), graph.constant(high))
        return _shaped(graph, x, actions.shape)
    if actions.kind == "multi_binary":
        x = graph.cast(graph.op("Greater", x, graph.constant(0.0)), "INT64")
    elif actions.kind == "discrete":
        x = graph.op("ArgMax", x, axis=1, keepdims=0)
    else:
        ends = np.cumsum(actions.sizes).tolist()
        ranges = zip([0, *ends], ends, strict=False)
        picked = [graph.op("ArgMax", _part(graph, x, *r), axis=1, keepdims=1) for r in ranges]
        x = picked[0] if len(picked) == 1 else graph.op("Concat", *picked, axis=1)
    if any(actions.start):
        x = graph.op("Add", x, graph.constant(actions.start, np.int64))
    return x if actions.kind == "discrete" else _shaped(graph, x, actions.shape)


def _part(graph: _Graph, x: str, begin: int, end: int) -> str:
    bounds = (graph.constant([number], np.int64) for number in (begin, end, 1))
    return graph.op("Slice", x, *bounds)


def _shaped(graph: _Graph, x: str, shape: tuple[int, ...]) -> str:
    return x if len(shape) == 1 else graph.op("Reshape", x, graph.constant([-1, *shape], np.int64))


def _onnx() -> Any:
    try:
        import onnx
        import onnx.checker
    except ImportError:
        raise MissingExtraError("control", "Writing ONNX") from None
    return onnx
