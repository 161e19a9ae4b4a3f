"""Sampling against a plain twin: one row at a time, in numpy, by the definitions."""

import dataclasses
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from fourleaf.diffusion import sampling as module
from fourleaf.diffusion.policy import Noise, Purpose
from fourleaf.diffusion.sampling import Sampling, adjust, choose, draw, entropy, exponentials, greedy, probabilities
from fourleaf.engine.request import GenerateParams
from fourleaf.errors import NumericError

MASK = 1
SIZE = 40
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6}

BIAS = ((3, -4.0), (11, 2.5), (MASK, 100.0))
VALUES = {
    "temperature": (0.3, 1.0, 1.7),
    "top_p": (1.0, 0.8),
    "top_k": (0, 7),
    "min_p": (0.0, 0.05),
    "presence_penalty": (0.0, 0.9),
    "frequency_penalty": (0.0, -0.4),
    "repetition_penalty": (1.0, 1.5, 0.6),
    "logit_bias": ((), BIAS),
}
GRID = [Sampling(**dict(zip(VALUES, row, strict=True))) for row in itertools.product(*VALUES.values())]


def logits_of(rows: int, dtype, seed: int = 0, size: int = SIZE) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).mul(3).to(dtype)


def counts_of(seed: int = 0, size: int = SIZE) -> torch.Tensor:
    return torch.randint(0, 4, (size,), generator=torch.Generator().manual_seed(seed)).clamp(min=1) - 1


def twin_adjust(row: np.ndarray, sampling: Sampling, mask_id, counts, allowed) -> np.ndarray:
    found = [float(value) for value in row]
    for token, bias in sampling.logit_bias:
        found[token] += bias
    for token in range(len(found)):
        if counts[token]:
            factor = sampling.repetition_penalty
            found[token] = found[token] / factor if found[token] > 0 else found[token] * factor
            found[token] -= sampling.presence_penalty + sampling.frequency_penalty * counts[token]
        if token == mask_id or not allowed[token]:
            found[token] = -math.inf
    return np.array(found)


def twin_probabilities(row: np.ndarray, sampling: Sampling) -> np.ndarray:
    if sampling.temperature == 0:
        return np.eye(len(row))[int(np.argmax(row))]
    found = np.exp((row - row.max()) / sampling.temperature)
    kept = set(range(len(row)))
    if sampling.top_k:
        kth = sorted(row, reverse=True)[min(sampling.top_k, len(row)) - 1]
        kept = {token for token in kept if row[token] >= kth}
    total = sum(found[token] for token in kept)
    share = {token: found[token] / total for token in kept}
    if sampling.top_p < 1:
        running, least = 0.0, 0.0
        for value in sorted(share.values(), reverse=True):
            least, running = value, running + value
            if running >= sampling.top_p:
                break
        share = {token: value for token, value in share.items() if value >= least}
    most = max(share.values())
    share = {token: value for token, value in share.items() if value >= sampling.min_p * most}
    return np.array([share.get(token, 0.0) for token in range(len(row))]) / sum(share.values())


