"""The whole way on a toy: AR first, conversion, the joint objective, then answers by the engine in both modes."""

from collections.abc import Iterator
from functools import cache
from random import Random

import numpy as np
import pytest

from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.text.chat import ChatTemplate
from fourleaf.train.config import Stage, TrainConfig
from fourleaf.train.data import Document
from fourleaf.train.folder import RunFolder
from fourleaf.train.recipes import template_path
from fourleaf.train.trainer import Ids, Trainer

LETTERS, LONGEST, ASKED = "abcdef", 4, 100
STAGES = (
    Stage(
        objective="ar",
        share=0.4,
        curriculum=((0.0, 1), (0.15, 2)),
        rows=512,
        peak=1e-2,
        warmup_steps=20,
        decay_from=0.7,
        floor=0.3,
    ),
    Stage(objective="joint", share=0.6, curriculum=((0.0, 2),), rows=1024, peak=7e-3, warmup_steps=10, decay_from=0.3),
)


@pytest.fixture(scope="module")
def run(byte_tokenizer, tiny_trunk, tmp_path_factory):
    """A model that was trained to repeat a word of up to four letters: (its engine, the log)."""
    chat = ChatTemplate(template_path().read_text(encoding="utf-8"), byte_tokenizer)

    @cache
    def repeat(word: str) -> Document:
        prompt = chat.render([{"role": "user", "content": word}])
        return Document(np.array([*prompt, *byte_tokenizer.encode(word), byte_tokenizer.end_id]), len(prompt))

    def source(seed: int, max_calls: int) -> Iterator[Document]:
        random = Random(seed)
        while True:
            yield repeat("".join(random.choices(LETTERS, k=random.randint(1, 2 * max_calls))))

    shapes = {"hidden_size": 48, "intermediate_size": 96, "head_dim": 16, "rope_theta": 100.0}
    shapes |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
    trunk = tiny_trunk(vocab_size=byte_tokenizer.vocab_size, max_position_embeddings=64, **shapes)
    ids = Ids(end=byte_tokenizer.end_id, mask=byte_tokenizer.mask_id, block_size=8)
    out = tmp_path_factory.mktemp("toy")
    config = TrainConfig(stages=STAGES, steps=400, pool_size=256)
    model = Trainer(config, trunk, source, ids, out).run()
    model.refresh()
    return Engine("toy", model, byte_tokenizer, chat), list(RunFolder(out).lines())


def test_the_losses_fall_to_nearly_nothing(run):
    _, log = run
    assert log[0]["next"] > 2
    assert log[-1]["next"] < 0.05
    assert log[-1]["masked"] < 0.05


@pytest.mark.parametrize("mode", ["ar", "diffuse"])
def test_words_are_repeated_exactly(mode, run):
    engine, _ = run
    random = Random(99)
    words = ["".join(random.choices(LETTERS, k=random.randint(1, LONGEST))) for _ in range(ASKED)]
    prompts = [engine.chat.render([{"role": "user", "content": word}]) for word in words]
    answers = engine.generate_many(prompts, GenerateParams(mode=mode, max_tokens=20))
    exact = [engine.tokenizer.decode(ids) == word for (ids, _), word in zip(answers, words, strict=True)]
    assert sum(exact) >= 0.95 * ASKED
    assert {last.finish_reason for _, last in answers} == {"stop"}
