"""The whole network. Read `Transformer.forward` first.

Shapes: R flat rows, D hidden, Y vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourleaf.kernels import serving
from fourleaf.kernels.products import Product, can_block
from fourleaf.model.attention import Attention
from fourleaf.model.config import ModelConfig
from fourleaf.model.deltanet import DeltaNet
from fourleaf.model.layers import MLP, Derived, Fused, Replacement, RMSNorm, rotary_angles
from fourleaf.model.moe import Experts, MixtureOfExperts, Router
from fourleaf.model.state import AttentionCache, Recurrent, State
from fourleaf.model.work import Work


class Layer(nn.Module):
    """Pre-norm mixer, then pre-norm MLP, both residual."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config)
        self.is_attention = config.layer_types[index] == "full_attention"
        if self.is_attention:
            self.self_attn = Attention(config)
        else:
            self.linear_attn = DeltaNet(config)
        self.is_moe = config.num_experts > 0
        self.mlp = MixtureOfExperts(config) if self.is_moe else MLP(config.hidden_size, config.intermediate_size)
        self.parts = Derived(self._parts)

    def forward(
        self, x: Tensor, work: Work, angles: tuple[Tensor, ...], cache: AttentionCache | Recurrent | None
    ) -> tuple[Tensor, Tensor | None]:
        """x: [R, D] -> (x [R, D], router logits [R, E] or None)."""
        if not torch.is_grad_enabled() and not self.is_moe:
            return self._serve(x, work, angles, cache), None
        normed = self.input_layernorm(x)
        if self.is_attention:
            assert not isinstance(cache, Recurrent)
            x = x + self.self_attn(normed, work, angles, cache)
        else:
            assert cache is None or isinstance(cache, Recurrent)
            x = x + self.linear_attn(normed, work, cache)
        normed = self.post_attention_layernorm(x)
        if self.is_moe:
            out, router_logits = self.mlp(normed, work)
            return x + out, router_logits
        return x + self.mlp(normed), None

    def _parts(self) -> tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Tensor, ...], tuple[Tensor, ...]]:
        assert isinstance(self.mlp, MLP)
        mixer = self.self_attn if self.is_attention else self.linear_attn
        return mixer.forward, self.mlp.forward, self.input_layernorm.gain(), self.post_attention_layernorm.gain()

    def products(self) -> list[Product]:
        """Those of serving."""
        mlp = self.mlp.shared_expert if isinstance(self.mlp, MixtureOfExperts) else self.mlp
        own = [mlp.fused.product(), mlp.down()]
        if self.is_attention:
            joined = self.self_attn.joined()
            return [joined.heads, joined.out, *own]
        return [self.linear_attn.fused.product(), self.linear_attn.constants().out, *own]

    def _serve(
        self, x: Tensor, work: Work, angles: tuple[Tensor, ...], cache: AttentionCache | Recurrent | None
    ) -> Tensor:
        """The same, without what a call of a module and the look-up of its parts cost: a tenth of an `ar` step."""
        mix, mlp, before, between = self.parts()
        normed = serving.rms_norm(x, *before)
        x = x + (mix(normed, work, angles, cache) if self.is_attention else mix(normed, work, cache))
        return x + mlp(serving.rms_norm(x, *between))


