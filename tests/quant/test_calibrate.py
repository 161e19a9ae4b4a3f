"""Calibrated levels beat the nearest ones where inputs are correlated, and are the nearest where they are not.

Most tests hold the grid to the full range of each group, so that levels can be compared with those of `quantise`.
"""

import pytest
import torch
from torch import Tensor

from fourleaf.quant import calibrate as calibration
from fourleaf.quant import trial
from fourleaf.quant.calibrate import calibrate, solve
from fourleaf.quant.int4 import Int4Config, Packed, dequantise, grid, quantise
from fourleaf.quant.linear import is_quantised

SCHEMES = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
WIDTHS = pytest.mark.parametrize("width", [31, 96, 161])


def correlated(rows: int, width: int, seed: int) -> Tensor:
    """Rows whose columns are mixtures of a few causes, some far more active than others."""
    random = torch.Generator().manual_seed(seed)
    causes = torch.randn(rows, max(2, width // 6), generator=random, dtype=torch.float64)
    mixed = causes @ torch.randn(causes.shape[1], width, generator=random, dtype=torch.float64)
    return (mixed + 0.3 * torch.randn(rows, width, generator=random, dtype=torch.float64)) * torch.linspace(
        0.2, 3, width
    )


def weights(outputs: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(outputs, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def full_range(monkeypatch):
    monkeypatch.setattr(trial, "SHARES", (1.0,))


def error(packed: Packed, weight: Tensor, x: Tensor) -> float:
    return float((x @ (weight - dequantise(packed, torch.float64)).T).square().sum())


@SCHEMES
@WIDTHS
def test_the_output_error_is_below_that_of_the_nearest_levels(width, symmetric, full_range):
    config = Int4Config(group_size=32, symmetric=symmetric)
    weight, seen = weights(24, width), correlated(400, width, 1)
    found, nearest = solve(weight, seen.T @ seen, config), quantise(weight, config)
    assert error(found, weight, seen) < 0.5 * error(nearest, weight, seen)
    assert torch.equal(found.scales, nearest.scales)


@SCHEMES
@WIDTHS
def test_steps_found_by_trial_move_no_group_further_and_some_less(width, symmetric):
    config, activity = Int4Config(group_size=32, symmetric=symmetric), torch.linspace(0.1, 9, width).double()
    weight = weights(24, width)
    scales, zeros = trial.grid_by_trial(weight, activity, config)
    found = trial._errors(weight, activity, scales, zeros, config)
    full = trial._errors(weight, activity, *grid(weight, config), config)
    assert bool((found <= full).all())
    assert float((found < full).double().mean()) > 0.3
    plainly = (weight - dequantise(quantise(weight, config), torch.float64)).square() * activity
    assert float(full.sum()) == pytest.approx(float(plainly.sum()), rel=1e-9)


def test_the_steps_of_a_calibrated_matrix_are_those_found_by_trial():
    config, weight, x = Int4Config(group_size=32), weights(24, 96), correlated(400, 96, 1)
    hessian = x.T @ x
    scales, zeros = trial.grid_by_trial(weight, hessian.diagonal(), config)
    found = solve(weight, hessian, config)
    assert found.zeros is not None
    assert zeros is not None
    assert torch.equal(found.scales, scales)
    assert torch.equal(found.zeros, zeros)
    assert error(found, weight, x) < 0.5 * error(quantise(weight, config), weight, x)


@SCHEMES
@WIDTHS
@pytest.mark.parametrize("size", [1e-6, 1.0, 300.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_with_an_identity_hessian_it_is_round_to_nearest(dtype, size, width, symmetric, full_range):
    config = Int4Config(group_size=32, symmetric=symmetric)
    weight = weights(9, width).to(dtype)
    found, nearest = solve(weight, size * torch.eye(width), config), quantise(weight, config)
    assert torch.equal(found.values, nearest.values)


def test_without_a_row_it_is_round_to_nearest():
    weight = weights(5, 70)
    assert torch.equal(solve(weight, torch.zeros(70, 70), Int4Config()).values, quantise(weight, Int4Config()).values)


def test_columns_that_no_row_uses_are_rounded_to_nearest_and_owe_nothing(full_range):
    weight, x = weights(7, 64), correlated(300, 64, 2)
    x[:, 10:20] = 0.0
    found, nearest = solve(weight, x.T @ x, Int4Config()), quantise(weight, Int4Config())
    assert torch.equal(dequantise(found)[:, 10:20], dequantise(nearest)[:, 10:20])
    assert error(found, weight, x) < error(nearest, weight, x)


def test_it_is_the_update_of_optimal_brain_surgeon(full_range):
    """Column by column on the inverse itself, which loses a row and column each time: no Cholesky, no blocks."""
    config, width = Int4Config(group_size=32), 45
    weight, x = weights(6, width), correlated(200, width, 3)
    hessian = x.T @ x
    inverse = torch.linalg.inv(hessian + torch.eye(width) * calibration.DAMPING * hessian.diagonal().mean())
    packed = quantise(weight, config)
    assert packed.zeros is not None
    step, zero = (t.double().repeat_interleave(32, 1)[:, :width] for t in (packed.scales, packed.zeros))
    left, became = weight.clone(), torch.zeros_like(weight)
    for j in hessian.diagonal().argsort(descending=True, stable=True).tolist():
        level = (left[:, j] / step[:, j]).round().add(zero[:, j]).clamp(0, 15)
        became[:, j] = (level - zero[:, j]) * step[:, j]
        left -= torch.outer((left[:, j] - became[:, j]) / inverse[j, j], inverse[j])
        inverse -= torch.outer(inverse[:, j], inverse[j]) / inverse[j, j]
    found = dequantise(solve(weight, hessian, config), torch.float64)
    assert float((found != became).double().mean()) < 0.01, "rounding may turn a tie, and nothing else"


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
def test_settling_in_blocks_changes_nothing(block, monkeypatch):
    weight, x = weights(6, 90), correlated(200, 90, 4)
    wanted = solve(weight, x.T @ x, Int4Config()).values
    monkeypatch.setattr(calibration, "_BLOCK", block)
    assert torch.equal(solve(weight, x.T @ x, Int4Config()).values, wanted)


@pytest.mark.parametrize("moe", [False, True], ids=["dense", "experts"])
def test_a_calibrated_model_answers_more_like_the_original(moe, make_model, make_work, with_dequantised):
    model, original = make_model(moe=moe), make_model(moe=moe)
    works = [make_work((40, 9), (33, 20), (28, 5), seed=s) for s in range(6)]
    config = Int4Config(group_size=32)
    told = []
    packed = calibrate(model, iter(works), config, lambda done, all_: told.append((done, all_)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert set(packed) == {name for name, _ in original.named_tensors() if is_quantised(name)}

    nearest = {name: quantise(t, config) for name, t in original.named_tensors() if is_quantised(name)}
    with torch.no_grad():
        truth = [original(work)[0] for work in works]
        theirs = [with_dequantised(original, nearest)(work)[0] for work in works]
        ours = [with_dequantised(original, packed)(work)[0] for work in works]
        runs = [model(work)[0] for work in works]
    for found, wanted in zip(runs, ours, strict=True):  # the model itself runs from what was returned
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)

    def off(found, rows) -> float:
        return sum(float((a[rows] - b[rows]).square().sum()) for a, b in zip(found, truth, strict=True))

    for rows in (slice(0, 98), slice(98, None)):  # clean rows, and canvas rows
        assert off(ours, rows) < off(theirs, rows)


def test_plain_layers_are_left_as_they_are(make_model, make_work):
    model, original = make_model(), make_model()
    packed = calibrate(model, [make_work((40, 9), (33, 20))], Int4Config(group_size=32, plain_layers=2))
    assert {name.split(".")[2] for name in packed} == {"2"}
    for name, tensor in original.named_tensors():
        if name not in packed:
            assert torch.equal(model.get_parameter(name), tensor)
