import json
import sys
from pathlib import Path

import numpy as np
import pytest
import script
import torch
from safetensors.torch import load_file, save_file

from fourleaf.checkpoint.convert import export_folder
from fourleaf.checkpoint.families import ar_family, read_config
from fourleaf.checkpoint.files import load_model
from fourleaf.checkpoint.gguf import GgufFile
from fourleaf.engine.engine import Engine, bundled_path
from fourleaf.engine.request import GenerateParams
from fourleaf.engine.score import score
from fourleaf.errors import ConfigError
from fourleaf.measure.specimen import specimen
from fourleaf.measure.timing import core_of
from fourleaf.measure.workloads import workload
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer

bench = script.load("bench_peers")
from peers import ggufs, widths  # noqa: E402
from peers.lines import Peer, PeerRefusal, wave, waves  # noqa: E402

TEXT = list(range(3, 40)) * 2
SHAPES = {"head_dim": 12, "linear_key_head_dim": 8, "linear_value_head_dim": 6}
# Says what it is asked, prints what an engine might print, and refuses what it does not like.
ECHO = """
from peers.lines import serve, wave

def load(path):
    print("a banner")
    if path == "odd":
        raise ValueError("5 heads")
    return {"path": path}

def answer(prompts):
    return wave(len(prompts), [[(i, [7]) for i in range(len(prompts))], [(0, [8])]])

serve({"load": load, "answer": answer})
"""

PICKY = """
import numpy as np
from peers.lines import serve, wave

def load(threads, room, together, path):
    if path == "odd":
        raise ValueError("5 heads")
    return {"version": "1", "about": "", "dtype": "float32"}

def score(texts, file, kept):
    np.savez(file, own=np.array([-1.0, -2.0]), full=np.zeros((0, 48)))

def answer(prompts, max_tokens, stop, banned):
    return wave(len(prompts), [])

serve({"load": load, "score": score, "answer": answer})
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    """A hybrid of random weights as `fourleaf convert --to hf` writes it; its norms' epsilon matters."""
    torch.manual_seed(0)
    kinds = ("linear_attention", "full_attention") * 2
    config = ModelConfig(
        vocab_size=48, hidden_size=24, num_hidden_layers=4, layer_types=kinds, num_attention_heads=2,
        num_key_value_heads=1, rope_theta=1e4, partial_rotary_factor=0.5, linear_num_key_heads=2,
        linear_num_value_heads=4, intermediate_size=32, initializer_range=0.4, max_position_embeddings=128,
        rms_norm_eps=1e-2, **SHAPES,
    )  # fmt: skip
    model = Transformer(config)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "norm" in name:
                tensor.add_(0.3 * torch.randn_like(tensor))
    made = tmp_path / "hf"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(ar_family(config).raw(config)), encoding="utf-8")
    save_file(model.state_dict(), made / "model.safetensors")
    return made


def surprises(folder: Path) -> np.ndarray:
    found = score(load_model(folder, torch.float64), TEXT, 0, None)
    return np.array([one.logprob for one in found if one is not None])


@pytest.mark.parametrize(
    ("attention", "delta", "turned"), [(12, 8, None), (16, 8, 6), (16, 16, 10), (32, 64, 16), (32, 8, 26)]
)
def test_wider_heads_say_the_same(attention, delta, turned, folder, tmp_path):
    raw = widths.widen(folder, tmp_path / "wide", attention=attention, delta=delta, turned=turned)
    assert (raw["head_dim"], raw["linear_key_head_dim"], raw["linear_value_head_dim"]) == (attention, delta, delta)
    assert raw["rope_parameters"]["partial_rotary_factor"] * attention == (turned or 6)
    assert np.abs(surprises(tmp_path / "wide") - surprises(folder)).max() < 1e-4


def test_heads_are_not_cut(folder, tmp_path):
    with pytest.raises(ConfigError, match="linear_key_head_dim is 8, which 6 numbers cannot hold"):
        widths.widen(folder, tmp_path / "wide", attention=12, delta=6)
    assert not (tmp_path / "wide").exists()


@pytest.mark.parametrize(("attention", "turned"), [(12, 4), (12, 8), (16, 12)])
def test_what_is_turned_and_what_is_not_is_not_cut(attention, turned, folder, tmp_path):
    with pytest.raises(ConfigError, match=f"{turned} numbers of {attention} to turn, where 6 of 12 are turned"):
        widths.widen(folder, tmp_path / "wide", attention=attention, delta=8, turned=turned)


