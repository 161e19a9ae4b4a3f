"""Templates: what is pinned stays, gaps keep to their limits, and where they end is what a plain search finds."""

import math
import random
from dataclasses import replace

import pytest
import torch
from asking import crowd, remade

from fourleaf.engine.core import Core, Limits
from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.engine.template import Gap
from fourleaf.errors import ContextLengthError, RequestError
from fourleaf.model.work import Segments, Work

BLOCK = 8  # of the fixture's model
WALKED = 31  # tokens of a gap that a walk decides together
EVEN = math.log(0.5)


def filled(engine: Engine, prompt: list[int], params: GenerateParams):
    """(tokens, gap of each, last delta), on an engine of its own that counts all memory after every step."""
    deltas = list(remade(engine).generate(prompt, params))
    tokens = [token for delta in deltas for token in delta.tokens]
    gaps = [gap for delta in deltas for gap in delta.gaps or ()]
    return tokens, gaps, deltas[-1]


def parted(template, tokens, gaps):
    """The fillings by gap, once it is sure that everything pinned stands where it should."""
    fills, at, number = [], 0, 0
    for part in template:
        if not isinstance(part, Gap):
            assert tuple(tokens[at : at + len(part)]) == part
            assert gaps[at : at + len(part)] == [None] * len(part)
            at += len(part)
            continue
        begin = at
        while at < len(tokens) and gaps[at] == number:
            at += 1
        fills.append(tokens[begin:at])
        assert len(fills[-1]) <= part.limit
        number += 1
    assert at == len(tokens)
    return fills


def drawn(rng: random.Random):
    """A template: pins and gaps by turns, either first, either last; some gaps longer than a block."""
    parts = []
    is_gap = rng.random() < 0.3
    for _ in range(rng.randint(1, 5)):
        parts.append(
            Gap(rng.choice((1, 2, 5, 7, 8, 9, 20, 34)))
            if is_gap
            else tuple(rng.randrange(20, 200) for _ in range(rng.choice((1, 2, 6, 13, 40))))
        )
        is_gap = not is_gap
    return tuple(parts) if any(isinstance(part, Gap) for part in parts) else (*parts, Gap(5))


def asked(rng: random.Random) -> GenerateParams:
    return GenerateParams(
        mode=rng.choice(("ar", "draft", "diffuse", "diffuse")),
        policy=rng.choice(("threshold", "threshold", "fixed", "entropy", "edit")),
        threshold=rng.choice((0.05, 0.3, 0.9)),
        temperature=rng.choice((0.0, 0.0, 1.0)),
        seed=rng.randrange(100),
        frequency_penalty=rng.choice((0.0, 0.0, 0.5)),
        priority=rng.choice(("interactive", "batch")),
        stop_token_ids=rng.choice(((), (25, 26))),
        infill=drawn(rng),
    )


def test_pins_stay_gaps_keep_to_their_limits_and_usage_counts_what_was_generated(random_engine):
    rng = random.Random(4)
    for _ in range(40):
        params = asked(rng)
        prompt = [rng.randrange(20, 200) for _ in range(rng.choice((1, 9, 32, 40)))]
        tokens, gaps, last = filled(random_engine, prompt, params)
        fills = parted(params.infill, tokens, gaps)
        ended = last.finish_reason == "stop" and isinstance(params.infill[-1], Gap)
        assert last.usage is not None
        assert last.usage.completion_tokens == sum(map(len, fills)) + ended
        assert last.usage.prompt_tokens == len(prompt)
        assert last.usage.cached_tokens <= len(prompt)
        last_part = params.infill[-1]
        if last.finish_reason == "length":
            assert isinstance(last_part, Gap)
            assert len(fills[-1]) == last_part.limit
        assert random_engine.end_id not in tokens
        assert random_engine.mask_id not in tokens


@torch.inference_mode()
def slow_logits(engine, clean, canvas=None):
    """[rows, Y]: behind each clean token, or of the canvas rows behind them."""
    if canvas is None:
        hidden, _ = engine.model(Work(torch.tensor(clean), Segments([len(clean)]), [0]))
        logits = engine.model.head(hidden)
    else:
        work = Work(
            torch.tensor(clean + canvas), Segments([len(clean)]), [0], Segments([len(canvas)]), [0], [len(clean)]
        )
        hidden, _ = engine.model(work)
        logits = engine.model.head(hidden[len(clean) :])
    logits[:, engine.mask_id] = -math.inf
    return logits


def said_of(engine, known, tokens) -> list[float]:
    """Log-probability of each token behind what is known."""
    table = slow_logits(engine, known + tokens).log_softmax(-1)
    return [float(table[len(known) - 1 + i, token]) for i, token in enumerate(tokens)]


def judged_of(pins, is_last):
    return list(pins if is_last or len(pins) == 1 else pins[:-1])[:32]


