"""onnxruntime's 4-bit product: a graph of one node, written by hand, with the packed weights inside.

The node is `com.microsoft.MatMulNBits` (onnxruntime's docs/ContribOperators.md). It wants weights as [O, G, group/2]
bytes with the even input in the low half, which is our order but for a short last group, and zero points packed two a
byte. The graph is a protobuf of some twenty fields (onnx.proto3), written here so that no `onnx` package is needed.

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
_FLOAT, _UINT8, _INT = 1, 2, 2
# accuracy_level of the node: the narrowest type that rows may be rounded to. 0 leaves them as they are.
_AS_THEY_ARE, _INT8 = 0, 4


def product(packed: Packed, *, int8_rows: bool) -> Callable[[Tensor], Tensor]:
    """x W^T for rows x [R, I] of any floating dtype; computed in fp32, or in int8 a group at a time."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    graph = _model(packed, _INT8 if int8_rows else _AS_THEY_ARE)
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def run(x: Tensor) -> Tensor:
        (out,) = session.run(None, {"A": x.detach().float().contiguous().numpy()})
        return torch.from_numpy(out).to(x.dtype)

    return run


def _model(packed: Packed, accuracy: int) -> bytes:
    outputs, width, group = packed.num_outputs, packed.width, packed.group_size
    groups = num_groups(width, group)
    values = F.pad(packed.values, (0, groups * group // 2 - packed.values.shape[-1]))
    weights = [
        _tensor("B", values.view(outputs, groups, group // 2).numpy(), _UINT8),
        _tensor("scales", packed.scales.float().flatten().numpy(), _FLOAT),
    ]
    names = ["A", "B", "scales"]
    if packed.zeros is not None:
        weights.append(_tensor("zeros", pack(packed.zeros.to(torch.uint8)).flatten().numpy(), _UINT8))
        names.append("zeros")
    numbers = {"K": width, "N": outputs, "bits": 4, "block_size": group, "accuracy_level": accuracy}
    node = b"".join(
        (
            *(_field(1, name) for name in names),
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
            *(_field(5, tensor) for tensor in weights),
            _field(11, _value("A", ("rows", width))),
            _field(12, _value("Y", ("rows", outputs))),
        )
    )
    opsets = [_field(1, domain) + _number(2, version) for domain, version in (("", _OPSET), (_MICROSOFT, 1))]
    return b"".join((_number(1, _IR_VERSION), _field(7, graph), *(_field(8, opset) for opset in opsets)))


def _tensor(name: str, array: NDArray[np.generic], kind: int) -> bytes:
    dims = b"".join(_number(1, size) for size in array.shape)
    return dims + _number(2, kind) + _field(8, name) + _field(9, array.tobytes())


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