def twin_draw(row: np.ndarray, key: int) -> int:
    """SplitMix64 in whole numbers of Python."""
    full, clocks = 2**64 - 1, []
    for token in range(len(row)):
        mixed = (key + (token + 1) * 0x9E3779B97F4A7C15) & full
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & full
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & full
        mixed ^= mixed >> 31
        clock = -math.log(((mixed >> 11) + 0.5) * 2.0**-53)
        clocks.append(math.inf if row[token] == 0 else clock / row[token])
    return int(np.argmin(clocks))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_every_combination_of_fields_equals_the_plain_twin(dtype):
    rows, counts = 3, counts_of()
    allowed = torch.ones(rows, SIZE, dtype=torch.bool)
    allowed[:, 20:24] = False
    allowed[1, 5:15] = False
    for number, sampling in enumerate(GRID):
        raw = logits_of(rows, dtype, seed=number)
        found = adjust(raw.clone(), sampling, MASK, counts, allowed)
        shares = probabilities(found, sampling)
        assert found.dtype == dtype
        for i in range(rows):
            wanted = twin_adjust(raw[i].numpy(), sampling, MASK, counts.tolist(), allowed[i].tolist())
            np.testing.assert_allclose(found[i], wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
            # From the same logits: a token at the edge of a cut may not hang on the last bit of the step before.
            wanted = twin_probabilities(found[i].double().numpy(), sampling)
            np.testing.assert_allclose(shares[i], wanted, rtol=0, atol=TOLERANCE[dtype] * 4)
            assert ((shares[i] > 0).numpy() == (wanted > 0)).all(), sampling


def test_every_field_changes_something():
    raw, counts = logits_of(4, torch.float64), counts_of()
    plain = Sampling(temperature=1.0)
    base = probabilities(adjust(raw.clone(), plain, MASK, counts), plain)
    changed = {
        "temperature": 0.7, "top_p": 0.5, "top_k": 3, "min_p": 0.2, "presence_penalty": 1.0,
        "frequency_penalty": 1.0, "repetition_penalty": 1.3, "logit_bias": ((5, 1.0),),
    }  # fmt: skip
    assert changed.keys() == {field.name for field in dataclasses.fields(Sampling)}
    for name, value in changed.items():
        sampling = dataclasses.replace(plain, **{name: value})
        assert not torch.equal(probabilities(adjust(raw.clone(), sampling, MASK, counts), sampling), base), name


def test_sampling_reads_its_fields_of_a_requests_parameters():
    params = GenerateParams(temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, logit_bias=((4, 2.0),))
    assert Sampling.of(params) == Sampling(0.5, 0.9, 3, 0.1, logit_bias=((4, 2.0),))
    assert Sampling.of(GenerateParams()) == Sampling()
    assert Sampling().is_plain
    assert Sampling(temperature=1.0, top_p=0.5).is_plain
    for name, value in (("presence_penalty", -1.0), ("repetition_penalty", 0.9), ("logit_bias", ((1, 1.0),))):
        assert not Sampling(**{name: value}).is_plain


@pytest.mark.parametrize(
    ("sampling", "warper"),
    [
        (Sampling(1.0, top_k=5), hf.TopKLogitsWarper(5)),
        (Sampling(1.0, top_p=0.7), hf.TopPLogitsWarper(0.7)),
        (Sampling(1.0, min_p=0.1), hf.MinPLogitsWarper(0.1)),
        (Sampling(0.6), hf.TemperatureLogitsWarper(0.6)),
    ],
    ids=["top_k", "top_p", "min_p", "temperature"],
)
def test_cuts_are_hugging_faces(sampling, warper):
    raw = logits_of(20, torch.float64, seed=5)
    wanted = torch.softmax(warper(None, raw), -1)
    torch.testing.assert_close(probabilities(raw, sampling), wanted, rtol=0, atol=1e-12)


def test_the_cuts_come_in_hugging_faces_order():
    raw = logits_of(50, torch.float64, seed=6)
    chain = (
        hf.TemperatureLogitsWarper(1.4), hf.TopKLogitsWarper(9), hf.TopPLogitsWarper(0.85), hf.MinPLogitsWarper(0.12),
    )  # fmt: skip
    wanted = raw
    for warper in chain:
        wanted = warper(None, wanted)
    found = probabilities(raw, Sampling(1.4, top_p=0.85, top_k=9, min_p=0.12))
    torch.testing.assert_close(found, torch.softmax(wanted, -1), rtol=0, atol=1e-12)


def test_the_repetition_penalty_is_hugging_faces_over_the_response():
    raw, response = logits_of(1, torch.float64, seed=7), [3, 3, 17, 30]
    wanted = hf.RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([response]), raw.clone())
    counts = torch.bincount(torch.tensor(response), minlength=SIZE)
    torch.testing.assert_close(adjust(raw, Sampling(repetition_penalty=1.7), None, counts), wanted)


