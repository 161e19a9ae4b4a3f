"""Products of rows with a weight, in the form that suits each number of rows, against the sum over inputs."""

import pytest
import torch
from torch import Tensor, nn

from fourleaf.kernels import products
from fourleaf.kernels.products import FILLED, MOST_BLOCKED, Product, can_block, filled, warm

SHAPES = [(48, 5), (5, 48), (432, 256), (1, 3), (3, 1)]
needs_blocks = pytest.mark.skipif(
    not can_block(1, torch.float32), reason="weights are held in blocks on processors with AVX-512 alone"
)


def drawn(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def wanted(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Row by row and output by output, in fp64."""
    out = torch.stack([(weight.double() * row).sum(1) for row in rows.double()])
    return out if bias is None else out + bias.double()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("by_columns", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_any_number_of_rows(shape, by_columns, has_bias, dtype):
    weight, bias = drawn(shape, 1, dtype), drawn(shape[:1], 2, dtype) if has_bias else None
    product = Product(weight, bias, by_columns=by_columns)
    bound = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 0.02}[dtype] * shape[1] ** 0.5 * 4
    for num in (1, 2, 3, 4, 5, 8, 9, 31, 33, 56, 60, 200, 500):
        rows = drawn((num, shape[1]), num, dtype)
        with torch.inference_mode():
            found = product(rows)
        assert found.dtype == dtype
        torch.testing.assert_close(
            found.double(), wanted(rows, weight, bias), rtol=0.01 * (dtype == torch.bfloat16), atol=bound
        )


@needs_blocks
def test_rows_that_are_part_of_a_wider_tensor():
    weight, wide = drawn((6, 8), 1), drawn((7, 20), 2)
    product = Product(weight)
    torch.testing.assert_close(product(wide[:, 4:12]), wide[:, 4:12] @ weight.t())
    torch.testing.assert_close(product(wide[::3, 4:12]), wide[::3, 4:12] @ weight.t())


@needs_blocks
def test_no_rows_give_no_rows():
    assert Product(drawn((6, 8), 1))(torch.empty(0, 8)).shape == (0, 6)


@needs_blocks
@pytest.mark.parametrize("by_columns", [True, False])
def test_one_row_reads_the_first_form_and_a_few_the_blocks(by_columns):
    product = Product(drawn((8, 6), 1), by_columns=by_columns)
    product.weight = torch.full_like(product.weight, torch.nan)
    assert product(drawn((1, 6), 2)).isnan().all()
    assert not product(drawn((2, 6), 2)).isnan().any()


def test_only_what_is_small_and_fp32_and_in_main_memory_is_held_twice():
    assert not can_block(MOST_BLOCKED + 1, torch.float32)
    assert not can_block(8, torch.float64)
    assert not can_block(8, torch.bfloat16)
    assert not can_block(8, torch.float32, torch.device("cuda"))


@pytest.mark.parametrize("missing", ["the library", "AVX-512"])
def test_without_library_and_processor_nothing_is_in_blocks(missing, monkeypatch):
    if missing == "the library":
        monkeypatch.setattr(products.torch.backends.mkldnn, "is_available", lambda: False)
    else:
        monkeypatch.setattr(products.torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    product, rows = Product(weight := drawn((6, 8), 1)), drawn((4, 8), 2)
    assert product.blocked is None
    torch.testing.assert_close(product(rows), rows @ weight.t())


def test_only_a_weight_by_columns_is_a_copy():
    linear = nn.Linear(8, 6, bias=False)
    assert Product(linear.weight).weight.data_ptr() == linear.weight.data_ptr()
    assert Product(linear.weight, by_columns=True).weight.is_contiguous()


@needs_blocks
def test_many_rows_read_the_first_form():
    product = Product(drawn((6, 8), 1))
    product.weight = torch.full_like(product.weight, torch.nan)
    assert not product(drawn((500, 8), 2)).isnan().any()
    assert product(drawn((200, 8), 2)).isnan().all()
    assert product(drawn((FILLED[-1] + 1, 8), 2)).isnan().all()


@needs_blocks
def test_what_a_row_gives_does_not_depend_on_the_rows_that_are_filled_up():
    product, rows = Product(drawn((6, 8), 1)), drawn((FILLED[-1], 8), 2)
    for num in range(2, FILLED[-1] + 1):
        if (most := filled(num)) is not None:
            assert torch.equal(product(rows[:num]), product(rows[:most])[:num])


def test_which_numbers_of_rows_are_filled_up_to_which():
    found = {num: filled(num) for num in range(1, FILLED[-1] + 2)}
    assert found[1] is None
    assert [found[num] for num in (2, 4, 5, 8, 9, 13, 17, 25, 32)] == [4, 4, 8, 8, 12, 16, 24, 32, 32]
    assert [num for num, most in found.items() if most == 64] == list(range(56, 65))
    assert [num for num, most in found.items() if most == 512] == list(range(448, 513))
    assert all(most is None for num, most in found.items() if 32 < num < 56 or 64 < num < 448 or num > 512)


@needs_blocks
def test_warming_runs_each_shape_once_for_each_number_of_rows(monkeypatch):
    ran = []
    monkeypatch.setattr(Product, "__call__", lambda self, rows: ran.append((self.weight.shape, len(rows))))
    warm(
        [
            Product(drawn((6, 8), 1), by_columns=True),
            Product(drawn((6, 8), 2), by_columns=True),
            Product(drawn((8, 6), 3)),
        ]
    )
    assert ran == [((8, 6), n) for n in FILLED] + [((6, 8), n) for n in FILLED]
