"""INT4 weights: exact where they can be, within half a step elsewhere, any width, and nothing unknown is read."""

import pytest
import torch
from torch import Tensor

from fourleaf.errors import CheckpointError, ConfigError
from fourleaf.quant.int4 import GROUP_SIZES, Int4Config, Packed, dequantise, grid, pack, quantise, unpack

SCHEMES = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
SCALES = pytest.mark.parametrize("scale_dtype", ["float16", "bfloat16"])
GROUPS = pytest.mark.parametrize("group_size", GROUP_SIZES)
WIDTHS = pytest.mark.parametrize("width", [1, 31, 32, 33, 64, 97, 160, 257])


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_loop(packed: Packed) -> Tensor:
    """What packed weights mean, weight by weight."""
    rows, out = packed.values.shape[0], torch.empty(packed.values.shape[0], packed.width, dtype=torch.float64)
    for row in range(rows):
        for column in range(packed.width):
            byte = int(packed.values[row, column // 2])
            level = byte >> 4 if column % 2 else byte & 15
            group = column // packed.group_size
            zero = 8.0 if packed.zeros is None else float(packed.zeros[row, group])
            out[row, column] = (level - zero) * float(packed.scales[row, group])
    return out


@SCHEMES
@SCALES
@GROUPS
@WIDTHS
def test_no_weight_moves_further_than_half_a_step(width, group_size, scale_dtype, symmetric):
    config = Int4Config(group_size=group_size, symmetric=symmetric, scale_dtype=scale_dtype)
    for weight in (drawn(5, width), drawn(5, width) + 2, drawn(5, width).abs(), -drawn(5, width).exp() * 1e-3):
        packed = quantise(weight, config)
        step = packed.scales.abs().double().repeat_interleave(group_size, 1)[:, :width]
        error = (dequantise(packed, torch.float64) - weight).abs()
        assert bool((error <= step * (0.5 + 1e-9)).all())


@SCHEMES
@SCALES
@WIDTHS
def test_dequantise_is_the_formula_weight_by_weight(width, scale_dtype, symmetric):
    packed = quantise(drawn(3, width), Int4Config(group_size=32, symmetric=symmetric, scale_dtype=scale_dtype))
    wanted = by_loop(packed)
    assert torch.equal(dequantise(packed, torch.float64), wanted)
    assert torch.equal(dequantise(packed, torch.float32).double(), wanted), "fp32 holds every product exactly"
    assert torch.equal(dequantise(packed, torch.bfloat16), wanted.float().bfloat16())


@SCHEMES
@SCALES
@WIDTHS
def test_weights_on_the_grid_come_back_bit_for_bit(width, scale_dtype, symmetric):
    config = Int4Config(group_size=32, symmetric=symmetric, scale_dtype=scale_dtype)
    random = torch.Generator().manual_seed(1)
    levels = torch.randint(0, 16, (6, width), generator=random)
    levels[:, ::32], levels[:, 1::32] = 0, 15  # both ends of each group are there; a group of one has its low end
    scale = (drawn(6, 1).abs() * 0.02).to(config.dtype).double()
    zero = 8 if symmetric else torch.randint(0, 16, (6, 1), generator=random)
    weight = (levels - zero) * scale
    if width % 32 == 1:
        weight[:, -1] = 0.0
    assert torch.equal(dequantise(quantise(weight, config), torch.float64), weight)


@SCHEMES
def test_a_step_that_fits_either_side_is_the_smaller(symmetric):
    """One-sided weights: all levels are used, on the side where the weights are."""
    weight = torch.linspace(0.0, 1.5, 32)[None]
    for side in (weight, -weight):
        step = float(grid(side, Int4Config(group_size=32, symmetric=symmetric))[0].abs())
        assert step == pytest.approx(1.5 / (8 if symmetric else 15), rel=1e-3)


@SCHEMES
def test_zeros_stay_zero(symmetric):
    weight = drawn(2, 96)
    weight[:, 32:64] = 0.0
    found = dequantise(quantise(weight, Int4Config(group_size=32, symmetric=symmetric)))
    assert not bool(found[:, 32:64].any())
    assert bool(found[:, :32].any())


def test_a_group_is_quantised_by_itself():
    """A short last group too: what stands elsewhere in the row does not matter."""
    config = Int4Config(group_size=32)
    weight = drawn(4, 75)
    whole = dequantise(quantise(weight, config))
    for begin in range(0, 75, 32):
        part = weight[:, begin : begin + 32]
        assert torch.equal(dequantise(quantise(part, config)), whole[:, begin : begin + 32])


def test_a_stack_of_experts_is_each_by_itself():
    config = Int4Config(group_size=64)
    stack = drawn(3, 5, 70)
    packed = quantise(stack, config)
    assert packed.num_weights == 3 * 5 * 70
    for expert in range(3):
        assert torch.equal(dequantise(packed[expert]), dequantise(quantise(stack[expert], config)))
        assert torch.equal(dequantise(packed)[expert], dequantise(packed[expert]))


@WIDTHS
def test_unpack_undoes_pack(width):
    levels = torch.randint(0, 16, (3, width), dtype=torch.uint8)
    assert pack(levels).shape == (3, -(-width // 2))
    assert torch.equal(unpack(pack(levels), width), levels)


def test_a_byte_holds_the_even_input_in_its_low_half():
    assert pack(torch.tensor([[1, 2, 3]], dtype=torch.uint8)).tolist() == [[0x21, 0x03]]


@pytest.mark.parametrize(("bits", "symmetric"), [(4 + 16 / 64, True), (4 + 32 / 64, False)])
def test_size_is_four_bits_and_the_groups_share(bits, symmetric):
    packed = quantise(drawn(8, 256), Int4Config(group_size=64, symmetric=symmetric))
    assert packed.num_bytes * 8 == bits * packed.num_weights


@SCHEMES
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e7])
def test_what_no_step_can_hold_is_refused(value, symmetric):
    weight = drawn(2, 64)
    weight[1, 3] = value
    with pytest.raises(CheckpointError, match="does not fit INT4 with float16 scales"):
        quantise(weight, Int4Config(symmetric=symmetric))


def test_a_config_is_read_as_it_was_written():
    config = Int4Config(group_size=128, symmetric=True, scale_dtype="bfloat16", method="gptq")
    assert Int4Config.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_method": "awq"}, "quant_method 'awq'; this release of Fourleaf reads quant_method 'fourleaf'"),
        ({"scheme": "int3"}, "scheme 'int3'; this release of Fourleaf reads scheme 'int4'"),
        ({"version": 2}, "version 2; this release of Fourleaf reads version 1"),
        ({"group_size": 48}, "group_size is 48; it must be one of 32, 64, 128"),
        ({"plain_layers": -1}, "plain_layers is -1; it must be a whole number from 0"),
        ({"scale_dtype": "float8"}, "scale_dtype is 'float8'"),
        ({"rotated": True}, "'rotated', unknown in version 1"),
    ],
)
def test_what_is_not_known_is_refused_by_name(change, message):
    with pytest.raises(ConfigError, match=message):
        Int4Config.from_dict(Int4Config().to_dict() | change)
    with pytest.raises(ConfigError, match="it must be an object"):
        Int4Config.from_dict("int4")