class Trunk(nn.Module):
    """Embedding, layers, final norm: the `model.` of checkpoint names."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        shape = config.vocab_size, config.hidden_size
        is_meta = torch.get_default_device().type == "meta"  # then without values, as in a GDN layer
        self.embed_tokens = nn.Embedding(*shape, _weight=torch.empty(shape) if is_meta else None)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config)


class Transformer(nn.Module):
    """A Qwen3.5-style decoder whose clean path is that AR model, exactly, and which also denoises canvases."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.logits = Derived(self._logits)
        self.is_replaced = False
        if not self.lm_head.weight.is_meta:
            self.apply(self._reset)

    def forward(self, work: Work, state: State | None = None) -> tuple[Tensor, list[Tensor]]:
        """Runs the rows of `work`. -> (hidden [R, D] for `head`, router logits of each MoE layer).

        Causal rows extend `state`; canvas rows read it. Without a state every sequence starts at 0 and nothing is
        kept: that is training.
        """
        if self.is_replaced:
            with torch.enable_grad():  # no parameter wants one; this chooses the path that calls its linears as modules
                return self._run(work, state)
        return self._run(work, state)

    def _run(self, work: Work, state: State | None) -> tuple[Tensor, list[Tensor]]:
        assert state is None or state.lengths == work.starts
        assert work.canvas is None or work.canvas.max_len <= (self.config.block_size or 0)
        x, angles = self.begin(work)
        routers = []
        for index, layer in enumerate(self.model.layers):
            x, router_logits = layer(x, work, angles, None if state is None else state.layers[index])
            if router_logits is not None:
                routers.append(router_logits)
        if state is not None:
            stand = work.causal.num - work.num_held
            ran = zip(work.starts, work.causal.lengths, strict=True)
            state.lengths = [start + rows * (b < stand) for b, (start, rows) in enumerate(ran)]
        return self.model.norm(x), routers

    def begin(self, work: Work) -> tuple[Tensor, tuple[Tensor, ...]]:
        """What the first layer takes: embedded rows [R, D], and what attention turns its rows by."""
        x = self._embed(work.tokens)
        return x, self._angles(work, x.dtype)

    def _embed(self, tokens: Tensor) -> Tensor:
        """[R] -> [R, D]."""
        if torch.is_grad_enabled():
            return self.model.embed_tokens(tokens)
        return self.model.embed_tokens.weight.index_select(0, tokens)

    def _angles(self, work: Work, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """What attention layers turn their rows by, in the form that suits training or serving."""
        config = self.config
        if torch.is_grad_enabled():
            return rotary_angles(work.positions, config, dtype)
        shape = config.rope_theta, config.rotary_dim, config.head_dim, config.rope_scaling
        return serving.rotary_turns(work.positions, work.end, *shape, dtype)

    def head(self, hidden: Tensor) -> Tensor:
        """Raw logits of the rows that need them: [R, D] -> [R, Y]."""
        if torch.is_grad_enabled() or self.logits().blocked is None:
            return F.linear(hidden, self.lm_head.weight)
        return self.logits()(hidden)

    def _logits(self) -> Product:
        weight = self.lm_head.weight
        return Product(weight, by_columns=can_block(weight.numel(), weight.dtype, weight.device))

    def products(self) -> list[Product]:
        """Those of serving, made from the parameters where they have not been yet."""
        found = [self.logits()]
        for layer in self.model.layers if not self.is_replaced else ():
            assert isinstance(layer, Layer)
            found += layer.products()
        return found

    def refresh(self) -> None:
        """To be called when parameters have changed outside of training: forgets what serving derived from them."""
        for module in self.modules():
            for part in vars(module).values():
                if isinstance(part, Derived | Fused):
                    part.refresh()

    def replace(self, name: str, new: Replacement) -> None:
        """Puts `new` in the place of the linear or the experts at `name`. The model cannot be trained from then on."""
        parent, _, child = name.rpartition(".")
        owner, old = self.get_submodule(parent), self.get_submodule(name)
        setattr(owner, child, new)
        for part in vars(owner).values():
            if isinstance(part, Fused):
                part.replace(old, new)
        self.is_replaced = True
        self.requires_grad_(False)

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters by checkpoint name; a tied head is not a tensor of its own."""
        return iter(self.named_parameters())

    @property
    def num_parameters(self) -> int:
        replaced = sum(m.num_weights for m in self.modules() if isinstance(m, Replacement))
        return replaced + sum(p.numel() for p in self.parameters())

    @torch.no_grad()
    def _reset(self, module: nn.Module) -> None:
        std = self.config.initializer_range
        if isinstance(module, nn.Linear | nn.Embedding | Router):
            module.weight.normal_(0.0, std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.zero_()
        if isinstance(module, Experts):
            module.gate_up_proj.normal_(0.0, std)
            module.down_proj.normal_(0.0, std)
