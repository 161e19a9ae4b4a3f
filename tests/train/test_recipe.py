"""The bundled model's recipe, shortened to a few steps."""

import json
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fourleaf import cli
from fourleaf.checkpoint.files import load_model
from fourleaf.diffusion.noise import NoiseConfig
from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.errors import CheckpointError, ConfigError
from fourleaf.kernels import fuse
from fourleaf.tasks.cabin.generator import stream
from fourleaf.tasks.cabin.schema import TOOLS, answer_text, messages, tool_calls_message
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.tokenizer import SPECIAL_TOKENS, train_tokenizer
from fourleaf.train import heldout, recipes
from fourleaf.train.folder import CHECKPOINT, RunFolder
from fourleaf.train.kept import own_noise, own_share
from fourleaf.train.recipes import cabin_source, document, template_path, train_cabin


@pytest.fixture(scope="module")
def tokenizer():
    examples = list(islice(stream(1), 300))
    return train_tokenizer(
        (text for e in examples for text in (e.utterance, answer_text(e))), len(SPECIAL_TOKENS) + 500
    )


@pytest.fixture(scope="module")
def chat(tokenizer):
    return ChatTemplate(template_path().read_text(encoding="utf-8"), tokenizer)


def test_a_document_is_the_conversation_as_the_template_renders_it(tokenizer, chat):
    """What is served with history must look as what was trained on."""
    with_calls = without = 0
    for example in islice(stream(5), 200):
        made = document(example, tokenizer, chat)
        answer = tool_calls_message(example.calls) if example.calls else {"role": "assistant", "content": example.text}
        whole = chat.render([*messages(example), answer], add_generation_prompt=False)
        assert made.ids.tolist() == whole
        assert made.ids[: made.answer_start].tolist() == chat.render(messages(example))
        assert tokenizer.decode(made.ids[made.answer_start :]) == answer_text(example) + "<|end|>"
        with_calls += bool(example.calls)
        without += not example.calls
    assert min(with_calls, without) > 5


def test_the_source_is_a_function_of_its_seed_and_keeps_to_the_curriculum(tokenizer, chat):
    source = cabin_source(tokenizer, chat)

    def drawn(seed: int, calls: int) -> list[list[int]]:
        return [d.ids[d.answer_start :].tolist() for d in islice(source(seed, calls), 60)]

    assert drawn(1, 2) == drawn(1, 2)
    assert drawn(1, 2) != drawn(2, 2)
    opened = tokenizer.token_id("<tool_call>")
    assert {ids.count(opened) for ids in drawn(1, 1)} <= {0, 1}
    assert max(ids.count(opened) for ids in drawn(1, 8)) > 2


@pytest.fixture
def quick(monkeypatch, tokenizer):
    """A recipe that starts at once, with batches of few rows."""
    stages = [SimpleNamespace(**vars(stage)) for stage in recipes.CABIN_STAGES]
    small = tuple(type(recipes.CABIN_STAGES[0])(**(vars(stage) | {"rows": 150})) for stage in stages)
    monkeypatch.setattr(recipes, "CABIN_STAGES", small)
    continued = tuple(replace(stage, rows=150) for stage in recipes.CONTINUED_STAGES)
    monkeypatch.setattr(recipes, "CONTINUED_STAGES", continued)
    monkeypatch.setattr(recipes, "cabin_tokenizer", lambda **_: tokenizer)
    return {"compiled": False, "overrides": {"pool_size": 8, "log_every": 1, "eval_examples": 2}}


def test_the_recipe_makes_a_model_that_the_engine_serves(quick, monkeypatch, tmp_path):
    monkeypatch.setattr(heldout, "_MAX_TOKENS", 8)
    lines = []
    made = train_cabin(tmp_path, steps=2, evaluate=heldout.evaluator, report=lines.append, **quick)
    assert made == tmp_path / "model"
    assert json.loads((made / "tools.json").read_text()) == TOOLS
    engine = Engine.load(made)
    params = GenerateParams(mode="diffuse", max_tokens=5)
    assert list(engine.generate(engine.chat.render([{"role": "user", "content": "hi"}]), params))
    assert "tokenizer" in lines[0]["note"]
    assert [line["objective"] for line in lines if "objective" in line] == ["ar", "joint"]
    first, second = (line for line in lines if "evaluation" in line)
    assert set(first) == {"evaluation", "step", "tokens", "ar", "sample"}
    assert set(second) == {"evaluation", "step", "tokens", "ar", "diffuse", "tpf", "sample"}
    assert second["sample"]["utterance"] in [e.utterance for e in heldout.examples(2)]
    assert [line for line in lines if "note" not in line] == list(RunFolder(tmp_path).lines())


