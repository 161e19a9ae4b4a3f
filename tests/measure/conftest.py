import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny as shapes
import torch

from fourleaf.checkpoint.files import save_model
from fourleaf.engine import bundled_path
from fourleaf.engine.cost import KINDS, CostTable
from fourleaf.engine.engine import Engine
from fourleaf.engine.request import Delta, GenerateParams, Usage
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer
from fourleaf.tasks.cabin.schema import Example, answer_text, messages
from fourleaf.text.chat import ChatTemplate
from fourleaf.text.tokenizer import Tokenizer

SHAPES = shapes.FOUR | {"max_position_embeddings": 2048}
TEMPLATE = bundled_path() / "chat_template.jinja"


@pytest.fixture(scope="session")
def checkpoint(byte_tokenizer, tmp_path_factory) -> Callable[..., Path]:
    """A folder with a small model of random weights: every byte a token, answers of many tokens that mean nothing."""

    def make(*, moe: bool = False, is_block_diffusion: bool = True) -> Path:
        ids = {"eos_token_id": byte_tokenizer.end_id, "vocab_size": byte_tokenizer.vocab_size}
        if is_block_diffusion:
            ids |= {"block_size": 32, "mask_token_id": byte_tokenizer.mask_id}
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(4)  # before the start too: what ran earlier must not decide what the model says
            model = Transformer(
                ModelConfig(
                    **(SHAPES | (shapes.EXPERTS if moe else shapes.DENSE | {"tie_word_embeddings": True}) | ids)
                )
            )
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn(parameter.shape))
        folder = tmp_path_factory.mktemp("tiny")
        save_model(model, folder)
        byte_tokenizer.save(folder / "tokenizer.json")
        (folder / "chat_template.jinja").write_text(TEMPLATE.read_text(encoding="utf-8"), encoding="utf-8")
        return folder

    return make


@pytest.fixture(scope="session")
def tiny(checkpoint) -> Path:
    return checkpoint()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Puts torch's number of threads back: the commands set it for the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def known_costs() -> Iterator[None]:
    """`auto` goes by these, and no engine of the module times its forwards for two seconds."""
    table = CostTable(dict.fromkeys(KINDS, ((1, 0.002), (32, 0.005), (512, 0.05))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fourleaf.engine.engine.table_of", lambda model, folder: table)
        yield


class Oracle:
    """An engine that knows the answers, apart from those it is told to get wrong in a mode."""

    def __init__(self, tokenizer: Tokenizer, examples: Sequence[Example], wrong: dict[str, set[int]]) -> None:
        self.tokenizer, self.wrong = tokenizer, wrong
        self.chat = ChatTemplate(TEMPLATE.read_text(encoding="utf-8"), tokenizer)
        prompts = [tuple(self.chat.render(messages(example))) for example in examples]
        self.known = {prompt: (i, answer_text(e)) for i, (prompt, e) in enumerate(zip(prompts, examples, strict=True))}
        self.batches: list[int] = []

    def generate_many(self, prompts: list[list[int]], params: GenerateParams) -> list[tuple[list[int], Delta]]:
        self.batches.append(len(prompts))
        found = []
        for prompt in prompts:
            index, answer = self.known[tuple(prompt)]
            text = "Which one, please?" if index in self.wrong.get(params.mode, set()) else answer
            ids = self.tokenizer.encode_markup(text)
            forwards = len(ids) if params.mode == "ar" else max(1, len(ids) // 4)
            usage = Usage(len(prompt), len(ids) + 1, forwards, 2 * (len(ids) + 1), forwards)
            found.append((ids, Delta((), "stop", usage)))
        return found


@pytest.fixture
def oracle(byte_tokenizer) -> Callable[..., Engine]:
    def make(examples: Sequence[Example], **wrong: set[int]) -> Engine:
        return Oracle(byte_tokenizer, examples, wrong)  # type: ignore[return-value]

    return make


@pytest.fixture
def log(tmp_path) -> Path:
    """A training log as a run writes it: two stages, evaluations in between."""
    lines = [
        {"stage": 0, "objective": "ar", "step": 20, "tokens": 1000, "next": 3.0},
        {"evaluation": "ar", "step": 20, "tokens": 1000, "ar": 0.1},
        {"stage": 1, "objective": "joint", "step": 40, "tokens": 2000, "next": 1.0, "masked": 2.0},
        {"evaluation": "joint", "step": 40, "tokens": 2000, "ar": 0.6, "diffuse": 0.4, "tpf": 3.2},
        {"evaluation": "joint", "step": 60, "tokens": 3000, "ar": 0.8, "diffuse": 0.75, "tpf": 4.0},
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def quiet() -> SimpleNamespace:
    """Somewhere to print to."""
    import io

    return SimpleNamespace(out=io.StringIO(), progress=io.StringIO())
