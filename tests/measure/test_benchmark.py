import json
from types import SimpleNamespace

import pytest
import torch

from fourleaf import cli
from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.errors import ConfigError, RequestError
from fourleaf.measure import benchmark, timing
from fourleaf.measure.baseline import ATTENTIONS, Baseline
from fourleaf.measure.evaluate import examples_of
from fourleaf.tasks.cabin.schema import messages

LENGTH = 36


@pytest.fixture(scope="module")
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def engine(tiny, threads) -> Engine:
    return Engine.load(tiny, num_threads=1)


@pytest.fixture(scope="module")
def examples():
    return examples_of("patterns", 3)


@pytest.fixture(scope="module")
def measured(engine, examples):
    seen = []
    found = benchmark.run(engine, examples, max_tokens=LENGTH, progress=lambda *at: seen.append(at))
    assert seen == [(i, 3, "bench") for i in range(1, 4)]
    return found


@pytest.mark.parametrize("moe", [False, True], ids=["dense", "experts"])
def test_the_baseline_writes_the_same_tokens_however_it_is_driven(checkpoint, moe, threads):
    engine = Engine.load(checkpoint(moe=moe), num_threads=1)
    baseline = Baseline(engine)
    for example in examples_of("fillers", 2):
        prompt = engine.chat.render(messages(example))
        ours = timing.timed(engine, prompt, GenerateParams(mode="ar", max_tokens=LENGTH)).tokens
        for baseline.attention in ATTENTIONS:
            for baseline.driver in ("generate", "loop"):
                assert baseline.run(prompt, LENGTH).tokens == ours, (baseline.attention, baseline.driver)


def test_the_baseline_stops_at_the_end_token(engine, monkeypatch):
    baseline = Baseline(engine)
    prompt = engine.chat.render([{"role": "user", "content": "Which one?"}])
    tokens = baseline.run(prompt, LENGTH).tokens
    assert len(tokens) == LENGTH
    baseline.end_id = tokens[5]
    for baseline.driver in ("generate", "loop"):
        found = baseline.run(prompt, LENGTH)
        assert found.tokens == tokens[: tokens.index(tokens[5]) + 1]
        assert len(found.times) == len(found.tokens)
        assert found.times == sorted(found.times)


def test_the_baseline_is_driven_the_fastest_way(engine, monkeypatch):
    baseline = Baseline(engine)
    cost = {("sdpa", "generate"): 4.0, ("sdpa", "loop"): 3.0, ("eager", "generate"): 2.0, ("eager", "loop"): 5.0}

    def run(prompt, max_tokens):
        seconds = cost[baseline.attention, baseline.driver]
        return SimpleNamespace(tokens=[1, 2], seconds=seconds)

    monkeypatch.setattr(baseline, "run", run)
    baseline.settle([[5]], 2)
    assert (baseline.attention, baseline.driver) == ("eager", "generate")
    assert baseline.trials["sdpa, loop"] == pytest.approx(1500)


def test_every_forward_is_timed_and_named(engine, examples):
    prompt = engine.chat.render(messages(examples[0]))
    ar = timing.timed(engine, prompt, GenerateParams(mode="ar", max_tokens=LENGTH))
    assert ar.usage is not None
    assert [f.kind for f in ar.forwards] == ["prefill"] + ["ar step"] * (LENGTH - 1)
    assert len(ar.forwards) - 1 == ar.usage.forwards
    assert ar.tokens[-1] == engine.end_id or len(ar.tokens) == LENGTH
    assert ar.first_seconds == ar.prefill_seconds

    diffuse = timing.timed(engine, prompt, GenerateParams(max_tokens=LENGTH))
    assert diffuse.usage is not None
    kinds = [f.kind for f in diffuse.forwards]
    assert kinds[0] == "prefill + pass"
    assert diffuse.forwards[0].rows == len(prompt) + 32
    assert kinds.count("commit of 32 + pass of 4") == 1, "the last canvas has the 4 rows that the limit leaves"
    assert set(kinds) == {"prefill + pass", "pass of 32", "commit of 32 + pass of 4", "pass of 4"}
    assert sum(diffuse.passes_per_block) == diffuse.usage.passes == len(kinds)
    assert sum(f.rows for f in diffuse.forwards[1:]) == diffuse.usage.rows
    for answer in (ar, diffuse):
        assert sum(f.seconds for f in answer.forwards) == pytest.approx(answer.seconds, rel=0.1)
        assert 0 < answer.prefill_seconds <= answer.first_seconds <= answer.seconds


