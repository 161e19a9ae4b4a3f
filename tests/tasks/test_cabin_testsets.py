from collections import Counter
from itertools import islice

import pytest

from fourleaf.tasks.cabin import testsets
from fourleaf.tasks.cabin.compose import COUNT_WEIGHTS
from fourleaf.tasks.cabin.generator import stream, training_composer
from fourleaf.tasks.cabin.schema import check


@pytest.mark.parametrize("name", testsets.NAMES)
def test_a_test_set_is_the_one_on_record(name):
    assert testsets.digest(name) == testsets.recorded()[name]


@pytest.mark.parametrize("name", testsets.NAMES)
def test_a_test_set_has_the_announced_mix(name):
    examples = testsets.build(name)
    assert len(examples) == len({e.utterance for e in examples}) == 1000
    tags = Counter(tag for example in examples for tag in example.tags)
    assert tags["free_text"] >= 400
    assert min(tags["repair"], tags["typo"], tags["no_call"]) >= 100
    counts = Counter(len(example.calls) for example in examples)
    speaking = 1000 - counts[0]
    for count, weight in enumerate(COUNT_WEIGHTS, 1):
        assert abs(counts[count] / speaking - weight / 100) < 0.01, count
    for example in examples:
        check(example)


def test_copied_text_of_the_first_set_is_never_trained_on():
    values = testsets.copied_values(testsets.build("fillers"))
    assert len(values) > 300
    listed = training_composer().side.requests.fillers.listed.values()
    assert not values & {form.casefold() for forms in listed for form in forms}
    for example in islice(stream(11), 6000):
        assert not values & testsets.copied_values([example]), example.utterance


def test_the_dev_set_is_tagged_from_its_labels():
    dev = testsets.dev()
    assert len(dev) == 160
    for example in dev:
        check(example)
        assert ("no_call" in example.tags) == (not example.calls)
        assert ("single" in example.tags) == (len(example.calls) == 1)
    assert {"single", "multi", "no_call", "free_text", "relative"} <= {tag for e in dev for tag in e.tags}