def test_a_token_exactly_as_probable_as_the_last_one_kept_is_kept():
    raw = torch.log(torch.tensor([[0.4, 0.2, 0.2, 0.1, 0.1]], dtype=torch.float64))
    for sampling, kept in (
        (Sampling(1.0, top_k=2), 3),
        (Sampling(1.0, top_p=0.55), 3),
        (Sampling(1.0, top_p=0.85), 5),
        (Sampling(1.0, min_p=0.25), 5),
        (Sampling(1.0, top_p=0.0), 1),
        (Sampling(1.0, top_k=1), 1),
    ):
        assert int((probabilities(raw, sampling) > 0).sum()) == kept, sampling


@pytest.mark.parametrize("top_p", [0.0, 0.3, 0.9, 0.999999])
def test_top_p_looks_at_the_most_probable_tokens_first_and_finds_the_same(top_p, monkeypatch):
    raw = logits_of(4, torch.float32, size=4 * module.HEADS[-1])
    raw[1:3] *= torch.tensor([[0.05], [3.0]])  # flat: no head does; peaked: the first does
    for rows in (raw, raw[:1], raw[2:3]):
        found = probabilities(rows, Sampling(1.0, top_p=top_p))
        with monkeypatch.context() as patch:
            patch.setattr(module, "HEADS", ())
            assert torch.equal(found, probabilities(rows, Sampling(1.0, top_p=top_p)))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.3), Sampling(1.0, top_p=0.9), Sampling(1.0, top_k=3)])
def test_many_logits_are_taken_row_by_row_and_give_the_same(sampling, monkeypatch):
    raw = logits_of(7, torch.float32)
    whole = choose(raw, sampling, list(range(7)), 0, Noise(4))
    for chunk in (1, SIZE, 3 * SIZE):
        monkeypatch.setattr(module, "CHUNK", chunk)
        assert choose(raw, sampling, list(range(7)), 0, Noise(4)) == whole


def test_a_race_among_the_tokens_that_a_cut_leaves_is_won_by_the_same_token():
    """Whether a token has a zero beside it or is left out, its clock is the same."""
    keys = Noise(2).keys(list(range(200)), 0, Purpose.PROPOSE)
    shares = probabilities(logits_of(200, torch.float64), Sampling(1.5, top_k=9))
    assert SIZE >= 4 * 9
    flat = torch.cat([torch.full((1, SIZE), 1.0, dtype=shares.dtype), shares])  # one row without zeros: all race
    assert draw(flat, np.concatenate([keys[:1], keys])).tolist()[1:] == draw(shares, keys).tolist()


def test_a_tiny_temperature_overflows_nothing():
    raw = logits_of(3, torch.float32)
    found = probabilities(raw, Sampling(1e-30, top_p=0.9, min_p=0.1))
    assert torch.equal(found, probabilities(raw, Sampling(0.0)))


def test_bf16_logits_are_adjusted_in_fp32_and_left_as_they_are():
    raw = logits_of(2, torch.bfloat16)
    kept = raw.clone()
    found = adjust(raw, Sampling(1.0, logit_bias=BIAS, presence_penalty=1.0), None, counts_of())
    assert found.dtype == torch.float32
    assert torch.equal(raw, kept)


def test_adjusting_twice_is_adjusting_once():
    """Verification asks for a row again after each accepted proposal."""
    raw, sampling = logits_of(2, torch.float32), Sampling(1.0, 0.9, 5, 0.1, 0.5, 0.5, 1.4, BIAS)
    first = adjust(raw, sampling, MASK, counts_of())
    assert torch.equal(adjust(raw, sampling, MASK, counts_of()), first)


