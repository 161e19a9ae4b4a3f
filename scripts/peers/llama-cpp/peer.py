"""llama.cpp by its own functions: scores and continues token ids.

The library is the one that xllamacpp's wheel carries, compiled already. The declarations are those of
llama-cpp-py-sync, one build earlier, whose own library wants a newer libc than most have. The environment variable
LLAMA_CPP_LIB names another library to measure, of the same build: one that was compiled for the processor, say.

Keys, values and weights are fp32. Prompts that are answered together share forwards, as llama.cpp's own server has it:
all are read in one call, then each call carries a token of each that has not ended.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp_py_sync._cffi_bindings import ffi
from peers.lines import serve, wave

Prompts = Sequence[Sequence[int]]
# Parameters from the first to the last as the library fills them in: they tell whether the declarations are those of
# its build.
_DEFAULTS = {"n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "yarn_ext_factor": -1.0, "swa_full": True}


class Llama:
    """A model of a GGUF file with room for so many sequences."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def _open(self) -> None:
        """Loads the library. Raises OSError where it cannot be, and RuntimeError if it is of another build."""
        path = os.environ.get("LLAMA_CPP_LIB")
        self.origin = path or f"xllamacpp {version('xllamacpp')}"
        self.lib = ffi.dlopen(path or str(compiled()))

        @ffi.callback("void(enum ggml_log_level, const char *, void *)")
        def heard(level: int, text: Any, _: Any) -> None:
            if level == self.lib.GGML_LOG_LEVEL_ERROR:
                self.faults.append(words(text).strip())

        self._log = heard  # kept: the library calls it as long as it runs
        self.lib.llama_log_set(heard, ffi.NULL)
        asked = self.lib.llama_context_default_params()
        found = {name: getattr(asked, name) for name in _DEFAULTS}
        if found != _DEFAULTS or (asked.type_k, asked.type_v) != (self.lib.GGML_TYPE_F16,) * 2:
            raise RuntimeError(f"{self.origin} is no library of this binding's build: its parameters begin as {found}")

    def load(self, path: str, threads: int, room: int, together: int) -> dict[str, Any]:
        """room: tokens of a sequence. Raises RuntimeError, in llama.cpp's words, for a file that it does not take, and
        what `_open` does."""
        self._open()
        lib = self.lib
        lib.llama_backend_init()
        model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
        if not model:
            raise RuntimeError("; ".join(self.faults))
        asked = lib.llama_context_default_params()
        asked.n_ctx, asked.n_seq_max = room * together, together
        asked.n_batch = asked.n_ubatch = room * together
        asked.n_threads = asked.n_threads_batch = threads
        asked.type_k = asked.type_v = lib.GGML_TYPE_F32
        self.context = lib.llama_init_from_model(model, asked)
        if not self.context:
            raise RuntimeError("; ".join(self.faults))
        self.memory = lib.llama_get_memory(self.context)
        self.batch = lib.llama_batch_init(room * together, 0, 1)
        self.width = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
        about = words(lib.llama_print_system_info())
        return {"version": f"{words(lib.llama_version())} ({self.origin})", "about": about, "dtype": "float32"}

    def score(self, texts: Prompts, file: str, kept: int) -> None:
        """Writes log-probabilities to a .npz: `own`, of each token given those before it, and `full`, all of them, of
        the positions of the first `kept` texts."""
        own, full = [], []
        for number, text in enumerate(texts):
            self.lib.llama_memory_clear(self.memory, True)
            rows = [(0, token, place, True) for place, token in enumerate(text)]
            logits = self._forward(rows)[:-1].astype(np.float64)
            logits -= logits.max(1, keepdims=True)
            logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
            own.append(logprobs[np.arange(len(text) - 1), text[1:]])
            if number < kept:
                full.append(logprobs)
        np.savez(file, own=np.concatenate(own), full=np.concatenate(full) if full else np.zeros((0, self.width)))

    def answer(self, prompts: Prompts, max_tokens: int, stop: int, banned: list[int]) -> dict[str, Any]:
        """Greedy answers to prompts that come at once, as `wave` has it."""
        self.lib.llama_memory_clear(self.memory, True)
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
        if code := self.lib.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode returns {code}")
        wanted = sum(row[3] for row in rows)
        found = ffi.buffer(self.lib.llama_get_logits(self.context), 4 * wanted * self.width)
        return np.frombuffer(found, np.float32).reshape(wanted, self.width).copy()


def compiled() -> Path:
    """The library in xllamacpp's wheel, whose own functions need not be loaded for it."""
    spec = importlib.util.find_spec("xllamacpp")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.so"))


def words(text: Any) -> str:
    """A text of the library."""
    return ffi.string(text).decode(errors="replace")


if __name__ == "__main__":
    engine = Llama()
    serve({"load": engine.load, "score": engine.score, "answer": engine.answer})
