import io
import json
from dataclasses import replace

import pytest

from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.errors import ConfigError, RequestError
from fourleaf.measure import evaluate
from fourleaf.tasks.cabin.schema import answer_text, messages

BOTH = evaluate.arms("both", [0.9], max_tokens=400, seed=0)
SAMPLE = 50


@pytest.fixture(scope="module")
def examples():
    return evaluate.examples_of("patterns", SAMPLE)


def test_what_is_right_is_counted_overall_by_tag_and_in_pairs(oracle, examples):
    engine = oracle(examples, ar={0, 1}, diffuse={1, 2, 3})
    [report] = evaluate.evaluate(engine, ["patterns"], BOTH, limit=SAMPLE)
    scores = report.scores
    assert scores["ar"].exact.value == pytest.approx(1 - 2 / SAMPLE)
    assert scores["diffuse 0.9"].exact.value == pytest.approx(1 - 3 / SAMPLE)
    for arm, wrong in (("ar", {0, 1}), ("diffuse 0.9", {1, 2, 3})):
        for tag, found in scores[arm].tags.items():
            having = {i for i, example in enumerate(examples) if tag in example.tags}
            assert found.n == len(having)
            assert found.value == pytest.approx(1 - len(having & wrong) / len(having)), tag
    pair = report.paired["diffuse 0.9"]
    assert (pair.both, pair.only_first, pair.only_second, pair.neither) == (SAMPLE - 4, 2, 1, 1)
    assert pair.difference.value == pytest.approx(-1 / SAMPLE)


def test_answers_keep_the_order_of_their_examples_and_share_forwards(oracle, examples):
    engine = oracle(examples)
    found = evaluate.decode_all(engine, examples, GenerateParams(mode="ar"))
    assert [o.answer for o in found] == [answer_text(example) for example in examples]
    assert engine.batches == [evaluate.BATCH, SAMPLE - evaluate.BATCH]


def test_calls_are_compared_and_not_their_spelling(oracle, examples, monkeypatch):
    """Keys in another order and spaces elsewhere are the same calls; `true` is not 1."""
    engine = oracle(examples)
    plain = engine.generate_many

    def respelt(prompts, params):
        answers = [engine.tokenizer.decode(ids) for ids, _ in plain(prompts, params)]
        spaced = [text.replace('{"name": ', '{ "name":').replace(": true", ": 1") for text in answers]
        return [
            (engine.tokenizer.encode_markup(text), last)
            for text, (_, last) in zip(spaced, plain(prompts, params), strict=True)
        ]

    monkeypatch.setattr(engine, "generate_many", respelt)
    found = evaluate.decode_all(engine, examples, GenerateParams(mode="ar"))
    on = [": true" in answer_text(example) for example in examples]
    assert any(on)
    assert not all(on)
    assert [o.is_right for o in found] == [not is_on for is_on in on]


def test_tokens_a_forward_and_rows_a_token(oracle, examples):
    engine = oracle(examples)
    outcomes = evaluate.decode_all(engine, examples, BOTH[1].params)
    score = evaluate.Score.of(outcomes, seed=0)
    tokens = sum(o.usage.completion_tokens for o in outcomes)
    assert score.tpf is not None
    assert score.tpf.value == pytest.approx(tokens / sum(o.usage.forwards for o in outcomes))
    assert score.rows_per_token == pytest.approx(2)
    assert score.cut == 0


def test_an_answer_that_ends_within_its_prefill_leaves_tokens_a_forward_to_the_others(oracle, examples):
    outcomes = evaluate.decode_all(oracle(examples), examples, BOTH[1].params)
    first = replace(outcomes[0], usage=replace(outcomes[0].usage, forwards=0))
    score = evaluate.Score.of([first, *outcomes[1:]], seed=0)
    assert score.tpf is not None
    tokens = sum(o.usage.completion_tokens for o in outcomes)
    assert score.tpf.value == pytest.approx(tokens / sum(o.usage.forwards for o in outcomes[1:]))
    assert evaluate.Score.of([first], seed=0).tpf is None


def test_several_thresholds_stand_side_by_side(oracle, examples):
    chosen = evaluate.arms("both", [0.5, 0.9], max_tokens=400, seed=0)
    assert [(arm.name, arm.params.threshold) for arm in chosen[1:]] == [("diffuse 0.5", 0.5), ("diffuse 0.9", 0.9)]
    [report] = evaluate.evaluate(oracle(examples), ["patterns"], chosen, limit=SAMPLE)
    assert set(report.paired) == {"diffuse 0.5", "diffuse 0.9"}
    head = evaluate.lines(report)[0]
    assert head.index(" ar") < head.index("diffuse 0.5") < head.index("diffuse 0.9")


