"""What a model takes in memory, by formula: from shapes alone, for the CPU path as it runs.

Everything is in bytes. Item: bytes of a number in the dtype that the model computes in. Formulas of rows count what is
alive at the widest point of a layer, in the order in which its code makes and drops it; fp32 counts 4 bytes.

Shapes: R rows, D hidden, H heads, G key-value heads, A head dim, K key dim, V value dim, W conv kernel, L rows of a
chunk of the delta rule, F MLP width, E experts, S experts a row uses, Y vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from fourleaf.checkpoint.disk import num_bytes
from fourleaf.checkpoint.names import own_shapes
from fourleaf.kernels.delta import CHUNK
from fourleaf.kernels.products import FILLED, can_block
from fourleaf.kernels.serving import LEAST_KEPT, MOST_KEPT
from fourleaf.model.config import ModelConfig
from fourleaf.quant.backends import BACKENDS, MOST_UNPACKED
from fourleaf.quant.int4 import Int4Config, num_groups
from fourleaf.quant.linear import STACKS, is_quantised

PARTS = ("embeddings", "attention", "GDN", "dense MLP", "experts", "shared experts", "norms", "head", "left out")
WIDE = 4  # fp32, which norms, softmax, states and the delta rule are computed in at least
# Beside the model: code that is loaded on first use, thread pools, and a tokenizer's tables for each of its tokens.
# Measured on Linux with CPU builds of torch, above a process that has imported it (docs/memory.md).
PROGRAM_BYTES, TOKEN_BYTES = 33 << 20, 900
# onnxruntime with its libraries, and each of its sessions, one a quantised linear.
RUNTIME_BYTES, SESSION_BYTES = 24 << 20, 85_000
# oneDNN's products: the library's code, and each of its kernels, one for each shape and number of rows. Measured.
BLOCKS_BYTES, KERNEL_BYTES = 10 << 20, 530_000
# What the allocator takes for what is alive in a forward: pieces that it cannot use again add a quarter. Measured.
ALLOCATOR = 1.25
# What the engine is made with (`engine.pages`, `engine.scheduler`, `engine.cache`, `engine.prefix`; a test compares):
# positions in a page; rows of a forward at most; bytes of its prefix cache, and of these what snapshots may take; pages
# between two snapshots at least.
PAGE_SIZE, FORWARD_ROWS = 32, 512
CACHE_BYTES, SNAPSHOT_SHARE = 256 << 20, 0.25
LEAST_GRID = 16
# Linears that serving joins into one matrix, a copy beside the originals.
_JOINED = ("q_proj", "k_proj", "v_proj", "in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "gate_proj", "up_proj")
# Linears that are products by themselves; of the head, where it is small, serving has a copy by columns as well.
_HEAD = "lm_head"
_ALONE = ("o_proj", "out_proj", "down_proj")


def part_of(name: str) -> str:
    """The part of the model that a tensor belongs to, by its name in a file of any known family, packed or not."""
    if "embed_tokens" in name:
        return "embeddings"
    if name.startswith("lm_head"):
        return "head"
    if ".layers." not in name or name.startswith(("mtp.", "model.mtp.")) or "visual." in name:
        return "norms" if name.endswith("norm.weight") and "mtp." not in name else "left out"
    if ".self_attn." in name:
        return "attention"
    if ".linear_attn." in name:
        return "GDN"
    if ".mlp." in name:
        kinds = {".experts.": "experts", ".shared_expert": "shared experts", ".gate.weight": "shared experts"}
        return next((part for piece, part in kinds.items() if piece in name), "dense MLP")
    return "norms" if "norm" in name else "left out"


def packed_bytes(shape: tuple[int, ...], scheme: Int4Config) -> int:
    """A matrix [O, I], or a stack of them, in INT4: half a byte a weight, a scale (and zero) for each group."""
    rows, width = math.prod(shape[:-1]), shape[-1]
    return rows * (-(-width // 2) + num_groups(width, scheme.group_size) * 2 * (1 if scheme.symmetric else 2))


def stored_bytes(name: str, shape: tuple[int, ...], dtype: torch.dtype, scheme: Int4Config | None) -> int:
    """One of our tensors in a file: packed where `scheme` packs it, else in `dtype`."""
    is_packed = scheme is not None and is_quantised(name, scheme.plain_layers)
    return packed_bytes(shape, scheme) if is_packed else num_bytes(shape, dtype)


class Weights(NamedTuple):
    """What weights take. anonymous: memory of the process's own. mapped: pages of the files, which the system may drop
    and read again. copies: of these weights, in another order; anonymous. sessions: of onnxruntime."""

    anonymous: int
    mapped: int
    copies: int
    sessions: int


@dataclass(frozen=True)
class Footprint:
    """A model in a dtype, quantised or not.

    dtypes: of tensors in the files, by our names; what is missing there is taken to need converting. scheme: None for
    weights that are not quantised.
    """

    config: ModelConfig
    dtype: torch.dtype
    scheme: Int4Config | None
    dtypes: dict[str, torch.dtype]

    @property
    def item(self) -> int:
        return self.dtype.itemsize

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of our tensors, by name."""
        return own_shapes(self.config)

    @cached_property
    def weights(self) -> Weights:
        """Unquantised weights are copied into the model. Quantised files stay mapped whole; what is not packed and not
        in the model's dtype is copied. Quantised linears of up to MOST_UNPACKED weights are unpacked; those above are
        copied into the order that onnxruntime's product wants, if it is here: half a byte a weight, and for each group
        four numbers in fp32 (its scale as we hand it over, as the session keeps it and in the product's order, and a
        sum) and a zero point of half a byte. What arranging them took beside that goes back (`heap.trim`). A weight
        that serving holds in blocks, too (`kernels.products`), is copied once more, and so is such a head."""
        anonymous = mapped = copies = sessions = 0
        scheme, runtime = self.scheme, _has_runtime()
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            if scheme is None or not is_quantised(name, scheme.plain_layers):
                stored = self.dtypes.get(name, torch.bfloat16)
                mapped += 0 if scheme is None else size * stored.itemsize
                anonymous += 0 if scheme is not None and stored == self.dtype else size * self.item
                copies += self._is_joined(name) * size * self.item
                continue
            mapped += packed_bytes(shape, scheme)
            if name.rpartition(".")[2] in STACKS:
                continue
            if size <= MOST_UNPACKED:
                copies += size * self.item
            elif runtime:
                sessions += 1
                copies += size // 2 + shape[0] * num_groups(shape[1], scheme.group_size) * (8 * WIDE + 1) // 2
        copies += sum(math.prod(shape) * (1 + (name == _HEAD)) * self.item for name, shape in self.blocked.items())
        return Weights(anonymous, mapped, copies, sessions)

    @cached_property
    def blocked(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of each product whose weight is held in blocks, too (`kernels.products`)."""
        found: dict[str, tuple[int, int]] = {}
        for name, shape in self.shapes.items():
            if (product := self._product(name)) is not None:
                found[product] = found.get(product, (0, 0))[0] + shape[0], shape[1]
        return {product: shape for product, shape in found.items() if can_block(math.prod(shape), self.dtype)}

    def _product(self, name: str) -> str | None:
        """A name of the product whose weight a tensor is, or is part of; None where it is in none."""
        owner, _, linear = name.removesuffix(".weight").rpartition(".")
        if name == "lm_head.weight" or (name == "model.embed_tokens.weight" and self.config.tie_word_embeddings):
            return _HEAD
        if self.scheme is not None or not name.endswith(".weight"):
            return None
        if linear in _JOINED:
            return owner
        return name if linear in _ALONE else None

    def _is_joined(self, name: str) -> bool:
        return self.scheme is None and name.split(".")[-2] in _JOINED

    def experts(self) -> int:
        """Weights of the routed experts of one layer, as they are held."""
        shapes = {n: s for n, s in self.shapes.items() if n.startswith("model.layers.0.mlp.experts.")}
        if self.scheme is not None:
            return sum(packed_bytes(shape, self.scheme) for shape in shapes.values())
        return sum(math.prod(shape) for shape in shapes.values()) * self.item

    def recurrent(self) -> int:
        """States and convolution tails of one sequence: H K V in fp32 and (W-1) channels, for each GDN layer."""
        config = self.config
        layers = config.layer_types.count("linear_attention")
        matrix = config.value_dim * config.linear_key_head_dim * max(WIDE, self.item)
        return layers * (matrix + (config.linear_conv_kernel_dim - 1) * config.conv_dim * self.item)

    def page(self) -> int:
        """Keys and values of PAGE_SIZE positions: 2 G A numbers a position and attention layer."""
        layers = self.config.layer_types.count("full_attention")
        return layers * 2 * self.config.num_key_value_heads * self.config.head_dim * self.item * PAGE_SIZE

    def grid(self) -> int:
        """Pages between two snapshots: the fewest, from LEAST_GRID on, that take at least a snapshot's bytes, or the
        longest sequence's."""
        pages = -(-self.recurrent() // self.page()) if self.page() else self.longest
        return max(LEAST_GRID, min(pages, self.longest))

    @property
    def longest(self) -> int:
        """Pages of the longest sequence that the model takes."""
        return num_pages(self.config.max_position_embeddings)

    def cached(self, cache: int, running: int) -> int:
        """What is kept for later requests once a cache of `cache` bytes is full, beside `running` pages of requests
        that run: the rest of its pages, of which there are at least the longest sequence's, and its snapshots."""
        page, state = self.page(), self.recurrent()
        pages = max(self.longest, int(cache * (1 - SNAPSHOT_SHARE)) // page) if page else 0
        snapshots = max(1, int(cache * SNAPSHOT_SHARE) // state) if state else 0
        return max(0, pages - running) * page + snapshots * state

    @property
    def answer_rows(self) -> int:
        """Rows of a canvas, or the one row of `ar`."""
        return self.config.block_size or 1

    def workspace(self, context: int, batch: int) -> int:
        """The widest forward: FORWARD_ROWS rows of prompts (all but the last block, of every sequence), or fewer where
        there are no more; or as many canvases as fit, which read all that lies before them; or their logits, in the
        model's dtype and twice in fp32 (raw, and their softmax). Beside it rotary tables, masks, the recurrent states
        as they were, which a forward keeps until it has succeeded, and a matrix that is unpacked."""
        config, prompt = self.config, max(1, context - self.answer_rows)
        together = min(batch, -(-FORWARD_ROWS // prompt) + 1)
        rows, cells = min(FORWARD_ROWS, prompt * batch), self._cells(prompt, batch)
        prefill = self._layer(rows, cells) + self._gathered(prompt, together, 0)
        canvases = min(batch, max(1, FORWARD_ROWS // self.answer_rows))
        rows = canvases * self.answer_rows
        denoise = self._layer(rows, rows) + self._gathered(context, canvases, config.block_size or 0)
        head = rows * config.vocab_size * (self.item + 2 * WIDE)
        positions = max(LEAST_KEPT, 1 << (context - 1).bit_length())
        turns = 2 * positions * config.head_dim * self.item if positions <= MOST_KEPT else 0
        states = self.recurrent() * canvases
        return (
            int(ALLOCATOR * max(prefill, denoise, head))
            + self._masks(context, batch)
            + states
            + turns
            + self._unpacking()
        )

    def _cells(self, prompt: int, batch: int) -> int:
        """Rows of prompts in a forward as mixers see them: those of several texts side by side, filled up to the
        longest. Where texts are cut to fit a forward, they are of unequal length."""
        if batch == 1 or prompt * batch <= FORWARD_ROWS:
            return min(FORWARD_ROWS, prompt * batch)
        return min(prompt * batch, FORWARD_ROWS + min(prompt, FORWARD_ROWS))

    def _layer(self, rows: int, cells: int) -> int:
        """The residual stream and its norm, and the widest of MLP and mixers."""
        kinds = set(self.config.layer_types)
        inner = [rows * self._mlp()]
        inner += [cells * self._attention()] if "full_attention" in kinds else []
        inner += [cells * self._gdn()] if "linear_attention" in kinds else []
        return rows * 2 * self.config.hidden_size * self.item + max(inner)

    def _gathered(self, keys: int, sequences: int, block: int) -> int:
        """Keys and values of one attention layer that are copied for a forward: out of their pages where there are
        several sequences (one is read in place), and once more in front of a canvas's own."""
        if "full_attention" not in self.config.layer_types:
            return 0
        copies = (sequences > 1) + (block > 0)
        numbers = 2 * self.config.num_key_value_heads * self.config.head_dim
        return copies * sequences * (keys + block) * numbers * self.item

    def _masks(self, context: int, batch: int) -> int:
        """Which keys rows of a forward see whose texts began in one before: a truth value and, inside the product, a
        number for each. Rows are filled up as in `_cells`. Of a text that takes several forwards each one's is larger
        than the one before and cannot take its place, so that the allocator holds two of them (measured)."""
        prompt = max(1, context - self.answer_rows)
        if prompt * batch <= FORWARD_ROWS or "full_attention" not in self.config.layer_types:
            return 0
        rows = FORWARD_ROWS + min(prompt, FORWARD_ROWS)
        return rows * context * (1 + self.item)

    def _attention(self) -> int:
        """A row: q, k, v (and gate) joined; q and k turned, and what is turned into them; outputs, and gated ones."""
        config = self.config
        heads, groups, gates = config.num_attention_heads, config.num_key_value_heads, config.attn_output_gate
        turned, outputs = 2 * (heads + groups), heads * (2 + gates)
        return ((1 + gates) * heads + 2 * groups + turned + outputs) * config.head_dim * self.item

    def _gdn(self) -> int:
        """A row: qkv, z, b and a joined; channels with their tail, and after the convolution; and in the delta rule,
        for each head in fp32: q, k and v as given and by chunks, k scaled, reads, writes, both solved parts, three
        squares of a chunk, written rows, outputs twice, and the state behind each chunk."""
        config = self.config
        key, value, heads = config.linear_key_head_dim, config.linear_value_head_dim, config.linear_num_value_heads
        joined = config.conv_dim + config.value_dim + 2 * heads
        rule = 8 * key + 6 * value + 3 * CHUNK + key * value / CHUNK
        return int((joined + 2 * config.conv_dim) * self.item + heads * rule * max(WIDE, self.item))

    def _mlp(self) -> int:
        """A row: gate and up joined, their product, the output; SiLU(gate) beside gate where linears are packed. Of a
        mixture: scores of all experts three times in fp32, its S copies of the row before and after the experts and
        weighted, the shared expert's own."""
        config, dim = self.config, self.config.hidden_size
        if not config.num_experts:
            return ((3 + (self.scheme is not None)) * config.intermediate_size + dim) * self.item
        copies = 3 * config.num_experts_per_tok * dim + 2 * dim + 3 * config.shared_expert_intermediate_size
        return copies * self.item + 3 * config.num_experts * WIDE

    def _unpacking(self) -> int:
        """The largest matrix that is unpacked for a product and dropped again, one expert's: two bytes a weight on the
        way, two fp32 numbers at the end."""
        if self.scheme is None or not self.config.num_experts:
            return 0
        return (2 + 2 * WIDE) * 2 * self.config.moe_intermediate_size * self.config.hidden_size

    def program(self) -> int:
        """What comes with the program and the tokenizer."""
        sessions = self.weights.sessions
        runtime = RUNTIME_BYTES + SESSION_BYTES * sessions if sessions else 0
        kernels = len(FILLED) * len(set(self.blocked.values()))
        runtime += BLOCKS_BYTES + KERNEL_BYTES * kernels if kernels else 0
        return PROGRAM_BYTES + TOKEN_BYTES * self.config.vocab_size + runtime


def num_pages(tokens: int) -> int:
    """Pages that hold `tokens` positions of one sequence."""
    return -(-tokens // PAGE_SIZE)


def _has_runtime() -> bool:
    return BACKENDS["matmulnbits_int8"].missing() is None
