"""The byte shuffle and the bit shuffle of Blosc 1, in NumPy."""

import numpy as np


def shuffle(data, typesize):
    """All first bytes of the elements, then all second ones, ...; then what is left."""
    n = len(data) // typesize
    planes = data[: n * typesize].reshape(n, typesize).T.ravel()
    return np.concatenate((planes, data[n * typesize :]))


def bit_shuffle(data, typesize):
    """The same with bits; nothing if the number of elements is no multiple of 8."""
    n = len(data) // typesize
    if n == 0 or n % 8:
        return data.copy()
    bits = np.unpackbits(data[: n * typesize], bitorder="little").reshape(n, 8 * typesize)
    return np.concatenate((np.packbits(bits.T, bitorder="little"), data[n * typesize :]))


SHUFFLES = {"byte": shuffle, "bit": bit_shuffle}
