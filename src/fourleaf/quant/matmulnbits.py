"""onnxruntime's 4-bit product: a graph of one node, written by hand.

The node is `com.microsoft.MatMulNBits` (onnxruntime's docs/ContribOperators.md). It wants weights as [O, G, group/2]
bytes with the even input in the low half, which is our order but for a short last group, and zero points packed two a
byte. The graph is a protobuf of some twenty fields (onnx.proto3), written here so that no `onnx` package is needed.
Weights are handed over beside it, so that only the copy that onnxruntime arranges for itself takes memory: about 1.4
times the packed bytes.

Shapes: R rows, O outputs, I inputs, G groups of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fourleaf.quant.int4 import Packed, num_groups, pack

_IR_VERSION, _OPSET, _MICROSOFT = 10, 21, "com.microsoft"
_FLOAT, _UINT8, _INT, _EXTERNAL = 1, 2, 2, 1
# accuracy_level of the node: the narrowest type that rows may be rounded to. 0 leaves them as they are.
_AS_THEY_ARE, _INT8 = 0, 4


def product(packed: Packed, *, int8_rows: bool) -> Callable[[Tensor], Tensor]:
    """x W^T for rows x [R, I] of any floating dtype; computed in fp32, or in int8 a group at a time."""
    weights = _weights(packed)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # more of them fight with torch's for the cores, and cost far more than they give
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False  # a plan for each number of rows, kept: see below
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
    options.add_external_initializers(list(weights), values)
    graph = _graph(packed, weights, _INT8 if int8_rows else _AS_THEY_ARE)
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def run(x: Tensor, held: object = (weights, values)) -> Tensor:  # the session does not own what it was handed
        (out,) = session.run(None, {"A": x.detach().float().contiguous().numpy()})
        return torch.from_numpy(out).to(x.dtype)

    # What a session makes on its first rows it keeps, in the midst of what a forward frees. Were those rows a text of
    # 512 tokens, they would leave 150 MiB of holes in a model of 150 sessions.
    run(torch.zeros(1, packed.width))
    return run


def _weights(packed: Packed) -> dict[str, NDArray[np.generic]]:
    """The node's inputs behind A, in its order; B is the packed weights themselves unless their last group is short."""
    outputs, group, groups = packed.num_outputs, packed.group_size, num_groups(packed.width, packed.group_size)
    short = groups * group // 2 - packed.values.shape[-1]
    values = F.pad(packed.values, (0, short)) if short else packed.values.contiguous()
    found = {"B": values.view(outputs, groups, group // 2).numpy(), "scales": packed.scales.float().flatten().numpy()}
    if packed.zeros is not None:
        found["zeros"] = pack(packed.zeros.to(torch.uint8)).flatten().numpy()
    return found


def _graph(packed: Packed, weights: dict[str, NDArray[np.generic]], accuracy: int) -> bytes:
    outputs, width = packed.num_outputs, packed.width
    numbers = {"K": width, "N": outputs, "bits": 4, "block_size": packed.group_size, "accuracy_level": accuracy}
    node = b"".join(
        (
            *(_field(1, name) for name in ("A", *weights)),
            _field(2, "Y"),
            _field(4, "MatMulNBits"),
            *(_field(5, _field(1, name) + _number(3, value) + _number(20, _INT)) for name, value in numbers.items()),
            _field(7, _MICROSOFT),
        )
    )
    graph = b"".join(
        (
            _field(1, node),
            _field(2, "linear"),
            *(_field(5, _tensor(name, array)) for name, array in weights.items()),
            _field(11, _value("A", ("rows", width))),
            _field(12, _value("Y", ("rows", outputs))),
        )
    )
    opsets = [_field(1, domain) + _number(2, version) for domain, version in (("", _OPSET), (_MICROSOFT, 1))]
    return b"".join((_number(1, _IR_VERSION), _field(7, graph), *(_field(8, opset) for opset in opsets)))


def _tensor(name: str, array: NDArray[np.generic]) -> bytes:
    """A tensor whose values lie elsewhere; the session takes them from what it was handed under this name."""
    dims = b"".join(_number(1, size) for size in array.shape)
    kind = _UINT8 if array.dtype == np.uint8 else _FLOAT
    elsewhere = _field(13, _field(1, "location") + _field(2, name)) + _number(14, _EXTERNAL)
    return dims + _number(2, kind) + _field(8, name) + elsewhere


def _value(name: str, shape: Sequence[int | str]) -> bytes:
    """An input or output: fp32, with a name for a size that is not fixed."""
    dims = b"".join(_field(1, _number(1, size) if isinstance(size, int) else _field(2, size)) for size in shape)
    return _field(1, name) + _field(2, _field(1, _number(1, _FLOAT) + _field(2, dims)))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, content: str | bytes) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return _varint(field << 3 | 2) + _varint(len(raw)) + raw


def _varint(value: int) -> bytes:
    """Seven bits a byte, lowest first; the top bit says that more follow."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
