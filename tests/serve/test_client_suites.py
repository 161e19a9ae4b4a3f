"""Each client's suite in `tests/clients`, run by an environment of its own, against one server of the bundled model.

`make clients` builds the environments. Where one is missing or older than its requirements, its suite is skipped; in
continuous integration, where the variable CI is set, it fails.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

ROOT = Path(__file__).parents[2]
SUITES = ROOT / "tests" / "clients"
NAMES = sorted(path.parent.name for path in SUITES.glob("*/suite.py"))
# None of them may ask anybody but the server: no list of prices, no hub, no proxy.
ALONE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "NO_PROXY": "*", "LANGSMITH_TRACING": "false"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of the bundled model, in a process of its own, as users have it."""
    words = ["serve", "--port", "0", "--threads", "1", "--log", "none", "--drain-seconds", "1"]
    with subprocess.Popen([sys.executable, "-m", "fourleaf.cli", *words], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said = server.stderr.readline()
        assert said.startswith("cabin is served on "), said
        url = said.split()[4].removesuffix("/v1")
        while httpx2.get(f"{url}/health").status_code != 200:
            assert server.poll() is None
            time.sleep(0.1)
        yield url
        server.terminate()


def why_not(name: str) -> str | None:
    """Why a suite cannot run; None where it can."""
    stamp, wanted = ROOT / ".clients" / name / ".installed", SUITES / name / "requirements.txt"
    if not stamp.is_file():
        return f"{name} is not installed: `make clients` does that, and says what keeps it from it"
    return None if stamp.read_bytes() == wanted.read_bytes() else f"{name}'s requirements have changed: `make clients`"


def test_there_are_suites():
    assert NAMES == ["langchain", "litellm", "llm", "lm-eval"]


@pytest.mark.parametrize("name", NAMES)
def test_the_suite_of_a_client_passes(name, url, tmp_path):
    if reason := why_not(name):
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    python = ROOT / ".clients" / name / "bin" / "python"
    words = ["-m", "pytest", "-q", "-c", SUITES / "pytest.ini", SUITES / name, "--basetemp", tmp_path / "own"]
    env = {**os.environ, **ALONE, "FOURLEAF_URL": url, "HF_HOME": str(tmp_path)}
    env.pop("PYTHONPATH", None)
    done = subprocess.run(
        [python, *words], cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(done.stdout)
    assert done.returncode == 0, f"{name}'s own tests fail, see above"
