"""Perplexity of checkpoint folders on a text, along their clean path: what quantising a real model costs it.

    python scripts/perplexity.py TEXT FOLDER [FOLDER ...] [--tokens 20000] [--window 512] [--threads 1] [--json FILE]

`measure/perplexity.py` says how the text is cut into windows and which tokens are scored. All folders must cut the text
into the same tokens. The difference from the first folder is paired by window, with a bootstrap interval.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fourleaf.checkpoint.quantised import load_checkpoint
from fourleaf.errors import FourleafError
from fourleaf.measure import bootstrap
from fourleaf.measure.circumstances import Ticker, processor
from fourleaf.measure.perplexity import WINDOW, losses, token_ids, windows
from fourleaf.measure.tables import table

FOLDERS = "all folders must have one tokenizer"


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="plain text, UTF-8")
    parser.add_argument("folders", nargs="+", type=Path, help="checkpoints; the first is what others are compared with")
    parser.add_argument("--tokens", type=int, default=20_000, help="of the text's beginning")
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap")
    parser.add_argument("--json", type=Path, help="write every number to this file")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    text = given.text.read_text(encoding="utf-8")
    ids = [token_ids(folder, text, given.tokens) for folder in given.folders]
    if not all(torch.equal(ids[0], other) for other in ids):
        parser.error(FOLDERS)
    pieces = windows(ids[0], given.window)
    ticker, found = Ticker(sys.stderr), {}
    for folder in given.folders:
        told = partial(ticker, what=str(folder))
        found[str(folder)] = losses(load_checkpoint(folder), pieces, told)
    ticker.close()
    first = np.array(found[str(given.folders[0])])
    rows = [["checkpoint", "loss, nats", "perplexity", "loss minus the first's"]]
    for name, loss in found.items():
        mean = bootstrap.mean(loss, given.seed)
        off = bootstrap.mean(np.array(loss) - first, given.seed)
        more = f"{off.value:+.4f} ({off.low:+.4f} to {off.high:+.4f})"
        rows.append([name, f"{mean.value:.4f}", f"{np.exp(mean.value):.3f}", more])
    print("\n".join(table(rows)))
    about = {"text": given.text.name, "tokens": len(ids[0]), "window": given.window, "windows": len(pieces)}
    print({**about, "torch": torch.__version__, "processor": processor(), "threads": given.threads})
    if given.json is not None:
        given.json.write_text(json.dumps({**about, "losses": found}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except FourleafError as error:
        sys.exit(f"perplexity: {error}")
