"""Question sheets as training documents: what they hold, how they are masked, and that training sees what is served."""

import dataclasses
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fourleaf.decide.canvas import Reader
from fourleaf.decide.sheet import HOW, Printer
from fourleaf.diffusion.noise import NoiseConfig, noisy_blocks, slot_block
from fourleaf.engine.engine import Engine
from fourleaf.errors import ConfigError
from fourleaf.train import heldout, recipes
from fourleaf.train.config import TrainConfig
from fourleaf.train.data import Document, batches, collate, mixed, num_rows
from fourleaf.train.recipes import train_cabin
from fourleaf.train.sheets import SAME, sheet_source


@pytest.fixture(scope="module")
def documents(tokenizer, chat) -> list[Document]:
    return list(islice(sheet_source(tokenizer, chat)(3, 8), 120))


@pytest.fixture(scope="module")
def asked(documents, tokenizer) -> list[Document]:
    """Those that are asked for what their state says."""
    return [document for document in documents if not _asked_again(document, tokenizer)]


def _num_questions(document: Document) -> int:
    assert document.slots is not None
    return int(document.slots.sum())


def _asked_again(document: Document, tokenizer) -> bool:
    return SAME in tokenizer.decode(document.ids)


def test_a_document_is_a_sheet_its_canvas_and_the_end_token(documents, tokenizer):
    for document in documents:
        assert document.slots is not None
        prompt, answer = document.ids[: document.answer_start], document.ids[document.answer_start :]
        assert all(0 < position < document.answer_start for position in document.hints)
        assert tokenizer.decode(prompt).endswith(f"{HOW}<|assistant|>")
        assert answer[-1] == tokenizer.end_id
        assert len(document.slots) == len(answer) - 1
        text = tokenizer.decode(answer[:-1])
        expected = "".join(f"{n}{letter}" for n, letter in enumerate(text[1::2], 1))
        assert text == expected
        assert set(text[1::2]) <= set("ABCDEFG")
        given = text[1] if _asked_again(document, tokenizer) else ""
        assert given + tokenizer.decode(answer[:-1][document.slots]) == text[1::2]


def test_a_question_asked_again_has_one_answer_and_only_its_first_letter_tells_it(documents, tokenizer):
    again = [document for document in documents if _asked_again(document, tokenizer)]
    orders, letters = set(), set()
    for document in again:
        answer = tokenizer.decode(document.ids[document.answer_start : -1])
        lines = tokenizer.decode(document.ids[: document.answer_start]).split("\n")
        asked = {line.split(". ", 1)[1] for line in lines if line[0].isdigit()}
        shown = {label: text for text, label in (line[2:].rsplit(":", 1) for line in lines if line.startswith("- "))}
        assert len(asked) == 1
        assert len({shown[answer[i : i + 2]] for i in range(0, len(answer), 2)}) == 1
        assert document.slots is not None
        assert document.slots.tolist() == [i % 2 == 1 and i > 1 for i in range(len(answer))]
        assert not document.hints
        orders.add(tuple(shown.values()))
        letters.update(answer[3::2])
    assert len(again) > 10
    assert len(orders) > len(again) / 2
    assert len(letters) > 2


def test_both_formats_have_the_same_share_of_groups_and_about_the_same_of_tokens(asked):
    together = [document for document in asked if _num_questions(document) > 1]
    alone = [document for document in asked if _num_questions(document) == 1]
    ratio = sum(len(d.ids) for d in alone) / sum(len(d.ids) for d in together)
    assert 0.7 < ratio < 1.5
    states = {tuple(d.ids[:40].tolist()) for d in alone}
    assert 0.8 < len(states) / len(together) < 1.25


def test_the_source_is_a_function_of_its_seed_and_keeps_to_the_curriculum(tokenizer, chat):
    source = sheet_source(tokenizer, chat)

    def drawn(seed, calls):
        return [document.ids.tolist() for document in islice(source(seed, calls), 20)]

    assert drawn(1, 2) == drawn(1, 2)
    assert drawn(1, 2) != drawn(2, 2)
    assert max(_num_questions(d) for d in islice(source(1, 1), 40)) == 4
    assert max(_num_questions(d) for d in islice(source(1, 8), 80)) > 6


def test_some_sheets_show_their_options_turned(documents, tokenizer):
    texts = [tokenizer.decode(document.ids[: document.answer_start]) for document in documents]
    assert any("- no:1A\n- yes:1B" in text for text in texts)
    assert any("- yes:1A\n- no:1B" in text for text in texts)


def _lines(document: Document, tokenizer) -> list[tuple[str, str]]:
    """Each line of the prompt, and the hint behind it, which is all of the hints' tokens."""
    lines, hints = [""], [""]
    for position, token in enumerate(document.ids[: document.answer_start].tolist()):
        text = tokenizer.decode([token])
        if text == "\n":
            lines.append("")
            hints.append("")
        elif position in document.hints:
            hints[-1] += text
        else:
            lines[-1] += text
    return list(zip(lines, hints, strict=True))


