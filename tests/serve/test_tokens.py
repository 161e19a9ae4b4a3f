"""A model's tokenizer over HTTP, as vLLM has it."""

import json

import pytest
from fastapi.testclient import TestClient

from fourleaf.serve.app import create_app

TEXTS = ["", "open all windows", "Ça va 🙂\n", "<|user|>hi<|end|>", "half \ud83d"]


@pytest.fixture
def client(scripted):
    with TestClient(create_app(scripted("Hi.", max_context=99))) as client:
        yield client


@pytest.mark.parametrize("model", [None, "cabin"])
@pytest.mark.parametrize("text", TEXTS)
def test_what_is_read_is_written_again(client, byte_tokenizer, text, model):
    named = {} if model is None else {"model": model}
    body = json.dumps({"prompt": text, "add_special_tokens": False, **named})
    made = client.post("/tokenize", content=body).json()
    assert made == {"count": len(made["tokens"]), "max_model_len": 99, "tokens": byte_tokenizer.encode_markup(text)}
    back = client.post("/detokenize", json={"tokens": made["tokens"], **named}).json()
    assert back == {"prompt": text.replace("\ud83d", "\ufffd")}


def test_control_tokens_that_a_text_spells_are_read_as_such(client, byte_tokenizer):
    tokens = client.post("/tokenize", json={"prompt": "<|end|>"}).json()["tokens"]
    assert tokens == [byte_tokenizer.end_id]


def test_a_client_writes_prompts_as_the_model_reads_them(client, scripted):
    engine = scripted("Hi.")
    info = client.get("/tokenizer_info", params={"model": "cabin"}).json()
    assert (info["eos_token"], info["bos_token"], info["pad_token"]) == ("<|end|>", None, None)
    assert (info["model"], info["max_model_len"]) == ("cabin", 99)
    assert info["vocab_size"] == engine.tokenizer.vocab_size
    assert info["chat_template"] == engine.chat.source
    assert client.get("/tokenizer_info").json() == info


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
    ],
)
def test_what_is_wrong_is_named(client, path, fields, param):
    response = client.post(path, json=fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_an_unknown_model_is_not_found(client):
    assert client.get("/tokenizer_info", params={"model": "other"}).status_code == 404
    assert client.post("/tokenize", json={"prompt": "a", "model": "other"}).status_code == 404


def test_the_servers_key_is_wanted(scripted):
    with TestClient(create_app(scripted("Hi."), api_key="sesame")) as client:
        assert client.get("/tokenizer_info").status_code == 401
        assert client.post("/tokenize", json={"prompt": "a"}).status_code == 401
