import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from fourleaf.diffusion.noise import NoiseConfig
from fourleaf.kernels import reference
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer
from fourleaf.train.data import Batch, Document, collate

END, MASK, VOCAB, BLOCK = 0, 1, 61, 32
SMALL = tiny.FOUR | {"vocab_size": VOCAB, "block_size": BLOCK, "mask_token_id": MASK}


def _weight(name: str, shape: torch.Size, random: torch.Generator) -> Tensor:
    """Weights as a trained model might have: no norm is flat, no gate is shut, no Clover tensor is at its start."""
    noise = torch.randn(shape, generator=random, dtype=torch.float64)
    last = name.removesuffix(".weight").rpartition(".")[2]
    if name.endswith("linear_attn.norm.weight"):
        return 1 + 0.3 * noise
    if last.endswith("norm"):
        return 0.3 * noise
    centre, spread = {
        "A_log": (0.0, 0.7),
        "dt_bias": (-1.0, 0.7),
        "conv1d": (0.0, 0.5),
        "conv_right_weight": (0.0, 0.4),
        "bd_softmax_logit_scale": (3.0, 0.7),
        "bd_softmax_history_bias": (math.log(BLOCK) - 1, 0.5),
        "bd_softmax_history_c": (1.0, 0.3),
        "embed_tokens": (0.0, 1.0),
    }.get(last, (0.0, shape[-1] ** -0.5))
    return centre + spread * noise


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Transformer]:
    """A small model with random weights. `moe` gives it experts; other options go into its config."""

    def make(*, moe: bool = True, seed: int = 0, dtype: torch.dtype = torch.float64, **options) -> Transformer:
        config = ModelConfig(**(SMALL | (tiny.EXPERTS if moe else tiny.DENSE) | options))
        model = Transformer(config)
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, tensor in model.named_parameters():
                tensor.copy_(_weight(name, tensor.shape, random))
        return model.to(dtype).eval()

    return make


@pytest.fixture(scope="session")
def make_documents() -> Callable[..., list[Document]]:
    """Documents of random ids, one for each (length, answer's start); the last id is the end token."""

    def make(shapes: Sequence[tuple[int, int]], seed: int = 0) -> list[Document]:
        rng = np.random.default_rng(seed)
        documents = []
        for length, answer_start in shapes:
            ids = rng.integers(2, VOCAB, length)
            ids[-1] = END
            documents.append(Document(ids, answer_start))
        return documents

    return make


@pytest.fixture(scope="session")
def joint_batch() -> Callable[..., Batch]:
    """Documents as a batch of the joint objective, with blocks of at most `block_size` rows."""

    def make(documents: Sequence[Document], *, block_size: int = BLOCK, shifted: float = 0.0, seed: int = 0) -> Batch:
        return collate(
            documents,
            objective="joint",
            end_id=END,
            mask_id=MASK,
            block_size=block_size,
            noise=NoiseConfig(shifted=shifted),
            fill_weight=0.1,
            prompt_weight=0.0,
            rng=np.random.default_rng(seed),
        )

    return make


