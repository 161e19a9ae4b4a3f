"""Server and command line over a real engine: a tiny model with random weights, which says nothing sensible."""

import json
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
import torch
from fastapi.testclient import TestClient

from fourleaf.checkpoint.files import save_model
from fourleaf.checkpoint.tools import fixed_tools
from fourleaf.engine import Engine
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer
from fourleaf.serve.app import create_app
from fourleaf.tasks.cabin.schema import TOOLS

SAID = [{"role": "user", "content": "hi"}]
TEMPLATE = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, byte_tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    config = ModelConfig(
        vocab_size=byte_tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        rope_theta=10_000.0,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        intermediate_size=48,
        block_size=32,
        mask_token_id=byte_tokenizer.mask_id,
        max_position_embeddings=256,
    )
    torch.manual_seed(0)
    save_model(Transformer(config), folder)
    byte_tokenizer.save(folder / "tokenizer.json")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tools.json").write_text(json.dumps(TOOLS))
    return folder


@pytest.fixture(scope="module")
def client(folder):
    with TestClient(create_app(Engine.load(folder), fixed_tools=fixed_tools(folder))) as client:
        yield client


def ask(client, **fields):
    response = client.post("/v1/chat/completions", json={"model": "tiny", "messages": SAID, **fields})
    assert response.status_code == 200, response.text
    return response


@pytest.mark.parametrize("mode", ["ar", "diffuse"])
@pytest.mark.parametrize("max_tokens", [1, 31, 32, 33, 70])
def test_the_limit_is_exact_and_a_stream_says_the_same(client, mode, max_tokens):
    fields = {"mode": mode, "max_tokens": max_tokens, "threshold": 0.02}
    whole = ask(client, **fields).json()
    usage = whole["usage"]
    assert usage["completion_tokens"] <= max_tokens
    if whole["choices"][0]["finish_reason"] == "length":
        assert usage["completion_tokens"] == max_tokens
    assert usage["prompt_tokens"] == len("hi") + 2
    assert usage["fourleaf"]["passes"] >= (mode == "diffuse")
    assert (usage["fourleaf"]["passes"] == 0) == (mode == "ar")
    streamed = ask(client, stream=True, **fields).text
    chunks = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"]


@pytest.mark.parametrize("mode", ["ar", "diffuse"])
def test_a_seed_decides_a_sampled_answer(client, mode):
    fields = {"mode": mode, "max_tokens": 24, "temperature": 1.5}

    def text(seed: int) -> str:
        return ask(client, seed=seed, **fields).json()["choices"][0]["message"]["content"]

    assert text(7) == text(7)
    assert len({text(seed) for seed in range(4)}) > 1


def test_a_full_context_is_refused_and_one_token_less_is_answered(client):
    said = [{"role": "user", "content": "x" * 253}]
    assert ask(client, messages=said).json()["usage"]["completion_tokens"] == 1
    refused = client.post(
        "/v1/chat/completions", json={"model": "tiny", "messages": [said[0] | {"content": "x" * 254}]}
    )
    assert refused.json()["error"]["code"] == "context_length_exceeded"


def test_the_command_line_answers_from_a_folder(folder):
    words = ["run", "hi", "--model", str(folder), "--json", "--show", "--max-tokens", "20", "--threads", "1"]
    done = subprocess.run([sys.executable, "-m", "fourleaf.cli", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["usage"]["completion_tokens"] <= 20
    assert done.stderr.startswith("block 0 pass 0: ")
    assert "TPF" in done.stderr.splitlines()[-1]


def test_the_command_line_says_what_is_wrong_with_a_folder(tmp_path):
    words = ["run", "hi", "--model", str(tmp_path / "nothing")]
    done = subprocess.run([sys.executable, "-m", "fourleaf.cli", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "nothing" in done.stderr


def test_serve_says_where_it_listens_and_ends_on_an_interrupt(folder):
    program = [sys.executable, "-m", "fourleaf.cli", "serve", "--model", str(folder), "--port", "0"]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said = server.stderr.readline()
        assert said.startswith("tiny is served on http://127.0.0.1:")
        url = said.split()[4].removesuffix("/v1")
        assert httpx2.get(f"{url}/health", timeout=30).json() == {"status": "ok"}
        assert httpx2.get(f"{url}/v1/models", timeout=30).json()["data"][0]["status"] == "loaded"
        server.send_signal(2)
        rest = server.stderr.read()
    assert "Traceback" not in rest
    assert server.returncode in (0, 130)


def test_what_the_engine_cannot_do_is_refused_before_a_stream_begins(client):
    """Bug kind 57: a schema that the grammar does not take is a 500 from deep inside."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "not": {"const": "b"}}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    response = client.post(
        "/v1/chat/completions",
        json={"model": "tiny", "messages": SAID, "stream": True, "response_format": form, "tool_choice": "none"},
    )
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith("response_format")


def test_a_signal_lets_an_answer_that_runs_come_to_its_end(folder):
    words = ["serve", "--model", str(folder), "--port", "0", "--drain-seconds", "60", "--log", "none"]
    program = [sys.executable, "-m", "fourleaf.cli", *words]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        url = server.stderr.readline().split()[4]
        body = {"model": "tiny", "messages": SAID, "stream": True, "mode": "ar", "max_tokens": 200}
        with httpx2.stream("POST", f"{url}/chat/completions", json=body, timeout=60) as response:
            lines = (line for line in response.iter_lines() if line.startswith("data: "))
            next(lines)
            server.terminate()
            rest = list(lines)
        assert rest[-1] == "data: [DONE]"
        assert not any('"error"' in line for line in rest)
        with pytest.raises(httpx2.TransportError):
            httpx2.get(f"{url}/models", timeout=30)
        said = server.stderr.read()
    assert "Traceback" not in said
    assert server.returncode in (0, -15, 143)