def _answer(document: Document, tokenizer) -> set[str]:
    text = tokenizer.decode(document.ids[document.answer_start : -1])
    return {text[i : i + 2] for i in range(0, len(text), 2)}


def test_verdicts_say_of_each_option_whether_it_is_the_answer(documents, tokenizer):
    judged = whole = 0
    for document in documents:
        right = _answer(document, tokenizer)
        options = [(line[-2:], hint) for line, hint in _lines(document, tokenizer) if line.startswith("- ")]
        said = [(label, hint) for label, hint in options if hint]
        assert all(hint == (" yes" if label in right else " no") for label, hint in said)
        judged += bool(said)
        whole += len(said) == len(options)
    assert 0.3 < judged / len(documents) < 0.6
    assert judged / 3 < whole < judged


def test_words_say_of_each_question_what_its_answer_is(documents, tokenizer):
    worded = 0
    for document in documents:
        right, lines = _answer(document, tokenizer), _lines(document, tokenizer)
        told = {line[-2:]: line[2:-3] for line, _ in lines if line.startswith("- ") and line[-2:] in right}
        for line, hint in lines:
            if hint and not line.startswith("- "):
                answer = next(text for label, text in told.items() if line.startswith(f"{label[0]}. "))
                assert hint == f" {answer}"
                worded += 1
    assert worded > 30


def test_lines_that_ask_for_nothing_have_no_hints(documents, tokenizer):
    for document in documents:
        for line, hint in _lines(document, tokenizer):
            assert not hint or line.startswith("- ") or line[:3].endswith(". ")


def test_a_sheet_without_its_verdicts_is_the_served_one(documents, tokenizer, chat):
    """What is printed between the template's tokens, as one text, has the same ids."""
    for document in documents[:40]:
        text = tokenizer.decode(document.ids[: document.answer_start])
        content = text.removeprefix("<|user|>").removesuffix("<|assistant|>")
        assert chat.render([{"role": "user", "content": content}]) == document.ids[: document.answer_start].tolist()


def test_hints_are_learnt_as_answers_are(tokenizer):
    ids = np.array([5, 6, 7, 8, 9, tokenizer.end_id])
    plain, hinted = (Document(ids, 4, hints=hints) for hints in ((), (2,)))
    settings = {"objective": "ar", "end_id": tokenizer.end_id, "mask_id": tokenizer.mask_id, "block_size": 32}
    settings |= {"noise": NoiseConfig(), "fill_weight": 0.1, "prompt_weight": 0.0, "rng": np.random.default_rng(0)}
    without, with_hint = (collate([document], **settings) for document in (plain, hinted))
    assert without.next_target.tolist() == [9, tokenizer.end_id]
    assert with_hint.next_target.tolist() == [7, 9, tokenizer.end_id]
    assert with_hint.next_weight.tolist() == [1.0, 1.0, 1.0]
    assert (without.num_next, with_hint.num_next) == (2, 3)


def test_one_call_asks_for_what_is_told_alone(tokenizer, chat):
    easy, full = (list(islice(sheet_source(tokenizer, chat)(5, calls), 60)) for calls in (1, 8))
    ruled = [sum("Rules:" in tokenizer.decode(document.ids) for document in drawn) for drawn in (easy, full)]
    assert ruled[0] == 0
    assert ruled[1] > 10


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=24).filter(any), st.integers(0, 2**32 - 1))
def test_only_slots_are_masked_and_a_block_weighs_as_its_slots_do(slots, seed):
    slots = np.array(slots)
    ids = np.arange(100, 140)
    block = slot_block(ids, 5, slots, NoiseConfig(), np.random.default_rng(seed))
    assert block.start == 5
    assert block.target.tolist() == ids[5 : 5 + len(slots)].tolist()
    assert 1 <= block.masked.sum() <= slots.sum()
    assert not (block.masked & ~slots).any()
    assert block.num_targets == slots.sum()
    assert block.row_weight * block.masked.sum() == pytest.approx(slots.sum())


def test_every_number_of_slots_is_masked_and_all_of_them_most_often():
    rng = np.random.default_rng(0)
    slots = np.array([False, True] * 4)
    counts = np.bincount(
        [slot_block(np.arange(8), 0, slots, NoiseConfig(), rng).masked.sum() for _ in range(2000)], minlength=5
    )
    assert counts[0] == 0
    assert min(counts[1:]) > 150
    assert counts[4] > 1000