def test_kind_49_the_mask_id_is_never_chosen():
    raw = torch.zeros(64, 4)
    raw[:, MASK] = 50.0
    biased = Sampling(1.5, logit_bias=((MASK, 100.0),))
    tokens, _ = choose(adjust(raw.clone(), biased, MASK), biased, list(range(64)), 0, Noise(0))
    assert set(tokens) == {0, 2, 3}
    assert MASK not in greedy(raw.clone(), MASK)
    tokens, _ = choose(adjust(raw.clone(), Sampling(), MASK), Sampling(), list(range(64)), 0, Noise(0))
    assert MASK not in tokens


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_kind_42_logits_that_are_no_numbers_raise_and_give_no_tokens(temperature, broken):
    raw = logits_of(3, torch.float32)
    raw[1] = broken
    sampling = Sampling(temperature)
    with pytest.raises(NumericError):
        choose(adjust(raw.clone(), sampling, MASK), sampling, [0, 1, 2], 0, Noise(0))
    with pytest.raises(NumericError):
        greedy(raw, MASK)


def test_kind_42_one_logit_that_is_no_number_is_enough():
    raw = logits_of(2, torch.float32)
    raw[1, 7] = math.nan
    for temperature in (0.0, 1.0):
        with pytest.raises(NumericError):
            choose(raw.clone(), Sampling(temperature), [0, 1], 0, Noise(0))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(1.0, top_p=0.9, min_p=0.1)])
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_kind_42_a_request_all_of_whose_rows_are_no_numbers_raises_the_same(sampling, broken):
    with pytest.raises(NumericError):
        choose(torch.full((2, SIZE), broken), sampling, [0, 1], 0, Noise(0))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)])
def test_a_grammar_that_leaves_nothing_raises(sampling):
    allowed = torch.zeros(SIZE, dtype=torch.bool)
    with pytest.raises(NumericError):
        choose(adjust(logits_of(1, torch.float32), sampling, MASK, allowed=allowed), sampling, [0], 0, Noise(0))


def test_confidence_is_untempered_after_grammar_and_penalties_whatever_is_cut():
    raw, counts = logits_of(6, torch.float64, seed=9), counts_of()
    allowed = torch.arange(SIZE) % 3 != 0
    for temperature in (0.0, 1.6):
        sampling = Sampling(temperature, 0.6, 6, 0.05, 0.4, 0.2, 1.3, BIAS)
        adjusted = adjust(raw.clone(), sampling, MASK, counts, allowed)
        tokens, sure = choose(adjusted, sampling, list(range(6)), 3, Noise(5))
        wanted = torch.softmax(adjusted, -1)
        assert sure == pytest.approx([float(wanted[i, token]) for i, token in enumerate(tokens)], rel=1e-12)
        assert all(allowed[token] for token in tokens)


def test_kind_36_a_sample_follows_temperature_cuts_and_penalties():
    sampling = Sampling(0.8, top_p=0.95, presence_penalty=0.7)
    raw = torch.tensor([[0.3, 5.0, 1.2, -0.4, 0.9, -3.0]], dtype=torch.float64)
    adjusted = adjust(raw, sampling, MASK, torch.tensor([0, 0, 2, 0, 0, 0]))
    wanted = probabilities(adjusted, sampling)[0].numpy()
    draws = 20_000
    tokens, _ = choose(adjusted.expand(draws, -1), sampling, list(range(draws)), 0, Noise(1))
    counts = np.bincount(tokens, minlength=6)
    possible = wanted > 0
    assert possible.sum() == 4
    assert counts[~possible].sum() == 0
    expected = wanted[possible] * draws
    assert ((counts[possible] - expected) ** 2 / expected).sum() < 16.3  # chi-square, 3 degrees, p = 0.001
    # The same test tells a wrong temperature.
    wrong = probabilities(adjusted, dataclasses.replace(sampling, temperature=1.0))[0].numpy()[possible] * draws
    assert ((counts[possible] - wrong) ** 2 / wrong).sum() > 16.3


def test_a_draw_equals_the_plain_twin():
    noise, shares = Noise(11, choice=2), probabilities(logits_of(30, torch.float64, seed=3), Sampling(1.0, top_k=12))
    keys = noise.keys(list(range(100, 130)), 4, Purpose.RESIDUAL)
    wanted = [twin_draw(row, int(key)) for row, key in zip(shares.numpy(), keys, strict=True)]
    assert draw(shares, keys).tolist() == wanted
    assert len(set(wanted)) > 5
    assert draw(shares * 7, keys).tolist() == wanted  # weights need not sum to 1