def test_a_folder_with_a_run_is_gone_on_with_or_refused(quick, tmp_path):
    def crash(line: dict) -> None:
        if line.get("step") == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_cabin(tmp_path, steps=2, report=crash, **quick)
    with pytest.raises(ConfigError, match="holds a run"):
        train_cabin(tmp_path, steps=2, resume=False, **quick)
    with pytest.raises(ConfigError, match="seed 0, not 4"):
        train_cabin(tmp_path, steps=2, seed=4, **quick)
    (tmp_path / "tokenizer.json").rename(tmp_path / "elsewhere.json")
    with pytest.raises(CheckpointError, match=r"there is no .*tokenizer\.json"):
        train_cabin(tmp_path, steps=2, **quick)
    (tmp_path / "elsewhere.json").rename(tmp_path / "tokenizer.json")
    train_cabin(tmp_path, **quick)
    assert [line["step"] for line in RunFolder(tmp_path).lines()] == [1, 2], "by default it keeps its own budget"
    assert (tmp_path / "model" / "model.safetensors").stat().st_size * 2 < (tmp_path / CHECKPOINT).stat().st_size


def test_compiled_functions_are_for_the_run_alone(quick, monkeypatch, tmp_path):
    seen = []

    def run(trainer):
        seen.append(fuse._compiled)
        raise KeyboardInterrupt

    monkeypatch.setattr(recipes.Trainer, "run", run)
    with pytest.raises(KeyboardInterrupt):
        train_cabin(tmp_path, steps=2, **(quick | {"compiled": True}))
    assert seen == [True]
    assert not fuse._compiled


class Train:
    """Stands in for the recipe and keeps what the command asked of it."""

    def __init__(self, error: type[BaseException] | None = None) -> None:
        self.error, self.asked = error, {}

    def __call__(self, out, *, report, **asked):
        self.asked = {"out": out, **asked}
        report({"note": "hello"})
        if self.error is not None:
            raise self.error
        return out / "model"


def command(train, monkeypatch, *words: str) -> int:
    monkeypatch.setattr(recipes, "train_cabin", train)
    with pytest.raises(SystemExit) as ended:
        cli.app(["train", "cabin", *words])
    return int(ended.value.code or 0)


def test_the_command_hands_its_options_on_and_prints_where_the_model_is(monkeypatch, tmp_path, capsys):
    train = Train()
    words = ("--out", str(tmp_path), "--steps", "7", "--seed", "3", "--threads", "1", "--no-resume", "--no-compile")
    words += ("--from", "elsewhere", "--workers", "2", "--judgements", "0.25", "--puzzles", "0.1")
    assert command(train, monkeypatch, *words) == 0
    del train.asked["evaluate"]
    wanted = {"minutes": None, "steps": 7, "seed": 3, "resume": False, "compiled": False, "num_threads": 1}
    wanted |= {"num_workers": 2, "start": Path("elsewhere"), "judgements": 0.25, "puzzles": 0.1}
    assert train.asked == {"out": tmp_path, **wanted}
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path / 'model'}\n"
    assert printed.err == "hello\n"


