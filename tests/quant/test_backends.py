"""Every backend computes what the plain product does, for any shape, within the error that it states."""

import gc
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fourleaf.quant.backends import BACKENDS, chosen, plain, unpacked
from fourleaf.quant.int4 import Int4Config, dequantise, quantise

TASKS = Path("/proc/self/task")
SCHEMES = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
GROUPS = pytest.mark.parametrize("group_size", [32, 64, 128])
SHAPES = [(1, 1), (37, 97), (16, 64), (160, 416), (416, 160), (33, 130), (96, 256)]


@pytest.fixture(params=list(BACKENDS))
def backend(request):
    found = BACKENDS[request.param]
    if (reason := found.missing()) is not None:
        pytest.skip(reason)
    return found


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@SCHEMES
@GROUPS
@pytest.mark.parametrize(("outputs", "width"), SHAPES)
@torch.inference_mode()
def test_it_agrees_with_the_dequantised_product(outputs, width, group_size, symmetric, backend):
    packed = quantise(drawn(outputs, width, seed=0), Int4Config(group_size=group_size, symmetric=symmetric))
    run, weight = backend.make(packed), dequantise(packed, torch.float64)
    for rows in (1, 8, 32, 70):
        x = drawn(rows, width, seed=rows)
        found, wanted = run(x), x.double() @ weight.T
        assert (found.shape, found.dtype) == ((rows, outputs), torch.float32)
        size = float((x.norm(dim=1)[:, None] * weight.norm(dim=1)).norm()) / width**0.5  # what random signs leave
        assert float((found - wanted).norm()) <= max(backend.error, 1e-6) * max(float(wanted.norm()), size)


@SCHEMES
@GROUPS
@pytest.mark.parametrize("scale_dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_fast_unpacking_is_dequantise_bit_for_bit(dtype, scale_dtype, group_size, symmetric):
    config = Int4Config(group_size=group_size, symmetric=symmetric, scale_dtype=scale_dtype)
    for outputs, width in SHAPES:
        packed = quantise(0.02 * drawn(outputs, width, seed=0), config)
        assert torch.equal(unpacked(packed, dtype), dequantise(packed, dtype))
    stack = quantise(drawn(3, 5, 70, seed=1), config)
    assert torch.equal(unpacked(stack, dtype), dequantise(stack, dtype))


def test_the_choice_is_a_fast_one_and_leaves_small_matrices_unpacked(monkeypatch):
    small, large = (quantise(drawn(256, width, seed=0), Int4Config()) for width in (512, 520))
    assert chosen(small) is None
    x, gone = drawn(4, 520, seed=1), "not here"
    for name in ("matmulnbits_int8", "int4pack", "plain"):
        if BACKENDS[name].missing() is None:
            run = chosen(large)
            assert run is not None
            assert torch.equal(run(x), BACKENDS[name].make(large)(x))
        monkeypatch.setitem(BACKENDS, name, replace(BACKENDS[name], missing=lambda: gone))


@SCHEMES
@torch.inference_mode()
def test_a_row_does_not_depend_on_the_rows_beside_it(symmetric, backend):
    """But for how sums are ordered: a request's answer is its own."""
    packed = quantise(drawn(48, 200, seed=1), Int4Config(symmetric=symmetric))
    run, x = backend.make(packed), drawn(32, 200, seed=2)
    together = run(x)
    alone = torch.cat([run(row[None]) for row in x])
    assert float((together - alone).norm() / together.norm()) < max(1e-6, backend.error)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@torch.inference_mode()
def test_rows_keep_their_dtype(dtype, backend):
    packed = quantise(drawn(20, 70, seed=3), Int4Config())
    x = drawn(5, 70, seed=4).to(dtype)
    found = backend.make(packed)(x)
    assert found.dtype == dtype
    wanted = plain(packed)(x.double())
    assert float((found - wanted).norm() / wanted.norm()) < 0.02


def test_a_product_keeps_working_when_rows_are_views(backend):
    packed = quantise(drawn(20, 64, seed=5), Int4Config())
    x = drawn(6, 128, seed=6)
    run = backend.make(packed)
    assert torch.equal(run(x[::2, 64:]), run(x[::2, 64:].contiguous()))


@pytest.mark.parametrize("width", [128, 150])
def test_a_product_owns_what_it_needs(width, backend):
    packed = quantise(drawn(64, width, seed=7), Int4Config())
    run, x = backend.make(packed), drawn(4, width, seed=8)
    before = run(x)
    del packed
    gc.collect()
    junk = [torch.full((64, width), 255, dtype=torch.uint8) for _ in range(200)]
    assert torch.equal(run(x), before)
    assert len(junk) == 200


def test_a_product_brings_no_threads_of_its_own(backend):
    """Onnxruntime's would take the cores from torch's: decision 007."""
    if not TASKS.is_dir():
        pytest.skip("only Linux lists threads")
    packed, num = quantise(drawn(64, 64, seed=9), Int4Config()), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        runs = [backend.make(packed)]
        runs[0](drawn(8, 64, seed=10))
        before = len(list(TASKS.iterdir()))
        runs += [backend.make(packed) for _ in range(4)]
        assert all(bool(run(drawn(8, 64, seed=10)).isfinite().all()) for run in runs)
        assert len(list(TASKS.iterdir())) == before
    finally:
        torch.set_num_threads(num)
