"""Weights as 4-bit integers: what they are, how they are packed, and `dequantise`, the truth about what they mean.

A row of a matrix is cut into groups along the input dimension; the last one may be short. A group has a step (`scale`)
and a level 0..15 that means zero (`zero`), and

    weight = (level - zero) * scale            zero = 8 throughout where the scheme is symmetric

Levels are rounded to nearest. Steps are rounded *up* to the dtype that they are stored in, and chosen so that both ends
of a group lie on the grid: no weight is clipped, and none is further than half a step from what it becomes.
Every product (level - zero) * scale is exact in fp32: at most 4 and 11 significant bits.

Shapes: O outputs, I inputs, G groups of a row. Stacked experts put E in front.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fourleaf.errors import CheckpointError, ConfigError

GROUP_SIZES = (32, 64, 128)
METHODS = ("rtn", "gptq")
QUANT_METHOD, SCHEME, VERSION = "fourleaf", "int4", 1
SYMMETRIC_ZERO, LEVELS = 8, 16
# Weights that are quantised at a time, so that what is needed beside a matrix stays small however large it is.
_AT_ONCE = 1 << 22
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Int4Config:
    """How weights were quantised: the `quantization_config` of a config.json.

    method says how levels were found, "rtn" (round to nearest) or "gptq" (calibrated); both are read alike.
    plain_layers: layers from the first on whose linears are not packed (their experts are).
    Raises ConfigError where a value is outside its limits.
    """

    group_size: int = 64
    symmetric: bool = False
    scale_dtype: Literal["float16", "bfloat16"] = "float16"
    method: Literal["rtn", "gptq"] = "rtn"
    plain_layers: int = 0

    def __post_init__(self) -> None:
        for field, allowed in (
            ("group_size", GROUP_SIZES),
            ("symmetric", (True, False)),
            ("scale_dtype", tuple(_DTYPES)),
            ("method", METHODS),
        ):
            value = getattr(self, field)
            if value not in allowed:
                raise ConfigError(f"{field} is {value!r}; it must be one of {', '.join(map(str, allowed))}")
        if type(self.plain_layers) is not int or self.plain_layers < 0:
            raise ConfigError(f"plain_layers is {self.plain_layers!r}; it must be a whole number from 0")

    @property
    def dtype(self) -> torch.dtype:
        return _DTYPES[self.scale_dtype]

    @classmethod
    def from_dict(cls, raw: Any) -> Int4Config:
        """Reads a `quantization_config`. Raises ConfigError for a method, scheme or version that is not known here."""
        if not isinstance(raw, dict):
            raise ConfigError(f"quantization_config is {raw!r}; it must be an object")
        known = {"quant_method": QUANT_METHOD, "scheme": SCHEME, "version": VERSION}
        for field, wanted in known.items():
            if raw.get(field) != wanted:
                raise ConfigError(
                    f"the checkpoint is quantised with {field} {raw.get(field)!r}; this release of Fourleaf reads "
                    f"{field} {wanted!r}. Quantise the original again with `fourleaf quantize`."
                )
        unknown = set(raw) - set(known) - set(cls.__dataclass_fields__)
        if unknown:
            raise ConfigError(f"quantization_config has {sorted(unknown)[0]!r}, unknown in version {VERSION}")
        return cls(**{field: raw[field] for field in cls.__dataclass_fields__ if field in raw})

    def to_dict(self) -> dict[str, Any]:
        own = {field: getattr(self, field) for field in self.__dataclass_fields__}
        return {"quant_method": QUANT_METHOD, "scheme": SCHEME, "version": VERSION, **own}


@dataclass(frozen=True, eq=False)
class Packed:
    """A quantised matrix, or a stack of them.

    values: uint8 [..., O, ceil(I/2)], input 2i in the low half of byte i, input 2i+1 in its high half.
    scales: [..., O, G] in fp16 or bf16. zeros: the same, whole numbers 0..15; None where all are 8.
    width: I.
    """

    values: Tensor
    scales: Tensor
    zeros: Tensor | None
    width: int
    group_size: int

    def __getitem__(self, expert: int) -> Packed:
        """One matrix of a stack; a view."""
        zeros = None if self.zeros is None else self.zeros[expert]
        return Packed(self.values[expert], self.scales[expert], zeros, self.width, self.group_size)

    def tensors(self) -> dict[str, Tensor]:
        """By the suffix that a checkpoint file adds to the parameter's name."""
        found = {"packed": self.values, "scales": self.scales}
        return found if self.zeros is None else {**found, "zeros": self.zeros}

    @property
    def num_outputs(self) -> int:
        return self.values.shape[-2]

    @property
    def num_weights(self) -> int:
        return self.values.shape[:-1].numel() * self.width

    @property
    def num_bytes(self) -> int:
        return sum(t.nbytes for t in self.tensors().values())


