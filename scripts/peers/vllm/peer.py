"""vLLM on a CPU: scores and continues token ids, by the steps of its engine.

No token is forbidden, since vLLM would pay for that in each step; whether its answers are those of `ar` shows it.

What vLLM imports for this architecture wants torchvision, for pictures that no text has. Where torchvision's compiled
half does not load, because torch is of another index, its Python half asks in vain for two operators. Then these are
declared; nothing calls them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from peers.lines import serve, wave

try:
    import torchvision  # noqa: F401
except RuntimeError:
    _operators = torch.library.Library("torchvision", "DEF")  # kept: what it declares goes with it
    for _name in ("nms", "qnms"):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import vllm
from vllm.model_executor.models.qwen3_5 import Qwen3_5ForCausalLM
from vllm.sampling_params import RequestOutputKind

# Known by its class, it is not imported once more in a process where nothing is declared.
vllm.ModelRegistry.register_model("Qwen3_5ForCausalLM", Qwen3_5ForCausalLM)

Prompts = Sequence[Sequence[int]]


class Vllm:
    """A model of a Hugging Face folder."""

    def load(self, path: str, threads: int, room: int, together: int, dtype: str, eager: bool) -> dict[str, Any]:
        """room: tokens of a sequence. eager: without torch.compile."""
        torch.set_num_threads(threads)
        self.llm = vllm.LLM(
            path,
            dtype=dtype,
            skip_tokenizer_init=True,
            generation_config="vllm",
            max_model_len=room,
            max_num_seqs=together,
            max_num_batched_tokens=room * together,
            enable_prefix_caching=False,
            enforce_eager=eager,
            max_logprobs=-1,
        )
        self.width = self.llm.llm_engine.model_config.get_vocab_size()
        self.count = 0
        return {"version": vllm.__version__, "about": "eager" if eager else "compiled", "dtype": dtype}

    def score(self, texts: Prompts, file: str, kept: int) -> None:
        """Writes log-probabilities to a .npz: `own`, of each token given those before it, and `full`, all of them, of
        the positions of the first `kept` texts."""
        own, full = [], []
        for number, text in enumerate(texts):
            is_kept = number < kept
            asked = vllm.SamplingParams(
                max_tokens=1, temperature=0, detokenize=False, prompt_logprobs=self.width if is_kept else 0
            )
            (done,) = (one for news in self._outputs([text], asked) for one in news if one.prompt_logprobs)
            rows = done.prompt_logprobs[1:]
            own += [row[token].logprob for row, token in zip(rows, text[1:], strict=True)]
            if is_kept:
                full += [[row[token].logprob for token in range(self.width)] for row in rows]
        np.savez(file, own=np.array(own), full=np.array(full) if full else np.zeros((0, self.width)))

    def answer(self, prompts: Prompts, max_tokens: int, stop: int, banned: list[int]) -> dict[str, Any]:
        """Greedy answers to prompts that come at once, as `wave` has it. banned: see above."""
        asked = vllm.SamplingParams(
            max_tokens=max_tokens,
            temperature=0,
            detokenize=False,
            stop_token_ids=[stop],
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        base = self.count
        steps = (
            [(int(one.request_id) - base, list(one.outputs[0].token_ids)) for one in news]
            for news in self._outputs(prompts, asked)
        )
        return wave(len(prompts), steps)

    def _outputs(self, prompts: Prompts, asked: Any) -> Iterator[list[Any]]:
        """What each step of the engine brings."""
        for prompt in prompts:
            self.llm.llm_engine.add_request(str(self.count), {"prompt_token_ids": list(prompt)}, asked)
            self.count += 1
        while self.llm.llm_engine.has_unfinished_requests():
            yield self.llm.llm_engine.step()


if __name__ == "__main__":
    engine = Vllm()
    serve({"load": engine.load, "score": engine.score, "answer": engine.answer})
