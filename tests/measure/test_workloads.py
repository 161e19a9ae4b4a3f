from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest
import torch

from fourleaf.engine.engine import Engine
from fourleaf.engine.request import GenerateParams
from fourleaf.errors import ConfigError
from fourleaf.measure import workloads
from fourleaf.measure.workloads import workload
from fourleaf.tasks.cabin import testsets
from fourleaf.tasks.cabin.phrases import held_out
from fourleaf.tasks.cabin.schema import answer_text, check


@pytest.fixture(scope="module")
def engine(tiny) -> Iterator[Engine]:
    before = torch.get_num_threads()
    yield Engine.load(tiny, num_threads=1)
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def copied():
    return list(islice(workloads.copying(), 12))


def test_what_is_copied_was_held_out_of_training(copied):
    for example in copied:
        check(example)
        values = testsets.copied_values([example])
        assert values
        assert all(held_out(value) for value in values), values
        assert workloads.copied_share(example) >= workloads.COPIED_SHARE


def test_copying_is_the_same_every_time(copied):
    assert list(islice(workloads.copying(), 3)) == copied[:3]
    assert len({example.utterance for example in copied}) == len(copied)


def test_a_copying_answer_is_right_when_it_is_copied(engine, copied, monkeypatch):
    monkeypatch.setattr(workloads, "copying", lambda: iter(copied))
    work = workload(engine, "copying", 2, GenerateParams())
    assert work.params == GenerateParams()
    right = engine.tokenizer.encode_markup(answer_text(copied[0]))
    assert work.is_right(engine, 0, right)
    assert work.is_right(engine, 0, [*right, engine.end_id])
    assert not work.is_right(engine, 1, right)
    assert not work.is_right(engine, 0, right[:-3])


def test_random_prompts_and_answers_hold_no_control_token(engine):
    work = workload(engine, "random", 4, GenerateParams(mode="ar", max_tokens=512))
    controls = {*engine.tokenizer.controls.values(), engine.mask_id}
    assert work.examples is None
    assert work.params.max_tokens == workloads.RANDOM_ANSWER_TOKENS
    assert {token for token, _ in work.params.logit_bias} == controls
    assert len({tuple(prompt) for prompt in work.prompts}) == 4
    for index, prompt in enumerate(work.prompts):
        assert len(prompt) == workloads.RANDOM_PROMPT_TOKENS
        params = replace(work.of(index, work.params), max_tokens=8)
        ((answer, last),) = engine.generate_many([prompt], params)
        assert last.finish_reason == "length"
        assert not controls & {*prompt, *answer}


def test_each_random_answer_has_random_numbers_of_its_own(engine):
    work = workload(engine, "random", 1, GenerateParams())
    assert work.of(0, work.params) != work.of(1, work.params)
    greedy = GenerateParams()
    assert work.of(0, greedy) == work.of(1, greedy) == greedy


def test_an_unknown_workload_is_refused_by_name(engine):
    with pytest.raises(ConfigError, match="copying"):
        workload(engine, "chess", 1, GenerateParams())
