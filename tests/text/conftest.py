import json
from pathlib import Path

import hypothesis
import pytest

import fourleaf.tasks.cabin
from fourleaf.text.tokenizer import Tokenizer, train_tokenizer

# A busy machine is no fault of the code.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

_DATA = Path(fourleaf.tasks.cabin.__file__).parent / "data"


@pytest.fixture(scope="session")
def corpus() -> list[str]:
    """Hand-written utterances, and their answers in the bundled model's markup."""
    texts = []
    for line in (_DATA / "utterances.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        calls = (json.dumps(call, ensure_ascii=False) for call in row["calls"])
        texts += [row["utterance"], "".join(f"<tool_call>{call}</tool_call>" for call in calls) or row["text"]]
    return texts


@pytest.fixture(scope="session")
def tools() -> list[dict]:
    return json.loads((_DATA / "tools.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def tokenizer(corpus: list[str]) -> Tokenizer:
    return train_tokenizer(corpus)