def test_the_command_goes_on_and_compiles_by_default(monkeypatch):
    train = Train()
    assert command(train, monkeypatch, "--minutes", "2.5") == 0
    assert (train.asked["minutes"], train.asked["resume"], train.asked["compiled"]) == (2.5, True, True)


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(monkeypatch, tmp_path, capsys):
    assert command(Train(KeyboardInterrupt), monkeypatch, "--out", str(tmp_path)) == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"stopped; the run so far is in {tmp_path}, and the same command goes on from there"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--minutes", "1", "--steps", "5"], "either minutes or steps"),
        (["--minutes", "0"], "must be above 0"),
        (["--steps", "0"], "--steps"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_folder(words, message, tmp_path, capsys):
    out = tmp_path / "run"
    with pytest.raises(SystemExit) as ended:
        cli.app(["train", "cabin", "--out", str(out), *words])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_a_trained_model_is_the_same_from_the_same_seed(quick, tmp_path):
    for name in ("one", "two"):
        train_cabin(tmp_path / name, steps=2, **quick)
    first, second = (Engine.load(tmp_path / name / "model").model for name in ("one", "two"))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_a_run_from_a_checkpoint_begins_with_its_weights_and_its_tokenizer(quick, tmp_path):
    first = train_cabin(tmp_path / "first", steps=2, **quick)
    asked = []
    quick["overrides"] = quick["overrides"] | {"weight_decay": 0.0, "pool_size": 40}
    quick["overrides"]["stages"] = tuple(replace(stage, peak=0.0) for stage in recipes.CONTINUED_STAGES)
    second = train_cabin(tmp_path / "second", steps=2, start=first, report=asked.append, **quick)
    for name in ("model.safetensors", "tokenizer.json"):
        assert (second / name).read_bytes() == (first / name).read_bytes()
    assert asked[0]["objective"] == "ar", "the tokenizer is not trained anew"
    assert asked[0]["max_calls"] == 8, "nor does the curriculum begin with one call"


def test_a_run_keeps_the_stages_that_it_was_started_with(quick, tmp_path):
    """Gone on with without `--from`, a run that began with a checkpoint must not take up the beginner's rates."""
    first = train_cabin(tmp_path / "first", steps=2, **quick)
    folder = RunFolder(tmp_path / "second")
    assert recipes.cabin_stages(folder.settings(), None) == recipes.CABIN_STAGES
    assert recipes.cabin_stages(folder.settings(), first) == recipes.CONTINUED_STAGES != recipes.CABIN_STAGES
    train_cabin(folder.path, steps=2, start=first, **quick)
    assert recipes.cabin_stages(folder.settings(), None) == recipes.CONTINUED_STAGES
    train_cabin(folder.path, steps=4, **quick)
    assert not [line for line in folder.lines() if "stages" in line.get("changed", {})]


def test_a_run_keeps_its_noise_and_its_weights_are_read_once(quick, monkeypatch, tmp_path):
    """Gone on with, a run of one noisy copy must not become one of two: steps would cost more."""
    narrower(monkeypatch, num_hidden_layers=2, layer_types=(), hidden_size=64, intermediate_size=40)
    quick |= {"num_workers": 1}
    folder = RunFolder(tmp_path)
    with monkeypatch.context() as before:
        before.setattr(recipes, "CABIN_NOISE", NoiseConfig(copies=1, least=0.3))
        train_cabin(folder.path, steps=2, **quick)
    assert recipes.CABIN_NOISE.copies == 2
    reads = []
    load = RunFolder.load
    monkeypatch.setattr(RunFolder, "load", lambda self: reads.append(self.path) or load(self))
    train_cabin(folder.path, steps=4, **quick)
    assert len(reads) == 1
    assert (folder.settings() or {})["noise"] == asdict(NoiseConfig(copies=1, least=0.3))
    assert not [line for line in folder.lines() if "noise" in line.get("changed", {})]


def test_a_checkpoint_from_before_a_setting_means_what_all_runs_did_then():
    kept = {"noise": {"least": 0.2, "full": 0.15}}
    assert own_noise(kept, NoiseConfig(copies=2)) == NoiseConfig(least=0.2)
    assert own_noise({}, NoiseConfig(copies=2)) == NoiseConfig()
    assert own_noise(None, NoiseConfig(copies=2)).copies == 2
    assert own_share({}, "puzzles", None) == 0.0
    assert own_share({"puzzles": 0.2}, "puzzles", 0.0) == 0.0, "said outright"


def narrower(monkeypatch, **changes):
    """The recipe's own shape, as small as `changes` say, until `monkeypatch.undo`."""
    trunk = recipes.cabin_trunk
    monkeypatch.setattr(recipes, "cabin_trunk", lambda size: replace(trunk(size), **changes))


def test_a_checkpoint_of_another_shape_begins_no_run(quick, monkeypatch, tmp_path):
    narrower(monkeypatch, num_hidden_layers=2, layer_types=())
    first = train_cabin(tmp_path / "first", steps=2, **quick)
    narrower(monkeypatch, intermediate_size=8)
    with pytest.raises(ConfigError, match=r"first/model has another shape: growing cannot shrink .* 704 to 8"):
        train_cabin(tmp_path / "second", steps=2, start=first, **quick)


def test_a_narrower_checkpoint_begins_a_run_with_what_it_knows(quick, monkeypatch, tmp_path):
    quick["overrides"] = quick["overrides"] | {"weight_decay": 0.0}
    quick["overrides"]["stages"] = (replace(recipes.CONTINUED_STAGES[0], share=1.0, peak=0.0),)
    small = {"num_hidden_layers": 2, "layer_types": (), "intermediate_size": 40}
    with monkeypatch.context() as narrow:
        narrower(narrow, **small, hidden_size=64)
        first = train_cabin(tmp_path / "first", steps=1, **quick)
    narrower(monkeypatch, **small)
    second = train_cabin(tmp_path / "second", steps=1, start=first, **quick)
    known, grown = load_model(first), load_model(second)
    assert (known.config.hidden_size, grown.config.hidden_size) == (64, 256)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert torch.equal(grown.state_dict()[name][:, :64], known.state_dict()[name])