@torch.inference_mode()
def slow_walk(engine, known, limit, judged):
    """A gap as `ar` fills it, by one full forward a token and one a place."""
    fill, places = [], []
    while True:
        done = len(fill) // WALKED * WALKED if limit > WALKED else 0
        is_last = limit - done <= WALKED
        path = fill[done:]
        own = said_of(engine, known + fill[:done], path + judged)
        end = sum(own[len(path) :])
        places = [place for place in places if place[2] == done] + [(sum(own), list(fill), done)]
        if end > EVEN:
            return fill
        best = max(places, key=lambda place: place[0])
        if is_last and (len(fill) == limit or sum(own[: len(path)]) < best[0]):
            return best[1]
        logits = slow_logits(engine, known + fill)[-1]
        logits[engine.end_id] = -math.inf
        fill.append(int(logits.argmax()))


@torch.inference_mode()
def denoised(engine, known, canvas, tau, read=None, is_sure=None):
    """A canvas (None is masked) by the threshold policy. read(row logits by row): after each pass; True ends it."""
    canvas = list(canvas)
    while None in canvas:
        logits = slow_logits(engine, known, [engine.mask_id if t is None else t for t in canvas])
        if read is None:
            logits[:, engine.end_id] = -math.inf
        sure, best = logits.softmax(-1).max(-1)
        rows = [row for row, token in enumerate(canvas) if token is None]
        for row in rows:
            if sure[row] > tau:
                if int(best[row]) == engine.end_id:
                    if None not in canvas[:row]:
                        canvas[row] = engine.end_id
                        break
                else:
                    canvas[row] = int(best[row])
        if all(canvas[row] is None for row in rows):
            canvas[rows[0]] = int(best[rows[0]])
        if read is not None and read({row: logits[row].log_softmax(-1) for row in rows}):
            return canvas
        if engine.end_id in canvas and None not in canvas[: canvas.index(engine.end_id)]:
            return canvas
    return canvas


def slow_lengths(engine, known, limit, pins, judged, tau):
    """The lengths that `diffuse` tries, in order."""
    rows, table, marks = min(BLOCK, limit + len(pins)), {}, judged[:4]

    def means():
        found = []
        for length in range(min(limit, rows - 1) + 1):
            seen = [float(table[length + i][mark]) for i, mark in enumerate(marks) if length + i < rows]
            found.append((sum(seen) / len(seen), -length))
        return sorted(found, reverse=True)

    def read(said):
        table.update(said)
        return means()[0][0] > EVEN

    denoised(engine, known, [None] * rows, tau, read)
    return [-length for _, length in means()[:4]]


def slow_diffuse(engine, known, limit, pins, judged, tau):
    """A gap as `diffuse` fills it: every canvas and every judgement from nothing."""
    fill, left = [], limit
    while True:
        places = []
        for length in slow_lengths(engine, known + fill, left, pins, judged, tau):
            canvas = [*[None] * length, *pins][:BLOCK] if length else []
            tried = denoised(engine, known + fill, canvas, tau)[:length]
            own = said_of(engine, known + fill, tried + judged)
            places.append((sum(own), -len(places), tried, sum(own[length:])))
            if sum(own) > EVEN:
                return fill + tried
        _, _, tried, end = max(places)
        if left <= BLOCK - 1 or end > EVEN:
            return fill + tried
        more = denoised(engine, known + fill, [None] * BLOCK, tau)
        fill, left = fill + more, left - BLOCK


@pytest.mark.parametrize("mode", ["ar", "draft", "diffuse"])
def test_gaps_end_where_a_plain_search_ends_them(random_engine, mode):
    rng = random.Random(11)
    ends = set()
    for _ in range(12):
        template = drawn(rng)
        if isinstance(template[-1], Gap):
            template = (*template, (77, 78))
        tau = rng.choice((0.05, 0.3, 0.9))
        prompt = [rng.randrange(20, 200) for _ in range(9)]
        expected, known = [], list(prompt)
        for index, part in enumerate(template):
            if isinstance(part, Gap):
                pins = list(template[index + 1])
                judged = judged_of(pins, index + 2 == len(template))
                slow = (slow_diffuse, (pins, judged, tau)) if mode == "diffuse" else (slow_walk, (judged,))
                fill = slow[0](random_engine, known, part.limit, *slow[1])
                ends.add(len(fill) < part.limit)
                expected.append(fill)
                known += fill
            else:
                known += part
        tokens, gaps, _ = filled(random_engine, prompt, GenerateParams(mode, tau, infill=template))
        assert parted(template, tokens, gaps) == expected
    assert True in ends, "the case must exercise gaps that end before their limit"


def likely_template(engine, prompt, mode, begin, end, num_pins=5):
    """What the model itself would say, with a hole in it."""
    params = GenerateParams(mode=mode, max_tokens=40, logit_bias=((engine.end_id, -100.0),))
    said = [token for delta in engine.generate(prompt, params) for token in delta.tokens]
    return tuple(said[:begin]), tuple(said[begin:end]), tuple(said[end : end + num_pins])


def test_a_gap_in_the_models_own_words_is_filled_with_them(random_engine):
    """The pins need not be more likely than not: nothing that was tried is likelier."""
    hits = 0
    for seed in range(8):
        prompt = [30 + seed] * (5 + seed)
        before, hole, behind = likely_template(random_engine, prompt, "ar", 4, 7)
        for mode in ("ar", "diffuse"):
            params = GenerateParams(mode=mode, infill=(before, Gap(6), behind))
            tokens, gaps, _ = filled(random_engine, prompt, params)
            hits += tuple(parted(params.infill, tokens, gaps)[0]) == hole
    assert hits >= 8, "most of the walks find it"