def test_the_clocks_are_exponential_and_independent():
    keys = torch.from_numpy(Noise(1).keys(list(range(200)), 0, Purpose.PROPOSE).view(np.int64))
    clocks = exponentials(keys, torch.arange(500).expand(200, -1))
    assert (clocks > 0).all()
    assert clocks.isfinite().all()
    assert float(clocks.mean()) == pytest.approx(1, abs=0.02)
    assert float(clocks.var()) == pytest.approx(1, abs=0.04)
    early = float((clocks < math.log(2)).double().mean())
    assert early == pytest.approx(0.5, abs=0.01)
    together = torch.corrcoef(clocks[:40].T[:60])  # columns: tokens
    assert float((together - torch.eye(60, dtype=together.dtype)).abs().max()) < 0.75
    assert float(torch.corrcoef(clocks)[0, 1:].abs().max()) < 0.2


def test_kind_39_every_row_of_a_batch_is_drawn_for_itself():
    raw = torch.zeros(50, SIZE)
    tokens, _ = choose(raw, Sampling(1.0), list(range(50)), 0, Noise(0))
    assert len(set(tokens)) > 20


def test_kinds_40_and_41_a_row_has_the_same_token_alone_and_in_any_batch():
    raw, sampling = logits_of(16, torch.float32, seed=4), Sampling(1.3, top_p=0.95)
    positions = [int(p) for p in np.random.default_rng(0).permutation(1000)[:16]]
    together, _ = choose(raw, sampling, positions, 2, Noise(9))
    order = [7, 3, 0, 15]
    some, _ = choose(raw[order], sampling, [positions[i] for i in order], 2, Noise(9))
    alone = [choose(raw[i : i + 1], sampling, [positions[i]], 2, Noise(9))[0][0] for i in range(16)]
    assert together == alone
    assert some == [together[i] for i in order]


def test_keys_of_several_requests_may_share_one_call():
    raw, sampling = logits_of(4, torch.float32, seed=8), Sampling(1.0)
    noises = (Noise(1), Noise(2))
    keys = np.concatenate([noise.keys([5, 6], 0, Purpose.PROPOSE) for noise in noises])
    together, _ = module.pick(raw, sampling, keys)
    apart = [choose(raw[i : i + 2], sampling, [5, 6], 0, noises[i // 2])[0] for i in (0, 2)]
    assert together == apart[0] + apart[1]


def test_purposes_passes_and_choices_draw_for_themselves():
    raw = torch.zeros(40, SIZE)
    ways = [(Noise(3), 0, Purpose.PROPOSE), (Noise(3), 1, Purpose.PROPOSE), (Noise(3), 0, Purpose.RESIDUAL),
            (Noise(3, choice=1), 0, Purpose.PROPOSE), (Noise(4), 0, Purpose.PROPOSE)]  # fmt: skip
    drawn = [choose(raw, Sampling(1.0), list(range(40)), index, noise, purpose)[0] for noise, index, purpose in ways]
    for one, other in itertools.combinations(drawn, 2):
        assert sum(a == b for a, b in zip(one, other, strict=True)) < 10


def test_entropy_is_in_nats_and_takes_ruled_out_tokens():
    raw = torch.full((3, 8), -math.inf)
    raw[0, :4] = 2.0
    raw[1, 3] = 1.0
    raw[2] = torch.log(torch.tensor([0.5, 0.25, 0.25, 0, 0, 0, 0, 0]))
    assert entropy(raw) == pytest.approx([math.log(4), 0.0, 1.5 * math.log(2)], abs=1e-6)


def test_params_carry_any_object_with_the_fields():
    source = SimpleNamespace(**{field.name: field.default for field in dataclasses.fields(Sampling)}, other=1)
    assert Sampling.of(source) == Sampling()
