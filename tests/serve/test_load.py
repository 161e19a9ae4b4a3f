"""A sample of `scripts/soak_load.py`, which says what it does; the five minutes are `make soak`."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "soak_load.py"


def test_a_server_under_load_loses_nothing_and_drains():
    words = [sys.executable, str(SCRIPT), "--seconds", "10", "--connections", "8"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
