import numpy as np

from fourleaf.diffusion import philox
from fourleaf.diffusion.policy import Noise, Purpose, keys_of


def test_many_counters_at_once_are_numpys_one_by_one():
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**64, (6, 200), dtype=np.uint64)
    words[:, :2] = [[0, 2**64 - 1]] * 6
    words[2, :] = np.maximum(words[2], 1)  # numpy counts up before its first word
    found = philox.first_words((words[0], words[1]), (words[2], words[3], words[4], words[5]))
    words[2] -= np.uint64(1)
    for column, mine in zip(words.T, found.tolist(), strict=True):
        assert mine == np.random.Philox(key=column[:2], counter=column[2:]).random_raw()


def test_keys_do_not_depend_on_how_many_are_drawn_together():
    draws = [(Noise(seed, choice), list(range(5, 5 + 9 * seed)), seed % 3) for seed in (1, 2, 3) for choice in (0, 4)]
    together = keys_of(draws, Purpose.ACCEPT)
    alone = [noise.keys([p], index, Purpose.ACCEPT)[0] for noise, positions, index in draws for p in positions]
    assert len(together) > philox.FEW
    assert together.tolist() == [int(key) for key in alone]
