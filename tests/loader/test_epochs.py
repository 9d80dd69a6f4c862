"""Epochs of a loader and of its copies in workers."""

import pickle

from gpustore.loader.epochs import Epochs


def test_the_next_epoch_comes_when_all_workers_have_ended():
    epochs = Epochs()
    places = [(0, 2), (1, 2)]
    assert [epochs.begin(place) for place in places] == [0, 0]
    epochs.end((1, 2))
    assert epochs.shared == 0
    epochs.end((0, 2))
    assert epochs.shared == 1
    assert epochs.begin((0, 2)) == 1


def test_an_epoch_that_was_ended_before_is_ended_by_all_again():
    epochs = Epochs()
    for place in (0, 2), (1, 2):
        epochs.begin(place)
    for place in (0, 2), (1, 2):
        epochs.end(place)
    epochs.choose(0)
    epochs.begin((0, 2))
    epochs.end((0, 2))
    assert epochs.shared == 0


def test_a_worker_goes_on_in_the_epoch_that_was_loaded():
    epochs = Epochs()
    epochs.load(7, (0, 1))
    assert (epochs.now, epochs.shared, epochs.begin((0, 1))) == (7, 7, 7)
    epochs.end((0, 1))
    assert (epochs.now, epochs.shared, epochs.begin((0, 1))) == (7, 8, 8)


def test_a_copy_has_epochs_of_its_own():
    epochs = Epochs(3)
    copy = pickle.loads(pickle.dumps(epochs))
    copy.choose(5)
    assert (epochs.now, copy.now) == (3, 5)
