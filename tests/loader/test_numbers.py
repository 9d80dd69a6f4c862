"""Random numbers that are a function of a key and an index."""

import numpy as np

from gpustore.loader.numbers import below, fractions, key_of, permutation, words


def test_words_are_those_of_splitmix64():
    # The first outputs for the seed 1234567, as published with the reference implementation.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert words(1234567, np.arange(3)).tolist() == expected


def test_parts_of_a_key_all_count_and_in_order():
    keys = {
        key_of(),
        key_of(0),
        key_of(0, 0),
        key_of(1, 0),
        key_of(0, 1),
        key_of(2**64 - 1),
    }
    assert len(keys) == 6


def test_numbers_below_a_limit_are_equally_likely():
    found = np.bincount(below(key_of(5), np.arange(60_000), 6), minlength=6)
    assert len(found) == 6
    assert abs(found - 10_000).max() < 500  # five standard deviations


def test_numbers_of_an_index_are_the_same_alone_and_together():
    key = key_of(9)
    together = fractions(key, np.arange(100))
    assert [float(fractions(key, i)) for i in range(100)] == together.tolist()
    assert together.min() >= 0
    assert together.max() < 1


def test_permutations_have_each_number_once():
    assert sorted(permutation(key_of(3), 1000).tolist()) == list(range(1000))
    assert permutation(key_of(3), 1000).tolist() != permutation(key_of(4), 1000).tolist()
