import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fourleaf import cli
from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.errors import ConfigError, RequestError
from fourleaf.measure import report, speed, timing
from fourleaf.measure.baseline import ATTENTIONS, Baseline
from fourleaf.measure.equality import Difference, Equality
from fourleaf.measure.evaluate import examples_of
from fourleaf.measure.workloads import workload
from fourleaf.tasks.cabin.schema import messages
from fourleaf.text.constraint import Constraint

LENGTH = 36


@pytest.fixture(scope="module")
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def engine(tiny, threads, known_costs) -> Engine:
    return Engine.load(tiny, num_threads=1)


@pytest.fixture(scope="module")
def examples():
    return examples_of("patterns", 3)


@pytest.fixture(scope="module")
def work(engine):
    return workload(engine, "patterns", 3, GenerateParams(max_tokens=LENGTH))


@pytest.fixture(scope="module")
def measured(engine, work):
    seen = []
    found = speed.run(engine, work, progress=lambda *at: seen.append(at))
    assert seen == [(i, 3, "patterns") for i in range(1, 4)]
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


def test_a_verification_is_a_kind_of_its_own(engine, examples):
    prompt = engine.chat.render(messages(examples[0]))
    draft = timing.timed(engine, prompt, GenerateParams(mode="draft", max_tokens=LENGTH))
    assert draft.usage is not None
    kinds = [f.kind for f in draft.forwards]
    assert kinds[0] == "prefill"
    assert "verify" in kinds
    assert all(f.rows > 1 for f in draft.forwards if f.kind == "verify")
    assert len(draft.forwards) - 1 == draft.usage.forwards


def test_the_model_is_timed_apart_from_what_surrounds_it(engine, monkeypatch):
    ticks = itertools.count()
    clocked = timing.Clocked(engine.model, clock=lambda: float(next(ticks)))
    core = timing.core_of(engine)
    monkeypatch.setattr(core, "model", clocked)
    monkeypatch.setattr(core, "clocked", clocked)
    prompt = engine.chat.render([{"role": "user", "content": "Which one?"}])
    draft = timing.timed(engine, prompt, GenerateParams(mode="draft", max_tokens=LENGTH), core)
    # One second each: the layers, the head, and behind a verification the states.
    assert [f.model_seconds for f in draft.forwards] == [3.0 if f.kind == "verify" else 2.0 for f in draft.forwards]
    assert clocked.config is engine.model.config


def test_every_arm_answers_every_prompt(measured, work):
    assert set(measured.arms) == {"ar", "draft", "diffuse", "auto", "mixed auto", "transformers"}
    assert measured.num_prompts == 3
    for name in ("draft", "auto", "transformers"):
        assert measured.arms[name].same_as_ar == 3, name
    assert set(measured.exact_paired) == {"draft", "diffuse", "auto", "mixed auto"}
    for speed_ in measured.arms.values():
        assert 0 < speed_.tokens <= LENGTH * 3
        assert speed_.tokens_per_s.value == pytest.approx(speed_.tokens / speed_.seconds)
        assert speed_.tokens_per_s_after_prefill.value > speed_.tokens_per_s.value
        assert speed_.prefill_ms <= speed_.first_token_ms
        assert speed_.exact is not None
        assert speed_.exact.value == 0
        assert speed_.nats is None
    assert measured.arms["ar"].tokens == measured.arms["transformers"].tokens


def test_the_figures_of_a_run_belong_together(measured):
    ar, diffuse = measured.arms["ar"], measured.arms["diffuse"]
    up = measured.speed_ups["diffuse against ar"]
    assert up.with_prefill.value == pytest.approx(diffuse.tokens_per_s.value / ar.tokens_per_s.value)
    assert {"ar against transformers", "diffuse against transformers", "draft against ar"} <= set(measured.speed_ups)
    assert ar.break_even_tpf == 1
    assert diffuse.break_even_tpf == pytest.approx(diffuse.forward_ms / ar.forward_ms)
    # What TPF and break-even promise is what the clock says, up to what falls between the forwards.
    assert diffuse.tpf / ar.tpf / diffuse.break_even_tpf == pytest.approx(up.after_prefill.value, rel=0.35)
    blocks = sum(measured.passes.values())
    assert diffuse.passes_per_block == pytest.approx(sum(p * n for p, n in measured.passes.items()) / blocks)
    assert diffuse.tokens_per_block == pytest.approx(diffuse.tokens / blocks)
    assert measured.arms["draft"].passes_per_block == 1
    assert 0 < measured.arms["draft"].stood < 1
    assert measured.arms["ar"].stood is None


def test_auto_says_what_it_chose_and_is_held_against_the_best(measured):
    auto = measured.arms["auto"]
    assert sum(auto.modes.values()) > 0
    assert set(auto.modes) <= {"ar", "draft"}
    assert auto.tokens_per_block is None
    singles = ("ar", "draft", "diffuse")
    best = max(singles, key=lambda name: measured.arms[name].tokens_per_s.value)
    ratio = auto.tokens_per_s.value / measured.arms[best].tokens_per_s.value
    assert measured.speed_ups[f"auto against {best}"].with_prefill.value == pytest.approx(ratio)
    assert f"mixed auto against {best}" in measured.speed_ups


