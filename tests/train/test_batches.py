"""From a seed to the rows of a forward."""

from collections import Counter, defaultdict
from itertools import islice

import numpy as np
import pytest
import torch

from fourleaf.train.data import Document, batches, num_rows, pool

END, MASK, VOCAB, BLOCK = 0, 1, 16, 8


def drawn(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def keys(documents) -> list[tuple]:
    return [(d.answer_start, *d.ids.tolist()) for d in documents]


def test_a_pool_is_a_function_of_seed_number_and_calls_alone(copies):
    third = keys(pool(copies, 7, 3, 40, 2))
    for before in range(3):
        pool(copies, 7, before, 40, 2)
    assert keys(pool(copies, 7, 3, 40, 2)) == third
    others = [(8, 3, 2), (7, 2, 2), (7, 3, 1)]
    assert all(keys(pool(copies, seed, index, 40, calls)) != third for seed, index, calls in others)
    assert keys(pool(copies, 7, 3, 10, 2)) == third[:10]


@pytest.mark.parametrize("objective", ["ar", "joint"])
@pytest.mark.parametrize("budget", [1, 40, 200, 10_000])
def test_batches_hold_each_document_once_and_keep_to_the_rows(objective, budget, copies):
    documents = pool(copies, 0, 0, 100, 8)

    def rows(document: Document) -> int:
        return num_rows(document, objective, BLOCK)

    groups = batches(documents, budget, np.random.default_rng(0), rows)
    assert Counter(keys([d for group in groups for d in group])) == Counter(keys(documents))
    for group in groups:
        assert sum(map(rows, group)) <= budget or len(group) == 1
    by_length = sorted(groups, key=lambda group: (len(group[0].ids), len(group[-1].ids)))
    lengths = [len(d.ids) for group in by_length for d in group]
    assert lengths == sorted(lengths), "documents of like length share a batch"


def test_the_order_of_batches_is_the_generators(copies):
    documents = pool(copies, 0, 0, 100, 8)

    def order(seed: int) -> list:
        groups = batches(documents, 60, np.random.default_rng(seed), lambda d: len(d.ids))
        return [keys(group) for group in groups]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert sorted(order(1)) == sorted(order(2))
    assert order(1) != sorted(order(1), key=lambda group: len(group[0]))


def test_the_rows_that_a_document_is_said_to_cost(copies, collated):
    documents = list(islice(copies(0, 20), 200))
    for document in documents:
        assert num_rows(document, "ar", BLOCK) == len(collated([document], drawn(0), "ar").work.tokens)
        assert num_rows(document, "joint", BLOCK) == len(collated([document], drawn(0), shifted=0.0).work.tokens)
        thrice = collated([document], drawn(0), shifted=0.0, copies=3)
        assert num_rows(document, "joint", BLOCK, copies=3) == len(thrice.work.tokens)
        shifted = len(collated([document], drawn(0), shifted=1.0).work.tokens)
        assert abs(num_rows(document, "joint", BLOCK) - shifted) < BLOCK


PAIR = [Document(np.array([2, 5, 6, 7, END]), 2), Document(np.array([2, 8, 9, END]), 1)]


def test_a_hand_made_batch_of_the_joint_objective(collated):
    batch = collated(PAIR, drawn(0), block_size=2, full=1.0, shifted=0.0)
    work = batch.work
    assert work.tokens.tolist() == [2, 5, 6, 7, 2, 8, 9, *[MASK] * 8], "no end token is an input"
    assert work.causal.lengths == [4, 3]
    assert work.starts == [0, 0]
    assert work.canvas is not None
    assert work.canvas.lengths == [2, 2, 2, 2]
    assert work.canvas_seq == [0, 0, 1, 1]
    assert work.canvas_start == [2, 4, 1, 3]
    assert batch.next_rows.tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.next_target.tolist() == [6, 7, END, 8, 9, END]
    assert batch.next_weight.tolist() == [1.0] * 6
    assert batch.masked_rows.tolist() == list(range(7, 15))
    assert batch.masked_target.tolist() == [6, 7, END, END, 8, 9, END, END]
    assert batch.masked_weight.tolist() == pytest.approx([1, 1, 1, 0.1, 1, 1, 1, 0.1])
    assert (batch.num_next, batch.num_masked, batch.num_tokens) == (6, 6, 7)


def test_a_hand_made_batch_of_the_ar_objective(collated):
    batch = collated(PAIR, drawn(0), "ar", prompt_weight=0.25)
    assert batch.work.tokens.tolist() == [2, 5, 6, 7, 2, 8, 9]
    assert batch.work.canvas is None
    assert batch.next_rows.tolist() == list(range(7))
    assert batch.next_target.tolist() == [5, 6, 7, END, 8, 9, END]
    assert batch.next_weight.tolist() == [0.25, 1, 1, 1, 1, 1, 1]
    assert (batch.num_next, batch.num_masked) == (6, 0), "what a prompt's tokens weigh is no count"
    assert len(batch.masked_rows) == 0


@pytest.mark.parametrize("seed", range(5))
def test_every_row_of_a_noisy_batch_says_what_its_document_says(seed, copies, collated):
    """Prompts are never masked, canvas rows show or ask for the token at their own position."""
    documents = list(islice(copies(seed, 15), 12))
    batch = collated(documents, drawn(seed))
    work, clean = batch.work, batch.num_tokens
    assert work.canvas is not None
    assert work.canvas_seq is not None
    assert MASK not in work.tokens[:clean]
    owner, within = work.canvas.owner.tolist(), work.canvas.within.tolist()
    asked = dict(
        zip(batch.masked_rows.tolist(), zip(batch.masked_target, batch.masked_weight, strict=True), strict=True)
    )
    seen: Counter = Counter()
    weighed: defaultdict[int, float] = defaultdict(float)
    targets: Counter = Counter()
    weights: defaultdict[int, set[float]] = defaultdict(set)
    for row, (block, offset) in enumerate(zip(owner, within, strict=True)):
        seq, position = work.canvas_seq[block], (work.canvas_start or [])[block] + offset
        ids = documents[seq].ids
        is_fill = position >= len(ids)
        truth = END if is_fill else ids[position]
        assert position >= documents[seq].answer_start
        seen[seq, position] += 1
        targets[block] += not is_fill
        if clean + row in asked:
            target, weight = asked.pop(clean + row)
            assert target == truth
            weighed[block] += 0 if is_fill else float(weight)
            weights[block].add(round(float(weight) / (0.1 if is_fill else 1.0), 4))
            assert work.tokens[clean + row] == MASK
        else:
            assert work.tokens[clean + row] == truth
    assert not asked
    assert max(seen.values()) == 1
    answers = {(seq, p) for seq, d in enumerate(documents) for p in range(d.answer_start, len(d.ids))}
    assert answers <= set(seen), "every position of every answer is in a block"
    assert weighed == pytest.approx(targets), "a block weighs as its rows do"
    assert all(len(found) == 1 for found in weights.values()), "and its fill a tenth of that"
    assert batch.num_masked == sum(targets.values()) == len(answers)
    assert batch.num_next == len(answers)


def test_the_same_generator_gives_the_same_batch(copies, collated):
    documents = list(islice(copies(0, 5), 8))
    first, again, other = (collated(documents, drawn(seed)).work.tokens for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert first.shape != other.shape or not torch.equal(first, other)
    assert int(first.max()) < VOCAB