def num_groups(width: int, group_size: int) -> int:
    """Groups of a row of `width` inputs, a short last one included."""
    return -(-width // group_size)


def quantise(weight: Tensor, config: Int4Config) -> Packed:
    """Round to nearest. weight: [..., O, I] of any floating dtype.

    Raises CheckpointError where a weight is not finite or a step does not fit the scales' dtype.
    """
    *outer, width = weight.shape
    parts = [_quantise_rows(part, config) for part in weight.flatten(0, -2).split(max(1, _AT_ONCE // width))]
    values, scales, zeros = (
        None if part[0] is None else torch.cat([t for t in part if t is not None]).unflatten(0, outer)
        for part in zip(*parts, strict=True)
    )
    assert values is not None and scales is not None
    return Packed(values, scales, zeros, width, config.group_size)


def _quantise_rows(weight: Tensor, config: Int4Config) -> tuple[Tensor, Tensor, Tensor | None]:
    """[O, I] -> values, scales, zeros."""
    scales, zeros = grid(weight, config)
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    zero = SYMMETRIC_ZERO if zeros is None else zeros.to(wide.dtype).unsqueeze(-1)
    levels = nearest(_grouped(wide, config.group_size), scales.to(wide.dtype).unsqueeze(-1), zero)
    return pack(levels.flatten(-2)[..., : weight.shape[-1]]), scales, zeros


def grid(weight: Tensor, config: Int4Config) -> tuple[Tensor, Tensor | None]:
    """(scales, zeros) of each group, [..., O, G] in the scales' dtype; zeros None where the scheme is symmetric."""
    parts = _grouped(weight.to(torch.promote_types(weight.dtype, torch.float32)), config.group_size)
    top, bottom = parts.amax(-1).clamp(min=0), -parts.amin(-1).clamp(max=0)
    if config.symmetric:
        # Levels reach 8 steps to one side and 7 to the other; a negative step turns the longer side to where it fits.
        upright, turned = torch.maximum(top / 7, bottom / 8), torch.maximum(top / 8, bottom / 7)
        scales = _rounded_up(torch.minimum(upright, turned), config.dtype)
        scales = torch.where(turned < upright, -scales, scales)
        zeros = None
    else:
        scales = _rounded_up((top + bottom) / (LEVELS - 1), config.dtype)
        zeros = (bottom / scales.to(bottom.dtype)).round().to(config.dtype)
    if not torch.isfinite(scales).all():
        largest = float(weight.abs().max())
        raise CheckpointError(f"a weight of magnitude {largest:g} does not fit INT4 with {config.scale_dtype} scales")
    return scales, zeros


def nearest(weight: Tensor, scale: Tensor, zero: Tensor | int) -> Tensor:
    """The level nearest to each weight, as uint8; all arguments broadcast."""
    return (weight / scale).round().add(zero).clamp(0, LEVELS - 1).to(torch.uint8)


def dequantise(packed: Packed, dtype: torch.dtype = torch.float32) -> Tensor:
    """What packed weights mean, [..., O, I]: exact in fp32 and fp64, rounded once from fp32 in a narrower dtype."""
    wide = torch.promote_types(dtype, torch.float32)
    levels = _grouped(unpack(packed.values, packed.width).to(wide), packed.group_size)
    zero = SYMMETRIC_ZERO if packed.zeros is None else packed.zeros.to(wide).unsqueeze(-1)
    weight = (levels - zero) * packed.scales.to(wide).unsqueeze(-1)
    return weight.flatten(-2)[..., : packed.width].to(dtype)


def pack(levels: Tensor) -> Tensor:
    """uint8 levels [..., I] -> two a byte, [..., ceil(I/2)]; an odd row's last high half is 0."""
    pairs = F.pad(levels, (0, levels.shape[-1] % 2)).unflatten(-1, (-1, 2))
    return pairs[..., 0] | (pairs[..., 1] << 4)


def unpack(values: Tensor, width: int) -> Tensor:
    """[..., ceil(I/2)] bytes -> uint8 levels [..., I]."""
    return torch.stack((values & 0xF, values >> 4), -1).flatten(-2)[..., :width]


def _grouped(x: Tensor, group_size: int) -> Tensor:
    """[..., O, I] -> [..., O, G, group_size], zeros behind a short last group."""
    width = x.shape[-1]
    return F.pad(x, (0, num_groups(width, group_size) * group_size - width)).unflatten(-1, (-1, group_size))


def _rounded_up(steps: Tensor, dtype: torch.dtype) -> Tensor:
    """The least value of `dtype` that is no less; 1 in place of 0, so that a group of zeros has a step."""
    found = torch.where(steps == 0, 1.0, steps).to(dtype)
    next_above = (found.view(torch.int16) + 1).view(dtype)  # of positive numbers the next bit pattern is the next one
    return torch.where(found.to(steps.dtype) < steps, next_above, found)
