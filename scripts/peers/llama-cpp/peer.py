"""llama.cpp by the functions of its binding, llama-cpp-python: scores and continues token ids.

Keys, values and weights are fp32. Prompts that are answered together share forwards, as llama.cpp's own server has it:
all are read in one call, then each call carries a token of each that has not ended.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import llama_cpp
import numpy as np
from peers.lines import serve, wave

Prompts = Sequence[Sequence[int]]
_FP32 = 0  # GGML_TYPE_F32
_ERROR = 4  # GGML_LOG_LEVEL_ERROR


class Llama:
    """A model of a GGUF file with room for so many sequences."""

    def __init__(self) -> None:
        self.faults: list[str] = []

        def heard(level: int, text: bytes, _: object) -> None:
            if level == _ERROR:
                self.faults.append(text.decode(errors="replace").strip())

        self._log = llama_cpp.llama_log_callback(heard)  # kept: the library calls it as long as it runs
        llama_cpp.llama_log_set(self._log, ctypes.c_void_p(0))

    def load(self, path: str, threads: int, room: int, together: int) -> dict[str, Any]:
        """room: tokens of a sequence. Raises RuntimeError, in llama.cpp's words, for a file that it does not take."""
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not model:
            raise RuntimeError("; ".join(self.faults))
        asked = llama_cpp.llama_context_default_params()
        asked.n_ctx, asked.n_seq_max = room * together, together
        asked.n_batch = asked.n_ubatch = room * together
        asked.n_threads = asked.n_threads_batch = threads
        asked.type_k = asked.type_v = _FP32
        self.context = llama_cpp.llama_init_from_model(model, asked)
        if not self.context:
            raise RuntimeError("; ".join(self.faults))
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(room * together, 0, 1)
        self.width = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        about = llama_cpp.llama_print_system_info().decode()
        return {"version": llama_cpp.__version__, "about": about, "dtype": "float32"}

    def score(self, texts: Prompts, file: str, kept: int) -> None:
        """Writes log-probabilities to a .npz: `own`, of each token given those before it, and `full`, all of them, of
        the positions of the first `kept` texts."""
        own, full = [], []
        for number, text in enumerate(texts):
            llama_cpp.llama_memory_clear(self.memory, True)
            logits = self._forward([(0, token, place, True) for place, token in enumerate(text)])[:-1].astype(
                np.float64
            )
            logits -= logits.max(1, keepdims=True)
            logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
            own.append(logprobs[np.arange(len(text) - 1), text[1:]])
            if number < kept:
                full.append(logprobs)
        np.savez(file, own=np.concatenate(own), full=np.concatenate(full) if full else np.zeros((0, self.width)))

    def answer(self, prompts: Prompts, max_tokens: int, stop: int, banned: list[int]) -> dict[str, Any]:
        """Greedy answers to prompts that come at once, as `wave` has it."""
        llama_cpp.llama_memory_clear(self.memory, True)
        return wave(len(prompts), self._steps(prompts, max_tokens, stop, banned))

    def _steps(
        self, prompts: Prompts, max_tokens: int, stop: int, banned: list[int]
    ) -> Iterator[list[tuple[int, list[int]]]]:
        rows = [
            (index, token, place, place == len(prompt) - 1)
            for index, prompt in enumerate(prompts)
            for place, token in enumerate(prompt)
        ]
        lengths = [len(prompt) for prompt in prompts]
        live = list(range(len(prompts)))
        for _ in range(max_tokens):
            logits = self._forward(rows)
            logits[:, banned] = -np.inf
            chosen = logits.argmax(1).tolist()
            yield [(index, [token]) for index, token in zip(live, chosen, strict=True)]
            going = [(index, token) for index, token in zip(live, chosen, strict=True) if token != stop]
            if not going:
                return
            rows = [(index, token, lengths[index], True) for index, token in going]
            live = [index for index, _ in going]
            for index in live:
                lengths[index] += 1

    def _forward(self, rows: list[tuple[int, int, int, bool]]) -> np.ndarray:
        """rows: (sequence, token, position, whether its logits are wanted). -> logits of those wanted [rows, V]."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (sequence, token, place, is_wanted) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, place
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = is_wanted
        if code := llama_cpp.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode returns {code}")
        wanted = sum(row[3] for row in rows)
        found = ctypes.cast(llama_cpp.llama_get_logits(self.context), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(found, (wanted, self.width)).copy()


if __name__ == "__main__":
    engine = Llama()
    serve({"load": engine.load, "score": engine.score, "answer": engine.answer})