def test_a_written_gguf_reads_as_the_folder_it_was_made_from(folder, tmp_path):
    widths.widen(folder, tmp_path / "wide", attention=12, delta=8)
    ggufs.write(tmp_path / "wide", tmp_path / "wide.gguf")
    file = GgufFile(tmp_path / "wide.gguf")
    original = json.loads((tmp_path / "wide" / "config.json").read_text(encoding="utf-8"))
    config = read_config(file.config())
    assert config.rms_norm_eps == pytest.approx(original["rms_norm_eps"])
    shapes = ("layer_types", "head_dim", "linear_num_value_heads", "linear_value_head_dim", "partial_rotary_factor")
    assert all(getattr(config, key) == getattr(read_config(original), key) for key in shapes)
    found, wanted = dict(file.tensors(config)), load_file(tmp_path / "wide" / "model.safetensors")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-6)


def test_an_architecture_that_cannot_be_written_is_named(folder, tmp_path):
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(raw | {"model_type": "qwen3_5_moe_text"}), encoding="utf-8")
    with pytest.raises(ConfigError, match="'qwen3_5_moe_text'; llama and qwen3_5_text"):
        ggufs.write(folder, tmp_path / "x.gguf")


@pytest.fixture
def echo(tmp_path):
    program = tmp_path / "echo.py"
    program.write_text(ECHO, encoding="utf-8")
    peer = Peer(Path(sys.executable), program, {"A": "1"})
    yield peer
    peer.close()


def test_a_peer_answers_line_by_line_whatever_it_prints(echo):
    assert echo.ask("load", path="x") == {"path": "x"}
    answer = echo.ask("answer", prompts=[[1], [2]])
    assert answer["tokens"] == [[7, 8], [7]]
    assert answer["later"] == 1
    assert 0 < answer["prefill_seconds"] <= answer["seconds"]


def test_a_peers_refusal_has_its_words_and_it_goes_on(echo):
    with pytest.raises(PeerRefusal, match="ValueError: 5 heads"):
        echo.ask("load", path="odd")
    assert echo.ask("load", path="x") == {"path": "x"}


def test_a_peer_that_dies_is_a_refusal(tmp_path):
    program = tmp_path / "dead.py"
    program.write_text("raise SystemExit(3)", encoding="utf-8")
    peer = Peer(Path(sys.executable), program, {})
    with pytest.raises(PeerRefusal, match="ended with code 3"):
        peer.ask("load")
    peer.close()


def test_prefill_lasts_until_each_prompt_has_a_token():
    found = wave(2, [[(0, [5])], [(0, [6]), (1, [7])], [(1, [8, 9])]])
    assert found["tokens"] == [[5, 6], [7, 8, 9]]
    assert found["later"] == 2


def test_a_rest_that_fills_no_wave_is_left_out():
    assert [list(part) for part in waves(range(7), 3)] == [[0, 1, 2], [3, 4, 5]]


def test_a_peer_is_offered_one_form_after_another(folder, tmp_path, monkeypatch):
    folder.rename(tmp_path / "exported")
    program = tmp_path / "picky.py"
    program.write_text(PICKY, encoding="utf-8")
    monkeypatch.setitem(bench.PROGRAMS, "llama-cpp", program)
    tries = [bench.Attempt("odd", {"path": "odd"}), bench.Attempt("even", {"path": "even"})]
    standing, peer, found = bench.stand("llama-cpp", iter(tries), Path(sys.executable), [[1, 2, 3]], 8, 1, tmp_path)
    peer.close()
    assert standing.form == "even"
    assert [(no["form"], no["words"]) for no in standing.refusals] == [("odd", "ValueError: 5 heads")]
    assert found[0].tolist() == [-1.0, -2.0]
    alone, peer, found = bench.stand("llama-cpp", iter(tries[:1]), Path(sys.executable), [[1]], 8, 1, tmp_path)
    assert (alone.form, peer, found) == ("", None, None)