def test_the_table_says_it_all(oracle, examples):
    [report] = evaluate.evaluate(oracle(examples, diffuse={1}), ["patterns"], BOTH, limit=SAMPLE)
    text = "\n".join(evaluate.lines(report))
    assert "100.0% (100.0-100.0)" in text
    assert "98.0% (" in text
    assert "diffuse 0.9 - ar: -2.0 points (" in text
    assert f"both {SAMPLE - 1}, only ar 1, only diffuse 0, neither 0" in text
    for tag in {tag for example in examples for tag in example.tags}:
        assert f"  {tag}" in text


def test_each_failure_is_a_line_with_what_was_wanted_and_what_came(oracle, examples):
    reports = evaluate.evaluate(oracle(examples, ar={7}), ["patterns"], BOTH[:1], limit=SAMPLE)
    [line] = [json.loads(line) for line in evaluate.failures(reports)]
    assert line["utterance"] == examples[7].utterance
    assert line["wanted"] == answer_text(examples[7])
    assert line["got"] == "Which one, please?"
    assert line["set"] == "patterns"


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        ({"sets": "train"}, ConfigError, "train"),
        ({"mode": "fast"}, ConfigError, "fast"),
        ({"thresholds": [1.5]}, RequestError, "threshold"),
        ({"max_tokens": 0}, RequestError, "max_tokens"),
        ({"json_file": "missing/found.json"}, ConfigError, "missing"),
        ({"failures_file": "missing/found.jsonl"}, ConfigError, "missing"),
    ],
    ids=str,
)
def test_a_mistake_is_named_before_the_model_is_loaded(change, error, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {
        "sets": "fillers",
        "mode": "both",
        "thresholds": [0.9],
        "model": tmp_path / "no model",
        "limit": 1,
        "max_tokens": 8,
        "seed": 0,
        "num_threads": None,
        "json_file": None,
        "failures_file": None,
    } | change
    for name in ("json_file", "failures_file"):
        options[name] = None if options[name] is None else tmp_path / options[name]
    with pytest.raises(error, match=word):
        evaluate.main_eval(**options, out=io.StringIO(), progress=io.StringIO())


def test_a_random_model_goes_all_the_way(tiny, tmp_path, quiet, one_thread):
    files = tmp_path / "found.json", tmp_path / "wrong.jsonl"
    evaluate.main_eval(
        "fillers",
        "both",
        [0.9],
        model=tiny,
        limit=3,
        max_tokens=40,
        seed=0,
        num_threads=1,
        json_file=files[0],
        failures_file=files[1],
        out=quiet.out,
        progress=quiet.progress,
    )
    document = json.loads(files[0].read_text(encoding="utf-8"))
    found = document["sets"]["fillers"]
    assert found["arms"]["ar"]["exact"]["n"] == 3
    assert found["paired"]["diffuse 0.9"]["neither"] == 3
    assert len(document["weights_sha256"]) == 64
    assert len(files[1].read_text(encoding="utf-8").splitlines()) == 6
    assert "fillers" in quiet.out.getvalue()


@pytest.mark.parametrize("mode", ["ar", "diffuse"])
def test_sharing_forwards_changes_no_answer(tiny, mode, one_thread):
    import torch

    engine = Engine.load(tiny, num_threads=1, dtype=torch.float64)
    examples = evaluate.examples_of("patterns", 5)
    params = GenerateParams(mode=mode, max_tokens=50)
    for example, outcome in zip(examples, evaluate.decode_all(engine, examples, params), strict=True):
        deltas = list(engine.generate(engine.chat.render(messages(example)), params))
        assert outcome.answer == engine.tokenizer.decode([token for delta in deltas for token in delta.tokens])
        assert outcome.usage == deltas[-1].usage


def test_an_ar_model_cannot_be_scored_on_diffuse(checkpoint, quiet, one_thread):
    with pytest.raises(RequestError, match="AR model"):
        evaluate.main_eval(
            "fillers",
            "diffuse",
            [0.9],
            model=checkpoint(is_block_diffusion=False),
            limit=1,
            max_tokens=8,
            seed=0,
            num_threads=1,
            json_file=None,
            failures_file=None,
            out=quiet.out,
            progress=quiet.progress,
        )