class Twin:
    """The whole model from the loops of `kernels.reference`: one document's clean rows and canvases that read them."""

    def __init__(self, config: ModelConfig, tensors: dict[str, Tensor]) -> None:
        self.config = config
        self.tensors = tensors

    def run(
        self, clean: Sequence[int], canvases: Sequence[tuple[int, Sequence[int]]]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """canvases: (start, ids). -> (logits of the clean rows [T, Y], then of each canvas [N, Y]; router logits of
        each MoE layer [R, E], in the same order of rows)."""
        starts = [0, *(start for start, _ in canvases)]
        embedding = self.tensors["model.embed_tokens.weight"]
        pieces = [torch.stack([embedding[i] for i in ids]) for ids in (clean, *(ids for _, ids in canvases))]
        routers = []
        for index, kind in enumerate(self.config.layer_types):
            layer = f"model.layers.{index}"
            normed = [self._norm(f"{layer}.input_layernorm", piece) for piece in pieces]
            mix = self._attention if kind == "full_attention" else self._deltanet
            pieces = [x + y for x, y in zip(pieces, mix(layer, normed, starts), strict=True)]
            normed = [self._norm(f"{layer}.post_attention_layernorm", piece) for piece in pieces]
            outs = [self._mlp(f"{layer}.mlp", piece, is_canvas=i > 0) for i, piece in enumerate(normed)]
            pieces = [x + y for x, (y, _) in zip(pieces, outs, strict=True)]
            routers += (
                [torch.cat([logits for _, logits in outs if logits is not None])] if self.config.num_experts else []
            )
        head = self.tensors["lm_head.weight"]
        return [self._norm("model.norm", piece) @ head.T for piece in pieces], routers

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight, eps = self.tensors[f"{name}.weight"], self.config.rms_norm_eps
        gain = weight if self.config.norm_weights == "plain" else 1 + weight
        return torch.stack([reference.rms_norm(row, gain, eps) for row in x.flatten(0, -2)]).view_as(x)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        out, bias = x @ self.tensors[f"{name}.weight"].T, self.tensors.get(f"{name}.bias")
        return out if bias is None else out + bias

    def _attention(self, layer: str, pieces: list[Tensor], starts: list[int]) -> list[Tensor]:
        config, name = self.config, f"{layer}.self_attn"
        outs, keys, values = [], torch.empty(0), torch.empty(0)
        for index, (x, start) in enumerate(zip(pieces, starts, strict=True)):
            rows = x.shape[0]
            q = self._linear(f"{name}.q_proj", x).view(rows, config.num_attention_heads, -1)
            k, v = (self._linear(f"{name}.{p}_proj", x).view(rows, config.num_key_value_heads, -1) for p in "kv")
            q, gate = q[..., : config.head_dim], q[..., config.head_dim :]
            if config.qk_norm:
                q, k = self._norm(f"{name}.q_norm", q), self._norm(f"{name}.k_norm", k)
            q, k = self._turn(q, start), self._turn(k, start)
            if index == 0:
                keys, values = k, v
                mixed = reference.causal_attention(q, k, v)
            else:
                mixed = reference.canvas_attention(q, k, v, keys[:start], values[:start])
            mixed = mixed * torch.sigmoid(gate) if config.attn_output_gate else mixed
            outs.append(self._linear(f"{name}.o_proj", mixed.flatten(1)))
        return outs

    def _turn(self, x: Tensor, start: int) -> Tensor:
        how = self.config.rope_theta, self.config.rotary_dim, self.config.rope_scaling
        rows = [[reference.rotate(head, start + t, *how) for head in row] for t, row in enumerate(x)]
        return torch.stack([torch.stack(row) for row in rows])

    def _deltanet(self, layer: str, pieces: list[Tensor], starts: list[int]) -> list[Tensor]:
        config, name = self.config, f"{layer}.linear_attn"
        own = {key.removeprefix(f"{name}."): t for key, t in self.tensors.items() if key.startswith(f"{name}.")}
        taps = own["conv1d.weight"].squeeze(1)
        before = pieces[0].new_zeros(config.linear_conv_kernel_dim - 1, config.conv_dim)
        outs, states, committed = [], [], before
        for index, (x, start) in enumerate(zip(pieces, starts, strict=True)):
            qkv = x @ own["in_proj_qkv.weight"].T
            beta = torch.sigmoid(x @ own["in_proj_b.weight"].T)
            g = -own["A_log"].exp() * torch.log(1 + torch.exp(x @ own["in_proj_a.weight"].T + own["dt_bias"]))
            if index == 0:
                committed = torch.cat((before, qkv))  # row start-3 of the text is row `start` here
                q, k, v = self._heads(reference.causal_conv(before, qkv, taps))
                empty = x.new_zeros(config.linear_num_value_heads, config.linear_key_head_dim, v.shape[-1])
                mixed, states = reference.delta_rule(q / config.linear_key_head_dim**0.5, k, v, g, beta, empty)
            else:
                tail = committed[start : start + before.shape[0]]
                heads = self._heads(reference.canvas_conv(tail, qkv, taps, own["conv_right_weight"]))
                mixed = reference.canvas_mixer(
                    heads,
                    (g, beta),
                    states[start],
                    (own["bd_softmax_logit_scale"], own["bd_softmax_history_bias"], own["bd_softmax_history_c"]),
                    config.block_size,
                    readout_scale=config.bd_readout_scale,
                    history_decay=config.bd_history_decay,
                    value_beta=config.bd_value_beta,
                )
            z = (x @ own["in_proj_z.weight"].T).view_as(mixed)
            eps, weight = config.rms_norm_eps, own["norm.weight"]
            normed = [
                torch.cat([reference.gated_rms_norm(o, gate, weight, eps) for o, gate in zip(*row, strict=True)])
                for row in zip(mixed, z, strict=True)
            ]
            outs.append(torch.stack(normed) @ own["out_proj.weight"].T)
        return outs

    def _heads(self, convolved: Tensor) -> tuple[Tensor, ...]:
        config = self.config
        shape = config.linear_num_key_heads, config.linear_num_value_heads, config.linear_key_head_dim
        rows = [reference.split_heads(reference.silu(row), *shape) for row in convolved]
        return tuple(torch.stack(part) for part in zip(*rows, strict=True))

    def _mlp(self, name: str, x: Tensor, is_canvas: bool) -> tuple[Tensor, Tensor | None]:
        config, tensors = self.config, self.tensors
        if not config.num_experts:
            gate_up = torch.cat((tensors[f"{name}.gate_proj.weight"], tensors[f"{name}.up_proj.weight"]))
            return torch.stack([reference.expert(row, gate_up, tensors[f"{name}.down_proj.weight"]) for row in x]), None
        logits = x @ tensors[f"{name}.gate.weight"].T
        top_k, allowed = config.num_experts_per_tok, set(range(config.num_experts))
        if is_canvas and config.coreset_top_p is not None:
            scores = torch.stack([reference.softmax(row) for row in logits])
            allowed = reference.coreset(scores, top_k, config.coreset_top_p, config.coreset_min or top_k)
        experts = tensors[f"{name}.experts.gate_up_proj"], tensors[f"{name}.experts.down_proj"]
        shared, share = f"{name}.shared_expert", tensors[f"{name}.shared_expert_gate.weight"]
        gate_up = torch.cat((tensors[f"{shared}.gate_proj.weight"], tensors[f"{shared}.up_proj.weight"]))
        down = tensors[f"{shared}.down_proj.weight"]
        outs = [
            reference.mixture(row, at, allowed, top_k, *experts)
            + torch.sigmoid(share @ row) * reference.expert(row, gate_up, down)
            for row, at in zip(x, logits, strict=True)
        ]
        return torch.stack(outs), logits


@pytest.fixture(scope="session")
def make_twin() -> Callable[[Transformer], Twin]:
    """The slow twin of a model, with leaves of its own for gradients."""

    def make(model: Transformer) -> Twin:
        tensors = {name: t.detach().clone().requires_grad_() for name, t in model.named_parameters()}
        return Twin(model.config, tensors)

    return make