def test_the_forms_offered_fit_what_each_peer_says_it_takes(folder, tmp_path):
    folder.rename(tmp_path / "exported")
    forms = list(bench.attempts("vllm", tmp_path / "exported", eager=True))
    assert [one.load["dtype"] for one in forms] == ["float32", "float32", "bfloat16"]
    raw = json.loads((Path(forms[-1].load["path"]) / "config.json").read_text(encoding="utf-8"))
    assert (raw["head_dim"], raw["linear_key_head_dim"], raw["linear_value_head_dim"]) == (32, 32, 32)
    assert widths.turned_of(raw) == 16
    files = [Path(one.load["path"]) for one in bench.attempts("llama-cpp", tmp_path / "exported", eager=True)]
    states = [GgufFile(file).value("qwen35.ssm.state_size") for file in files]
    assert states == [8, 8]
    assert [GgufFile(file).value("qwen35.ssm.inner_size") for file in files] == [24, 32]


def test_texts_are_prompts_and_answers_as_they_were_learnt(tmp_path):
    engine = Engine.load(bundled_path(), num_threads=1)
    work = workload(engine, bench.SET, 2, GenerateParams(mode="ar"))
    documents = bench.texts_of(engine, work, 2)
    assert [one.ids[: one.answer_start].tolist() for one in documents] == work.prompts
    export_folder(bundled_path(), tmp_path / "exported")
    losses = bench.own_losses(load_model(tmp_path / "exported", torch.float32), [documents[0].ids.tolist()])[0]
    assert -losses[documents[0].answer_start - 1 :].mean() < 1


def test_losses_are_held_to_ours():
    full = np.log(np.array([[0.5, 0.5], [0.25, 0.75]]))
    other = np.log(np.array([[0.5, 0.5], [0.75, 0.25]]))
    found = bench.beside((full[:, 0], full), (other[:, 0], other), np.array([False, True]))
    assert found["nats_of_answers"] == pytest.approx(-np.log(0.75))
    assert found["most_apart"] == pytest.approx(np.log(3))
    assert found["kl"] == pytest.approx(0.5 * (0.25 * np.log(1 / 3) + 0.75 * np.log(3)))


def test_our_waves_have_the_tokens_and_ends_of_the_engine(byte_tokenizer):
    engine = specimen(byte_tokenizer, 0)
    core = core_of(engine)
    prompts = [[5, 6, 7], [8, 9]]
    for mode in ("ar", "diffuse"):
        params = GenerateParams(mode=mode, max_tokens=20)
        found = bench.ours(engine, core, params)(prompts)
        for prompt, tokens in zip(prompts, found["tokens"], strict=True):
            deltas = list(engine.generate(prompt, params))
            ended = deltas[-1].finish_reason == "stop"
            assert tokens == [t for d in deltas for t in d.tokens] + [engine.end_id] * ended
        assert 0 < found["prefill_seconds"] < found["seconds"]
        total = sum(map(len, found["tokens"]))
        assert found["later"] == total - 2 if mode == "ar" else found["later"] <= total


def test_the_page_has_every_engine_loss_and_refusal():
    answers = [{"tokens": [[1, 2], [3, 4]], "seconds": 2.0, "prefill_seconds": 1.0, "later": 2}]
    other = [{"tokens": [[1, 2], [3, 5]], "seconds": 1.0, "prefill_seconds": 0.5, "later": 2}]
    loss = {"nats": 2.0, "nats_of_answers": 0.25, "mean_apart": 0.5, "most_apart": 1.0, "kl": 1e-7}
    about, refusals = {"version": "1", "about": "eager"}, [{"form": "odd", "words": "no"}]
    stands = [bench.Standing("vllm", "as exported", about, refusals)]
    found = {
        "model": "cabin", "weights_sha256": "ab" * 32, "parameters": 2137188, "processor": "One", "load": [0.5],
        "texts": 4, "set": "patterns", "tokens_scored": 9, "prompts": 2, "peers": [vars(one) for one in stands],
        "losses": {"fourleaf": loss, "vllm": loss}, "speeds": {"2": bench.rates({"ar": answers, "vllm": other})},
    }  # fmt: skip
    text = bench.section(found)
    for line in (
        "- vllm 1 ran the weights as exported: eager.",
        "- vllm refused the weights odd: `no`",
        "| vllm | 2.0000 | 0.25000 | 0.5000 | 1.000 | 1.0e-07 |",
        "| 2 | fourleaf, ar | 2 (2-2) | 2 (2-2) | 1.00 | 1.00 | 1000.0 | 2 of 2 |",
        "| 2 | vllm | 4 (4-4) | 4 (4-4) | 2.00 | 2.00 | 500.0 | 1 of 2 |",
    ):
        assert line in text, line
