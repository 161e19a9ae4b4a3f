"""Loading and converting in memory that does not grow with the files: measured, in a process of its own."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch

from fourleaf.checkpoint.families import FAMILIES
from fourleaf.checkpoint.files import save_model
from fourleaf.model.config import ModelConfig
from fourleaf.model.transformer import Transformer

MB = 2**20
SHARD = 4 * MB
SHAPES = {
    "vocab_size": 64,
    "hidden_size": 256,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "num_experts": 40,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
}
# Peaks of memory of its own (no file pages), above what the process had before, in bytes.
MEASURE = """
    import json, pathlib, re, sys, threading

    import torch

    from fourleaf.checkpoint.convert import convert_folder
    from fourleaf.checkpoint.files import load_model

    torch.set_num_threads(1)
    source, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])

    def own():
        return 1024 * int(re.search(r"RssAnon:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])

    def peak_of(work):
        before, peak, done = own(), 0, threading.Event()

        def watch():
            nonlocal peak
            while not done.wait(0.001):
                peak = max(peak, own() - before)

        watcher = threading.Thread(target=watch)
        watcher.start()
        kept = work()
        done.set()
        watcher.join()
        return peak

    convert_folder(source, target / "warm", mask_token="5")  # what a first use of torch costs is not the file's
    converted = peak_of(lambda: convert_folder(source, target / "after", mask_token="5", shard_bytes=int(sys.argv[3])))
    loaded = peak_of(lambda: load_model(target / "after", torch.bfloat16))
    print(json.dumps([converted, loaded]))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="Linux tells what memory is a process's own")
def test_converting_takes_a_file_or_a_layer_and_loading_the_model_once(tmp_path):
    torch.manual_seed(0)
    model = Transformer(ModelConfig(**SHAPES)).bfloat16()
    size = sum(t.nbytes for _, t in model.named_tensors())
    layer = sum(t.nbytes for _, t in model.model.layers[0].named_parameters())
    assert size > 11 * layer > 80 * MB
    save_model(model, tmp_path / "source", family=FAMILIES["qwen3_next"], shard_bytes=SHARD)
    run = [sys.executable, "-c", textwrap.dedent(MEASURE), str(tmp_path / "source"), str(tmp_path), str(SHARD)]
    out = subprocess.run(run, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    converted, loaded = json.loads(out.stdout)
    print(f"size {size / MB:.0f}, layer {layer / MB:.0f}, converted {converted / MB:.0f}, loaded {loaded / MB:.0f} MiB")
    assert converted < 4 * layer + 2 * SHARD < 0.6 * size
    assert loaded < size + layer + SHARD
