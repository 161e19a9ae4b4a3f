from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from fourleaf.checkpoint.files import save_model
from fourleaf.diffusion.noise import NoiseConfig
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer
from fourleaf.model.work import Work
from fourleaf.quant.int4 import Packed, dequantise
from fourleaf.text.tokenizer import Tokenizer
from fourleaf.train.data import Document, collate

BLOCK, MASK = 8, 1
TEMPLATE = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|>"
SHAPES = tiny.ODD | {"block_size": BLOCK, "mask_token_id": MASK}
DENSE = {"intermediate_size": 71}
EXPERTS = tiny.EXPERTS | {"moe_intermediate_size": 35}


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Transformer]:
    """A small model with random weights; `moe` gives it experts, other options go into its config."""

    def make(*, moe: bool = False, dtype: torch.dtype = torch.float64, seed: int = 0, **options) -> Transformer:
        torch.manual_seed(seed)
        model = Transformer(ModelConfig(**(SHAPES | (EXPERTS if moe else DENSE) | options)))
        with torch.no_grad():
            for name, tensor in model.named_parameters():
                if name.endswith("embed_tokens.weight"):
                    tensor.normal_()
                elif tensor.dim() > 1:
                    tensor.normal_(0.0, tensor.shape[-1] ** -0.5)
                elif name.endswith(("norm.weight", "history_bias", "history_c", "logit_scale", "proj.bias")):
                    tensor.add_(0.3 * torch.randn(tensor.shape))
        return model.to(dtype).eval()

    return make


def ids(count: int, seed: int) -> Tensor:
    return torch.randint(2, SHAPES["vocab_size"], (count,), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="session")
def make_work() -> Callable[..., Work]:
    """Documents of random ids, one for each (length, answer's start), and their canvases, as training has them."""

    def make(*shapes: tuple[int, int], seed: int = 0) -> Work:
        answers = [
            torch.cat((ids(length - 1, seed + i), torch.zeros(1).long())) for i, (length, _) in enumerate(shapes)
        ]
        documents = [Document(all_.numpy(), start) for all_, (_, start) in zip(answers, shapes, strict=True)]
        return collate(
            documents,
            objective="joint",
            end_id=0,
            mask_id=MASK,
            block_size=BLOCK,
            noise=NoiseConfig(),
            fill_weight=0.0,
            prompt_weight=0.0,
            rng=np.random.default_rng(seed),
        ).work

    return make


@pytest.fixture(scope="session")
def with_dequantised() -> Callable[[Transformer, dict[str, Packed]], Transformer]:
    """The oracle: an ordinary model whose weights are what the packed ones mean."""

    def make(model: Transformer, packed: dict[str, Packed]) -> Transformer:
        plain = Transformer(model.config).to(model.lm_head.weight.dtype).eval()
        with torch.no_grad():
            for (name, ours), theirs in zip(plain.named_tensors(), model.parameters(), strict=True):
                ours.copy_(dequantise(packed[name], ours.dtype) if name in packed else theirs)
        return plain

    return make


@pytest.fixture
def checkpoint(tmp_path: Path, make_model, byte_tokenizer: Tokenizer) -> Callable[..., Path]:
    """A checkpoint folder with a random model and all that lies beside its weights."""

    def make(name: str = "tiny", dtype: torch.dtype = torch.bfloat16, **options) -> Path:
        folder = tmp_path / name
        vocabulary = {"vocab_size": byte_tokenizer.vocab_size, "mask_token_id": byte_tokenizer.mask_id}
        save_model(make_model(**(vocabulary | {"max_position_embeddings": 200} | options)), folder, dtype)
        byte_tokenizer.save(folder / "tokenizer.json")
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        (folder / "tools.json").write_text("[]")
        (folder / "README.md").write_text("A model card.")
        return folder

    return make
