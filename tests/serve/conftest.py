import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager

import openai
import pytest
import tiny
import torch
from fastapi import FastAPI

from fourleaf.engine.engine import Engine
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer
from fourleaf.serve import listener
from fourleaf.serve.app import create_app
from fourleaf.tasks.cabin.schema import TOOLS
from fourleaf.text.chat import ChatTemplate


@contextmanager
def _served(app: FastAPI) -> Generator[str]:
    """The URL of an app that really listens, in a thread of this process."""
    with listener.bind("127.0.0.1", 0) as bound:
        server = listener.Listener(app, drain_seconds=3)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield listener.url(bound)
        finally:
            server.stop()
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serves an engine until the test ends; gives the server's URL."""
    with ExitStack() as stack:

        def start(engine, **options) -> str:
            return stack.enter_context(_served(create_app(engine, **{"fixed_tools": TOOLS, **options})))

        yield start


@pytest.fixture
def client_of(serve) -> Iterator[Callable[..., openai.OpenAI]]:
    """An official client of a server of an engine."""
    with ExitStack() as stack:

        def connect(engine, *, key: str = "none", **options) -> openai.OpenAI:
            url = f"{serve(engine, **options)}/v1"
            return stack.enter_context(openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=30))

        yield connect


@pytest.fixture(scope="session")
def tiny_engine(byte_tokenizer) -> Callable[..., Engine]:
    """Makes engines on random weights, always the same; the argument is their context."""

    def make(max_context: int, *, seed: int = 0, **options) -> Engine:
        fields = {
            "vocab_size": byte_tokenizer.vocab_size,
            "intermediate_size": 16,
            "block_size": 8,
            "mask_token_id": byte_tokenizer.mask_id,
            "max_position_embeddings": max_context,
            "initializer_range": 0.5,
        }
        torch.manual_seed(seed)
        model = Transformer(ModelConfig(**(tiny.TWO | fields | options))).eval()
        template = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|>"
        return Engine("tiny", model, byte_tokenizer, ChatTemplate(template, byte_tokenizer))

    return make