def test_every_arm_answers_every_prompt(measured, engine, examples):
    assert set(measured.arms) == {"ar", "diffuse", "transformers"}
    assert measured.same_as_transformers == len(examples)
    assert measured.exact_paired.neither == len(examples)
    for speed in measured.arms.values():
        assert 0 < speed.tokens <= LENGTH * len(examples)
        assert speed.tokens_per_s.value == pytest.approx(speed.tokens / speed.seconds)
        assert speed.tokens_per_s_after_prefill.value > speed.tokens_per_s.value
        assert speed.prefill_ms <= speed.first_token_ms
    assert measured.arms["ar"].tokens == measured.arms["transformers"].tokens


def test_the_figures_of_a_run_belong_together(measured):
    ar, diffuse = measured.arms["ar"], measured.arms["diffuse"]
    up = measured.speed_ups["diffuse"]
    assert up.base == "ar"
    assert up.with_prefill.value == pytest.approx(diffuse.tokens_per_s.value / ar.tokens_per_s.value)
    assert measured.speed_ups["ar"].base == "transformers"
    steps = measured.forwards["ar step"]
    assert steps.mean_ms == pytest.approx(measured.ar_step_ms)
    assert ar.tpf == pytest.approx(ar.tokens / steps.count)
    assert measured.break_even_tpf == pytest.approx(measured.diffuse_forward_ms / measured.ar_step_ms)
    # What TPF and break-even promise is what the clock says, up to what falls between the forwards.
    assert diffuse.tpf / ar.tpf / measured.break_even_tpf == pytest.approx(up.after_prefill.value, rel=0.1)
    assert sum(measured.passes.values()) * measured.passes_per_block == pytest.approx(
        sum(passes * blocks for passes, blocks in measured.passes.items())
    )


def test_short_canvases_are_timed_on_the_side(measured):
    assert {"pass of 8", "pass of 16", "pass of 32"} <= set(measured.forwards)
    assert measured.forwards["prefill + pass"].count == 3, "those cut short are not among them"


def test_the_tables_say_it_all(measured):
    text = "\n".join(benchmark.lines(measured))
    for words in (
        "tokens/s",
        "TPF",
        "rows a token",
        "break-even TPF",
        "passes a block",
        "first token ms",
        "pass of 32",
    ):
        assert words in text
    assert "ar against transformers" in text
    assert "diffuse against ar" in text
    assert "ar gave the tokens of transformers on 3 of 3 prompts" in text


def test_the_arms_take_turns(engine, monkeypatch):
    order = []
    prompts = [[5, 6], [7, 8], [9, 5]]
    runners = {name: (lambda prompt, name=name: order.append((name, prompt[0]))) for name in "abc"}
    monkeypatch.setattr(benchmark, "SHORT_CANVASES", ())
    benchmark._rotate(engine, prompts, runners, GenerateParams(), None)
    assert [name for name, _ in order] == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert [prompt for _, prompt in order] == [5, 5, 5, 7, 7, 7, 9, 9, 9]


def command(capsys, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.app(list(words))
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def test_the_command_prints_and_writes(tiny, tmp_path, capsys, one_thread):
    file = tmp_path / "bench.json"
    words = [
        "--n",
        "2",
        "--max-tokens",
        "12",
        "--no-transformers",
        "--profile",
        "--model",
        str(tiny),
        "--json",
        str(file),
    ]
    code, out, _ = command(capsys, "bench", *words)
    assert code == 0
    assert "transformers" not in out
    assert "matrix products" in out
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["prompts"] == 2
    assert document["threads"] == 1
    assert set(document["speed_ups"]) == {"diffuse"}
    assert [part["kind"] for part in document["profile"]] == ["ar step", "pass of 32"]
    assert document["break_even_tpf"] == pytest.approx(document["diffuse_forward_ms"] / document["ar_step_ms"])


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("bench", "--set", "train"), "train"),
        (("bench", "--threshold", "3"), "threshold"),
        (("bench", "--n", "0"), "--n"),
        (("bench", "--json", "no/such/folder/x.json"), "no/such/folder"),
        (("eval", "cabin", "--set", "train"), "train"),
        (("eval", "cabin", "--mode", "fast"), "fast"),
        (("eval", "cabin", "--threshold", "0.9", "--threshold", "7"), "threshold"),
        (("eval", "parking"), "parking"),
    ],
)
def test_a_mistake_is_one_line_of_the_command(words, part, capsys):
    code, out, err = command(capsys, *words, "--model", "no/model")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert part in err


def test_without_transformers_the_baseline_says_what_to_do(engine, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match="no-transformers"):
        Baseline(engine)


def test_an_ar_model_has_nothing_to_compare(checkpoint, examples, threads):
    engine = Engine.load(checkpoint(is_block_diffusion=False), num_threads=1)
    with pytest.raises(RequestError, match="AR model"):
        benchmark.run(engine, examples, max_tokens=4, with_transformers=False)
