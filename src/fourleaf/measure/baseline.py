"""The same weights in Hugging Face `transformers`: what decoding one token at a time costs in the library everyone has.

The only module of the package that imports `transformers`, and it does so when a baseline is made. The four Clover
tensors are left out: what remains is the AR trunk. The baseline is given every advantage that a plain user of the
library has: no gradients, its own cache, and the fastest of its attention implementations, driven either by its
`generate` or by a bare loop over `forward` that leaves out all that `generate` does around it.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fourleaf.engine.engine import Engine
from fourleaf.errors import ConfigError

CLOVER_TENSORS = ("conv_right_weight", "bd_softmax_logit_scale", "bd_softmax_history_bias", "bd_softmax_history_c")
OWN_KEYS = ("model_type", "block_size", "mask_token_id")
ATTENTIONS = ("sdpa", "eager")


@dataclass(frozen=True)
class Run:
    """One answer: its tokens up to and including the end token, and the times of its tokens, in s from the start."""

    tokens: list[int]
    times: list[float]

    @property
    def seconds(self) -> float:
        return self.times[-1]

    @property
    def prefill_seconds(self) -> float:
        """Until the first token: the prompt's forward."""
        return self.times[0]


class Baseline:
    """`transformers`' model of an engine's trunk. Raises ConfigError where the library is not installed."""

    def __init__(self, engine: Engine) -> None:
        try:
            import transformers
            from transformers import Qwen3_5MoeTextConfig, Qwen3_5TextConfig
            from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM
            from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeForCausalLM
            from transformers.utils import logging
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"the baseline needs {error.name}: pip install 'fourleaf[bench]', or --no-transformers leaves it out"
            ) from error
        if engine.model.is_replaced:
            raise ConfigError("the baseline runs ordinary weights and this model's are packed; add --no-transformers")
        # Its advice (missing kernels, unused keys) would land in the middle of a table.
        logging.set_verbosity_error()
        self.version: str = transformers.__version__
        self.end_id, self.mask_id = engine.end_id, engine.mask_id
        assert self.mask_id is not None
        moe = engine.model.config.num_experts > 0
        keys = json.loads(json.dumps(engine.model.config.to_dict()))  # lists, not tuples: the library is strict
        keys = {k: v for k, v in keys.items() if k not in OWN_KEYS and not k.startswith(("bd_", "coreset_"))}
        library: tuple[Any, Any] = (
            (Qwen3_5MoeTextConfig, Qwen3_5MoeForCausalLM) if moe else (Qwen3_5TextConfig, Qwen3_5ForCausalLM)
        )
        self.model = library[1](library[0](**keys))
        weights = {k: v for k, v in engine.model.state_dict().items() if not k.endswith(CLOVER_TENSORS)}
        self.model.to(engine.model.lm_head.weight.dtype).load_state_dict(weights)
        self.model.eval()
        self.banned = [self.mask_id]
        self.temperature = 0.0
        self.attention, self.driver = ATTENTIONS[0], "loop"
        self.trials: dict[str, float] = {}

    def settle(self, prompts: list[list[int]], max_tokens: int) -> None:
        """Keeps the fastest way to run it on `prompts`: each way answers them twice and the second round counts.

        `trials` then says, for each way, the ms a token.
        """
        ways = list(itertools.product(ATTENTIONS, ("generate", "loop")))
        for _ in range(2):
            for attention, driver in ways:
                self.attention, self.driver = attention, driver
                runs = [self.run(prompt, max_tokens) for prompt in prompts]
                cost = 1e3 * sum(r.seconds for r in runs) / sum(len(r.tokens) for r in runs)
                self.trials[f"{attention}, {driver}"] = cost
        self.attention, self.driver = min(ways, key=lambda way: self.trials[", ".join(way)])

    def run(self, prompt: list[int], max_tokens: int) -> Run:
        """The answer to one prompt, greedy or drawn at `temperature`. No token of `banned` is chosen; the mask id is
        one, as our own policies have it."""
        self.model.set_attn_implementation(self.attention)
        drive: Callable[[torch.Tensor, int], Run] = self._loop if self.driver == "loop" else self._generate
        with torch.inference_mode():
            return drive(torch.tensor([prompt]), max_tokens)

    def _loop(self, ids: torch.Tensor, max_tokens: int) -> Run:
        tokens: list[int] = []
        times: list[float] = []
        banned = torch.tensor(self.banned)
        begin = time.perf_counter()
        cache = None
        while len(tokens) < max_tokens and self.end_id not in tokens[-1:]:
            out = self.model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
            cache = out.cache
            logits = out.logits[0, -1]
            logits[banned] = float("-inf")
            if self.temperature:
                drawn = torch.multinomial(torch.softmax(logits / self.temperature, -1), 1)
            else:
                drawn = logits.argmax()
            tokens.append(int(drawn))
            times.append(time.perf_counter() - begin)
            ids = torch.tensor([tokens[-1:]])
        return Run(tokens, times)

    def _generate(self, ids: torch.Tensor, max_tokens: int) -> Run:
        clock = _Clock()
        drawn = {"do_sample": True, "temperature": self.temperature, "top_k": 0} if self.temperature else {}
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            **{"do_sample": False, **drawn},
            max_new_tokens=max_tokens,
            eos_token_id=self.end_id,
            pad_token_id=self.end_id,
            suppress_tokens=self.banned,
            streamer=clock,
        )
        return Run(out[0, ids.shape[1] :].tolist(), clock.times)


class _Clock:
    """A `streamer` for `generate`: notes when each token came. The first thing it is given is the prompt."""

    def __init__(self) -> None:
        self.begin: float | None = None
        self.times: list[float] = []

    def put(self, _: torch.Tensor) -> None:
        now = time.perf_counter()
        if self.begin is None:
            self.begin = now
        else:
            self.times.append(now - self.begin)

    def end(self) -> None:
        """Nothing is left to flush."""