def test_training_reads_the_very_canvas_that_is_served(tokenizer, chat, documents, tiny_trunk):
    """Collated with all slots masked, a document has the rows that a decision's first pass has."""
    from fourleaf.model.transformer import Transformer

    trunk = tiny_trunk(vocab_size=tokenizer.vocab_size)
    config = dataclasses.replace(trunk, block_size=32, mask_token_id=tokenizer.mask_id)
    torch.manual_seed(0)
    model = Transformer(config).to(torch.float64).eval()
    printer = Printer(tokenizer, chat, tokenizer.mask_id)
    reader = Reader(model, printer.letters, tokenizer.mask_id)
    document = next(d for d in documents if _num_questions(d) > 3)
    assert document.slots is not None
    batch = collate(
        [document],
        objective="joint",
        end_id=tokenizer.end_id,
        mask_id=tokenizer.mask_id,
        block_size=32,
        noise=NoiseConfig(full_slots=1.0),
        fill_weight=0.1,
        prompt_weight=0.0,
        rng=np.random.default_rng(0),
    )
    assert batch.num_masked == _num_questions(document)
    assert batch.masked_weight.tolist() == [1.0] * _num_questions(document)
    with torch.inference_mode():
        trained = model.head(model(batch.work)[0][batch.masked_rows])
        canvas = document.ids[document.answer_start : -1].tolist()
        state = reader.prefill(())
        rows = [(0, int(row)) for row in np.flatnonzero(document.slots)]
        prompt = document.ids[: document.answer_start].tolist()
        served = reader._forward(state, prompt, [(canvas, document.slots.tolist())], rows)
    torch.testing.assert_close(trained, served, rtol=0, atol=1e-9)


def test_a_canvas_costs_its_own_rows_in_a_batch(documents):
    document = documents[0]
    assert document.slots is not None
    assert num_rows(document, "joint", 32) == len(document.ids) - 1 + len(document.slots)
    assert num_rows(document, "ar", 32) == len(document.ids) - 1
    groups = batches(documents, 640, np.random.default_rng(0), lambda d: num_rows(d, "joint", 32))
    assert sum(map(len, groups)) == len(documents)


def test_noise_of_other_documents_is_what_it_was():
    """Drawn before slots existed: runs without sheets keep their bits."""
    ids = np.array([*range(10, 50), 0])
    blocks = noisy_blocks(ids, 5, 0, 32, NoiseConfig(), np.random.default_rng(7))
    assert [(block.start, len(block.target)) for block in blocks] == [(5, 32), (37, 32)]


def test_mixed_sources_share_the_tokens():
    def constant(length):
        def source(seed, calls):
            while True:
                yield Document(np.full(length, length), 1)

        return source

    drawn = list(islice(mixed([(constant(30), 0.75), (constant(50), 0.25)])(0, 1), 400))
    tokens = {length: sum(len(d.ids) for d in drawn if len(d.ids) == length) for length in (30, 50)}
    assert tokens[50] / sum(tokens.values()) == pytest.approx(0.25, abs=0.01)


def test_a_share_of_all_tokens_is_refused():
    for share in (-0.1, 1.0):
        with pytest.raises(ConfigError, match="judgements"):
            TrainConfig(stages=recipes.CABIN_STAGES, steps=1, judgements=share)


def test_the_recipe_takes_sheets_and_grids_along_and_a_resumed_run_keeps_its_shares(tokenizer, monkeypatch, tmp_path):
    stages = tuple(dataclasses.replace(stage, rows=400) for stage in recipes.CABIN_STAGES)
    monkeypatch.setattr(recipes, "CABIN_STAGES", stages)
    monkeypatch.setattr(recipes, "cabin_tokenizer", lambda **_: tokenizer)
    monkeypatch.setattr(heldout, "_MAX_TOKENS", 8)
    quick = {"compiled": False, "overrides": {"pool_size": 8, "log_every": 1, "eval_examples": 4}}
    lines = []
    made = train_cabin(
        tmp_path,
        steps=2,
        judgements=0.5,
        puzzles=0.2,
        evaluate=heldout.evaluator,
        report=lines.append,
        num_workers=1,
        **quick,
    )
    found = [line["judgements"] for line in lines if "evaluation" in line]
    assert found[0].keys() == {"alone"}
    assert found[-1].keys() == {"alone", "together"}
    assert 0 <= found[-1]["together"]["questions"] <= 1
    assert Engine.load(made).model.config.is_block_diffusion
    train_cabin(tmp_path, steps=3, num_workers=1, **quick)
    with pytest.raises(ConfigError, match=r"judgements 0\.5"):
        train_cabin(tmp_path, steps=4, judgements=0.25, num_workers=1, **quick)
    with pytest.raises(ConfigError, match=r"puzzles 0\.2"):
        train_cabin(tmp_path, steps=4, puzzles=0.1, num_workers=1, **quick)