def test_diffuse_sees_what_is_pinned_behind_the_gap_and_a_walk_does_not(random_engine):
    """Another pin far from the gap's end, but in its block, changes what denoising fills; a path never knows of it."""
    changed = 0
    for seed in range(6):
        prompt = [40 + seed] * 9
        fills = []
        for pin in (90, 160):
            infill = ((50, 51), Gap(4), (60, 61, pin, 70))
            tokens, gaps, _ = filled(random_engine, prompt, GenerateParams(infill=infill, threshold=0.01))
            fills.append(parted(infill, tokens, gaps)[0])
        changed += fills[0] != fills[1]
    assert changed >= 1


def drawn_among_others(rng: random.Random) -> tuple[list[int], GenerateParams]:
    """An infilling, or an answer as everyone asks for."""
    params = asked(rng) if rng.random() < 0.7 else replace(asked(rng), infill=(), max_tokens=30)
    if params.policy == "edit" and not params.infill:
        params = replace(params, policy="threshold")
    return [30 + i % 60 for i in range(rng.choice((1, 33, 64)))], params


@pytest.mark.parametrize("limits", [{}, {"num_pages": 10}, {"max_running": 3}], ids=str)
def test_infillings_among_others_answer_as_if_alone(random_engine, limits):
    """Cancels, little memory, few rows, shared prefixes; and nothing is left behind."""
    rng = random.Random(8)
    core = Core(random_engine.model, Limits(**{"num_pages": 64, **limits}), checks=True)
    clients = crowd(random_engine, core, rng, drawn_among_others, steps=50, coming=0.6, leaving=0.06)
    if "max_running" in limits:
        assert core.scheduler.num_preempted, "the case must exercise preemption"
    for client in clients:
        if not client.params.infill:
            continue
        tokens, gaps, last = filled(random_engine, client.prompt, client.params)
        assert [t for d in client.deltas for t in d.tokens] == tokens
        assert [g for d in client.deltas for g in d.gaps] == gaps
        usage = client.deltas[-1].usage
        assert last.usage is not None
        assert (client.deltas[-1].finish_reason, replace(usage, cached_tokens=0)) == (
            last.finish_reason,
            replace(last.usage, cached_tokens=0),
        )


class Left(Exception):
    """A client has gone."""


@pytest.mark.parametrize("mode", ["ar", "draft", "diffuse"])
def test_who_leaves_within_a_gap_ends_it_before_the_next_forward(random_engine, mode):
    """No token leaves before the gap has ended, so the watcher is the only one who could notice."""
    engine = Engine("x", random_engine.model, random_engine.tokenizer, random_engine.chat, Limits(num_pages=64))
    seen = []

    def watch(frame):
        seen.append(frame)
        if len(seen) == 3:
            raise Left

    params = GenerateParams(mode=mode, threshold=1.0, infill=((50, 51), Gap(20), (60, 61, 90, 70)))
    with pytest.raises(Left):
        list(engine.generate([40] * 9, params, watch))
    assert len(seen) == 3
    assert engine.core.is_idle
    assert engine.core.cache.pages.num_held == 0
    assert all(frame.block_start == 11 for frame in seen)


@pytest.mark.parametrize(
    ("infill", "said"),
    [
        (((20, 21),), "no gap"),
        ((Gap(3), Gap(2)), "two gaps in a row"),
        ((Gap(0), (20,)), "from 1 on"),
        ((Gap(True), (20,)), "from 1 on"),
        ((Gap(3), ()), "empty text"),
        ((Gap(3), (20,)) * 200, "at most 256"),
    ],
)
def test_what_is_no_template_is_refused(infill, said):
    with pytest.raises(RequestError, match=said) as found:
        GenerateParams(infill=infill)
    assert found.value.param == "infill"


@pytest.mark.parametrize(
    ("field", "value"), [("stop", ("x",)), ("logprobs", 0), ("mode", "auto")], ids=lambda value: str(value)
)
def test_what_an_infilling_cannot_do_is_refused_by_name(field, value):
    with pytest.raises(RequestError, match="not supported in an infilling") as found:
        GenerateParams(infill=((20,), Gap(3)), **{field: value})
    assert found.value.param == field


def test_a_template_that_does_not_fit_or_pins_what_no_text_has_is_refused(random_engine):
    with pytest.raises(ContextLengthError, match="1 in the prompt, 2 pinned and 298 in gaps"):
        random_engine.admit([20], GenerateParams(infill=((20, 21), Gap(298))))
    random_engine.admit([20], GenerateParams(infill=((20, 21), Gap(297))))
    for token in (random_engine.end_id, random_engine.mask_id, random_engine.model.config.vocab_size, -1):
        with pytest.raises(RequestError, match="neither mask nor end"):
            random_engine.admit([20], GenerateParams(infill=((20, token), Gap(3))))