def test_arms_under_a_grammar_want_a_model_with_tools_of_its_own(engine, work, monkeypatch):
    arms = ["draft", speed.HELD_DRAFT]
    assert [arm for arm in speed.ARMS if speed.ARMS[arm]["grammar"]] == ["held ar", "held draft", "held diffuse"]
    assert speed.feasible(engine, work, arms) == ["draft"]
    monkeypatch.setattr(engine, "taught", Constraint("regex", "(yes ){8}[a-z]{9}"))
    assert speed.feasible(engine, work, arms) == arms
    assert speed.feasible(engine, replace(work, examples=None), arms) == ["draft"]
    found = speed.run(
        engine, replace(work, prompts=work.prompts[:2], examples=work.examples[:2]), arms=arms, with_transformers=False
    )
    held, free = (found.arms[arm].tpf or 0.0 for arm in (speed.HELD_DRAFT, "draft"))
    assert held > free, "most of it is forced"
    assert f"{speed.HELD_DRAFT} against draft" in found.speed_ups


def test_short_canvases_are_timed_on_the_side(measured):
    assert {"pass of 8", "pass of 16", "pass of 32"} <= set(measured.forwards)
    assert all(0 < cost.model_ms < cost.mean_ms for cost in measured.forwards.values())


def test_the_tables_say_it_all(measured):
    text = "\n".join(report.speed_lines(measured))
    for words in (
        "tokens/s",
        "TPF",
        "rows a token",
        "break-even TPF",
        "passes a block",
        "proposals stood",
        "first token ms",
        "in the model",
        "exact match",
        "ar against transformers",
        "mixed auto against ar",
        "auto chose",
        "blocks of diffuse by passes",
        "3 of 3",
    ):
        assert words in text, words


def test_drawn_answers_are_judged_by_how_they_surprise_the_causal_model(engine):
    work = workload(engine, "random", 2, GenerateParams(max_tokens=6))
    found = speed.run(engine, work, arms=("draft",))
    assert set(found.arms) == {"ar", "draft", "transformers"}
    assert not found.exact_paired
    for arm in found.arms.values():
        assert arm.tokens == 12
        assert arm.exact is None
        assert arm.same_as_ar is None
        assert arm.nats is not None
        assert arm.nats.value > 0
    assert "nats a token" in "\n".join(report.speed_lines(found))


def test_the_arms_take_turns(engine, work, monkeypatch):
    order = []
    runners = {name: (lambda index, name=name: order.append((name, index))) for name in "abc"}
    monkeypatch.setattr(speed, "SHORT_CANVASES", ())
    speed._rotate(engine, work, runners, timing.core_of(engine), None)
    assert [name for name, _ in order] == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert [index for _, index in order] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def command(capsys, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.app(list(words))
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def test_the_command_prints_and_writes(tiny, tmp_path, capsys, one_thread, known_costs):
    file = tmp_path / "bench.json"
    words = f"--n 2 --max-tokens 12 --goodput 0.2 --verify 3 --no-transformers --profile --model {tiny} --json {file}"
    code, out, _ = command(capsys, "bench", *words.split(), "--set", "patterns", "--set", "random", "--arm", "draft")
    assert code == 0
    assert "transformers" not in out
    assert "matrix products" in out
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["threads"] == 1
    assert list(document["sets"]) == ["patterns", "random"]
    for found in document["sets"].values():
        assert found["prompts"] == 2
        assert set(found["speed"]["arms"]) == {"ar", "draft"}
        assert set(found["speed"]["speed_ups"]) == {"draft against ar"}
        assert set(found["goodput"]) == {"1", "4", "16"}
        assert [(one["arm"], one["prompts"]) for one in found["equality"]] == [("draft", 3)]
    kinds = ["ar step", "pass of 32", "verify of 32", "commit of 32 + pass of 32"]
    assert [part["kind"] for part in document["profile"]] == kinds


def test_a_loss_is_an_exit_code_of_its_own(tiny, capsys, one_thread, known_costs, monkeypatch):
    def verify(engine, work, **options):
        return [Equality("draft", 2, 1, 20, [Difference(0, 4, 0.5, 7, 8)])]

    monkeypatch.setattr("fourleaf.measure.equality.verify", verify)
    words = f"--n 1 --max-tokens 4 --goodput 0 --verify 2 --no-transformers --arm draft --model {tiny}"
    code, out, _ = command(capsys, "bench", *words.split())
    assert code == 1
    assert "margin 0.5" in out


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("bench", "--set", "train"), "train"),
        (("bench", "--threshold", "3"), "threshold"),
        (("bench", "--arm", "fast"), "fast"),
        (("bench", "--goodput", "-1"), "--goodput"),
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


def test_an_ar_model_has_nothing_to_compare(checkpoint, work, threads):
    engine = Engine.load(checkpoint(is_block_diffusion=False), num_threads=1)
    with pytest.raises(RequestError, match="AR model"):
        speed.run(engine, work, with_transformers=False)
